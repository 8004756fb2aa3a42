package netpoll

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/poller/internal/buffer"
	"github.com/sluice-im/sluice/poller/internal/wheel"
)

const (
	// scratchBytes is the size of the buffer that a lane lends as outbox to the connection it leases, so that replies of a
	// lease cost no buffer of their own. More than that moves into a buffer from the pools.
	scratchBytes = 32 << 10
	// keptMax bounds the memory that a burst leaves with a lane: 4,096 entries.
	keptMax = 4096
)

// incoming is an accepted connection on its way to its lane.
type incoming struct {
	id       poller.ID
	remote   netip.AddrPort
	accepted time.Duration
	stage    *stage // nil if the handler can be told at once
}

// lane owns connections and runs their handler calls, on one goroutine.
type lane struct {
	// Fixed after New.
	engine *engine
	index  int
	awake  chan struct{} // one signal for a lane that sleeps

	// Any goroutine may count or look.
	conns  atomic.Int64
	parked atomic.Int64
	passes atomic.Uint64
	events atomic.Uint64
	nanos  atomic.Uint64

	mu sync.Mutex
	// Guarded by mu. Each connection is in attention at most once; arrivals are bounded by the slab.
	attention []poller.ID
	arrivals  []incoming
	stopping  bool
	sleeping  bool

	// Touched by the lane only; scratch also under the mu of the leased connection.
	wheel    *wheel.Wheel
	alarm    *time.Timer
	alarmAt  time.Duration // what alarm is set for; 0 = not set
	now      time.Duration
	scratch  *buffer.Buffer
	leases   int
	spareIDs []poller.ID
	spareIn  []incoming
	plain    []byte // what one lease decrypts, on its way to the left-over; nil until there was one
	closing  bool
	endAt    time.Duration
}

func newLane(e *engine, index int) *lane {
	l := &lane{engine: e, index: index, awake: make(chan struct{}, 1), scratch: buffer.New(scratchBytes),
		alarm: time.NewTimer(time.Hour)}
	l.alarm.Stop()
	l.wheel = wheel.New(e.cfg.Tick, func(slot uint32) *wheel.Node { return &e.slab.At(slot).node })
	return l
}

// post puts a connection on the attention list. The connection's mu may be held.
func (l *lane) post(id poller.ID) {
	l.mu.Lock()
	l.attention = append(l.attention, id)
	l.poke()
	l.mu.Unlock()
}

// arrive hands over an accepted connection. The lane is there: gates end first.
func (l *lane) arrive(in incoming) {
	l.mu.Lock()
	l.arrivals = append(l.arrivals, in)
	l.poke()
	l.mu.Unlock()
}

// stop makes the lane hang up on everybody and end.
func (l *lane) stop() {
	l.mu.Lock()
	l.stopping = true
	l.poke()
	l.mu.Unlock()
}

// poke wakes a lane that sleeps, once however many ask. l.mu is held.
func (l *lane) poke() {
	if l.sleeping {
		l.sleeping = false
		l.awake <- struct{}{} // has room: only the sleeper takes, and only then sleeps again
	}
}

// run is the lane: what others told it, then timers, then the end of the pass.
func (l *lane) run() {
	defer l.engine.running.Done()
	defer l.alarm.Stop()
	for {
		l.wait()
		begun := time.Now()
		l.now = l.engine.clock.At(begun)
		l.leases = 0
		l.attend()
		if tick := l.wheel.Floor(l.now); tick > l.wheel.Visited() {
			l.wheel.Advance(tick, l.due)
		}
		if l.leases > 0 {
			l.callPassEnd()
		}
		l.passes.Add(1)
		l.nanos.Add(uint64(time.Since(begun)))
		if l.closing && l.ended() {
			return
		}
	}
}

