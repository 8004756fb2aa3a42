// Package bare is the yardstick of the benchmarks: an epoll echo server that only reads and writes. What a gateway costs
// is told as a ratio to it, measured in one run on one machine.
package bare

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Mode is how the loop arms its connections.
type Mode string

const (
	// LevelTriggered arms once.
	LevelTriggered Mode = "level"
	// OneShot arms again after every read, as a lease does.
	OneShot Mode = "oneshot"
)

const (
	eventsMax = 256
	readBytes = 16 << 10
	// spins is how often the loop looks without blocking before it blocks: see performance.md, "Latency trap".
	spins = 2
)

// Echo serves until ctx ends; ready is called with the address once it listens. One loop, inline, raw system calls.
func Echo(ctx context.Context, addr string, mode Mode, ready func(net.Addr)) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(ep) }()
	s := &server{ep: ep, listener: int(f.Fd()), mode: mode, buf: make([]byte, readBytes)}
	if err := unix.SetNonblock(s.listener, true); err != nil {
		return err
	}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, s.listener, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(s.listener)}); err != nil {
		return err
	}
	ready(l.Addr())
	return s.run(ctx)
}

type server struct {
	ep, listener int
	mode         Mode
	buf          []byte
}

func (s *server) run(ctx context.Context) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var events [eventsMax]unix.EpollEvent
	idle := 0
	for ctx.Err() == nil {
		n := 0
		if idle < spins {
			r, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(s.ep), uintptr(unsafe.Pointer(&events[0])), eventsMax, 0, 0, 0)
			if errno == 0 {
				n = int(r)
			}
		} else {
			var err error
			// Woken twice a second to look at ctx.
			if n, err = unix.EpollWait(s.ep, events[:], 500); err != nil && !errors.Is(err, unix.EINTR) {
				return fmt.Errorf("epoll_wait: %w", err)
			}
		}
		if n <= 0 {
			idle++
			if idle <= spins {
				runtime.Gosched()
			}
			continue
		}
		idle = 0
		for i := range n {
			if fd := int(events[i].Fd); fd == s.listener {
				s.accept()
			} else {
				s.echo(fd)
			}
		}
	}
	return nil
}

func (s *server) accept() {
	for {
		fd, _, err := unix.Accept4(s.listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		_ = unix.EpollCtl(s.ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: s.events(), Fd: int32(fd)})
	}
}

func (s *server) events() uint32 {
	if s.mode == OneShot {
		return unix.EPOLLIN | unix.EPOLLONESHOT
	}
	return unix.EPOLLIN
}

func (s *server) echo(fd int) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&s.buf[0])), readBytes)
	if errno == unix.EAGAIN {
		return
	}
	if errno != 0 || n == 0 {
		_ = unix.Close(fd)
		return
	}
	if w, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&s.buf[0])), n); errno != 0 || w != n {
		_ = unix.Close(fd)
		return
	}
	if s.mode == OneShot {
		ev := unix.EpollEvent{Events: s.events(), Fd: int32(fd)}
		_, _, _ = unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(s.ep), unix.EPOLL_CTL_MOD, uintptr(fd), uintptr(unsafe.Pointer(&ev)), 0, 0)
	}
}
