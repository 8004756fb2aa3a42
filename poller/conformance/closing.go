package conformance

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-im/sluice/poller"
)

// opened is a handler that echoes and tells the ids of its connections.
func opened(ids chan<- poller.ID) *handler {
	return &handler{open: func(c poller.Conn, _ poller.Info, _ time.Duration) poller.Verdict {
		ids <- c.ID()
		return poller.Rearm
	}}
}

// testLinger hangs up on clients that have sent what nobody will read, and that read late: all that was queued must
// arrive, although it is still in the kernel of this side when the last byte has been written.
func testLinger(t *testing.T, newEngine NewEngine) {
	last := numbers(0, 32_000)
	h := &handler{data: func(c poller.Conn, in poller.Input) (int, poller.Verdict) {
		c.Queue(last)
		return 0, poller.Hangup
	}}
	f := start(t, newEngine, poller.Config{OutboxBytes: 1 << 20, Linger: patience}, h)
	for i := range 10 {
		c := f.dial()
		if err := c.SetReadBuffer(32 << 10); err != nil {
			t.Fatal(err)
		}
		f.write(c, make([]byte, 200_000))
		f.eventually("everything is with the kernel", func() bool { return int(f.h.calls.Load()) >= 2*(i+1) && f.Stats().OutboxBytes == 0 })
		if got := f.readAll(c); !bytes.Equal(got, last) {
			t.Fatalf("%d of %d last bytes arrived", len(got), len(last))
		}
		_ = c.Close()
	}
	f.eventually("hang-ups are named", func() bool { return h.count(poller.CauseHandler) == 10 })
}

// testLingerEnds shows that a client that neither closes nor stops sending does not hold a hung-up connection.
func testLingerEnds(t *testing.T, newEngine NewEngine) {
	h := &handler{data: func(poller.Conn, poller.Input) (int, poller.Verdict) { return 0, poller.Hangup }}
	f := start(t, newEngine, poller.Config{Linger: 50 * time.Millisecond, Tick: 5 * time.Millisecond}, h)
	silent, loud := f.dial(), f.dial()
	f.write(silent, []byte("x"))
	f.write(loud, []byte("x"))
	f.readAll(loud) // hung up on; before that an engine that reads on may take a flood for an overflow
	done := make(chan struct{})
	go func() {
		defer close(done)
		p := make([]byte, 64<<10)
		for {
			if _, err := loud.Write(p); err != nil {
				return
			}
		}
	}()
	<-done
	f.eventually("both are closed", func() bool { return h.count(poller.CauseHandler) == 2 })
}

// testCloseOutside hangs up from outside: what was queued and the final bytes arrive in order; later ones find nobody.
func testCloseOutside(t *testing.T, newEngine NewEngine) {
	ids := make(chan poller.ID, 1)
	f := start(t, newEngine, poller.Config{}, opened(ids))
	for range 50 {
		c := f.dial()
		id := <-ids
		f.Conns().Queue(id, []byte("first,"))
		if !f.Conns().Close(id, []byte("last")) {
			t.Fatal("Close found nobody")
		}
		if f.Conns().Close(id, []byte("twice")) {
			t.Error("closed twice")
		}
		if s := f.Conns().Queue(id, []byte("late")); s != poller.StatusGone {
			t.Errorf("Queue after Close: status %d", s)
		}
		if got := string(f.readAll(c)); got != "first,last" {
			t.Fatalf("got %q", got)
		}
		_ = c.Close()
	}
	f.eventually("closes are named", func() bool { return f.h.count(poller.CauseHandler) == 50 })
}

// testCloseFull hangs up on a connection whose outbox is at its bound: the final bytes still come last.
func testCloseFull(t *testing.T, newEngine NewEngine) {
	const bound = 64 << 10
	ids := make(chan poller.ID, 1)
	f := start(t, newEngine, poller.Config{OutboxBytes: bound}, opened(ids))
	c := f.dial()
	id := <-ids
	sent := 0
	for piece := make([]byte, 1000); f.Stats().OutboxBytes < bound-2000; sent += len(piece) {
		if f.Conns().Queue(id, piece) != poller.StatusQueued || f.Conns().Flush(id) == poller.StatusGone {
			t.Fatalf("ended after %d bytes", sent)
		}
	}
	if !f.Conns().Close(id, []byte("final")) {
		t.Fatal("Close found nobody")
	}
	if got := f.readAll(c); len(got) != sent+5 || string(got[sent:]) != "final" {
		t.Errorf("%d of %d bytes arrived", len(got), sent+5)
	}
}

// testResetOutside closes at once from outside.
func testResetOutside(t *testing.T, newEngine NewEngine) {
	ids := make(chan poller.ID, 1)
	f := start(t, newEngine, poller.Config{}, opened(ids))
	for range 20 {
		c := f.dial()
		id := <-ids
		f.Conns().Queue(id, []byte("never written"))
		if !f.Conns().Reset(id) {
			t.Fatal("Reset found nobody")
		}
		if got, err := io.ReadAll(c); len(got) > 0 || err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read %q, %v", got, err)
		}
	}
	f.eventually("resets are named", func() bool { return f.h.count(poller.CauseHandler) == 20 })
}

