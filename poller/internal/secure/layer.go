// Package secure puts TLS between a connection of an engine and its handler. It knows neither sockets nor leases: an
// engine gives it a Link, through which ciphertext comes and goes.
//
// The way of a connection: WholeHello → Layer.Begin → Shakers.Submit: a goroutine does the handshake, and waits in
// between for the engine's Signal → Link.Shaken → Layer.Read and Layer.Seal, under the connection's mutex, for the rest of
// its life. crypto/tls is called again and again over a Link that never waits: a Receive without bytes is a temporary
// error, at which it keeps its place in a record.
package secure

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"

	"github.com/sluice-im/sluice/poller/internal/buffer"
)

// Link is the connection below a Layer. Every call but Enter is made with the connection's mutex held: by the goroutine of
// the handshake between Enter and Leave, afterwards by whoever calls the Layer.
type Link interface {
	// Enter takes the connection's mutex for the goroutine of the handshake. It reports false, and does not hold it, when
	// the connection is no longer there for a handshake.
	Enter() bool
	// Leave gives the mutex back.
	Leave()
	// Receive takes ciphertext that is there; p is not empty. ErrAgain: none; during the handshake the engine then promises
	// a Signal when some has come. io.EOF: the peer has finished sending.
	Receive(p []byte) (int, error)
	// Send takes a record for the peer behind those before; during the handshake it is on its way when Send returns. An
	// error ends the connection.
	Send(record []byte) error
	// Shaken ends the handshake: err is what it failed with, and an alert has then been sent. It is not called for a
	// connection that has ended meanwhile.
	Shaken(err error)
}

// again is a temporary net.Error: crypto/tls keeps its state and can be called again.
type again struct{}

func (again) Error() string   { return "secure: no bytes yet" }
func (again) Timeout() bool   { return false }
func (again) Temporary() bool { return true }

// ErrAgain is what Link.Receive says when no bytes are there.
var ErrAgain net.Error = again{}

// Layer is the TLS of one connection. The zero value is ready for Begin.
type Layer struct {
	// Fixed after Begin.
	link Link
	bufs *buffer.Pools
	tls  *tls.Conn

	// Guarded by the connection's mutex; the goroutine of the handshake looks at shake without, since nobody else writes it.
	shake  *shake         // nil once the handshake has succeeded: an idle connection keeps no channel
	plain  *buffer.Buffer // queued and not yet encrypted; nil while nothing is
	budget int            // what Read may still take from the link
}

// shake is what a Layer needs for its handshake only.
type shake struct {
	ready chan struct{} // capacity 1: there may be bytes, or the end
	cpu   chan struct{} // of Shakers, held while the handshake computes
	hello halves
}

// Begin makes the layer ready for its handshake, which Shakers.Submit starts.
func (l *Layer) Begin(link Link, config *tls.Config, bufs *buffer.Pools) {
	l.link, l.bufs, l.shake = link, bufs, &shake{ready: make(chan struct{}, 1)}
	l.tls = tls.Server((*wire)(l), config)
}

// Signal lets the goroutine of the handshake look again, once for however many Signals. The mutex is held, or the
// connection has ended.
func (l *Layer) Signal() {
	if l.shake == nil {
		return
	}
	select {
	case l.shake.ready <- struct{}{}:
	default:
	}
}

// Done reports whether the handshake has succeeded.
func (l *Layer) Done() bool { return l.tls != nil && l.shake == nil }

// handshake runs on a goroutine of Shakers; cpu is theirs.
func (l *Layer) handshake(cpu chan struct{}) {
	l.shake.cpu = cpu
	cpu <- struct{}{}
	err := l.tls.HandshakeContext(context.Background()) // the engine's deadline ends it, by closing the connection
	<-cpu
	if !l.link.Enter() {
		return
	}
	defer l.link.Leave()
	if err == nil {
		l.shake = nil
	}
	l.link.Shaken(err)
}

// Read decrypts into p, taking at most budget bytes from the link. eof is the peer's close_notify or FIN; more says that
// the layer may hold more for p although nothing new comes. After an error the connection is to be hung up on; the alert
// has been sent. It may have been sent already when good records come first: then Seal fails.
func (l *Layer) Read(p []byte, budget int) (n int, eof, more bool, err error) {
	l.budget = budget
	for n < len(p) {
		var m int
		m, err = l.tls.Read(p[n:])
		n += m
		switch {
		case errors.Is(err, ErrAgain):
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

// Queue copies b behind what will be encrypted by the next Seal.
func (l *Layer) Queue(b []byte) {
	l.plain = l.bufs.Grown(l.plain, len(b))
	l.plain.Add(b)
}

// Pending is the number of bytes that are queued and not encrypted.
func (l *Layer) Pending() int {
	if l.plain == nil {
		return 0
	}
	return l.plain.Len()
}

// Seal encrypts what is queued and sends it through the link. When it fails, nothing is queued any more, and the connection is
// to be hung up on.
func (l *Layer) Seal() error {
	if l.plain == nil {
		return nil
	}
	_, err := l.tls.Write(l.plain.Bytes())
	l.Drop()
	return err
}

// Farewell seals what is queued and says close_notify behind it, if the handshake has succeeded.
func (l *Layer) Farewell() {
	if l.Done() && l.Seal() == nil {
		_ = l.tls.CloseWrite() // fails only when TLS has failed before, which says more
	}
}

// Drop gives back what is queued; a connection that has ended does so.
func (l *Layer) Drop() {
	if l.plain != nil {
		l.bufs.Give(l.plain)
		l.plain = nil
	}
}
