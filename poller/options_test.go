package poller

import (
	"io"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// first is a handler that hands out the first connection it sees.
type first struct{ opened chan ID }

func (h *first) Open(c Conn, _ Info, _ time.Duration) Verdict {
	h.opened <- c.ID()
	return Rearm
}
func (h *first) Data(_ Conn, in Input) (int, Verdict) { return len(in.Bytes), Rearm }
func (h *first) Timeout(Conn, time.Duration) Verdict  { return Rearm }
func (h *first) Closed(ID, Cause)                     {}
func (h *first) PassEnd(int)                          {}

// TestSocketOptions looks at what an accepted socket has inherited from its listener.
func TestSocketOptions(t *testing.T) {
	h := &first{opened: make(chan ID, 1)}
	e, dial := listening(t, Config{Loops: 1, SendBuffer: 40_000}, h)
	dial()
	id := <-h.opened
	c := e.find(id)
	fd := int(c.fd)
	c.mu.Unlock()
	for _, o := range []struct {
		name             string
		level, opt, want int
	}{
		{"TCP_NODELAY", unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{"SO_SNDBUF", unix.SOL_SOCKET, unix.SO_SNDBUF, 80_000}, // the kernel doubles it for its own bookkeeping
	} {
		if got, err := unix.GetsockoptInt(fd, o.level, o.opt); err != nil || got != o.want {
			t.Errorf("%s is %d, %v, not %d", o.name, got, err, o.want)
		}
	}
	fl, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil || fl&unix.O_NONBLOCK == 0 {
		t.Errorf("flags %x, %v: the socket blocks", fl, err)
	}
	fl, err = unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err != nil || fl&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %x, %v: the socket is inherited by children", fl, err)
	}
}

// TestStallLooksTwice shows that a write counts as stalled only if the kernel still takes nothing when the time is up:
// it reports readiness late, when a third of its buffer is free.
func TestStallLooksTwice(t *testing.T) {
	h := &first{opened: make(chan ID, 1)}
	e, dial := listening(t, Config{Loops: 1, Tick: time.Millisecond}, h)
	client := dial()
	c := e.find(<-h.opened)
	c.push([]byte("late"))
	c.flags |= flagBlocked // as if the kernel had been full, and had not said yet that it no longer is
	c.stallAt = e.clock.After(0)
	c.enlist()
	c.mu.Unlock()
	got := make([]byte, 4)
	_ = client.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.ReadFull(client, got); err != nil || string(got) != "late" {
		t.Errorf("got %q, %v", got, err)
	}
	if n := e.Stats().Open[0]; n != 1 {
		t.Errorf("%d open", n)
	}
}
