package conformance

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-im/sluice/poller"
)

// testTimer shows that a timer runs once, not before its time, replaced and disarmed as asked.
func testTimer(t *testing.T, newEngine NewEngine) {
	const after = 60 * time.Millisecond
	var due, fired, late atomic.Int64
	h := &handler{
		open: func(c poller.Conn, _ poller.Info, now time.Duration) poller.Verdict {
			if now <= 0 {
				t.Errorf("now is %v", now)
			}
			c.SetTimer(now + time.Hour)
			due.Store(int64(now + after))
			c.SetTimer(now + after)
			return poller.Rearm
		},
		timeout: func(_ poller.Conn, now time.Duration) poller.Verdict {
			fired.Add(1)
			late.Store(int64(now) - due.Load())
			return poller.Rearm
		},
	}
	h.data = func(c poller.Conn, in poller.Input) (int, poller.Verdict) {
		switch in.Bytes[0] {
		case 'd':
			c.SetTimer(in.Now + after)
			c.SetTimer(0)
		case 'l': // later, then later still
			c.SetTimer(in.Now + after/2)
			due.Store(int64(in.Now + after))
			c.SetTimer(in.Now + after)
		}
		c.Queue(in.Bytes)
		return len(in.Bytes), poller.Rearm
	}
	f := start(t, newEngine, poller.Config{Loops: 1, Tick: 5 * time.Millisecond}, h)
	c := f.dial()
	f.eventually("the timer runs", func() bool { return fired.Load() == 1 })
	f.write(c, []byte("d"))
	f.read(c, 1)
	other := f.dial() // its timer is set after the one that was disarmed, for the same span
	f.eventually("the other timer runs", func() bool { return fired.Load() == 2 })
	f.write(other, []byte("l"))
	f.read(other, 1)
	f.eventually("the moved timer runs", func() bool { return fired.Load() == 3 })
	if late.Load() < 0 {
		t.Errorf("ran %v early", time.Duration(-late.Load()))
	}
	f.write(c, []byte("x"))
	f.read(c, 1)
	if n := fired.Load(); n != 3 {
		t.Errorf("%d timeouts", n)
	}
}

// testTimerPeriod lets the handler set the timer again from Timeout.
func testTimerPeriod(t *testing.T, newEngine NewEngine) {
	var fired atomic.Int64
	h := &handler{
		open: func(c poller.Conn, _ poller.Info, now time.Duration) poller.Verdict {
			c.SetTimer(now + time.Millisecond)
			return poller.Park
		},
		timeout: func(c poller.Conn, now time.Duration) poller.Verdict {
			if fired.Add(1) == 20 {
				return poller.Hangup
			}
			c.SetTimer(now + time.Millisecond)
			return poller.Park
		},
	}
	f := start(t, newEngine, poller.Config{Tick: time.Millisecond}, h)
	f.readAll(f.dial())
	if n := fired.Load(); n != 20 {
		t.Errorf("%d timeouts", n)
	}
}

// testTimerUnparks shows that a timer reaches a parked connection, and that its verdict Rearm gives the bytes that were
// left over to Data although no new ones come.
func testTimerUnparks(t *testing.T, newEngine NewEngine) {
	var rested atomic.Bool
	h := &handler{
		data: func(c poller.Conn, in poller.Input) (int, poller.Verdict) {
			if !rested.Load() {
				c.SetTimer(in.Now + 20*time.Millisecond)
				return 0, poller.Park
			}
			c.Queue(in.Bytes)
			return len(in.Bytes), poller.Rearm
		},
		timeout: func(poller.Conn, time.Duration) poller.Verdict {
			rested.Store(true)
			return poller.Rearm
		},
	}
	f := start(t, newEngine, poller.Config{Tick: 5 * time.Millisecond}, h)
	c := f.dial()
	f.write(c, []byte("tokens, please"))
	f.read(c, len("tokens, please"))
	f.write(c, []byte("more"))
	f.read(c, len("more"))
}

// testPassEnd shows that every lease is followed by a PassEnd.
func testPassEnd(t *testing.T, newEngine NewEngine) {
	var leases, told atomic.Int64
	h := &handler{data: func(c poller.Conn, in poller.Input) (int, poller.Verdict) {
		leases.Add(1)
		c.Queue(in.Bytes)
		return len(in.Bytes), poller.Rearm
	}}
	h.passEnd = func(loop int) {
		if loop != 0 {
			t.Errorf("PassEnd of loop %d", loop)
		}
		told.Store(leases.Load())
	}
	f := start(t, newEngine, poller.Config{Loops: 1}, h)
	c := f.dial()
	for i := range int64(100) {
		f.write(c, []byte{1})
		f.read(c, 1)
		f.eventually("PassEnd follows the lease", func() bool { return told.Load() == i+1 })
	}
}

// testPanics shows that a panic in any handler call costs that connection only.
func testPanics(t *testing.T, newEngine NewEngine) {
	h := &handler{
		open: func(c poller.Conn, info poller.Info, now time.Duration) poller.Verdict {
			c.SetTimer(now + 10*time.Millisecond)
			if info.Listener == 1 {
				panic("in Open")
			}
			return poller.Rearm
		},
		data: func(c poller.Conn, in poller.Input) (int, poller.Verdict) {
			switch in.Bytes[0] {
			case 'p':
				c.Queue([]byte("last words"))
				panic("in Data")
			case 't':
				c.SetTimer(in.Now + time.Millisecond)
			}
			c.Queue(in.Bytes)
			return len(in.Bytes), poller.Rearm
		},
	}
	var armed atomic.Bool
	h.timeout = func(poller.Conn, time.Duration) poller.Verdict {
		if armed.Load() {
			panic("in Timeout")
		}
		return poller.Rearm
	}
	f := start(t, newEngine, poller.Config{Loops: 1, Tick: time.Millisecond}, h)
	neighbour := f.dial()
	f.write(neighbour, []byte("n"))
	f.read(neighbour, 1)

	c := f.dial()
	f.write(c, []byte("p"))
	if got := string(f.readAll(c)); got != "last words" {
		t.Errorf("before the close came %q", got)
	}
	f.eventually("the panic in Data is named", func() bool { return h.count(poller.CauseInternal) == 1 })

	addr, err := f.Listen(poller.Listener{Index: 1, Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	was := f.addr
	f.addr = addr.String()
	f.readAll(f.dial())
	f.addr = was
	f.eventually("the panic in Open is named", func() bool { return h.count(poller.CauseInternal) == 2 })

	c = f.dial()
	f.eventually("first timeouts have passed", func() bool { return f.Stats().Open[0] == 2 })
	f.write(c, []byte("x"))
	f.read(c, 1)
	armed.Store(true)
	f.write(c, []byte("t"))
	f.readAll(c)
	f.eventually("the panic in Timeout is named", func() bool { return h.count(poller.CauseInternal) >= 3 })
	armed.Store(false)
	c = f.dial()
	f.write(c, []byte("go on"))
	f.read(c, len("go on"))
	if n := f.Stats().Panics; n < 3 {
		t.Errorf("%d panics counted", n)
	}
}
