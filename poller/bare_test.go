package poller_test

import (
	"net"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// bareEcho is the floor that the engine is measured against: one level-triggered epoll loop that only reads and writes,
// inline, with raw calls, and knows nothing of connections but their descriptors. flags is 0, or EPOLLONESHOT to re-arm
// after every event. It runs until the process ends.
func bareEcho(ln net.Listener, flags uint32) error {
	file, err := ln.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	lfd := int(file.Fd())
	if err := unix.SetNonblock(lfd, true); err != nil {
		return err
	}
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	if err := unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, lfd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(lfd)}); err != nil {
		return err
	}
	events, buf := make([]unix.EpollEvent, 512), make([]byte, 16<<10)
	for {
		n, err := unix.EpollWait(epfd, events, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		for _, ev := range events[:n] {
			fd := int(ev.Fd)
			if fd == lfd {
				bareAccept(epfd, lfd, flags)
				continue
			}
			m, _, e := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))
			if e != 0 || m == 0 {
				_ = unix.Close(fd)
				continue
			}
			_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&buf[0])), m)
			if flags != 0 {
				mod := unix.EpollEvent{Events: unix.EPOLLIN | flags, Fd: ev.Fd}
				_, _, _ = unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(epfd), unix.EPOLL_CTL_MOD, uintptr(fd),
					uintptr(unsafe.Pointer(&mod)), 0, 0)
			}
		}
	}
}

func bareAccept(epfd, lfd int, flags uint32) {
	for {
		fd, _, err := unix.Accept4(lfd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		_ = unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | flags, Fd: int32(fd)})
	}
}

// load is a client of conns connections with inflight messages each on the way: the same bare loop from the other side.
type load struct {
	epfd  int
	fds   []int
	buf   []byte
	batch int
}

func newLoad(tb testing.TB, addr string, conns, inflight int) *load {
	tb.Helper()
	epfd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		tb.Fatal(err)
	}
	l := &load{epfd: epfd, buf: make([]byte, 64<<10), batch: inflight}
	for range conns {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			tb.Fatal(err)
		}
		file, err := c.(*net.TCPConn).File()
		if err != nil {
			tb.Fatal(err)
		}
		_ = c.Close()
		fd, err := unix.Dup(int(file.Fd()))
		_ = file.Close()
		if err != nil {
			tb.Fatal(err)
		}
		if err := unix.SetNonblock(fd, true); err != nil {
			tb.Fatal(err)
		}
		if err := unix.EpollCtl(epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
			tb.Fatal(err)
		}
		l.fds = append(l.fds, fd)
	}
	for _, fd := range l.fds {
		if _, err := unix.Write(fd, l.buf[:inflight*messageBytes]); err != nil {
			tb.Fatal(err)
		}
	}
	return l
}

// messageBytes is the size of one message of the measurement.
const messageBytes = 64

// run sends back whatever comes until n messages have come.
func (l *load) run(tb testing.TB, n int) {
	events := make([]unix.EpollEvent, 512)
	for got := 0; got < n*messageBytes; {
		m, err := unix.EpollWait(l.epfd, events, 5000)
		if err != nil && err != unix.EINTR || m == 0 {
			tb.Fatalf("no echo: %v", err)
		}
		for _, ev := range events[:max(m, 0)] {
			r, _, e := unix.RawSyscall(unix.SYS_READ, uintptr(ev.Fd), uintptr(unsafe.Pointer(&l.buf[0])), uintptr(len(l.buf)))
			if e != 0 || r == 0 {
				tb.Fatalf("read: %v", e)
			}
			got += int(r)
			_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(ev.Fd), uintptr(unsafe.Pointer(&l.buf[0])), r)
		}
	}
}

func (l *load) close() {
	for _, fd := range l.fds {
		_ = unix.Close(fd)
	}
	_ = unix.Close(l.epfd)
}

// pin keeps every thread of the process on some cores.
func pin(cores ...int) {
	var set unix.CPUSet
	for _, c := range cores {
		set.Set(c)
	}
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, t := range tasks {
		var tid int
		for _, d := range t.Name() {
			tid = tid*10 + int(d-'0')
		}
		_ = unix.SchedSetaffinity(tid, &set)
	}
}
