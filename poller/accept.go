package poller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// acceptBatch is how many connections are accepted in a row before the acceptor looks whether it shall stop.
	acceptBatch = 128
	// pauseMin and pauseMax bound how long accepting pauses when descriptors or memory have run out.
	pauseMin = 10 * time.Millisecond
	pauseMax = time.Second
)

// acceptor accepts on one address, on one goroutine that waits in the runtime's poller.
type acceptor struct {
	// Fixed after Listen.
	engine   *engine
	listener Listener
	file     *os.File
	quit     chan struct{}
	done     sync.WaitGroup

	// Touched by its goroutine only.
	spare int // a descriptor to give up when there are none left; -1 = given up
	pause time.Duration
}

// listen opens the listener and starts its acceptor.
func (e *engine) listen(l Listener) (net.Addr, error) {
	if l.Index < 0 || l.Index > listenerIndexMax {
		return nil, fmt.Errorf("poller: Listener.Index is %d, must be 0 to %d", l.Index, listenerIndexMax)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopped {
		return nil, ErrShutdown
	}
	file, addr, err := openListener(l.Addr, e.cfg.SendBuffer)
	if err != nil {
		return nil, fmt.Errorf("poller: listen on %s: %w", l.Addr, err)
	}
	a := &acceptor{engine: e, listener: l, file: file, quit: make(chan struct{}), spare: openSpare(), pause: pauseMin}
	e.acceptors = append(e.acceptors, a)
	e.indices = max(e.indices, l.Index+1)
	a.done.Add(1)
	go a.run() // ended by stop
	return addr, nil
}

// openListener listens with the options that accepted sockets inherit, which saves setting them on each: TCP_NODELAY
// and SO_SNDBUF. The net package resolves the address and sets SO_REUSEADDR.
func openListener(addr string, sndbuf int) (*os.File, net.Addr, error) {
	lc := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) error {
		var err error
		if e := rc.Control(func(fd uintptr) {
			err = errors.Join(unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, sndbuf))
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

// stop closes the listener and waits for the goroutine.
func (a *acceptor) stop() {
	close(a.quit)
	_ = a.file.Close()
	a.done.Wait()
}

// run accepts until stop.
func (a *acceptor) run() {
	defer a.done.Done()
	defer func() {
		if a.spare >= 0 {
			_ = unix.Close(a.spare)
		}
	}()
	rc, err := a.file.SyscallConn()
	if err != nil {
		a.engine.log.Error("poller: listener has no raw descriptor", "error", err)
		return
	}
	for {
		var short bool
		err := rc.Read(func(fd uintptr) bool {
			var more bool
			more, short = a.batch(int(fd))
			return more || short
		})
		if err != nil {
			return // closed by stop
		}
		if short && !a.wait() {
			return
		}
	}
}

// batch accepts what is there. more means that there may be more, short that the process lacks descriptors or memory.
func (a *acceptor) batch(fd int) (more, short bool) {
	for range acceptBatch {
		nfd, sa, err := unix.Accept4(fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch err {
		case nil:
			a.pause = pauseMin
			a.admit(nfd, sa)
		case unix.EAGAIN:
			return false, false
		case unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM:
			a.shed(fd)
			return false, true
		case unix.EBADF, unix.EINVAL, unix.ENOTSOCK:
			return false, true // closed by stop, which the next round sees
		default:
			// ECONNABORTED, EINTR and the network errors that accept(2) passes on concern that one connection.
		}
	}
	return true, false
}

// wait pauses accepting; false when the acceptor shall stop. The pause doubles while nothing gets better.
func (a *acceptor) wait() bool {
	a.engine.acceptPaused.Add(1)
	t := time.NewTimer(a.pause)
	defer t.Stop()
	a.pause = min(2*a.pause, pauseMax)
	select {
	case <-t.C:
		return true
	case <-a.quit:
		return false
	}
}

// shed gives up the spare descriptor to take those who wait in the backlog, one by one, and close them: they are told
// at once instead of hanging.
func (a *acceptor) shed(fd int) {
	if a.spare >= 0 {
		_ = unix.Close(a.spare)
	}
	for range acceptBatch {
		nfd, _, err := unix.Accept4(fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			break
		}
		a.refuse(nfd, CauseConnectionLimit)
	}
	a.spare = openSpare()
}

// refuse closes a connection that Open will not see.
func (a *acceptor) refuse(fd int, cause Cause) {
	a.engine.refused[cause].Add(1)
	_ = unix.Close(fd)
}

// admit gives the connection a slot and a loop, or refuses it.
func (a *acceptor) admit(fd int, sa unix.Sockaddr) {
	e, remote, now := a.engine, addrPort(sa), time.Now()
	if !e.limits.rate(now) {
		a.refuse(fd, CauseAcceptRate)
		return
	}
	stage, ok := a.stageFor(remote)
	if !ok {
		a.refuse(fd, CauseBadProxyHeader)
		return
	}
	var quota *addrQuota
	if stage == nil || !stage.proxy {
		if quota, ok = e.limits.address(a.limited(remote), now); !ok {
			a.refuse(fd, CauseAddressLimit)
			return
		}
	}
	c := e.slab.Take()
	if c == nil {
		e.limits.closed(quota)
		a.refuse(fd, CauseConnectionLimit)
		return
	}
	l := e.idlest()
	c.mu.Lock()
	c.loop, c.fd, c.quota, c.listener = l, int32(fd), quota, uint8(a.listener.Index)
	c.state, c.mask = stateOpening, disarmed
	id := c.id()
	c.mu.Unlock()
	l.conns.Add(1)
	l.arrive(incoming{id: id, remote: remote, stage: stage})
}

// idlest is the loop with the fewest connections.
func (e *engine) idlest() *loop {
	best := e.all[0]
	for _, l := range e.all[1:] {
		if l.conns.Load() < best.conns.Load() {
			best = l
		}
	}
	return best
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
