package socket

import (
	"errors"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// accepted is a connection and the descriptor of its other end, which belongs to the test.
func accepted(t *testing.T) (client net.Conn, fd int) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	if client, err = net.DialTimeout("tcp", ln.Addr().String(), time.Minute); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	server, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	rc, err := server.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var dup error
	if err := errors.Join(rc.Control(func(s uintptr) { fd, dup = unix.Dup(int(s)) }), dup); err != nil {
		t.Fatal(err)
	}
	return client, fd
}

func TestClose(t *testing.T) {
	for _, abort := range []bool{false, true} {
		client, fd := accepted(t)
		Close(fd, abort)
		_ = client.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := client.Read(make([]byte, 1)); errors.Is(err, unix.ECONNRESET) != abort {
			t.Errorf("abort %v: the client sees %v", abort, err)
		}
	}
}
