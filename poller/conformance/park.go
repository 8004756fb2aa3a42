package conformance

import (
	"bytes"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-im/sluice/poller"
)

// stepper consumes one byte a lease, echoes it and parks.
func stepper(ids chan<- poller.ID) *handler {
	return &handler{
		open: func(c poller.Conn, _ poller.Info, _ time.Duration) poller.Verdict {
			ids <- c.ID()
			return poller.Rearm
		},
		data: func(c poller.Conn, in poller.Input) (int, poller.Verdict) {
			if len(in.Bytes) == 0 {
				return 0, poller.Rearm
			}
			c.Queue(in.Bytes[:1])
			return 1, poller.Park
		},
	}
}

// testParkWake shows that a parked connection runs nothing until it is woken, and that a wake runs the handler on what
// is left over although no byte comes.
func testParkWake(t *testing.T, newEngine NewEngine) {
	ids := make(chan poller.ID, 2)
	f := start(t, newEngine, poller.Config{Loops: 1}, stepper(ids))
	c := f.dial()
	id := <-ids
	f.write(c, []byte("abcdef"))
	f.read(c, 1)
	other := f.dial()
	<-ids
	for i := range 3 {
		before := f.h.calls.Load()
		f.write(other, []byte{'x'})
		f.read(other, 1) // the loop has gone round
		if extra := f.h.calls.Load() - before; extra > 1 {
			t.Errorf("%d calls for a parked connection", extra-1)
		}
		f.Conns().Wake(id)
		if got := f.read(c, 1)[0]; got != "bcdef"[i] {
			t.Fatalf("woken for %q, got %q", "bcdef"[i], got)
		}
		f.eventually("both are parked", func() bool { return f.Stats().Parked == 2 })
		_ = other.SetLinger(0)
		_ = other.Close()
		other = f.dial()
		<-ids
	}
}

// testWakeForeign shows that wakes of connections that are armed, gone or never were do nothing.
func testWakeForeign(t *testing.T, newEngine NewEngine) {
	ids := make(chan poller.ID, 2)
	h := &handler{open: func(c poller.Conn, _ poller.Info, _ time.Duration) poller.Verdict {
		ids <- c.ID()
		return poller.Rearm
	}}
	f := start(t, newEngine, poller.Config{Loops: 1}, h)
	c := f.dial()
	id := <-ids
	for _, w := range []poller.ID{id, id + 1<<32, id - 1<<32, id + 1, 0, ^poller.ID(0)} {
		f.Conns().Wake(w)
		if w != id {
			if s := f.Conns().Queue(w, []byte("nobody")); s != poller.StatusGone {
				t.Errorf("Queue of %x: status %d", w, s)
			}
			if s := f.Conns().Flush(w); s != poller.StatusGone {
				t.Errorf("Flush of %x: status %d", w, s)
			}
			if f.Conns().Close(w, nil) || f.Conns().Reset(w) {
				t.Errorf("Close or Reset of %x found a connection", w)
			}
		}
	}
	f.write(c, []byte("still here"))
	f.read(c, len("still here"))
}

// testAimedWakes lets another goroutine wake the connection just when its handler is about to park: the wake falls
// between Data's return and the end of the lease, a little before or a little after. None may be lost: each must bring
// one more call.
func testAimedWakes(t *testing.T, newEngine NewEngine) {
	wakes, enough := int64(1_000_000), int64(50_000)
	if testing.Short() {
		wakes = enough
	}
	var runs, aim atomic.Int64
	ids := make(chan poller.ID, 1)
	h := &handler{data: func(c poller.Conn, in poller.Input) (int, poller.Verdict) {
		if len(ids) == 0 && runs.Load() == 0 {
			ids <- c.ID()
		}
		n := runs.Add(1)
		for range n % 64 { // moves the return about under the wake that the line above has set off
			aim.Load()
		}
		return 0, poller.Park
	}}
	f := start(t, newEngine, poller.Config{Loops: 1}, h)
	c := f.dial()
	f.write(c, []byte("left over for good"))
	id := <-ids
	conns := f.Conns()
	began := time.Now()
	for n := int64(1); n <= wakes; n++ {
		if n > enough && n%1024 == 0 && time.Since(began) > soakMax {
			t.Logf("ended after %d wakes of %d", n-1, wakes)
			return
		}
		deadline := time.Time{}
		for spins := 0; runs.Load() < n; spins++ {
			if spins%1000 != 999 {
				continue
			}
			pauseShort()
			if now := time.Now(); deadline.IsZero() {
				deadline = now.Add(patience)
			} else if now.After(deadline) {
				t.Fatalf("wake %d of %d was lost", n-1, wakes)
			}
		}
		for range n / 64 % 64 {
			aim.Load()
		}
		conns.Wake(id)
	}
}

