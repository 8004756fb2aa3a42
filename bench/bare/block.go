package bare

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// blockMax is how long a loop blocks at most, so that it looks at its context twice a second.
const blockMax = 500 * time.Millisecond

// blocker gets the next events. 0 events without an error means that it is time to look at the context.
type blocker interface {
	next(events []unix.EpollEvent) (int, error)
	close()
}

func blockerFor(mode Mode, ep int) (blocker, error) {
	switch mode {
	case Runtime:
		return newRuntimeBlocker(ep)
	case Workers: // a loop on a thread of its own would change threads at every hand-over
		return &kernelBlocker{ep: ep}, nil
	}
	runtime.LockOSThread() // until close
	return &kernelBlocker{ep: ep, locked: true}, nil
}

// poll returns the events that are there.
func poll(ep int, events []unix.EpollEvent) int {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(ep), uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// kernelBlocker looks a few times and gives way in between, then blocks in epoll_wait.
type kernelBlocker struct {
	ep     int
	locked bool
}

func (b *kernelBlocker) next(events []unix.EpollEvent) (int, error) {
	for range spins {
		if n := poll(b.ep, events); n > 0 {
			return n, nil
		}
		runtime.Gosched()
	}
	n, err := unix.EpollWait(b.ep, events, int(blockMax/time.Millisecond))
	if err != nil && !errors.Is(err, unix.EINTR) {
		return 0, fmt.Errorf("epoll_wait: %w", err)
	}
	return max(n, 0), nil
}

func (b *kernelBlocker) close() {
	_ = unix.Close(b.ep)
	if b.locked {
		runtime.UnlockOSThread()
	}
}

// runtimeBlocker looks as often, then waits for the epoll descriptor as for any other file.
type runtimeBlocker struct {
	ep   int
	file *os.File
	raw  syscall.RawConn
}

func newRuntimeBlocker(ep int) (*runtimeBlocker, error) {
	if err := unix.SetNonblock(ep, true); err != nil { // else os would not poll it
		return nil, err
	}
	file := os.NewFile(uintptr(ep), "epoll")
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &runtimeBlocker{ep: ep, file: file, raw: raw}, nil
}

func (b *runtimeBlocker) next(events []unix.EpollEvent) (int, error) {
	for range spins {
		if n := poll(b.ep, events); n > 0 {
			return n, nil
		}
		runtime.Gosched()
	}
	if err := b.file.SetReadDeadline(time.Now().Add(blockMax)); err != nil {
		return 0, err
	}
	n := 0
	err := b.raw.Read(func(uintptr) bool {
		n = poll(b.ep, events)
		return n > 0
	})
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return 0, err
	}
	return n, nil
}

func (b *runtimeBlocker) close() { _ = b.file.Close() }
