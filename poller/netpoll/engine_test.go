package netpoll_test

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-im/sluice/poller"
)

// patience is how long a condition may take on a noisy machine.
const patience = 30 * time.Second

func startEngine(t *testing.T, cfg poller.Config, h poller.Handler) (poller.Engine, string) {
	t.Helper()
	e, err := newEngine(cfg, h)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Shutdown)
	addr, err := e.Listen(poller.Listener{Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	return e, addr.String()
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

// exchange sends p and reads as much.
func exchange(t *testing.T, c net.Conn, p []byte) {
	t.Helper()
	if _, err := c.Write(p); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(p))
	if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got, p) {
		t.Fatalf("echo of %q is %q, %v", p, got, err)
	}
}

func TestListenRefuses(t *testing.T) {
	e, _ := startEngine(t, poller.Config{}, waiter{})
	if _, err := e.Listen(poller.Listener{Index: 64, Addr: "127.0.0.1:0"}); err == nil {
		t.Error("listener 64 was taken")
	}
	if _, err := e.Listen(poller.Listener{Addr: "nonsense"}); err == nil {
		t.Error("an address without a port was taken")
	}
	if _, err := newEngine(poller.Config{OutboxBytes: -1}, waiter{}); err == nil {
		t.Error("a negative bound was taken")
	}
}

// TestEnginesShareProcess runs two engines, which share netpoll's pollers; the end of one is nothing to the other.
func TestEnginesShareProcess(t *testing.T) {
	one, addr1 := startEngine(t, poller.Config{}, waiter{})
	_, addr2 := startEngine(t, poller.Config{}, waiter{})
	c1, c2 := dial(t, addr1), dial(t, addr2)
	exchange(t, c1, []byte("one"))
	exchange(t, c2, []byte("two"))
	one.Shutdown()
	if _, err := io.ReadAll(c1); err != nil {
		t.Errorf("end of the first engine: %v", err)
	}
	exchange(t, c2, []byte("still"))
}

// TestPollersDoNotWait sticks a handler call and shows that netpoll's pollers go on: connections of the other lane are
// served, and what comes for the stuck one is bounded.
func TestPollersDoNotWait(t *testing.T) {
	const bound = 100_000
	stuck, free := make(chan struct{}), make(chan struct{})
	var closed atomic.Int64
	h := &scripted{
		data: func(c poller.Conn, in poller.Input) (int, poller.Verdict) {
			if bytes.HasPrefix(in.Bytes, []byte("s")) {
				close(stuck)
				<-free
				return len(in.Bytes), poller.Rearm
			}
			c.Queue(in.Bytes)
			return len(in.Bytes), poller.Rearm
		},
		closed: func(_ poller.ID, cause poller.Cause) { closed.Store(int64(cause)) },
	}
	_, addr := startEngine(t, poller.Config{Loops: 2, LeftoverBytes: bound}, h)
	a, b := dial(t, addr), dial(t, addr) // one a lane: each goes to the lane with the fewest
	exchange(t, a, []byte("hello"))
	exchange(t, b, []byte("hello"))
	if _, err := a.Write([]byte("s")); err != nil {
		t.Fatal(err)
	}
	<-stuck
	// More than all the kernel's buffers can hold: it goes out only because netpoll reads on.
	if _, err := a.Write(make([]byte, 16<<20)); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		exchange(t, b, []byte("neighbour"))
	}
	close(free)
	_, _ = io.Copy(io.Discard, a)
	for deadline := time.Now().Add(patience); closed.Load() != int64(poller.CauseInputOverflow); {
		if time.Now().After(deadline) {
			t.Fatalf("closed with cause %d", closed.Load())
		}
		<-time.After(time.Millisecond)
	}
}

// TestEchoAllocs bounds what a message costs the heap: netpoll makes a closure for each request, and the engine adds
// nothing.
func TestEchoAllocs(t *testing.T) {
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("netpoll keeps other books under the race detector, and they allocate")
	}
	_, addr := startEngine(t, poller.Config{Loops: 1}, waiter{})
	c := dial(t, addr)
	p := make([]byte, 64)
	one := func() {
		if _, err := c.Write(p); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, p); err != nil {
			t.Fatal(err)
		}
	}
	for range 1000 {
		one()
	}
	if n := testing.AllocsPerRun(5000, one); n > 1 {
		t.Errorf("%.1f allocations a message", n)
	}
}

// scripted is a handler with the given calls.
type scripted struct {
	waiter
	data   func(c poller.Conn, in poller.Input) (int, poller.Verdict)
	closed func(id poller.ID, cause poller.Cause)
}

func (h *scripted) Data(c poller.Conn, in poller.Input) (int, poller.Verdict) { return h.data(c, in) }

func (h *scripted) Closed(id poller.ID, cause poller.Cause) {
	if h.closed != nil {
		h.closed(id, cause)
	}
}

// TestStageBounded sticks the only lane and shows that what comes meanwhile for a connection that is not opened yet is
// bounded, though netpoll reads on.
func TestStageBounded(t *testing.T) {
	const bound = 10_000
	stuck, free := make(chan struct{}), make(chan struct{})
	h := &scripted{data: func(_ poller.Conn, in poller.Input) (int, poller.Verdict) {
		close(stuck)
		<-free
		return len(in.Bytes), poller.Rearm
	}}
	e, addr := startEngine(t, poller.Config{Loops: 1, LeftoverBytes: bound}, h)
	proxied, err := e.Listen(poller.Listener{Index: 1, Addr: "127.0.0.1:0", Proxy: poller.ProxyStrict,
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	if err != nil {
		t.Fatal(err)
	}
	early := dial(t, proxied.String())
	if _, err := early.Write([]byte("PROXY ")); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); e.Stats().Events == 0; { // its lane has given it to netpoll
		if time.Now().After(deadline) {
			t.Fatal("the connection was not seen")
		}
		<-time.After(time.Millisecond)
	}
	if _, err := dial(t, addr).Write([]byte("s")); err != nil {
		t.Fatal(err)
	}
	<-stuck
	// More than all the kernel's buffers can hold: it goes out only because netpoll reads on.
	if _, err := early.Write(append([]byte("UNKNOWN\r\n"), make([]byte, 16<<20)...)); err != nil {
		t.Fatal(err)
	}
	close(free)
	_, _ = io.Copy(io.Discard, early)
	for deadline := time.Now().Add(patience); e.Stats().Refused[poller.CauseInputOverflow] != 1; {
		if time.Now().After(deadline) {
			t.Fatalf("stats %+v", e.Stats())
		}
		<-time.After(time.Millisecond)
	}
}