// testHangupParked shows that a parked connection sees the peer's reset.
func testHangupParked(t *testing.T, newEngine NewEngine) {
	ids := make(chan poller.ID, 2)
	f := start(t, newEngine, poller.Config{}, stepper(ids))
	for range 20 {
		c := f.dial()
		<-ids
		f.write(c, []byte("ab"))
		f.read(c, 1)
		_ = c.SetLinger(0)
		_ = c.Close()
	}
	f.eventually("resets of parked connections are seen", func() bool { return f.h.count(poller.CausePeerReset) == 20 })
}

// testHalfCloseParked shows that what was sent before the FIN is handled when a parked connection is woken, with its
// answers written, and that the end is CausePeerClosed.
func testHalfCloseParked(t *testing.T, newEngine NewEngine) {
	ids := make(chan poller.ID, 1)
	f := start(t, newEngine, poller.Config{}, stepper(ids))
	c := f.dial()
	id := <-ids
	f.write(c, []byte("a"))
	f.read(c, 1)
	f.write(c, []byte("bcd"))
	_ = c.CloseWrite()
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				f.Conns().Wake(id)
				pause()
			}
		}
	}()
	if got := f.readAll(c); !bytes.Equal(got, []byte("bcd")) {
		t.Errorf("answers after half-close: %q", got)
	}
	close(stop)
	<-done
	f.eventually("closed by the peer", func() bool { return f.h.count(poller.CausePeerClosed) == 1 })
}

// testResetAfterHalfClose shows that a parked connection whose peer has half-closed still sees a reset.
func testResetAfterHalfClose(t *testing.T, newEngine NewEngine) {
	ids := make(chan poller.ID, 1)
	f := start(t, newEngine, poller.Config{Loops: 1}, stepper(ids))
	c := f.dial()
	<-ids
	f.write(c, []byte("ab"))
	f.read(c, 1)
	_ = c.CloseWrite()
	other := f.dial() // a round of the loop, so that the half-close is seen first
	<-ids
	f.write(other, []byte("x"))
	f.read(other, 1)
	_ = c.SetLinger(0)
	_ = c.Close()
	f.eventually("the reset is seen", func() bool { return f.h.count(poller.CausePeerReset) == 1 })
}

// testHalfCloseAnswers sends requests and FIN in one go: every answer must come before ours.
func testHalfCloseAnswers(t *testing.T, newEngine NewEngine) {
	f := start(t, newEngine, poller.Config{}, &handler{})
	for range 50 {
		c := f.dial()
		want := numbers(0, 5000)
		f.write(c, want)
		_ = c.CloseWrite()
		if got := f.readAll(c); !bytes.Equal(got, want) {
			t.Fatalf("%d of %d bytes came back", len(got), len(want))
		}
	}
	f.eventually("closed by the peer", func() bool { return f.h.count(poller.CausePeerClosed) == 50 })
}

// testParkAtEOF lets a handler that has seen EOF wait for an answer from elsewhere.
func testParkAtEOF(t *testing.T, newEngine NewEngine) {
	ids := make(chan poller.ID, 1)
	ready := atomic.Bool{}
	h := &handler{data: func(c poller.Conn, in poller.Input) (int, poller.Verdict) {
		if in.EOF && !ready.Load() {
			select {
			case ids <- c.ID():
			default:
			}
			return 0, poller.Park
		}
		return len(in.Bytes), poller.Rearm
	}}
	f := start(t, newEngine, poller.Config{}, h)
	c := f.dial()
	f.write(c, []byte("question"))
	_ = c.CloseWrite()
	id := <-ids
	f.Conns().Queue(id, []byte("answer"))
	f.Conns().Flush(id)
	f.read(c, len("answer"))
	if h.count(poller.CausePeerClosed) != 0 {
		t.Error("closed while parked at EOF")
	}
	ready.Store(true)
	f.Conns().Wake(id)
	f.readAll(c)
	f.eventually("closed by the peer", func() bool { return h.count(poller.CausePeerClosed) == 1 })
}
