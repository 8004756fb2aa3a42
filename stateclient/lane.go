package stateclient

import (
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/sony/gobreaker/v2"
)

// A lane is one queue to one backend and what came out of it unanswered. In mode stream it feeds one stream, in mode
// unary a share of the calls. The way of an uplink:
//
//  1. Submit finds the lane and adds the uplink: to the queue, to its connection's chain, to the wheel (add).
//  2. The lane's driver takes it from the queue (send), encodes it outside the mutex, and sends it.
//  3. One of these ends it (settle): its answer, its deadline, the end of its stream, Close. Whoever does so holds
//     deliver, so that answers leave in the order in which they were settled, one Answers call at a time.
//  4. After Answers has returned, the connection's pending count falls (give); at 0 it may go to another lane.
//
// deliver is taken before mu. No lock is held while a driver sends, and only deliver while Answers runs: a Sink may call
// Submit.
type lane struct {
	// Fixed after New.
	relay    *relay
	backend  *backend
	number   uint32
	queueMax int
	bytesMax int
	// serial: one uplink of a connection at a time leaves the queue (mode unary).
	serial bool
	driver driver
	// wake tells the driver that the queue is not empty, kick tells the minder to look at its clock again.
	wake, kick chan struct{}
	stop       chan struct{}

	// up says that the driver can send; read by routing.
	up atomic.Bool

	// The minder's.
	roomConns []uint64
	roomAt    int64

	// Guarded by deliver.
	deliver  sync.Mutex
	out      []Downlink
	outItems []outItem

	mu sync.Mutex
	// Guarded by mu.
	slab       slab
	queue      list
	sent       list
	wheel      wheel
	conns      index
	latency    latency
	queued     int
	held       int
	heldBytes  int
	waiting    []*Peer
	calls      uint64
	earlyBytes int
	armed      int64
	// retiring: the backend is no longer known; draining: it asked for no new uplinks on this stream.
	retiring bool
	draining bool
	// closed: nothing is added any more; ended: no answer will be given any more.
	closed bool
	ended  bool
}

// outItem stands beside a Downlink until it was delivered.
type outItem struct {
	peer   *Peer
	sentAt int64
}

// driver sends what a lane has queued.
type driver interface {
	// run sends until the lane's stop closes or the lane is retiring and empty.
	run()
	// tick does what is due at now and returns when it wants to be called again, in relay time.
	tick(now int64) (next int64)
}

// deliverMax bounds one Answers call, so that a broken stream with a full queue does not need megabytes to say so.
const deliverMax = 512

func newLane(r *relay, b *backend) *lane {
	l := &lane{
		relay: r, backend: b, number: r.lanes.Add(1),
		queueMax: max(r.cfg.Queue/r.cfg.StreamsPerBackend, 1),
		bytesMax: max(r.cfg.QueueBytes/r.cfg.StreamsPerBackend, 1),
		wake:     make(chan struct{}, 1), kick: make(chan struct{}, 1), stop: make(chan struct{}),
		slab: newSlab(), wheel: newWheel(int64(r.cfg.Timeout)), conns: newIndex(),
	}
	return l
}

// hasRoom says whether the uplink fits. An empty lane takes one of any size, since it must be able to leave some time.
func (l *lane) hasRoom(u *Uplink) bool {
	return l.held == 0 || l.held < l.queueMax && len(u.Payload) <= l.bytesMax-l.heldBytes
}

// add takes an uplink. The deadlines of one connection never decrease along its chain, whatever Received says: that is
// why its uplinks also time out in order.
func (l *lane) add(u *Uplink, now int64) {
	f := &u.Peer.flight
	timeout := int64(l.relay.cfg.Timeout)
	deadline := min(l.relay.at(u.Received)+timeout, now+timeout)
	if f.tail != 0 {
		deadline = max(deadline, l.slab.items[f.tail].deadline)
	}
	l.accept(u, deadline, now)
	f.pending++
}

