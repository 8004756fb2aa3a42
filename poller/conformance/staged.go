package conformance

import (
	"crypto/tls"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-im/sluice/poller"
)

// testTLSParkAtEOF parks at the peer's close_notify, which leaves the socket open: the connection waits for its timer, is
// then told of the end again, and answers until it closes.
func testTLSParkAtEOF(t *testing.T, newEngine NewEngine) {
	ready := atomic.Bool{}
	h := &handler{
		open: func(c poller.Conn, _ poller.Info, now time.Duration) poller.Verdict {
			c.SetTimer(now + 20*time.Millisecond)
			return poller.Rearm
		},
		data: func(c poller.Conn, in poller.Input) (int, poller.Verdict) {
			switch {
			case !in.EOF:
				return len(in.Bytes), poller.Rearm
			case !ready.Load():
				return len(in.Bytes), poller.Park
			}
			c.Queue([]byte("answer"))
			return len(in.Bytes), poller.Rearm
		},
		timeout: func(c poller.Conn, now time.Duration) poller.Verdict {
			c.SetTimer(now + 20*time.Millisecond)
			return poller.Rearm
		},
	}
	f := start(t, newEngine, poller.Config{Tick: 5 * time.Millisecond}, h)
	f.secure()
	for name, version := range versions {
		ready.Store(false)
		c := f.handshake(f.dial(), version)
		f.write(c, []byte("question"))
		_ = c.CloseWrite()
		f.eventually("it parks", func() bool { return f.Stats().Parked == 1 })
		was := h.count(poller.CausePeerClosed)
		ready.Store(true)
		if got := string(f.readAll(c)); got != "answer" {
			t.Errorf("TLS %s: read %q", name, got)
		}
		f.eventually("closed by the peer", func() bool { return h.count(poller.CausePeerClosed) == was+1 })
	}
}

// testStagedEnd lets clients leave before their connection is opened: in the middle of a PROXY header or a ClientHello, and
// in the middle of the handshake. None is opened, each is counted, and one that has said all before its end is served.
func testStagedEnd(t *testing.T, newEngine NewEngine) {
	before := descriptors(t)
	f := start(t, newEngine, poller.Config{HandshakeTimeout: time.Hour}, &handler{})
	proxied := f.listen(poller.Listener{Index: 2, Proxy: poller.ProxyOptional, TrustedProxies: loopback})
	both := f.listen(poller.Listener{Index: 3, Proxy: poller.ProxyStrict, TrustedProxies: loopback,
		TLS: &tls.Config{Certificates: []tls.Certificate{certificate(t)}}})
	const header = "PROXY TCP4 192.0.2.7 192.0.2.99 4711 80\r\n"
	hello := string(clientHello())
	for _, c := range []struct {
		name, addr, bytes string
		cause             poller.Cause
	}{
		{"nothing", proxied, "", poller.CausePeerClosed},
		{"half a header", proxied, header[:20], poller.CausePeerClosed},
		{"a header and half a hello", both, header + hello[:len(hello)/2], poller.CausePeerClosed},
		{"a header and a hello", both, header + hello, poller.CauseTLSFailed},
	} {
		was := f.Stats().Refused[c.cause]
		f.addr = c.addr
		conn := f.dial()
		f.write(conn, []byte(c.bytes))
		if c.cause == poller.CauseTLSFailed {
			f.read(conn, 1) // the server's flight: the handshake waits for ours
		}
		_ = conn.CloseWrite()
		_, _ = io.ReadAll(conn)
		_ = conn.Close()
		f.eventually(c.name+" is counted", func() bool { return f.Stats().Refused[c.cause] == was+1 })
	}
	f.addr = proxied
	conn := f.dial()
	f.write(conn, []byte(header+"all of it"))
	_ = conn.CloseWrite()
	if got := string(f.readAll(conn)); got != "all of it" {
		t.Errorf("echo %q", got)
	}
	_ = conn.Close()
	if s := f.Stats(); s.Opened[2] != 1 || s.Opened[3] != 0 {
		t.Errorf("stats %+v", s)
	}
	f.Shutdown()
	f.eventually("all descriptors are closed", func() bool { return descriptors(t) <= before })
}
