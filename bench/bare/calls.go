package bare

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// calls are the system calls of an echo. An err is a unix.Errno or nil.
type calls struct {
	read  func(fd int, p []byte) (int, error)
	write func(fd int, p []byte) (int, error)
	arm   func(ep, fd int, events uint32)
}

// rawCalls go to the kernel without telling the Go scheduler: the descriptors never block.
var rawCalls = calls{
	read: func(fd int, p []byte) (int, error) {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
		return result(n, errno)
	},
	write: func(fd int, p []byte) (int, error) {
		n, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
		return result(n, errno)
	},
	arm: func(ep, fd int, events uint32) {
		ev := unix.EpollEvent{Events: events, Fd: int32(fd)}
		_, _, _ = unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(ep), unix.EPOLL_CTL_MOD, uintptr(fd), uintptr(unsafe.Pointer(&ev)), 0, 0)
	},
}

func result(n uintptr, errno unix.Errno) (int, error) {
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// ordinaryCalls are those of x/sys/unix.
var ordinaryCalls = calls{
	read:  unix.Read,
	write: unix.Write,
	arm: func(ep, fd int, events uint32) {
		_ = unix.EpollCtl(ep, unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
	},
}
