package conformance

import (
	"encoding/binary"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/sluice-im/sluice/poller"
)

// loopback is what the tests' clients are trusted as.
var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

// proxyV2 is a header of version 2 for an IPv4 source, with a TLV.
func proxyV2(source netip.AddrPort) string {
	a := source.Addr().As4()
	body := append(a[:], 192, 0, 2, 99)
	body = binary.BigEndian.AppendUint16(body, source.Port())
	body = append(body, 0, 80, 4, 0, 3, 'a', 'b', 'c')
	return "\r\n\r\n\x00\r\nQUIT\n\x21\x11" + string([]byte{byte(len(body) >> 8), byte(len(body))}) + string(body)
}

// testProxy shows which peers a handler is told of behind a PROXY header, however the bytes come, and that what follows
// the header is not lost.
func testProxy(t *testing.T, newEngine NewEngine) {
	infos := make(chan poller.Info, 1)
	h := &handler{open: func(_ poller.Conn, info poller.Info, _ time.Duration) poller.Verdict {
		infos <- info
		return poller.Rearm
	}}
	f := start(t, newEngine, poller.Config{}, h)
	optional := f.listen(poller.Listener{Index: 1, Proxy: poller.ProxyOptional, TrustedProxies: loopback})
	strict := f.listen(poller.Listener{Index: 2, Proxy: poller.ProxyStrict, TrustedProxies: loopback})
	distrusted := f.listen(poller.Listener{Index: 3, Proxy: poller.ProxyOptional})
	const v1 = "PROXY TCP4 192.0.2.7 192.0.2.99 4711 80\r\n"
	seven := netip.MustParseAddrPort("192.0.2.7:4711")
	for _, c := range []struct {
		addr, header, echo string
		source             netip.AddrPort // not valid = the client itself
	}{
		{optional, v1, "hello", seven},
		{optional, proxyV2(seven), "hello", seven},
		{optional, "", "hello", netip.AddrPort{}},
		{optional, "", "PRO", netip.AddrPort{}},
		{strict, v1, "hello", seven},
		{strict, proxyV2(seven), "\r\n\r\n", seven},
		{strict, "PROXY UNKNOWN\r\n", "hello", netip.AddrPort{}},
		{distrusted, "", v1, netip.AddrPort{}},
	} {
		for _, piece := range []int{1, 1000} {
			f.addr = c.addr
			conn := f.dial()
			_ = conn.SetNoDelay(true)
			all := []byte(c.header + c.echo)
			if c.echo == "PRO" { // may be the beginning of a header as long as nothing else follows
				all = []byte("PROmise")
			}
			for len(all) > 0 {
				n := min(piece, len(all))
				f.write(conn, all[:n])
				all = all[n:]
				if piece == 1 {
					pause()
				}
			}
			want := c.source
			if !want.IsValid() {
				want = netip.MustParseAddrPort(conn.LocalAddr().String())
			}
			if info := <-infos; info.Remote != want {
				t.Errorf("%q: peer %v, not %v", c.header, info.Remote, want)
			}
			if got := string(f.read(conn, len(c.echo))); got != c.echo {
				t.Errorf("%q: echo %q, not %q", c.header, got, c.echo)
			}
		}
	}
}

// listen opens one more listener.
func (f *fixture) listen(l poller.Listener) string {
	f.Helper()
	l.Addr = "127.0.0.1:0"
	addr, err := f.Listen(l)
	if err != nil {
		f.Fatal(err)
	}
	return addr.String()
}

// testProxyRefused shows bad, missing and late headers, and limits that count the real address.
func testProxyRefused(t *testing.T, newEngine NewEngine) {
	f := start(t, newEngine, poller.Config{HandshakeTimeout: 100 * time.Millisecond, Tick: 5 * time.Millisecond,
		Accept: poller.Accept{PerAddrConnections: 2}}, &handler{})
	optional := f.listen(poller.Listener{Index: 1, Proxy: poller.ProxyOptional, TrustedProxies: loopback})
	strict := f.listen(poller.Listener{Index: 2, Proxy: poller.ProxyStrict, TrustedProxies: loopback})
	foreign := f.listen(poller.Listener{Index: 3, Proxy: poller.ProxyStrict, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}})
	refused := uint64(0)
	for _, c := range []struct{ addr, bytes string }{
		{optional, "PROXY TCP4 a b c d\r\n"},
		{strict, "GET / HTTP/1.1\r\n"},
		{strict, "PROXY TCP4 192.0.2.7 192"}, // and no more
		{strict, ""},
		{optional, "\r\n\r\n\x00\r\nQUIT\n\x21\x11\xff\xff"},
		{foreign, "PROXY TCP4 192.0.2.7 192.0.2.99 4711 80\r\n"},
	} {
		f.addr = c.addr
		conn := f.dial()
		_, _ = conn.Write([]byte(c.bytes))
		_, _ = io.ReadAll(conn)
		refused++
		f.eventually("the refusal is counted", func() bool { return f.Stats().Refused[poller.CauseBadProxyHeader] == refused })
	}
	f.addr = strict
	header := []byte("PROXY TCP4 192.0.2.7 192.0.2.99 4711 80\r\nx")
	for i := range 3 {
		conn := f.dial()
		f.write(conn, header)
		if _, err := io.ReadFull(conn, make([]byte, 1)); (err != nil) != (i == 2) {
			t.Errorf("connection %d of one address: %v", i, err)
		}
	}
	f.eventually("the address's refusal is counted", func() bool { return f.Stats().Refused[poller.CauseAddressLimit] == 1 })
}
