package poller

import (
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-im/sluice/poller/internal/buffer"
	"github.com/sluice-im/sluice/poller/internal/wheel"
)

const (
	// eventsMax bounds one pass, so that wakes and timers come round.
	eventsMax = 512
	// copyBytesMax is the left-over that is copied in front of the next read. More is read behind, in its own buffer:
	// copying it for every dripped byte would make large incomplete frames an attack.
	copyBytesMax = 4 << 10
	// burst is how long a loop that always finds events keeps its P before it gives way once: without that, on few
	// cores, what it hands to other goroutines waits for the runtime to preempt it, up to 10 ms.
	burst = 200 * time.Microsecond
)

// incoming is an accepted connection on its way to its loop.
type incoming struct {
	id       ID
	remote   netip.AddrPort
	accepted time.Duration
	stage    *stage // nil if the handler can be told at once
}

// loop owns connections and runs their handler calls, on one goroutine.
type loop struct {
	// Fixed after New.
	engine *engine
	index  int
	epfd   int
	wakefd int // eventfd, edge-triggered, so that nobody has to read it
	sleep  sleeper

	// Any goroutine may count or look.
	conns    atomic.Int64
	parked   atomic.Int64
	passes   atomic.Uint64
	events   atomic.Uint64
	nanos    atomic.Uint64
	listed   atomic.Bool // attention or arrivals hold something
	sleeping atomic.Bool // about to block, or blocked

	mu sync.Mutex
	// Guarded by mu. Each connection is in attention at most once; arrivals are bounded by the slab.
	attention []ID
	arrivals  []incoming
	stopping  bool
	gone      bool

	// Touched by the loop only; scratch also under the mu of the leased connection.
	wheel    *wheel.Wheel
	now      time.Duration
	ready    []unix.EpollEvent
	input    []byte
	scratch  *buffer.Buffer
	leases   int
	spareIDs []ID
	spareIn  []incoming
	closing  bool
	endAt    time.Duration
	yielded  time.Time
}

func newLoop(e *engine, index int) (*loop, error) {
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("poller: epoll_create1: %w", err)
	}
	wakefd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(epfd)
		return nil, fmt.Errorf("poller: eventfd: %w", err)
	}
	// Id 0 names no connection, so the event finds none.
	if errno := sysEpollCtl(epfd, unix.EPOLL_CTL_ADD, int32(wakefd), unix.EPOLLIN|unix.EPOLLET, 0); errno != 0 {
		_, _ = unix.Close(wakefd), unix.Close(epfd)
		return nil, fmt.Errorf("poller: epoll_ctl: %w", errno)
	}
	l := &loop{engine: e, index: index, epfd: epfd, wakefd: wakefd,
		wheel:   wheel.New(e.cfg.Tick, func(slot uint32) *wheel.Node { return &e.slab.At(slot).node }),
		ready:   make([]unix.EpollEvent, eventsMax),
		input:   make([]byte, copyBytesMax+e.cfg.ReadBytes),
		scratch: buffer.New(scratchBytes)}
	if err := l.sleep.open(epfd, l.poll); err != nil {
		_, _ = unix.Close(wakefd), unix.Close(epfd)
		return nil, err
	}
	return l, nil
}

// post puts a connection on the attention list. The connection's mu may be held.
func (l *loop) post(id ID) {
	l.mu.Lock()
	if !l.gone {
		l.attention = append(l.attention, id)
		l.poke()
	}
	l.mu.Unlock()
}

// arrive hands over an accepted connection. The loop is there: gates end first.
func (l *loop) arrive(in incoming) {
	l.mu.Lock()
	l.arrivals = append(l.arrivals, in)
	l.poke()
	l.mu.Unlock()
}

// stop makes the loop hang up on everybody and end.
func (l *loop) stop() {
	l.mu.Lock()
	l.stopping = true
	l.poke()
	l.mu.Unlock()
}

// poke gets the loop out of epoll_wait, once however many ask. l.mu is held, so the eventfd is open.
func (l *loop) poke() {
	l.listed.Store(true)
	if l.sleeping.CompareAndSwap(true, false) {
		sysSignal(l.wakefd)
	}
}

