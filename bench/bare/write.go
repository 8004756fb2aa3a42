package bare

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Writer is the yardstick of a push: a server that writes the same bytes to its connections at a rate, with one raw
// system call each and nothing else.
type Writer struct {
	frame []byte
	rate  int
	fds   []int32
}

// Written is what one run did.
type Written struct {
	Messages uint64        `json:"messages"`
	Failed   uint64        `json:"failed"`
	Elapsed  time.Duration `json:"elapsed"`
}

// step is how long the writer sleeps between two bursts: as a loop does that is handed batches.
const step = time.Millisecond

// Accept takes conns connections; ready is called once it listens. A message is bytes long and is written to one
// connection after another, rate a second.
func Accept(ctx context.Context, addr string, conns, bytes, rate int, ready func(net.Addr)) (*Writer, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	listener := int(f.Fd())
	if err := unix.SetNonblock(listener, false); err != nil {
		return nil, err
	}
	ready(l.Addr())
	w := &Writer{frame: make([]byte, bytes), rate: rate}
	for len(w.fds) < conns && ctx.Err() == nil {
		fd, _, err := unix.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			w.Close()
			return nil, fmt.Errorf("accept: %w", err)
		}
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		w.fds = append(w.fds, int32(fd))
	}
	return w, ctx.Err()
}

// Run writes for d.
func (w *Writer) Run(ctx context.Context, d time.Duration) Written {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var r Written
	start := time.Now()
	for now := start; ctx.Err() == nil && now.Sub(start) < d; now = time.Now() {
		for due := uint64(now.Sub(start).Seconds() * float64(w.rate)); r.Messages+r.Failed < due; {
			fd := w.fds[int(r.Messages+r.Failed)%len(w.fds)]
			n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&w.frame[0])), uintptr(len(w.frame)),
				unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, 0, 0)
			if errno != 0 || int(n) != len(w.frame) {
				r.Failed++
				continue
			}
			r.Messages++
		}
		time.Sleep(step)
	}
	r.Elapsed = time.Since(start)
	return r
}

// Close closes the connections.
func (w *Writer) Close() {
	for _, fd := range w.fds {
		_ = unix.Close(int(fd))
	}
}