// wait returns when there is something to do.
func (l *lane) wait() {
	d, timed := l.patience()
	l.mu.Lock()
	if len(l.attention) > 0 || len(l.arrivals) > 0 || l.stopping && !l.closing || timed && d == 0 {
		l.mu.Unlock()
		return
	}
	l.sleeping = true
	l.mu.Unlock()
	if timed {
		l.set(d)
	}
	select {
	case <-l.awake:
		return
	case <-l.alarm.C:
		l.alarmAt = 0
	}
	l.mu.Lock()
	if !l.sleeping {
		<-l.awake // somebody has woken the lane meanwhile
	}
	l.sleeping = false
	l.mu.Unlock()
}

// set sets the alarm for d after the end of the last pass, unless it rings before: a lane that is woken often does not set
// it each time.
func (l *lane) set(d time.Duration) {
	now := l.engine.clock.Now()
	if at := now + d; l.alarmAt == 0 || at < l.alarmAt {
		l.alarm.Reset(d)
		l.alarmAt = at
	}
}

// patience is how long the lane may sleep; false = until it is woken, which a closing lane is, after its end, by netpoll
// letting go of what is left.
func (l *lane) patience() (time.Duration, bool) {
	now := l.engine.clock.Now()
	d, ok := l.wheel.Next(now)
	if left := l.endAt - now; l.closing && left > 0 && (!ok || left < d) {
		return left, true
	}
	return d, ok
}

// attend takes what others have asked for.
func (l *lane) attend() {
	l.mu.Lock()
	ids, in := l.attention, l.arrivals
	l.attention, l.arrivals = l.spareIDs[:0], l.spareIn[:0]
	stop := l.stopping && !l.closing
	l.mu.Unlock()
	l.events.Add(uint64(len(ids) + len(in)))
	for _, a := range in {
		l.open(a)
	}
	for _, id := range ids {
		l.serve(id)
	}
	l.spareIDs, l.spareIn = kept(ids), kept(in)
	if stop {
		l.hangupAll()
	}
}

func kept[T any](s []T) []T {
	if cap(s) > keptMax {
		return nil
	}
	return s[:0]
}

// serve does what was asked for one connection.
func (l *lane) serve(id poller.ID) {
	c := l.engine.slab.At(id.Slot())
	c.mu.Lock()
	if c.id() != id {
		c.mu.Unlock()
		return
	}
	c.flags &^= flagListed
	if c.flags&flagLoose != 0 {
		l.loosened(c)
	}
	switch {
	case c.flags&flagCut != 0:
		l.finish(c)
		return
	case c.state == stateClosing:
		l.proceed(c)
		return
	case c.flags&flagHangup != 0:
		l.hangup(c)
		return
	}
	if c.stallAt != 0 {
		l.wheel.Ensure(c.slot, c.stallAt)
	}
	woken := c.state == stateParked && c.flags&flagWake != 0
	switch {
	case c.state == stateStaging:
		l.staged(c)
	case woken || c.state == stateArmed && c.ready():
		l.lease(c)
		c.mu.Unlock()
		if l.decrypt(c) || woken {
			l.data(c)
		} else {
			l.release(c, poller.Rearm)
		}
	default:
		c.mu.Unlock()
	}
}

// hangupAll starts the end of the engine: everybody is hung up on, and what is left after Linger is cut.
func (l *lane) hangupAll() {
	l.closing = true
	l.endAt = l.now + l.engine.cfg.Linger
	l.each(func(c *conn) {
		c.end(poller.CauseShutdown, flagHangup)
		c.mu.Unlock()
	})
}

// each calls f with every connection of the lane that is open or staged, its mu held; f unlocks it.
func (l *lane) each(f func(c *conn)) {
	for slot := range l.engine.slab.Used() {
		c := l.engine.slab.At(slot)
		c.mu.Lock()
		if c.lane != l || c.state < stateStaging {
			c.mu.Unlock()
			continue
		}
		f(c)
	}
}

// ended reports that a closing lane has nothing left.
func (l *lane) ended() bool {
	if l.now >= l.endAt {
		l.each(l.finish)
	}
	return l.conns.Load() == 0
}