// accept puts an uplink on its connection's chain, on the wheel and, unless it has to wait for its turn, in the queue.
func (l *lane) accept(u *Uplink, deadline, now int64) {
	i := l.slab.take()
	it := &l.slab.items[i]
	it.uplink, it.deadline = *u, deadline
	l.held++
	l.heldBytes += len(u.Payload)
	f := &u.Peer.flight
	first := f.tail == 0
	if first {
		f.head = i
		l.conns.put(u.Peer)
	} else {
		l.slab.items[f.tail].chain = i
	}
	f.tail = i
	l.wheel.add(&l.slab, i, now)
	if !l.serial || first && !f.calling {
		l.enqueue(i)
	}
	if deadline < l.armed {
		signal(l.kick)
	}
}

func (l *lane) enqueue(i int32) {
	l.slab.push(&l.queue, orderLink, i)
	l.slab.items[i].where = inQueue
	l.queued++
}

// dequeue moves an item from the queue to the sent ones.
func (l *lane) dequeue(i int32, now int64) *item {
	l.slab.remove(&l.queue, orderLink, i)
	l.slab.push(&l.sent, orderLink, i)
	l.queued--
	l.calls++
	it := &l.slab.items[i]
	it.where, it.sentAt, it.call, it.encoding = inSent, now, l.calls, true
	return it
}

// leave takes an item out of the queue without sending it.
func (l *lane) leave(i int32) {
	l.slab.remove(&l.queue, orderLink, i)
	l.slab.items[i].where = nowhere
	l.queued--
}

// unlink takes an item that heads its chain off everything it is on.
func (l *lane) unlink(i int32) {
	p := l.slab.items[i].uplink.Peer
	f := &p.flight
	f.head = l.slab.items[i].chain
	if f.head == 0 {
		f.tail = 0
		l.conns.remove(p)
	}
	l.detach(i)
	if l.serial && !f.calling && f.head != 0 && l.slab.items[f.head].where == nowhere {
		l.enqueue(f.head)
		signal(l.wake)
	}
}

// detach takes an item off the lists of the lane.
func (l *lane) detach(i int32) {
	it := &l.slab.items[i]
	switch it.where {
	case inQueue:
		l.leave(i)
	case inSent:
		l.slab.remove(&l.sent, orderLink, i)
	case nowhere:
	}
	l.wheel.remove(&l.slab, i)
	l.held--
	l.heldBytes -= len(it.uplink.Payload)
}

// refuse notes that the connection wants to be told when there is room.
func (l *lane) refuse(p *Peer, submit uint32) {
	p.flight.refusedIn = submit
	if !p.flight.waiting {
		p.flight.waiting = true
		l.waiting = append(l.waiting, p)
	}
	if l.roomy() {
		signal(l.kick)
	}
}

// unserved handles a queue whose backend cannot be reached: a removed backend's goes elsewhere, an open breaker answers it
// at once, and everything else waits for its deadline. It says whether the lane is to end. Only the driver calls it.
func (l *lane) unserved() (over bool) {
	l.mu.Lock()
	leaves := l.retiring && l.sent.head == 0
	l.mu.Unlock()
	if leaves {
		l.relay.rehome(l)
	}
	if l.backend.breaker.State() != gobreaker.StateClosed {
		l.settleQueue("the breaker is open")
	}
	return l.over()
}

// over closes a lane whose backend was removed once it holds nothing, and says whether it is closed.
func (l *lane) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = l.closed || l.retiring && l.held == 0
	return l.closed
}

// signal tells a goroutine that there is something to look at; once is enough until it has looked.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// arrived looks at a connection that submits for the first time.
func (f *flight) arrived(p *Peer) {
	for _, s := range [...]string{p.UID, p.DeviceID, p.Platform, p.SessionID, p.RemoteAddr} {
		if !utf8.ValidString(s) {
			f.unclean = true
		}
	}
}

// budget is what is left of an item's time in the unit of the wire; 0 = not worth sending.
func budget(it *item, now int64) uint32 {
	return uint32(max(it.deadline-now, 0) / int64(time.Millisecond))
}
