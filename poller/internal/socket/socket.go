// Package socket is what engines do with a connection's descriptor and the standard library does not.
package socket

import "golang.org/x/sys/unix"

// Close closes fd. With abort the kernel forgets what it still holds and sends RST: a consumer that does not read must not
// keep kernel memory after its connection has been given up.
func Close(fd int, abort bool) {
	if abort {
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 0})
	}
	_ = unix.Close(fd)
}
