package conformance

import (
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-im/sluice/poller"
)

// patience is how long a condition may take on a noisy machine.
const patience = 30 * time.Second

// soakMax is how long a test that repeats one thing very often goes on after it has done so often enough: a crowded machine
// gets fewer rounds, not a timeout of the whole suite.
const soakMax = 45 * time.Second

// handler is a scripted poller.Handler. A nil function takes the default: echo, re-arm. It watches what every handler
// may rely on: calls for one connection never overlap, nothing comes before Open or after Closed.
type handler struct {
	open    func(c poller.Conn, info poller.Info, now time.Duration) poller.Verdict
	data    func(c poller.Conn, in poller.Input) (int, poller.Verdict)
	timeout func(c poller.Conn, now time.Duration) poller.Verdict
	closed  func(id poller.ID, cause poller.Cause)
	passEnd func(loop int)

	t      *testing.T
	inside sync.Map // slot → *atomic.Uint64, the id that is open, with busy while a call runs

	mu     sync.Mutex
	causes map[poller.Cause]int
	calls  atomic.Int64
}

// slot is what the watch knows of one slot.
type slot struct {
	id   atomic.Uint64
	busy atomic.Bool
}

func (h *handler) slot(id poller.ID) *slot {
	v, _ := h.inside.LoadOrStore(id.Slot(), new(slot))
	return v.(*slot)
}

// enter notes a call under the lease and returns the function that ends it.
func (h *handler) enter(c poller.Conn, call string) func() {
	h.calls.Add(1)
	s := h.slot(c.ID())
	if !s.busy.CompareAndSwap(false, true) {
		h.t.Errorf("%s overlaps another call of connection %x", call, c.ID())
	}
	if call == "Open" {
		if !s.id.CompareAndSwap(0, uint64(c.ID())) {
			h.t.Errorf("Open of %x before Closed of %x", c.ID(), s.id.Load())
		}
	} else if s.id.Load() != uint64(c.ID()) {
		h.t.Errorf("%s of %x while %x is open", call, c.ID(), s.id.Load())
	}
	return func() { s.busy.Store(false) }
}

func (h *handler) Open(c poller.Conn, info poller.Info, now time.Duration) poller.Verdict {
	defer h.enter(c, "Open")()
	if h.open == nil {
		return poller.Rearm
	}
	return h.open(c, info, now)
}

func (h *handler) Data(c poller.Conn, in poller.Input) (int, poller.Verdict) {
	defer h.enter(c, "Data")()
	if h.data == nil {
		c.Queue(in.Bytes)
		return len(in.Bytes), poller.Rearm
	}
	return h.data(c, in)
}

func (h *handler) Timeout(c poller.Conn, now time.Duration) poller.Verdict {
	defer h.enter(c, "Timeout")()
	if h.timeout == nil {
		return poller.Rearm
	}
	return h.timeout(c, now)
}

func (h *handler) Closed(id poller.ID, cause poller.Cause) {
	s := h.slot(id)
	if s.busy.Load() {
		h.t.Errorf("Closed of %x during another call", id)
	}
	if !s.id.CompareAndSwap(uint64(id), 0) {
		h.t.Errorf("Closed of %x while %x is open", id, s.id.Load())
	}
	h.mu.Lock()
	if h.causes == nil {
		h.causes = map[poller.Cause]int{}
	}
	h.causes[cause]++
	h.mu.Unlock()
	if h.closed != nil {
		h.closed(id, cause)
	}
}

func (h *handler) PassEnd(loop int) {
	if h.passEnd != nil {
		h.passEnd(loop)
	}
}

// count is how many connections ended for cause.
func (h *handler) count(cause poller.Cause) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.causes[cause]
}

// fixture is a running engine with one listener.
type fixture struct {
	*testing.T
	poller.Engine
	h    *handler
	addr string
}

// start runs an engine until the test ends, and then looks at what it left behind.
func start(t *testing.T, newEngine NewEngine, cfg poller.Config, h *handler) *fixture {
	t.Helper()
	h.t = t
	e, err := newEngine(cfg, h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.Shutdown()
		s := e.Stats()
		for i, n := range s.Open {
			if n != 0 {
				t.Errorf("after Shutdown %d connections of listener %d are open", n, i)
			}
		}
		if s.OutboxBytes != 0 || s.Parked != 0 {
			t.Errorf("after Shutdown OutboxBytes %d, Parked %d", s.OutboxBytes, s.Parked)
		}
	})
	addr, err := e.Listen(poller.Listener{Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{T: t, Engine: e, h: h, addr: addr.String()}
}

// dial connects; the connection is closed when the test ends, and all I/O on it is bounded in time.
func (f *fixture) dial() *net.TCPConn {
	f.Helper()
	c, err := net.DialTimeout("tcp", f.addr, patience)
	if err != nil {
		f.Fatal(err)
	}
	if err := c.SetDeadline(time.Now().Add(2 * patience)); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = c.Close() })
	return c.(*net.TCPConn)
}

// eventually waits for a condition.
func (f *fixture) eventually(what string, cond func() bool) {
	f.Helper()
	for deadline := time.Now().Add(patience); !cond(); {
		if time.Now().After(deadline) {
			f.Fatalf("not within %v: %s", patience, what)
		}
		pause()
	}
}

// pauseShort gives way without waiting.
func pauseShort() { runtime.Gosched() }

// pause lets others run between two looks at a condition.
func pause() { <-time.After(time.Millisecond) }

// write writes all of p.
func (f *fixture) write(c net.Conn, p []byte) {
	f.Helper()
	if _, err := c.Write(p); err != nil {
		f.Fatalf("write: %v", err)
	}
}

// read reads n bytes.
func (f *fixture) read(c net.Conn, n int) []byte {
	f.Helper()
	p := make([]byte, n)
	if m, err := io.ReadFull(c, p); err != nil {
		f.Fatalf("read %d of %d bytes: %v", m, n, err)
	}
	return p
}

// readAll reads until the peer's FIN.
func (f *fixture) readAll(c net.Conn) []byte {
	f.Helper()
	p, err := io.ReadAll(c)
	if err != nil {
		f.Fatalf("read until FIN, after %d bytes: %v", len(p), err)
	}
	return p
}
