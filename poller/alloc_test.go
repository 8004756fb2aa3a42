package poller_test

import (
	"log/slog"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-im/sluice/poller"
)

// TestAllocs shows that a message each way costs no allocation: event, read, Data, Queue, write, re-arm, and a push from
// another goroutine.
func TestAllocs(t *testing.T) {
	e, err := poller.New(poller.Config{Loops: 1}, echoHandler{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Shutdown()
	addr, err := e.Listen(poller.Listener{Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.DialTimeout("tcp", addr.String(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	file, err := c.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	fd := int(file.Fd()) // blocking from here on, so that the client does not allocate either
	msg, got := make([]byte, 64), make([]byte, 256)
	if _, err := unix.Write(fd, msg); err != nil {
		t.Fatal(err)
	}
	for have := 0; have < len(msg); {
		m, err := unix.Read(fd, got)
		if err != nil {
			t.Fatal(err)
		}
		have += m
	}
	id := poller.ID(1 << 32) // the first connection: slot 0 in its first generation
	n := testing.AllocsPerRun(2000, func() {
		if _, err := unix.Write(fd, msg); err != nil {
			t.Fatal(err)
		}
		if e.Conns().Queue(id, msg) != poller.StatusQueued || e.Conns().Flush(id) == poller.StatusGone {
			t.Fatal("push failed")
		}
		for have := 0; have < 2*len(msg); {
			m, err := unix.Read(fd, got)
			if err != nil {
				t.Fatal(err)
			}
			have += m
		}
	})
	// The pools may be emptied by a garbage collection in between.
	if n >= 1 {
		t.Errorf("%v allocations a message each way and a push", n)
	}
}
