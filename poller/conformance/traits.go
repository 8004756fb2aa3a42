package conformance

import (
	"bytes"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-im/sluice/poller"
)

// Trait is something in which an engine cannot do as the others do; the comment of its package says why. What it does
// instead is tested in place of the tests that it cannot pass.
type Trait uint8

const (
	// ReadsOn: the engine reads on whatever the handler says. A connection that is parked, or whose client does not read
	// its replies, does not push back; what comes beyond Config.LeftoverBytes ends it with CauseInputOverflow.
	ReadsOn Trait = iota
)

// instead is what is tested of an engine with a trait in place of the test of that name; nil leaves it out.
func instead(tr Trait, name string) (test func(*testing.T, NewEngine), replaced bool) {
	switch tr {
	case ReadsOn:
		switch name {
		case "ParkedInput":
			return testParkedInputBounded, true
		case "HeldInput":
			return testHeldInputBounded, true
		case "TLSHeld":
			return testTLSHeldBounded, true
		}
	}
	return nil, false
}

// gated parks while it is shut, and echoes.
type gated struct {
	handler
	open atomic.Bool
	ids  chan poller.ID
}

func newGated() *gated {
	g := &gated{ids: make(chan poller.ID, 4)}
	g.handler.open = func(c poller.Conn, _ poller.Info, _ time.Duration) poller.Verdict {
		g.ids <- c.ID()
		return poller.Rearm
	}
	g.data = func(c poller.Conn, in poller.Input) (int, poller.Verdict) {
		if !g.open.Load() {
			return 0, poller.Park
		}
		c.Queue(in.Bytes)
		return len(in.Bytes), poller.Rearm
	}
	return g
}

// testParkedInput shows that a client that goes on sending to a parked connection is held back by TCP, and that nothing
// of it is lost.
func testParkedInput(t *testing.T, newEngine NewEngine) {
	g := newGated()
	f := start(t, newEngine, poller.Config{}, &g.handler)
	c := f.dial()
	id := <-g.ids
	want := numbers(0, 4<<20)
	var sent atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for p := want; len(p) > 0; p = p[min(len(p), 64<<10):] {
			if _, err := c.Write(p[:min(len(p), 64<<10)]); err != nil {
				t.Errorf("write: %v", err)
				return
			}
			sent.Add(64 << 10)
		}
	})
	f.eventually("it parks", func() bool { return f.Stats().Parked == 1 })
	last, same := int64(0), 0
	f.eventually("the client is held back", func() bool {
		if now := sent.Load(); now != last {
			last, same = now, 0
		}
		same++
		return same > 100
	})
	if last >= int64(len(want)) {
		t.Fatalf("%d bytes went into a parked connection", last)
	}
	g.open.Store(true)
	f.Conns().Wake(id)
	if got := f.read(c, len(want)); !bytes.Equal(got, want) {
		t.Error("echo differs")
	}
	wg.Wait()
}

// testParkedInputBounded shows that an engine that reads on keeps what comes for a parked connection within its bound,
// ends the connection beyond it, and goes on for the others.
func testParkedInputBounded(t *testing.T, newEngine NewEngine) {
	const bound = 100_000
	g := newGated()
	f := start(t, newEngine, poller.Config{LeftoverBytes: bound}, &g.handler)
	c := f.dial()
	id := <-g.ids
	want := numbers(0, bound/4)
	f.write(c, want[:4])
	f.eventually("it parks", func() bool { return f.Stats().Parked == 1 })
	f.write(c, want[4:])
	loud := f.dial()
	<-g.ids
	f.write(loud, make([]byte, bound+1))
	_, _ = io.Copy(io.Discard, loud)
	f.eventually("the overflow is named", func() bool { return f.h.count(poller.CauseInputOverflow) == 1 })
	g.open.Store(true)
	f.Conns().Wake(id)
	if got := f.read(c, len(want)); !bytes.Equal(got, want) {
		t.Error("echo differs")
	}
}

// testTLSHeldBounded shows the same through TLS: what fits the bound comes in order however little the handler takes, and
// what goes beyond it ends the connection.
func testTLSHeldBounded(t *testing.T, newEngine NewEngine) {
	held(t, newEngine, 100_000)
	const bound = 100_000
	g := newGated()
	f := start(t, newEngine, poller.Config{LeftoverBytes: bound}, &g.handler)
	f.secure()
	for name, version := range versions {
		c := f.handshake(f.dial(), version)
		<-g.ids
		f.write(c, []byte("x"))
		f.eventually("it parks", func() bool { return f.Stats().Parked == 1 })
		was := f.h.count(poller.CauseInputOverflow)
		_, _ = c.Write(make([]byte, bound+1))
		_, _ = io.Copy(io.Discard, c)
		f.eventually("the overflow is named, TLS "+name, func() bool { return f.h.count(poller.CauseInputOverflow) == was+1 })
	}
}

// testHeldInputBounded shows that an engine that reads on ends a connection whose client sends without reading its
// replies, and holds no more of it than its bounds.
func testHeldInputBounded(t *testing.T, newEngine NewEngine) {
	const bound = 1 << 20
	f := start(t, newEngine, poller.Config{OutboxBytes: bound}, &handler{})
	c := f.slowDial()
	p := make([]byte, 64<<10)
	for {
		if q := f.Stats().OutboxBytes; q > bound/2 {
			t.Errorf("%d bytes queued of a client that does not read", q)
		}
		if _, err := c.Write(p); err != nil {
			break
		}
	}
	f.eventually("the overflow is named", func() bool { return f.h.count(poller.CauseInputOverflow) == 1 })
	f.eventually("the gauge is back", func() bool { return f.Stats().OutboxBytes == 0 })
}
