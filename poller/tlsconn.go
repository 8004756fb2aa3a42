package poller

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-im/sluice/poller/internal/buffer"
)

// tlsConn is the TLS layer of one connection, and the net.Conn that crypto/tls reads and writes below it.
//
// During the handshake it belongs to one goroutine, which waits in Read for the loop's signal. Afterwards all use is
// under the mu of the connection: Read says errAgain when no bytes are there, which crypto/tls passes on without losing
// its place in a record, and Write puts records into the outbox.
type tlsConn struct {
	// Fixed after newTLSConn.
	conn  *conn
	id    ID
	tls   *tls.Conn
	ready chan struct{} // capacity 1: the loop has seen an event, or the end
	cpu   chan struct{} // held while the handshake computes

	// Guarded by conn.mu.
	early   *buffer.Buffer // read before the handshake began; nil when used up
	plain   *buffer.Buffer // queued and not yet encrypted; nil while nothing is
	waiting bool           // the handshake's goroutine waits for bytes
	done    bool           // the handshake has succeeded
	budget  int            // what one lease may still read
	failed  unix.Errno
}

var _ net.Conn = (*tlsConn)(nil)

// again is a temporary net.Error: crypto/tls keeps its state and can be called again.
type again struct{}

func (again) Error() string   { return "poller: no bytes yet" }
func (again) Timeout() bool   { return false }
func (again) Temporary() bool { return true }

var errAgain net.Error = again{}

func newTLSConn(s *stage, early *buffer.Buffer) *tlsConn {
	t := &tlsConn{conn: s.conn, id: s.id, early: early, ready: make(chan struct{}, 1), cpu: s.conn.loop.engine.shakers.cpu}
	t.tls = tls.Server(t, s.acceptor.listener.TLS)
	return t
}

// signal lets the handshake's goroutine look again. conn.mu is held, or the connection has gone.
func (t *tlsConn) signal() {
	select {
	case t.ready <- struct{}{}:
	default:
	}
}

// alive reports whether the slot still holds the connection. conn.mu is held.
func (t *tlsConn) alive() bool { return t.conn.id() == t.id }

// handshake runs on a goroutine of shakers.
func (t *tlsConn) handshake() {
	t.cpu <- struct{}{}
	err := t.tls.HandshakeContext(context.Background()) // the wheel ends it, by closing the connection
	<-t.cpu
	c := t.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !t.alive() {
		return
	}
	if err != nil {
		c.end(CauseTLSFailed, flagHangup) // the alert is in the outbox
		return
	}
	t.done = true
	c.enlist()
}

// Read implements net.Conn for crypto/tls.
func (t *tlsConn) Read(p []byte) (int, error) {
	if t.done {
		if t.budget <= 0 {
			return 0, errAgain
		}
		n, err := t.take(p)
		t.budget -= n
		return n, err
	}
	c := t.conn
	for {
		c.mu.Lock()
		if !t.alive() || c.state != stateStaging {
			c.mu.Unlock()
			return 0, net.ErrClosed
		}
		n, err := t.take(p)
		if errors.Is(err, errAgain) {
			t.waiting = true
			c.arm()
		}
		c.mu.Unlock()
		if !errors.Is(err, errAgain) {
			return n, err
		}
		<-t.cpu
		<-t.ready
		t.cpu <- struct{}{}
	}
}

// take reads what is there. conn.mu is held.
func (t *tlsConn) take(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if t.early != nil {
		n := copy(p, t.early.Bytes())
		if t.early.Skip(n); t.early.Len() == 0 {
			t.conn.loop.engine.bufs.Give(t.early)
			t.early = nil
		}
		return n, nil
	}
	n, e := sysRead(t.conn.fd, p)
	switch {
	case e == unix.EAGAIN || e == unix.EINTR:
		return 0, errAgain
	case e != 0:
		t.failed = e
		return 0, os.NewSyscallError("read", e)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// Write implements net.Conn for crypto/tls: it queues a record.
func (t *tlsConn) Write(p []byte) (int, error) {
	c := t.conn
	if t.done {
		c.push(p)
		return len(p), nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !t.alive() || c.state != stateStaging || c.queued()+len(p) > c.loop.engine.cfg.OutboxBytes {
		return 0, net.ErrClosed
	}
	c.push(p)
	if c.flush() == StatusGone {
		return 0, net.ErrClosed
	}
	c.arm()
	return len(p), nil
}

// read decrypts into p. eof is the peer's close_notify or FIN; more says that there may be more although the kernel will
// not announce it. conn.mu is held.
func (t *tlsConn) read(p []byte, budget int) (n int, eof, more bool, err error) {
	t.budget = budget
	for n < len(p) {
		var m int
		m, err = t.tls.Read(p[n:])
		n += m
		switch {
		case errors.Is(err, errAgain):
			return n, false, false, nil
		case err != nil && n > 0: // what was read first; the error stays
			return n, false, true, nil
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return 0, true, false, nil
		case err != nil:
			return 0, false, false, err
		}
	}
	return n, false, true, nil
}

// seal encrypts what is queued, into the outbox. conn.mu is held.
func (t *tlsConn) seal() error {
	if t.plain == nil {
		return nil
	}
	_, err := t.tls.Write(t.plain.Bytes())
	t.conn.loop.engine.bufs.Give(t.plain)
	t.plain = nil
	return err
}

// farewell encrypts what is queued and says close_notify behind it. conn.mu is held.
func (t *tlsConn) farewell() {
	if t.done && t.seal() == nil {
		_ = t.tls.CloseWrite() // fails only when TLS has failed before, which says more
	}
}

// drop gives back what the layer holds; the connection has ended. conn.mu is held.
func (t *tlsConn) drop() {
	for _, b := range []**buffer.Buffer{&t.plain, &t.early} {
		if *b != nil {
			t.conn.loop.engine.bufs.Give(*b)
			*b = nil
		}
	}
}

// queue appends to what will be encrypted. conn.mu is held.
func (t *tlsConn) queue(b []byte) {
	t.plain = t.conn.loop.engine.bufs.Grown(t.plain, len(b))
	t.plain.Add(b)
}

// pending is what is queued and not encrypted. conn.mu is held.
func (t *tlsConn) pending() int {
	if t.plain == nil {
		return 0
	}
	return t.plain.Len()
}

// Close implements net.Conn; the engine closes the descriptor.
func (t *tlsConn) Close() error { return nil }

// LocalAddr implements net.Conn; crypto/tls has no use for it.
func (t *tlsConn) LocalAddr() net.Addr { return nil }

// RemoteAddr implements net.Conn; crypto/tls has no use for it.
func (t *tlsConn) RemoteAddr() net.Addr { return nil }

// SetDeadline implements net.Conn; the wheel keeps the deadlines.
func (t *tlsConn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn; the wheel keeps the deadlines.
func (t *tlsConn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn; the wheel keeps the deadlines.
func (t *tlsConn) SetWriteDeadline(time.Time) error { return nil }
