package stateserver

import (
	"sync"
	"time"
)

const (
	// peersMax bounds the connections that are remembered: about 40 MiB, and more than one backend's share of a gateway.
	peersMax = 1 << 18
	// peersIdle is how long a silent connection is remembered; copies of its frames come within seconds or never.
	peersIdle = 10 * time.Minute
)

type peerKey struct {
	incarnation string
	conn        uint64
}

type peer struct {
	key          peerKey
	seq          uint64
	used         time.Time
	older, newer *peer
}

// connections knows the highest frame number taken of each connection, so that no frame is handled twice or after a later
// one, across stream breaks too (design: protocol 2, "Order across trouble"). Forgetting a connection only gives that up
// for it; a doubled message is still recognised by its uuid.
type connections struct {
	mu sync.Mutex
	// Guarded by mu. The list goes from the connection silent for longest to the newest.
	byKey          map[peerKey]*peer
	oldest, newest *peer
}

func newConnections() *connections { return &connections{byKey: make(map[peerKey]*peer)} }

// connect notes a new connection.
func (c *connections) connect(incarnation string, conn, seq uint64, now time.Time) {
	c.take(incarnation, conn, seq, now)
}

// take says whether a frame is to be handled: its number is above all before it. Frames without a number always are.
func (c *connections) take(incarnation string, conn, seq uint64, now time.Time) bool {
	if seq == 0 {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := peerKey{incarnation, conn}
	p := c.byKey[k]
	if p == nil {
		for c.oldest != nil && (len(c.byKey) >= peersMax || now.Sub(c.oldest.used) > peersIdle) {
			c.drop(c.oldest)
		}
		p = &peer{key: k}
		c.byKey[k] = p
	} else {
		c.unlink(p)
	}
	c.push(p)
	p.used = now
	if seq <= p.seq {
		return false
	}
	p.seq = seq
	return true
}

// forget ends a connection.
func (c *connections) forget(incarnation string, conn uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.byKey[peerKey{incarnation, conn}]; p != nil {
		c.drop(p)
	}
}

func (c *connections) drop(p *peer) {
	c.unlink(p)
	delete(c.byKey, p.key)
}

func (c *connections) push(p *peer) {
	p.older, p.newer = c.newest, nil
	if c.newest != nil {
		c.newest.newer = p
	} else {
		c.oldest = p
	}
	c.newest = p
}

func (c *connections) unlink(p *peer) {
	if p.older != nil {
		p.older.newer = p.newer
	} else {
		c.oldest = p.newer
	}
	if p.newer != nil {
		p.newer.older = p.older
	} else {
		c.newest = p.older
	}
}
