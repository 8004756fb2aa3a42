// Package gate accepts connections: it listens, says who may come in, and keeps its head when descriptors run out. What
// becomes of an accepted descriptor is the engine's business.
package gate

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// acceptBatch is how many connections are accepted in a row before the gate looks whether it shall stop.
	acceptBatch = 128
	// pauseMin and pauseMax bound how long accepting pauses when descriptors or memory have run out.
	pauseMin = 10 * time.Millisecond
	pauseMax = time.Second
)

// Host is who takes the connections. Its methods run on the gate's goroutine.
type Host interface {
	// Accepted takes over an accepted, non-blocking descriptor.
	Accepted(fd int, remote netip.AddrPort)
	// Shed says that a connection is closed for want of descriptors.
	Shed()
	// Paused says that accepting pauses for want of descriptors or memory.
	Paused()
}

// Gate accepts on one address, on one goroutine that waits in the runtime's poller.
type Gate struct {
	// Fixed after Open.
	host Host
	log  *slog.Logger
	addr net.Addr
	file *os.File
	quit chan struct{}
	done sync.WaitGroup

	// Touched by its goroutine only.
	spare int // a descriptor to give up when there are none left; -1 = given up
	pause time.Duration
}

// Open listens on addr and starts to accept; accepted sockets have TCP_NODELAY and a send buffer of sendBuffer bytes.
func Open(addr string, sendBuffer int, host Host, log *slog.Logger) (*Gate, error) {
	file, local, err := listen(addr, sendBuffer)
	if err != nil {
		return nil, err
	}
	g := &Gate{host: host, log: log, addr: local, file: file, quit: make(chan struct{}), spare: openSpare(), pause: pauseMin}
	g.done.Add(1)
	go g.run() // ended by Close
	return g, nil
}

// Addr is the address that the gate listens on.
func (g *Gate) Addr() net.Addr { return g.addr }

// Close stops listening and returns when the gate's goroutine has ended.
func (g *Gate) Close() {
	close(g.quit)
	_ = g.file.Close()
	g.done.Wait()
}

// listen sets on the listener what accepted sockets inherit, which saves setting it on each. The net package resolves the
// address and sets SO_REUSEADDR.
func listen(addr string, sendBuffer int) (*os.File, net.Addr, error) {
	lc := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) error {
		var err error
		if e := rc.Control(func(fd uintptr) {
			err = errors.Join(unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer))
		}); e != nil {
			return e
		}
		return err
	}}
	lc.SetMultipathTCP(false)
	ln, err := lc.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = ln.Close() }()
	file, err := ln.(*net.TCPListener).File()
	if err != nil {
		return nil, nil, err
	}
	return file, ln.Addr(), nil
}

func openSpare() int {
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	return fd
}

// run accepts until Close.
func (g *Gate) run() {
	defer g.done.Done()
	defer func() {
		if g.spare >= 0 {
			_ = unix.Close(g.spare)
		}
	}()
	rc, err := g.file.SyscallConn()
	if err != nil {
		g.log.Error("poller: listener has no raw descriptor", "error", err)
		return
	}
	for {
		var short bool
		err := rc.Read(func(fd uintptr) bool {
			var more bool
			more, short = g.batch(int(fd))
			return more || short
		})
		if err != nil {
			return // closed
		}
		if short && !g.wait() {
			return
		}
	}
}

// batch accepts what is there. more means that there may be more, short that the process lacks descriptors or memory.
func (g *Gate) batch(fd int) (more, short bool) {
	for range acceptBatch {
		nfd, sa, err := unix.Accept4(fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch err {
		case nil:
			g.pause = pauseMin
			g.host.Accepted(nfd, addrPort(sa))
		case unix.EAGAIN:
			return false, false
		case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
			g.shed(fd)
			return false, true
		case unix.EBADF, unix.EINVAL, unix.ENOTSOCK:
			return false, true // closed, which the next round sees
		default:
			// ECONNABORTED, EINTR and the network errors that accept(2) passes on concern that one connection.
		}
	}
	return true, false
}

// wait pauses accepting; false when the gate is closed. The pause doubles while nothing gets better.
func (g *Gate) wait() bool {
	g.host.Paused()
	t := time.NewTimer(g.pause)
	defer t.Stop()
	g.pause = min(2*g.pause, pauseMax)
	select {
	case <-t.C:
		return true
	case <-g.quit:
		return false
	}
}

// shed gives up the spare descriptor to take those who wait in the backlog, one by one, and close them: they are told at
// once instead of hanging.
func (g *Gate) shed(fd int) {
	if g.spare >= 0 {
		_ = unix.Close(g.spare)
	}
	for range acceptBatch {
		nfd, _, err := unix.Accept4(fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			break
		}
		g.host.Shed() // first, so that whoever sees the end finds it counted
		_ = unix.Close(nfd)
	}
	g.spare = openSpare()
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}
