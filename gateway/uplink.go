package gateway

import (
	"sync"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/stateclient"
)

// uplink is one frame in flight. It holds a copy of the Command, since the loop's buffer is reused, until its answer is
// written. Uplinks of a connection are linked in their order.
type uplink struct {
	next *uplink
	seq  uint64
	// received is when the frame was read, on the gateway's own clock.
	received time.Duration
	// at is when the RETRY is to be written, on the gateway's own clock.
	at      time.Duration
	command clientv1.CommandType
	kind    stateclient.Kind
	why     reason.Reason
	// after is what the RETRY says the client should wait.
	after   time.Duration
	payload []byte
}

// Sizes of the buffers that are kept. A chat message fits the smallest, the default frame limit the largest; what is
// larger is not kept.
var uplinkSizes = [...]int{256, 2048, 16384, 65536}

// uplinkPools keep uplinks by the size of their buffer.
type uplinkPools [len(uplinkSizes)]sync.Pool

// take is an uplink with a copy of payload.
func (ps *uplinkPools) take(payload []byte) *uplink {
	for i, size := range uplinkSizes {
		if len(payload) > size {
			continue
		}
		u, _ := ps[i].Get().(*uplink)
		if u == nil {
			u = &uplink{payload: make([]byte, 0, size)}
		}
		u.payload = append(u.payload[:0], payload...)
		return u
	}
	return &uplink{payload: append([]byte(nil), payload...)}
}

// give takes back an uplink that nobody refers to any more: answered, and never one that the relay still has.
func (ps *uplinkPools) give(u *uplink) {
	for i, size := range uplinkSizes {
		if cap(u.payload) == size {
			*u = uplink{payload: u.payload[:0]}
			ps[i].Put(u)
			return
		}
	}
}

// laneMax is when a pass submits what it has gathered before its end. It bounds what a pass holds: 512 events with 32
// frames each would be more than a relay takes at once.
const laneMax = 4096

// lane gathers the uplinks of one loop. Every Submit for a connection is made under the lock of its lane, so that the
// relay never sees two at once for one connection, and in the order in which they were gathered.
//
// Lock order: lane, then peer. The engine and the relay are called under a lane's lock, but never under a peer's.
type lane struct {
	mu sync.Mutex

	// Guarded by mu.
	pass  []stateclient.Uplink
	taken []bool
	tally tally
	// read is when this pass read its first frame; the zero time = it has not read one.
	read time.Time
	// Scratch for what the lease in work writes.
	reply, frame []byte
	pong         [125]byte
	_            [64]byte // keeps two lanes out of one cache line
}

// scratchMax is the largest buffer that is kept as scratch: a frame at the default limit.
const scratchMax = 128 << 10

// scratch is b for the next use, unless it has grown out of proportion.
func scratch(b []byte) []byte {
	if cap(b) > scratchMax {
		return nil
	}
	return b
}

// add gathers one uplink of a connection that is logged in. p.mu is held.
func (l *lane) add(p *peer, u *uplink, read time.Time) {
	l.pass = append(l.pass, stateclient.Uplink{Peer: p.who, Seq: u.seq, Kind: u.kind, Payload: u.payload, Received: read,
		TraceParent: p.trace()})
}

// submit hands everything gathered to the relay. l.mu is held.
func (g *Gateway) submit(l *lane) {
	l.read = time.Time{}
	if len(l.pass) == 0 {
		return
	}
	if cap(l.taken) < len(l.pass) {
		l.taken = make([]bool, cap(l.pass))
	}
	taken := l.taken[:len(l.pass)]
	g.relay.Submit(l.pass, taken)
	for i := range l.pass {
		if !taken[i] {
			g.refused(&l.pass[i])
		}
	}
	clear(l.pass)
	l.pass = l.pass[:0]
	if cap(l.pass) > laneMax*2 {
		l.pass, l.taken = nil, nil
	}
}

// refused parks the connection whose uplink the queue did not take. The lane's lock is held.
func (g *Gateway) refused(up *stateclient.Uplink) {
	p := g.peers.locked(poller.ID(up.Peer.ConnID))
	if p == nil {
		if up.Kind == stateclient.KindDisconnect {
			if !g.courier.keep(up) {
				g.farewells.Add(-1)
			}
		}
		return // its connection is gone, which has counted it as lost
	}
	defer p.mu.Unlock()
	if p.refused != nil {
		return // a later one of a connection that was refused before
	}
	for u := p.first; u != nil; u = u.next {
		if u.seq == up.Seq {
			p.refused = u
			break
		}
	}
	if p.session.blocked {
		return
	}
	p.session.refused()
	if r := p.rarely(); r.parkedAt == 0 {
		r.parkedAt = g.clock()
		g.pacer.add(p.id, g.cfg.Backpressure.ParkMax)
	}
}

// push links an uplink behind those in flight.
func (p *peer) push(u *uplink) {
	if p.last == nil {
		p.first, p.last = u, u
		return
	}
	p.last.next, p.last = u, u
}

// answeredBy unlinks the uplink that an answer to seq ends; nil when nothing in flight has that number. Answers come in
// order, so that it is the first, and never one that the relay did not take.
func (p *peer) answeredBy(seq uint64) *uplink {
	u := p.first
	if u == nil || u.seq != seq || u == p.refused {
		return nil
	}
	p.first = u.next
	if p.first == nil {
		p.last = nil
	}
	u.next = nil
	return u
}

// resubmit gathers again what the queue has refused, now that it has room. Their time to the logic tier starts anew: it
// is shorter than the park, so most would be over it otherwise. The lane's lock and p.mu are held.
func (g *Gateway) resubmit(l *lane, p *peer) {
	p.session.room()
	now := g.now()
	for u := p.refused; u != nil; u = u.next {
		l.add(p, u, now)
	}
	p.refused = nil
}

// unparked forgets since when the queue refuses, once everything refused was taken. p.mu is held.
func (p *peer) unparked() {
	if p.refused == nil && !p.session.blocked && p.rare != nil {
		p.rare.parkedAt = 0
		p.tidy()
	}
}

// giveUp answers RETRY to every frame that the queue has refused for park_max; a connect stays, since the logic tier has
// to hear of it before any frame. p.mu is held.
func (g *Gateway) giveUp(p *peer, o *outgoing, now time.Duration) {
	rest := p.refused
	if rest == nil {
		return
	}
	p.cutBefore(rest)
	p.refused = nil
	for u := rest; u != nil; {
		next := u.next
		u.next = nil
		if u.kind == stateclient.KindConnect {
			p.push(u)
			p.refused = u
		} else {
			// It has waited for its time already.
			st := p.session.later(settlement{command: u.command}, reason.QueueFull, 0)
			if st.verb == doRetry {
				g.owe(p, u, st, now)
			} else {
				p.session.answered(len(u.payload))
				o.tally.dropped++
				g.pools.give(u)
			}
		}
		u = next
	}
}

// cutBefore ends the list of uplinks in flight before u.
func (p *peer) cutBefore(u *uplink) {
	if p.first == u {
		p.first, p.last = nil, nil
		return
	}
	for q := p.first; q != nil; q = q.next {
		if q.next == u {
			q.next, p.last = nil, q
			return
		}
	}
}
