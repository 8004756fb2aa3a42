package poller

import (
	"testing"
	"time"
)

// turns watches how much of a loop each connection gets. All of it runs on one loop.
type turns struct {
	t      *testing.T
	bytes  int
	served map[ID]int // leases in this pass
	both   int        // passes in which both had a lease
	enough chan struct{}
}

func (h *turns) Open(Conn, Info, time.Duration) Verdict { return Rearm }
func (h *turns) Data(c Conn, in Input) (int, Verdict) {
	if len(in.Bytes) > h.bytes {
		h.t.Errorf("a lease of %d bytes, more than one read of %d", len(in.Bytes), h.bytes)
	}
	if h.served[c.ID()]++; h.served[c.ID()] > 1 {
		h.t.Errorf("connection %x has a second lease in one pass", c.ID())
	}
	return len(in.Bytes), Rearm
}
func (h *turns) Timeout(Conn, time.Duration) Verdict { return Rearm }
func (h *turns) Closed(ID, Cause)                    {}
func (h *turns) PassEnd(int) {
	if len(h.served) > 1 {
		if h.both++; h.both == 100 {
			close(h.enough)
		}
	}
	clear(h.served)
}

// TestOneReadAPass: however much a client sends, it gets one read of its loop, and then it is the turn of the others.
func TestOneReadAPass(t *testing.T) {
	const bytes = 4096
	h := &turns{t: t, bytes: bytes, served: map[ID]int{}, enough: make(chan struct{})}
	_, dial := listening(t, Config{Loops: 1, ReadBytes: bytes}, h)
	for range 2 {
		client := dial()
		go func() {
			for p := make([]byte, 1<<20); ; {
				if _, err := client.Write(p); err != nil {
					return
				}
			}
		}()
	}
	select {
	case <-h.enough:
	case <-time.After(30 * time.Second):
		t.Error("the two seldom have a lease in the same pass")
	}
}
