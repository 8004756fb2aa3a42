package poller

import (
	"io"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-im/sluice/poller/internal/buffer"
	"github.com/sluice-im/sluice/poller/internal/proxy"
	"github.com/sluice-im/sluice/poller/internal/secure"
)

// What lies before the handler: on some listeners a connection first shows a PROXY header, then a TLS handshake, and only
// then is opened. The way: open → stage (reads into the left-over buffer) → header → whole ClientHello → handshake on a
// goroutine of secure.Shakers → Open. HandshakeTimeout bounds all of it.

// prefaceBytesMax is what may come before the handler beyond Config.LeftoverBytes: a PROXY header and a ClientHello. The
// rest of a handshake is read as it comes.
const prefaceBytesMax = proxy.HeaderMax + secure.HelloMax

// stage is the state of a connection before it is opened, and of TLS for its whole life. It is the layer's secure.Link.
type stage struct {
	conn *conn // fixed after loop.stage

	// Touched by the loop only.
	more bool // reading stopped although the layer may hold more

	// Written by the loop under conn.mu, so that the loop reads it without.
	before *before // nil once the connection is opened

	// Guarded by conn.mu.
	waiting bool           // the handshake waits for bytes
	broken  bool           // reading has failed
	early   *buffer.Buffer // read before the handshake began; nil when used up
	layer   secure.Layer
}

// before is what only a connection that is not opened yet needs.
type before struct {
	// Touched by the loop only.
	acceptor *acceptor
	remote   netip.AddrPort
	accepted time.Duration // engine time; the deadline counts from it
	proxy    bool          // a PROXY header may still come

	// Written by the loop under conn.mu.
	shaking bool // given to the shakers
}

// stageFor is nil when the connection can be opened at once. A PROXY header is looked for on connections from trusted
// addresses only; on a strict listener nobody else is served.
func (a *acceptor) stageFor(remote netip.AddrPort) (s *stage, served bool) {
	header, served := a.policy.Expects(remote.Addr())
	if !served || !header && a.tls == nil {
		return nil, served
	}
	return &stage{before: &before{acceptor: a, remote: remote, proxy: header}}, true
}

// stage begins with an accepted connection that is not opened yet.
func (l *loop) stage(c *conn, s *stage, accepted time.Duration) {
	s.conn, s.before.accepted = c, accepted
	if l.closing {
		l.reject(c, CauseShutdown)
		return
	}
	c.mu.Lock()
	c.stage, c.state = s, stateStaging
	c.timerAt = l.wheel.Ceil(accepted + l.engine.cfg.HandshakeTimeout)
	l.wheel.Ensure(c.slot, c.timerAt)
	c.arm()
	c.mu.Unlock()
}

