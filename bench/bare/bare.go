// Package bare is the yardstick of the benchmarks: an epoll echo server that only reads and writes. What a gateway costs
// is told as a ratio to it, measured in one run on one machine.
package bare

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// Mode is how the loop arms its connections, calls the kernel, runs the echo and blocks. Each differs from OneShot in one
// thing.
type Mode string

const (
	// LevelTriggered arms once.
	LevelTriggered Mode = "level"
	// OneShot arms again after every reply, as a lease does; inline, raw system calls, blocks in epoll_wait.
	OneShot Mode = "oneshot"
	// Early arms again before the reply.
	Early Mode = "early"
	// Ordinary tells the Go scheduler of every call.
	Ordinary Mode = "ordinary"
	// Workers hands the events to goroutines.
	Workers Mode = "workers"
	// Runtime blocks in the Go runtime's own poller, which holds the epoll descriptor.
	Runtime Mode = "runtime"
)

// Modes are all of them.
var Modes = []Mode{LevelTriggered, OneShot, Early, Ordinary, Workers, Runtime}

const (
	eventsMax = 256
	readBytes = 16 << 10
	// spins is how often the loop looks without blocking before it blocks: a loop that blocks at once reaches a p99 of 30 ms on one P.
	spins = 2
	// workers is the number of goroutines of Workers: two, as many as the machines that the figures come from have cores.
	workers = 2
)

// Echo serves until ctx ends; ready is called with the address once it listens. One loop.
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
	s := &server{ep: ep, listener: int(f.Fd()), mode: mode, calls: rawCalls}
	if mode == Ordinary {
		s.calls = ordinaryCalls
	}
	b, err := blockerFor(mode, ep)
	if err != nil {
		_ = unix.Close(ep)
		return err
	}
	defer b.close()
	if err := unix.SetNonblock(s.listener, true); err != nil {
		return err
	}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, s.listener, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(s.listener)}); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	ready(l.Addr())
	return s.run(ctx, b)
}

type server struct {
	ep, listener int
	mode         Mode
	calls        calls
}

// run hands each event to the echo: in place, or to the workers.
func (s *server) run(ctx context.Context, b blocker) error {
	buf := make([]byte, readBytes)
	handle := func(fd int) { s.echo(fd, buf) }
	if s.mode == Workers {
		work := make(chan int, eventsMax)
		var running sync.WaitGroup
		defer running.Wait()
		defer close(work)
		for range workers {
			running.Go(func() {
				buf := make([]byte, readBytes)
				for fd := range work {
					s.echo(fd, buf)
				}
			})
		}
		handle = func(fd int) { work <- fd }
	}
	for events := make([]unix.EpollEvent, eventsMax); ctx.Err() == nil; {
		n, err := b.next(events)
		if err != nil {
			return err
		}
		for i := range n {
			if fd := int(events[i].Fd); fd == s.listener {
				s.accept()
			} else {
				handle(fd)
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
	if s.mode == LevelTriggered {
		return unix.EPOLLIN
	}
	return unix.EPOLLIN | unix.EPOLLONESHOT
}

func (s *server) echo(fd int, buf []byte) {
	n, err := s.calls.read(fd, buf)
	if errors.Is(err, unix.EAGAIN) {
		s.rearm(fd)
		return
	}
	if err != nil || n == 0 {
		_ = unix.Close(fd)
		return
	}
	if s.mode == Early {
		s.rearm(fd)
	}
	if w, err := s.calls.write(fd, buf[:n]); err != nil || w != n {
		_ = unix.Close(fd)
		return
	}
	if s.mode != Early {
		s.rearm(fd)
	}
}

func (s *server) rearm(fd int) {
	if s.mode != LevelTriggered {
		s.calls.arm(s.ep, fd, s.events())
	}
}
