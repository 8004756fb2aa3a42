package poller

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The calls of the hot path go to the kernel without telling the Go scheduler: they never block, and the scheduler's
// bookkeeping around an ordinary call is pure cost (6.7 against 8.9 µs an echoed message on one P). The
// pointers are converted in the argument list, as package unsafe asks.

// sysRead reads into p, which is not empty. n is 0 at the end of the stream. recvfrom spares what read does for files on
// its way to the socket: 8 % of a relayed message at 1,000 connections (docs/adr/0002-loop-cost.md).
func sysRead(fd int32, p []byte) (int, unix.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)),
		unix.MSG_DONTWAIT, 0, 0)
	return int(n), e
}

// sysSend writes p, which is not empty. Unlike write it raises no SIGPIPE.
func sysSend(fd int32, p []byte) (int, unix.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)),
		unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, 0, 0)
	return int(n), e
}

// sysEpollCtl registers (EPOLL_CTL_ADD) or re-arms (EPOLL_CTL_MOD) fd; events of it will carry id.
func sysEpollCtl(epfd int, op int, fd int32, events uint32, id ID) unix.Errno {
	ev := unix.EpollEvent{Events: events, Fd: int32(uint32(id)), Pad: int32(uint32(id >> 32))}
	_, _, e := unix.RawSyscall6(unix.SYS_EPOLL_CTL, uintptr(epfd), uintptr(op), uintptr(fd), uintptr(unsafe.Pointer(&ev)), 0, 0)
	return e
}

// eventID is the id that sysEpollCtl put into an event.
func eventID(ev *unix.EpollEvent) ID { return ID(uint32(ev.Fd)) | ID(uint32(ev.Pad))<<32 }

// sysEpollPoll asks for events that are there already.
func sysEpollPoll(epfd int, events []unix.EpollEvent) (int, unix.Errno) {
	n, _, e := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epfd), uintptr(unsafe.Pointer(unsafe.SliceData(events))),
		uintptr(len(events)), 0, 0, 0)
	return int(n), e
}

// sysSignal adds one to an eventfd; it cannot fail before 2^64 - 1 signals.
func sysSignal(fd int) {
	one := uint64(1)
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one)), unsafe.Sizeof(one))
}
