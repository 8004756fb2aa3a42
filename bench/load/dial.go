package load

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/codec"
)

// handshakeSeconds bounds each blocking step of a handshake.
const handshakeSeconds = 10

// errBusy is a server that says: not now.
var errBusy = errors.New("the login was refused: 503 or ERROR")

// busyMax bounds how often one client tries again.
const busyMax = 50

// busyPause is how long it waits before that: well below what real clients do.
const busyPause = 50 * time.Millisecond

// patiently connects client i, again and again while the server is busy.
func (f *Fleet) patiently(i int) (conn, error) {
	for n := 1; ; n++ {
		c, err := f.connect(i)
		if !errors.Is(err, errBusy) || n == busyMax {
			return c, err
		}
		f.refused.Add(1)
		time.Sleep(busyPause)
	}
}

// connect opens one blocking socket, logs in on it, and then makes it non-blocking for the loop.
func (f *Fleet) connect(i int) (conn, error) {
	if f.o.Transport == WSS {
		return f.connectTLS(i)
	}
	addr, err := netip.ParseAddrPort(f.o.Addr)
	if err != nil {
		return conn{}, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return conn{}, fmt.Errorf("socket: %w", err)
	}
	c := conn{fd: fd, open: true}
	if err := f.login(&c, i, addr); err != nil {
		_ = unix.Close(fd)
		return conn{}, err
	}
	return c, unix.SetNonblock(fd, true)
}

func (f *Fleet) login(c *conn, i int, addr netip.AddrPort) error {
	tv := unix.Timeval{Sec: handshakeSeconds}
	_ = unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	_ = unix.SetsockoptInt(c.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	// Ports are taken at connect by the whole four-tuple, so that many connections fit into one address.
	_ = unix.SetsockoptInt(c.fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	if err := unix.Connect(c.fd, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if f.o.Transport == Raw {
		return nil
	}
	token, err := f.o.Token(i)
	if err != nil {
		return err
	}
	if f.o.Transport == WS {
		c.stream = codec.NewClientStream(codec.WebSocket)
		return upgrade(socket(c.fd), f.o.Addr, token)
	}
	c.stream = codec.NewClientStream(codec.TCP)
	cmd := codec.AppendCommand(nil, clientv1.CommandType_LOGIN, 0, &clientv1.Login{Token: token, DeviceId: "bench"})
	frame := append(binary.BigEndian.AppendUint32(nil, uint32(len(cmd))), cmd...)
	if _, err := unix.Write(c.fd, frame); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return f.loginReply(c)
}

// loginReply reads the first command that comes back; it must be LOGIN_REPLY.
func (f *Fleet) loginReply(c *conn) error {
	var got []byte
	buf := make([]byte, 1024)
	for {
		n, err := socket(c.fd).Read(buf)
		if err != nil || n == 0 {
			return fmt.Errorf("no reply to LOGIN: %d bytes: %w", n, err)
		}
		got = append(got, buf[:n]...)
		frame, _, err := c.stream.Next(got, &f.limits)
		if err != nil {
			return err
		}
		if frame.Kind == codec.KindNone {
			continue
		}
		h, err := codec.Scan(frame.Payload)
		if err != nil {
			return err
		}
		if h.Type == clientv1.CommandType_ERROR {
			return errBusy
		}
		if h.Type != clientv1.CommandType_LOGIN_REPLY {
			return fmt.Errorf("LOGIN was answered with %v", h.Type)
		}
		return nil
	}
}

// connectTLS logs in over TLS. The records are small: nothing here is larger than an upgrade.
func (f *Fleet) connectTLS(i int) (conn, error) {
	token, err := f.o.Token(i)
	if err != nil {
		return conn{}, err
	}
	// The certificate was made for this run and is not signed by anybody.
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: handshakeSeconds * time.Second}, Config: &tls.Config{InsecureSkipVerify: true}}
	c, err := d.Dial("tcp", f.o.Addr)
	if err != nil {
		return conn{}, fmt.Errorf("connect: %w", err)
	}
	_ = c.SetDeadline(time.Now().Add(handshakeSeconds * time.Second))
	if err := upgrade(c, f.o.Addr, token); err != nil {
		_ = c.Close()
		return conn{}, err
	}
	return conn{tls: c.(*tls.Conn)}, nil
}

// socket is a blocking socket.
type socket int

// Read repeats a call that a signal has ended: the kernel does not restart one on a socket with a time-out, and the Go
// runtime sends signals.
func (s socket) Read(p []byte) (n int, err error) {
	for {
		if n, err = unix.Read(int(s), p); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func (s socket) Write(p []byte) (int, error) { return unix.Write(int(s), p) }

func upgrade(c io.ReadWriter, host, token string) error {
	req := "GET /ws?device_id=bench HTTP/1.1\r\nHost: " + host + "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
		"Sec-WebSocket-Key: c2x1aWNlLWJlbmNoLWtleQ==\r\nSec-WebSocket-Version: 13\r\nAuthorization: Bearer " + token + "\r\n\r\n"
	if _, err := c.Write([]byte(req)); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	var got []byte
	buf := make([]byte, 1024)
	for !bytes.Contains(got, []byte("\r\n\r\n")) {
		n, err := c.Read(buf)
		if err != nil || n == 0 {
			return fmt.Errorf("no answer to the upgrade: %q %w", got, err)
		}
		got = append(got, buf[:n]...)
	}
	if bytes.HasPrefix(got, []byte("HTTP/1.1 503 ")) {
		return errBusy
	}
	if !bytes.HasPrefix(got, []byte("HTTP/1.1 101 ")) {
		line, _, _ := bytes.Cut(got, []byte("\r\n"))
		return fmt.Errorf("the upgrade was refused: %s", line)
	}
	return nil
}
