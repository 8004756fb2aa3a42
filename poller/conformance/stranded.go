package conformance

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/sluice-im/sluice/poller"
)

// testTLSBadBehindGood sends a bad record in one piece with a good one: TLS has failed before the good one is answered, and
// the alert still goes.
func testTLSBadBehindGood(t *testing.T, newEngine NewEngine) {
	f := start(t, newEngine, poller.Config{}, &handler{})
	f.secure()
	for name, version := range versions {
		raw := f.dial()
		var held bytes.Buffer
		c := f.handshake(gathering{raw, &held}, version)
		f.write(c, []byte("x"))
		f.read(c, 1)
		f.write(c, []byte("good"))
		held.Write(badRecord)
		_, err := io.ReadAll(c)
		var alert *net.OpError
		if !errors.As(err, &alert) || alert.Op != "remote error" {
			t.Errorf("%s: %v, not an alert", name, err)
		}
		_ = raw.Close()
	}
	f.eventually("the bad records are named", func() bool { return f.h.count(poller.CauseTLSFailed) == len(versions) })
}

// testStagedLarge shows that what stands before the handler has room of its own, however little a handler may leave.
func testStagedLarge(t *testing.T, newEngine NewEngine) {
	f := start(t, newEngine, poller.Config{LeftoverBytes: 64}, &handler{})
	f.secure()
	c := f.handshake(f.dial(), tls.VersionTLS13) // in which the hello has more than a thousand bytes
	f.write(c, []byte("hello"))
	f.read(c, 5)
}

// testStagedPark parks at Open, with bytes behind the PROXY header: they are there when the timer re-arms.
func testStagedPark(t *testing.T, newEngine NewEngine) {
	h := &handler{
		open: func(c poller.Conn, _ poller.Info, now time.Duration) poller.Verdict {
			c.SetTimer(now + 20*time.Millisecond)
			return poller.Park
		},
		timeout: func(poller.Conn, time.Duration) poller.Verdict { return poller.Rearm },
	}
	f := start(t, newEngine, poller.Config{Tick: 5 * time.Millisecond}, h)
	f.addr = f.listen(poller.Listener{Index: 1, Proxy: poller.ProxyStrict, TrustedProxies: loopback})
	c := f.dial()
	f.write(c, []byte("PROXY UNKNOWN\r\nhello"))
	f.read(c, 5)
}