// testPeerReset shows that an armed connection sees the peer's reset.
func testPeerReset(t *testing.T, newEngine NewEngine) {
	f := start(t, newEngine, poller.Config{}, &handler{})
	for range 20 {
		c := f.dial()
		f.write(c, []byte("x"))
		f.read(c, 1)
		_ = c.SetLinger(0)
		_ = c.Close()
	}
	f.eventually("resets are named", func() bool { return f.h.count(poller.CausePeerReset) == 20 })
}

// testFirstCause lets one handler give several reasons.
func testFirstCause(t *testing.T, newEngine NewEngine) {
	var conns atomic.Value
	h := &handler{data: func(c poller.Conn, in poller.Input) (int, poller.Verdict) {
		conns.Load().(poller.Conns).Close(c.ID(), []byte("closed"))
		if s := c.Queue(make([]byte, 1<<20)); s != poller.StatusGone {
			t.Errorf("Queue after Close: status %d", s)
		}
		return len(in.Bytes), poller.Rearm
	}}
	f := start(t, newEngine, poller.Config{}, h)
	conns.Store(f.Conns())
	c := f.dial()
	f.write(c, []byte("x"))
	if got := string(f.readAll(c)); got != "closed" {
		t.Errorf("got %q", got)
	}
	f.eventually("the first cause is named", func() bool { return h.count(poller.CauseHandler) == 1 })
}

// descriptors is the number of open descriptors of the process.
func descriptors(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

// testShutdown ends an engine with connections in every state and looks for what is left.
func testShutdown(t *testing.T, newEngine NewEngine) {
	before := descriptors(t)
	h := &handler{t: t, data: func(c poller.Conn, in poller.Input) (int, poller.Verdict) {
		c.SetTimer(in.Now + time.Hour)
		c.Queue(in.Bytes)
		return len(in.Bytes), map[byte]poller.Verdict{'r': poller.Rearm, 'p': poller.Park, 'h': poller.Hangup}[in.Bytes[0]]
	}}
	e, err := newEngine(poller.Config{Linger: 100 * time.Millisecond, Tick: 5 * time.Millisecond}, h)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{T: t, Engine: e, h: h}
	addr, err := e.Listen(poller.Listener{Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	f.addr = addr.String()
	var clients []io.Closer
	for i := range 30 {
		c := f.dial()
		clients = append(clients, c)
		if i%4 != 3 {
			f.write(c, []byte{"rph"[i%4], 'x'})
			f.read(c, 2)
		}
	}
	f.eventually("all are open", func() bool { return e.Stats().Opened[0] == 30 })
	e.Shutdown()
	for cause := range poller.Causes {
		if n := h.count(cause); n > 0 && cause != poller.CauseShutdown && cause != poller.CauseHandler {
			t.Errorf("cause %d: %d connections", cause, n)
		}
	}
	if n := h.count(poller.CauseShutdown) + h.count(poller.CauseHandler); n != 30 {
		t.Errorf("%d connections closed", n)
	}
	if _, err := e.Listen(poller.Listener{Addr: "127.0.0.1:0"}); err == nil {
		t.Error("Listen after Shutdown")
	}
	e.Conns().Wake(1 << 32)
	for _, c := range clients {
		_ = c.Close()
	}
	f.eventually("all descriptors are closed", func() bool { return descriptors(t) <= before })
}

// testReuse pushes to connections that have gone while their slots and descriptors are in use again: each connection
// must only ever see its own id.
func testReuse(t *testing.T, newEngine NewEngine) {
	rounds := 2000
	if testing.Short() {
		rounds = 300
	}
	ids := make(chan poller.ID, 1)
	f := start(t, newEngine, poller.Config{Connections: 4}, opened(ids))
	var old []poller.ID
	var hits atomic.Int64
	for range rounds {
		c := f.dial()
		id := <-ids
		if id.Slot() >= 4 {
			t.Fatalf("slot %d of 4", id.Slot())
		}
		for _, o := range old {
			if f.Conns().Queue(o, []byte("for another")) != poller.StatusGone || f.Conns().Flush(o) != poller.StatusGone {
				hits.Add(1)
			}
			f.Conns().Wake(o)
			if f.Conns().Close(o, nil) || f.Conns().Reset(o) {
				hits.Add(1)
			}
		}
		f.write(c, []byte("x"))
		f.read(c, 1)
		f.Conns().Close(id, []byte("bye"))
		if got := string(f.readAll(c)); got != "bye" {
			t.Fatalf("got %q", got)
		}
		_ = c.Close()
		f.eventually("closed", func() bool { return f.Stats().Open[0] == 0 })
		if old = append(old, id); len(old) > 16 {
			old = old[1:]
		}
	}
	if hits.Load() > 0 {
		t.Errorf("%d calls with old ids reached a connection", hits.Load())
	}
}
