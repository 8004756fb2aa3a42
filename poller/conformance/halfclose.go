package conformance

import (
	"bytes"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-im/sluice/poller"
)

// testHalfCloseHeld lets a client half-close while its replies fill the outbox: the handler is still told of the end when
// the client has read, and everything arrives before our own.
func testHalfCloseHeld(t *testing.T, newEngine NewEngine) {
	const reply = 700_000
	var ends atomic.Int64
	h := &handler{data: func(c poller.Conn, in poller.Input) (int, poller.Verdict) {
		for _, b := range in.Bytes {
			c.Queue(bytes.Repeat([]byte{b}, reply))
		}
		if in.EOF {
			ends.Add(1)
			c.Queue([]byte("end"))
		}
		return len(in.Bytes), poller.Rearm
	}}
	f := start(t, newEngine, poller.Config{OutboxBytes: 1 << 20}, h)
	c := f.slowDial()
	f.write(c, []byte("a"))
	f.eventually("the outbox fills", func() bool { return f.Stats().OutboxBytes > 1<<18 })
	_ = c.CloseWrite()
	got := f.readAll(c)
	if len(got) != reply+3 || string(got[reply:]) != "end" || got[reply-1] != 'a' {
		t.Errorf("%d of %d bytes arrived", len(got), reply+3)
	}
	if n := ends.Load(); n != 1 {
		t.Errorf("the handler was told of the end %d times", n)
	}
	f.eventually("closed by the peer", func() bool { return h.count(poller.CausePeerClosed) == 1 })
}

// testLastWords lets a client send and reset at once: what it sent is handled, if the kernel still has it.
func testLastWords(t *testing.T, newEngine NewEngine) {
	const clients = 50
	var seen atomic.Int64
	h := &handler{
		open: func(c poller.Conn, _ poller.Info, _ time.Duration) poller.Verdict {
			c.Queue([]byte("welcome"))
			return poller.Rearm
		},
		data: func(_ poller.Conn, in poller.Input) (int, poller.Verdict) {
			seen.Add(int64(len(in.Bytes)))
			return len(in.Bytes), poller.Rearm
		},
	}
	f := start(t, newEngine, poller.Config{}, h)
	for range clients {
		c := f.dial()
		f.read(c, 3)
		f.write(c, []byte("!"))
		_ = c.Close() // with unread input, hence with RST
	}
	f.eventually("all have ended", func() bool {
		return h.count(poller.CausePeerReset)+h.count(poller.CausePeerClosed) == clients
	})
	if n := seen.Load(); n != clients {
		t.Errorf("%d of %d last messages were handled", n, clients)
	}
}
