package secure

import (
	"errors"
	"net"
	"time"
)

// wire is a Layer as the net.Conn that crypto/tls reads and writes below it.
type wire Layer

var _ net.Conn = (*wire)(nil)

// Read implements net.Conn. During the handshake it waits for bytes, and lets others compute meanwhile.
func (w *wire) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if w.shake == nil {
		if w.budget <= 0 {
			return 0, ErrAgain
		}
		n, err := w.link.Receive(p[:min(len(p), w.budget)])
		w.budget -= n
		return n, err
	}
	for {
		if !w.link.Enter() {
			return 0, net.ErrClosed
		}
		n, err := w.shake.hello.receive(w.link, p)
		w.link.Leave()
		if !errors.Is(err, ErrAgain) {
			return n, err
		}
		<-w.shake.cpu
		<-w.shake.ready
		w.shake.cpu <- struct{}{}
	}
}

// Write implements net.Conn: p is one record or several.
func (w *wire) Write(p []byte) (int, error) {
	if w.shake != nil {
		if !w.link.Enter() {
			return 0, net.ErrClosed
		}
		defer w.link.Leave()
	}
	if err := w.link.Send(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close implements net.Conn; the engine closes the descriptor.
func (w *wire) Close() error { return nil }

// LocalAddr implements net.Conn; crypto/tls has no use for it.
func (w *wire) LocalAddr() net.Addr { return nil }

// RemoteAddr implements net.Conn; crypto/tls has no use for it.
func (w *wire) RemoteAddr() net.Addr { return nil }

// SetDeadline implements net.Conn; the engine keeps the deadlines.
func (w *wire) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn; the engine keeps the deadlines.
func (w *wire) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn; the engine keeps the deadlines.
func (w *wire) SetWriteDeadline(time.Time) error { return nil }
