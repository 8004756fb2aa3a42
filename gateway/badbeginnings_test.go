package gateway

import (
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/internal/testenv/certs"
)

// beginning is what a client says to a listener that wants TLS (ws) or a PROXY header (tcp) first.
type beginning struct {
	name, protocol, bytes string
	why                   reason.Reason
	fin                   bool // and finishes sending
}

// guarded is a gateway with TLS on its WebSocket and the PROXY protocol on its TCP listener, and its neighbour's.
func guarded(t *testing.T, engine string, handshake time.Duration) (*running, *canary) {
	r := way{open: said("PROXY TCP4 192.0.2.7 192.0.2.99 4711 80\r\n"), config: func(t testing.TB, c *Config) {
		c.Engine.Name = engine
		files := issue(t, certs.New(t), "gateway")
		c.Listeners[0].TLS = TLS{Cert: files.Cert, Key: files.Key}
		c.Listeners[1].ProxyProtocol, c.Listeners[1].TrustedProxies = "strict", []string{"127.0.0.0/8"}
	}}.run(t, startLogic(t, &logic{}), func(c *Config, d *Deps) {
		patient(c, d)
		c.Limits.Handshake.Timeout = handshake
	})
	return r, &canary{w: r.dial(t, protocolTCP, "near", "phone")}
}

// TestBadBeginnings: who does not get through what stands before the handler is only counted, as soon as it is certain.
func TestBadBeginnings(t *testing.T) {
	for _, engine := range []string{engineOneshot, engineNetpoll} {
		t.Run(engine, func(t *testing.T) { testBadBeginnings(t, engine) })
	}
}

func testBadBeginnings(t *testing.T, engine string) {
	const v2 = "\r\n\r\n\x00\r\nQUIT\n"
	r, near := guarded(t, engine, time.Minute) // more than the test waits for
	near.works()
	before := engineGoroutines()
	for _, b := range []beginning{
		{"plaintext on a TLS port", protocolWS, "GET /ws HTTP/1.1\r\nHost: gw\r\n\r\n", reason.TLSFailed, false},
		{"a frame on a TLS port", protocolWS, "\x00\x00\x00\x02\x08\x01", reason.TLSFailed, false},
		{"a record of 64 KiB", protocolWS, "\x16\x03\x01\xff\xff" + strings.Repeat("a", 20<<10), reason.TLSFailed, false},
		{"garbage in a ClientHello", protocolWS, "\x16\x03\x01\x00\x05hello", reason.TLSFailed, false},
		{"no PROXY header", protocolTCP, "GET / HTTP/1.1\r\n\r\n", reason.BadProxyHeader, false},
		{"TLS instead of a PROXY header", protocolTCP, string(clientHello()), reason.BadProxyHeader, false},
		{"a PROXY header with garbage", protocolTCP, "PROXY TCP4 a b c d\r\n", reason.BadProxyHeader, false},
		{"a PROXY header without its CR", protocolTCP, "PROXY TCP4 192.0.2.7 192.0.2.99 4711 80\n", reason.BadProxyHeader, false},
		{"a PROXY header of another family", protocolTCP, "PROXY UNIX a b c d\r\n", reason.BadProxyHeader, false},
		{"an endless PROXY header", protocolTCP, "PROXY TCP4 " + strings.Repeat("1", 200), reason.BadProxyHeader, false},
		{"a PROXY header of 64 KiB", protocolTCP, v2 + "\x21\x11\xff\xff", reason.BadProxyHeader, false},
		{"a PROXY header of version 3", protocolTCP, v2 + "\x31\x11\x00\x0c" + strings.Repeat("\x00", 12), reason.BadProxyHeader, false},
		{"half a ClientHello, and the end", protocolWS, string(clientHello()[:50]), reason.ClientClosed, true},
		{"half a PROXY header, and the end", protocolTCP, "PROXY TCP4 192.0.2.7 192", reason.ClientClosed, true},
		{"half a PROXY header of version 2, and the end", protocolTCP, v2 + "\x21\x11\x00\x0c\xc0\x00", reason.ClientClosed, true},
		{"a PROXY header too short for its family", protocolTCP, v2 + "\x21\x11\x00\x04\x00\x00\x00\x00", reason.BadProxyHeader, false},
	} {
		t.Run(b.name, func(t *testing.T) { r.turnsAway(t, b, near) })
	}
	eventually(t, "no goroutine is left of them", func() bool { return engineGoroutines() <= before })
	eventually(t, "only the neighbour is left", func() bool { return r.g.gauges.open() == 1 })
}

// TestHalfBeginnings: nobody waits for the rest for longer than the handshake may take.
func TestHalfBeginnings(t *testing.T) {
	for _, engine := range []string{engineOneshot, engineNetpoll} {
		t.Run(engine, func(t *testing.T) { testHalfBeginnings(t, engine) })
	}
}

func testHalfBeginnings(t *testing.T, engine string) {
	r, near := guarded(t, engine, 3*time.Second) // the neighbour has no more either
	near.works()
	before := engineGoroutines()
	for _, b := range []beginning{
		{"half a ClientHello", protocolWS, string(clientHello()[:50]), reason.TLSFailed, false},
		{"silence on a TLS port", protocolWS, "", reason.TLSFailed, false},
		{"half a PROXY header", protocolTCP, "PROXY TCP4 192.0.2.7 192", reason.BadProxyHeader, false},
		{"half a PROXY header of version 2", protocolTCP, "\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00", reason.BadProxyHeader, false},
		{"silence before a PROXY header", protocolTCP, "", reason.BadProxyHeader, false},
	} {
		conn := r.begins(t, b)
		defer func() { _ = conn.Close() }()
	}
	eventually(t, "the refusals are counted", func() bool {
		return r.refusals(t, reason.TLSFailed.String()) == 2 && r.refusals(t, reason.BadProxyHeader.String()) == 3
	})
	near.works()
	eventually(t, "no goroutine is left of them", func() bool { return engineGoroutines() <= before })
	eventually(t, "only the neighbour is left", func() bool { return r.g.gauges.open() == 1 })
}

// begins connects and says what b has to say.
func (r *running) begins(t *testing.T, b beginning) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", r.g.Addr(b.protocol))
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(deadline))
	_, _ = conn.Write([]byte(b.bytes))
	if b.fin {
		_ = conn.(*net.TCPConn).CloseWrite()
	}
	return conn
}

// turnsAway begins badly and waits for the end.
func (r *running) turnsAway(t *testing.T, b beginning, near *canary) {
	t.Helper()
	counted := r.refusals(t, b.why.String())
	conn := r.begins(t, b)
	defer func() { _ = conn.Close() }()
	if got, err := io.ReadAll(conn); len(got) > 64 { // an alert may come, and then the end
		t.Errorf("answered %q, %v", got, err)
	}
	eventually(t, "the refusal is counted", func() bool { return r.refusals(t, b.why.String()) == counted+1 })
	near.works()
}

// engineGoroutines is how many goroutines run the engine, handshakes included; the relay opens its streams when it likes.
func engineGoroutines() (n int) {
	stacks := make([]byte, 1<<20)
	for g := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		if strings.Contains(g, "sluice/poller") {
			n++
		}
	}
	return n
}
