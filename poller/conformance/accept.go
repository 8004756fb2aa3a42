package conformance

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-im/sluice/poller"
)

// refused reports whether the engine closed c without serving it.
func (f *fixture) refused(c net.Conn) bool {
	f.Helper()
	_, err := c.Write([]byte("x"))
	if err == nil {
		_, err = io.ReadFull(c, make([]byte, 1))
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		f.Fatalf("neither served nor closed: %v", err)
	}
	return err != nil
}

func testConnectionLimit(t *testing.T, newEngine NewEngine) {
	f := start(t, newEngine, poller.Config{Connections: 3}, &handler{})
	var served []*net.TCPConn
	for i := range 5 {
		c := f.dial()
		if got := f.refused(c); got != (i >= 3) {
			t.Fatalf("connection %d refused: %v", i, got)
		}
		served = append(served, c)
	}
	f.eventually("both refusals are counted", func() bool { return f.Stats().Refused[poller.CauseConnectionLimit] == 2 })
	if s := f.Stats(); s.Opened[0] != 3 || s.Descriptors != 3 {
		t.Errorf("stats %+v", s)
	}
	_ = served[0].Close()
	f.eventually("a place is free", func() bool { return f.Stats().Open[0] == 2 })
	f.eventually("it is given away", func() bool { return !f.refused(f.dial()) })
}

func testAcceptRate(t *testing.T, newEngine NewEngine) {
	f := start(t, newEngine, poller.Config{Accept: poller.Accept{PerSecond: 1, Burst: 4}}, &handler{})
	n := 0
	for range 10 {
		if !f.refused(f.dial()) {
			n++
		}
	}
	if n < 4 || n > 9 {
		t.Errorf("%d served", n)
	}
	f.eventually("refusals are counted", func() bool { return f.Stats().Refused[poller.CauseAcceptRate] == uint64(10-n) })
	f.eventually("tokens come back", func() bool { return !f.refused(f.dial()) })
}

func testAddressConnections(t *testing.T, newEngine NewEngine) {
	f := start(t, newEngine, poller.Config{Accept: poller.Accept{PerAddrConnections: 2}}, &handler{})
	from := func(ip string) *net.TCPConn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}, Timeout: patience}
		c, err := d.Dial("tcp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(patience))
		return c.(*net.TCPConn)
	}
	a, b := from("127.0.0.1"), from("127.0.0.1")
	if f.refused(a) || f.refused(b) {
		t.Fatal("refused within the limit")
	}
	if !f.refused(from("127.0.0.1")) {
		t.Error("the third was served")
	}
	if f.refused(from("127.0.0.2")) {
		t.Error("another address was refused")
	}
	_ = a.Close()
	f.eventually("a place is free", func() bool { return !f.refused(from("127.0.0.1")) })
	if n := f.Stats().Refused[poller.CauseAddressLimit]; n == 0 {
		t.Error("no refusal counted")
	}
}

// testAddressFirst shows that one address over its limit does not use up what may be accepted of all.
func testAddressFirst(t *testing.T, newEngine NewEngine) {
	f := start(t, newEngine, poller.Config{Accept: poller.Accept{PerSecond: 1, Burst: 3, PerAddrConnections: 1}}, &handler{})
	if f.refused(f.dial()) {
		t.Fatal("refused within the limits")
	}
	const more = 20 // which take less than the seconds that tokens for all of them would
	for range more {
		if !f.refused(f.dial()) {
			t.Fatal("a second one was served")
		}
	}
	if s := f.Stats(); s.Refused[poller.CauseAddressLimit] != more || s.Refused[poller.CauseAcceptRate] != 0 {
		t.Errorf("%d refused for the address, %d for the rate of all", s.Refused[poller.CauseAddressLimit], s.Refused[poller.CauseAcceptRate])
	}
}

func testAddressRate(t *testing.T, newEngine NewEngine) {
	f := start(t, newEngine, poller.Config{Accept: poller.Accept{PerAddrPerSecond: 2}}, &handler{})
	n := 0
	for range 10 {
		if !f.refused(f.dial()) {
			n++
		}
	}
	if n < 2 || n > 9 {
		t.Errorf("%d served", n)
	}
	f.eventually("refusals are counted", func() bool { return f.Stats().Refused[poller.CauseAddressLimit] == uint64(10-n) })
}

// testListeners shows which listener and which peer a connection came from, and what StopAccepting leaves.
func testListeners(t *testing.T, newEngine NewEngine) {
	infos := make(chan poller.Info, 1)
	h := &handler{open: func(_ poller.Conn, info poller.Info, _ time.Duration) poller.Verdict {
		infos <- info
		return poller.Rearm
	}}
	f := start(t, newEngine, poller.Config{}, h)
	if _, err := f.Listen(poller.Listener{Index: 1, Addr: f.addr}); err == nil {
		t.Error("two listeners on one port")
	}
	second, err := f.Listen(poller.Listener{Index: 5, Addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	var last *net.TCPConn
	for index, addr := range map[int]string{0: f.addr, 5: second.String()} {
		f.addr = addr
		last = f.dial()
		info := <-infos
		local := last.LocalAddr().(*net.TCPAddr).AddrPort()
		if info.Listener != index || info.Remote != netip.AddrPortFrom(local.Addr().Unmap(), local.Port()) || info.TLS {
			t.Errorf("listener %d, peer %v: info %+v", index, local, info)
		}
	}
	if s := f.Stats(); len(s.Open) != 6 || s.Open[0] != 1 || s.Open[5] != 1 {
		t.Errorf("stats %+v", s)
	}
	f.StopAccepting()
	if c, err := net.Dial("tcp", f.addr); err == nil {
		_ = c.Close()
		t.Error("a connection after StopAccepting")
	}
	if _, err := f.Listen(poller.Listener{Addr: "127.0.0.1:0"}); err == nil {
		t.Error("Listen after StopAccepting")
	}
	f.write(last, []byte("go on"))
	f.read(last, len("go on"))
}
