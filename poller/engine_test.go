package poller

import (
	"log/slog"
	"net"
	"testing"
)

// listening is an engine with one listener, until the test ends; dial connects to it.
func listening(t *testing.T, cfg Config, h Handler) (e *engine, dial func() net.Conn) {
	t.Helper()
	made, err := New(cfg, h, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(made.Shutdown)
	addr, err := made.Listen(Listener{Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	return made.(*engine), func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", addr.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
}
