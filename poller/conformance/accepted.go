package conformance

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/sluice-im/sluice/poller"
)

// arrival is what Open was told of the time.
type arrival struct{ accepted, opened time.Duration }

// arrivals is a handler that reports them, and at each Data the time.
func arrivals() (h *handler, opens chan arrival, reads chan time.Duration) {
	opens, reads = make(chan arrival, 1), make(chan time.Duration, 1)
	h = &handler{
		open: func(_ poller.Conn, info poller.Info, now time.Duration) poller.Verdict {
			opens <- arrival{info.Accepted, now}
			return poller.Rearm
		},
		data: func(_ poller.Conn, in poller.Input) (int, poller.Verdict) {
			if len(in.Bytes) > 0 {
				reads <- in.Now
			}
			return len(in.Bytes), poller.Rearm
		},
	}
	return h, opens, reads
}

// testAccepted shows that a connection was accepted before it is opened, and after those that came before.
func testAccepted(t *testing.T, newEngine NewEngine) {
	h, opens, reads := arrivals()
	f := start(t, newEngine, poller.Config{Loops: 1}, h)
	var last time.Duration
	for range 3 {
		c := f.dial()
		a := <-opens
		if a.accepted <= 0 || a.accepted < last || a.opened < a.accepted {
			t.Errorf("accepted at %v, opened at %v; the last time known before is %v", a.accepted, a.opened, last)
		}
		f.write(c, []byte("x"))
		// The next one comes after this pass has begun.
		last = <-reads
	}
}

// testTLSAccepted lets a client wait before it begins its handshake: Open is told that it was accepted before all that.
func testTLSAccepted(t *testing.T, newEngine NewEngine) {
	const wait = 100 * time.Millisecond
	h, opens, reads := arrivals()
	f := start(t, newEngine, poller.Config{Loops: 1}, h)
	f.secure()
	slow := f.dial()
	other := f.handshake(f.dial(), tls.VersionTLS13) // accepted after slow, by the same listener
	first := <-opens
	var now time.Duration
	f.eventually("the engine's time goes on", func() bool {
		f.write(other, []byte("x"))
		now = <-reads
		return now >= first.accepted+wait
	})
	f.handshake(slow, tls.VersionTLS13)
	a := <-opens
	if a.accepted > first.accepted || a.opened < now {
		t.Errorf("accepted at %v, opened at %v; one that came later was accepted at %v and has seen %v", a.accepted, a.opened, first.accepted, now)
	}
}
