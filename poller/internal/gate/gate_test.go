package gate

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// taker hands accepted descriptors to the test.
type taker struct {
	fds     chan int
	remotes chan netip.AddrPort
}

func (t *taker) Accepted(fd int, remote netip.AddrPort) { t.fds <- fd; t.remotes <- remote }
func (t *taker) Shed()                                  {}
func (t *taker) Paused()                                {}

func TestGate(t *testing.T) {
	host := &taker{fds: make(chan int, 1), remotes: make(chan netip.AddrPort, 1)}
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		g, err := Open(addr, 32<<10, host, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.DialTimeout("tcp", g.Addr().String(), 30*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		fd := <-host.fds
		local := c.LocalAddr().(*net.TCPAddr).AddrPort()
		if remote := <-host.remotes; remote != local {
			t.Errorf("remote %v, the client is %v", remote, local)
		}
		if v, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY); v == 0 || err != nil {
			t.Errorf("TCP_NODELAY is %d, %v", v, err)
		}
		if v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF); v != 64<<10 || err != nil { // the kernel doubles it
			t.Errorf("SO_SNDBUF is %d, %v", v, err)
		}
		if fl, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); fl&unix.O_NONBLOCK == 0 || err != nil {
			t.Errorf("flags %x, %v", fl, err)
		}
		_ = unix.Close(fd)
		if _, err := io.ReadAll(c); err != nil {
			t.Error(err)
		}
		_ = c.Close()
		g.Close()
		if c, err := net.Dial("tcp", g.Addr().String()); err == nil {
			_ = c.Close()
			t.Error("a connection through a closed gate")
		}
	}
}

func TestOpenFails(t *testing.T) {
	if _, err := Open("127.0.0.1:99999", 1, nil, nil); err == nil {
		t.Error("port 99999 was taken")
	}
}

func TestGates(t *testing.T) {
	host := &taker{fds: make(chan int, 1), remotes: make(chan netip.AddrPort, 1)}
	log := slog.New(slog.DiscardHandler)
	var g Gates
	for _, index := range []int{-1, IndexMax + 1} {
		if _, err := g.Open(index, "127.0.0.1:0", 32<<10, host, log); err == nil {
			t.Errorf("a gate with the index %d", index)
		}
	}
	addr, err := g.Open(2, "127.0.0.1:0", 32<<10, host, log)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Open(3, addr.String(), 32<<10, host, log); err == nil {
		t.Error("two gates at one address")
	}
	g.Entered(2)
	g.Entered(2)
	g.Left(2)
	if open, opened := g.Counts(); !slices.Equal(open, []int64{0, 0, 1}) || !slices.Equal(opened, []uint64{0, 0, 2}) {
		t.Errorf("open %v, opened %v", open, opened)
	}
	g.Close()
	g.Close()
	if c, err := net.Dial("tcp", addr.String()); err == nil {
		_ = c.Close()
		t.Error("a connection through a closed gate")
	}
	if _, err := g.Open(0, "127.0.0.1:0", 32<<10, host, log); !errors.Is(err, ErrClosed) {
		t.Errorf("opened after the end: %v", err)
	}
}