// run is the loop: events, then what others asked for, then timers, then the end of the pass.
func (l *loop) run() {
	defer l.engine.loops.Done()
	for {
		n := l.wait()
		begun := time.Now()
		l.now = l.engine.clock.At(begun)
		l.leases = 0
		for i := range l.ready[:n] {
			l.event(&l.ready[i])
		}
		if l.listed.Load() {
			l.attend()
		}
		if tick := l.wheel.Floor(l.now); tick > l.wheel.Visited() {
			l.wheel.Advance(tick, l.due)
		}
		if l.leases > 0 {
			l.callPassEnd()
		}
		l.passes.Add(1)
		l.events.Add(uint64(n))
		now := time.Now()
		l.nanos.Add(uint64(now.Sub(begun)))
		if l.closing && l.ended() {
			return
		}
		if now.Sub(l.yielded) > burst {
			runtime.Gosched()
			l.yielded = now
		}
	}
}

// wait returns the number of events in l.ready, 0 when something else is to be done. Before it blocks it gives way; the
// sleeper asks again first, since what the others did meanwhile often brings the next events.
func (l *loop) wait() int {
	if n := l.poll(); n > 0 || l.listed.Load() {
		return n
	}
	runtime.Gosched()
	l.yielded = time.Now()
	now := l.engine.clock.At(l.yielded)
	until := time.Duration(0) // nothing to wait for but events
	if d, ok := l.wheel.Next(now); ok {
		until = now + d
	}
	if l.closing && (until == 0 || l.endAt < until) {
		until = l.endAt
	}
	l.sleeping.Store(true)
	n := 0
	if !l.listed.Load() && (until == 0 || until > now) {
		n = l.sleep.until(until, l.engine.clock.Wall(until))
	}
	l.sleeping.Store(false)
	return n
}

// poll returns the number of events that are there already.
func (l *loop) poll() int {
	n, e := sysEpollPoll(l.epfd, l.ready)
	if e != 0 {
		if e != unix.EINTR {
			l.engine.log.Error("poller: epoll_wait failed", "error", e)
		}
		return 0
	}
	return n
}

// attend takes what others have asked for.
func (l *loop) attend() {
	l.mu.Lock()
	ids, in := l.attention, l.arrivals
	l.attention, l.arrivals = l.spareIDs[:0], l.spareIn[:0]
	l.listed.Store(false)
	stop := l.stopping && !l.closing
	l.mu.Unlock()
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

// keptMax bounds the memory that a burst of wakes leaves with a loop: 4,096 entries.
const keptMax = 4096

func kept[T any](s []T) []T {
	if cap(s) > keptMax {
		return nil
	}
	return s[:0]
}

// serve does what was asked for one connection.
func (l *loop) serve(id ID) {
	c := l.engine.slab.At(id.Slot())
	c.mu.Lock()
	if c.id() != id {
		c.mu.Unlock()
		return
	}
	c.flags &^= flagListed
	switch {
	case c.flags&flagCut != 0:
		l.finish(c)
		return
	case c.flags&flagHangup != 0 && c.state != stateClosing:
		l.hangup(c)
		return
	}
	if c.stallAt != 0 {
		l.wheel.Ensure(c.slot, c.stallAt)
	}
	if c.state == stateStaging && c.stage.layer.Done() {
		c.mu.Unlock()
		l.shaken(c)
		return
	}
	if c.flags&flagWake != 0 && c.state == stateParked {
		c.flags &^= flagWake
		l.lease(c)
		c.mu.Unlock()
		l.resumed(c)
		return
	}
	c.mu.Unlock()
}

// hangupAll starts the end of the engine: everybody is hung up on, and what is left after Linger is cut.
func (l *loop) hangupAll() {
	l.closing = true
	l.endAt = l.now + l.engine.cfg.Linger
	l.each(func(c *conn) {
		c.end(CauseShutdown, flagHangup)
		c.mu.Unlock()
	})
}

// each calls f with every open connection of the loop, its mu held; f unlocks it.
func (l *loop) each(f func(c *conn)) {
	for slot := range l.engine.slab.Used() {
		c := l.engine.slab.At(slot)
		c.mu.Lock()
		if c.loop != l || c.state == stateFree || c.state == stateOpening {
			c.mu.Unlock()
			continue
		}
		f(c)
	}
}

// ended reports that a closing loop has nothing left, and then gives back its descriptors.
func (l *loop) ended() bool {
	if l.now >= l.endAt {
		l.each(l.finish)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns.Load() > 0 || len(l.arrivals) > 0 {
		return false
	}
	l.gone = true
	_ = unix.Close(l.wakefd)
	l.sleep.close()
	return true
}
