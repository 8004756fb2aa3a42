package gateway

import (
	"sync"

	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/stateclient"
)

// courier brings to the relay what no loop is going to bring: uplinks that were refused and have room now, and the
// disconnects of connections that ended outside of a pass.
type courier struct {
	wake chan struct{}

	mu sync.Mutex
	// Guarded by mu. roomy are connections that the relay has room for again, each of which was refused before, so there
	// are no more of them than connections. lanes have something gathered.
	roomy []poller.ID
	lanes []bool
	// kept are disconnects that were refused, by connection.
	kept    map[uint64]stateclient.Uplink
	keptMax int
	dropped uint64
}

func newCourier(lanes, keptMax int) *courier {
	return &courier{wake: make(chan struct{}, 1), lanes: make([]bool, lanes), kept: make(map[uint64]stateclient.Uplink), keptMax: keptMax}
}

func (c *courier) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// room notes that the relay takes uplinks of these connections again.
func (c *courier) room(ids []uint64) {
	c.mu.Lock()
	for _, id := range ids {
		c.roomy = append(c.roomy, poller.ID(id))
	}
	c.mu.Unlock()
	c.signal()
}

// collect submits what is gathered in a lane, soon.
func (c *courier) collect(lane int) {
	c.mu.Lock()
	c.lanes[lane] = true
	c.mu.Unlock()
	c.signal()
}

// keep holds on to a disconnect until there is room for it. Beyond the bound it is dropped: the logic tier then learns of
// the end of that connection from its route. It reports whether it is kept.
func (c *courier) keep(up *stateclient.Uplink) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.kept) >= c.keptMax {
		c.dropped++
		return false
	}
	c.kept[up.Peer.ConnID] = *up
	return true
}

// take removes what there is to do.
func (c *courier) take(roomy []poller.ID, lanes []int) ([]poller.ID, []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	roomy = append(roomy, c.roomy...)
	c.roomy = c.roomy[:0]
	for i, due := range c.lanes {
		if due {
			lanes = append(lanes, i)
			c.lanes[i] = false
		}
	}
	return roomy, lanes
}

// unkeep takes back a disconnect whose connection has room now.
func (c *courier) unkeep(id poller.ID) (stateclient.Uplink, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	up, ok := c.kept[uint64(id)]
	delete(c.kept, uint64(id))
	return up, ok
}

// run works until stop is closed.
func (c *courier) run(stop <-chan struct{}, g *Gateway) {
	var (
		roomy []poller.ID
		lanes []int
	)
	for {
		select {
		case <-stop:
			return
		case <-c.wake:
		}
		roomy, lanes = c.take(roomy[:0], lanes[:0])
		for _, id := range roomy {
			g.roomFor(id)
		}
		for _, i := range lanes {
			l := &g.lanes[i]
			l.mu.Lock()
			g.submit(l)
			l.mu.Unlock()
		}
	}
}

// roomFor submits again what was refused of one connection.
func (g *Gateway) roomFor(id poller.ID) {
	if up, ok := g.courier.unkeep(id); ok {
		up.Received = g.now() // its time starts anew, like that of frames
		l := &g.lanes[0]      // any: nobody else submits for a connection that is gone
		l.mu.Lock()
		l.pass = append(l.pass, up)
		g.submit(l)
		l.mu.Unlock()
		return
	}
	p := g.peers.locked(id)
	if p == nil {
		return
	}
	l := &g.lanes[p.loop]
	p.mu.Unlock()

	l.mu.Lock()
	if p = g.peers.locked(id); p != nil {
		g.resubmit(l, p)
		p.mu.Unlock()
	}
	g.submit(l)
	l.mu.Unlock()

	if p = g.peers.locked(id); p != nil {
		p.unparked()
		p.mu.Unlock()
	}
	g.conns.Wake(id)
}

func (c *courier) droppedCount() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dropped
}