// staged handles an event of a connection that is not opened yet. c.mu is held, and unlocked.
func (l *loop) staged(c *conn) {
	if c.stage.before.shaking { // the bytes are for the handshake's goroutine
		c.stage.waiting = false
		c.stage.layer.Signal()
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	p, e := l.read(c)
	switch {
	case e == unix.EAGAIN:
		l.await(c)
	case e != 0:
		l.reject(c, CausePeerReset)
	case c.eof:
		l.reject(c, CausePeerClosed)
	default:
		l.advance(c, p)
	}
}

// advance looks at what has come so far and takes the next step.
func (l *loop) advance(c *conn, p []byte) {
	b := c.stage.before
	if b.proxy {
		source, n, whole, err := b.acceptor.policy.Read(p)
		switch {
		case err != nil:
			l.reject(c, CauseBadProxyHeader)
			return
		case !whole:
			if l.preface(c, p) {
				l.await(c)
			}
			return
		}
		b.proxy = false
		if source.IsValid() {
			b.remote = source
		}
		p = p[n:]
		if !l.admitProxied(c) {
			return
		}
	}
	if !l.preface(c, p) {
		return
	}
	if b.acceptor.tls == nil {
		c.mu.Lock()
		c.stage = nil
		c.mu.Unlock()
		l.begin(c, b.remote, b.accepted)
		return
	}
	switch whole, err := secure.WholeHello(p); {
	case err != nil:
		l.reject(c, CauseTLSFailed)
	case !whole:
		l.await(c)
	default:
		l.shake(c)
	}
}

// preface keeps what has come so far of a connection that is not opened yet, and ends it when that is too much.
func (l *loop) preface(c *conn, p []byte) bool {
	if l.hold(c, p, l.engine.cfg.LeftoverBytes+prefaceBytesMax) {
		return true
	}
	l.reject(c, CauseInputOverflow)
	return false
}

// admitProxied asks for the limits per address once the real address is known.
func (l *loop) admitProxied(c *conn) bool {
	b := c.stage.before
	q, ok := l.engine.limits.Address(b.acceptor.policy.Counted(b.remote.Addr()), time.Now())
	if !ok {
		l.reject(c, CauseAddressLimit)
		return false
	}
	c.mu.Lock()
	c.quota = q
	c.mu.Unlock()
	return true
}

// shake hands the connection to the goroutines that do handshakes, with what was read so far.
func (l *loop) shake(c *conn) {
	s := c.stage
	c.mu.Lock()
	s.early, c.left = c.left, nil
	s.before.shaking = true
	s.layer.Begin(s, s.before.acceptor.tls, l.engine.bufs)
	c.mu.Unlock()
	l.engine.shakers.Submit(&s.layer)
}

// shaken opens a connection whose handshake has succeeded. Records that came with its end are not announced by the
// kernel any more, so the first release reads them.
func (l *loop) shaken(c *conn) {
	s := c.stage
	b := s.before
	c.mu.Lock()
	s.before = nil
	c.mu.Unlock()
	s.more = true
	l.begin(c, b.remote, b.accepted)
}

// await waits for more bytes.
func (l *loop) await(c *conn) {
	c.mu.Lock()
	c.arm()
	c.mu.Unlock()
}

// reject closes a connection that was never opened.
func (l *loop) reject(c *conn, cause Cause) {
	c.mu.Lock()
	c.end(cause, flagCut)
	l.finish(c)
}

// lateCause is why a connection that was not opened in time is closed.
func (s *stage) lateCause() Cause {
	if s.before.proxy {
		return CauseBadProxyHeader
	}
	return CauseTLSFailed
}

// Enter implements secure.Link. The layer does not call it any more when the connection is opened.
func (s *stage) Enter() bool {
	c := s.conn
	c.mu.Lock()
	if c.stage != s || c.state != stateStaging {
		c.mu.Unlock()
		return false
	}
	return true
}

// Leave implements secure.Link.
func (s *stage) Leave() { s.conn.mu.Unlock() }

// Receive implements secure.Link.
func (s *stage) Receive(p []byte) (int, error) {
	c := s.conn
	if s.early != nil {
		n := copy(p, s.early.Bytes())
		if s.early.Skip(n); s.early.Len() == 0 {
			c.loop.engine.bufs.Give(s.early)
			s.early = nil
		}
		return n, nil
	}
	n, e := sysRead(c.fd, p)
	switch {
	case e == unix.EAGAIN || e == unix.EINTR:
		if c.state == stateStaging {
			s.waiting = true
			c.arm()
		}
		return 0, secure.ErrAgain
	case e != 0:
		s.broken = true
		return 0, os.NewSyscallError("read", e)
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// Send implements secure.Link.
func (s *stage) Send(record []byte) error {
	c := s.conn
	if c.state != stateStaging {
		c.push(record)
		return nil
	}
	if c.queued()+len(record) > c.loop.engine.cfg.OutboxBytes {
		return io.ErrShortBuffer
	}
	c.push(record)
	if c.flush() == StatusGone {
		return io.ErrClosedPipe
	}
	c.arm()
	return nil
}

// Shaken implements secure.Link: it is for the loop to go on.
func (s *stage) Shaken(err error) {
	if err != nil {
		s.conn.end(CauseTLSFailed, flagHangup) // the alert is in the outbox
		return
	}
	s.conn.enlist()
}

// drop gives back what the stage holds; the connection has ended. c.mu is held.
func (s *stage) drop() {
	s.layer.Drop()
	if s.early != nil {
		s.conn.loop.engine.bufs.Give(s.early)
		s.early = nil
	}
}
