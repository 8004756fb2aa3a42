package poller

import (
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// What lies before the handler: on some listeners a connection first shows a PROXY header, then a TLS handshake, and only
// then is opened. The way: open → stage (reads into the left-over buffer) → parseProxy → whole ClientHello → handshake
// on a goroutine of shakers → Open. HandshakeTimeout bounds all of it.

// helloMax bounds a ClientHello's first record: the largest that TLS allows for plaintext, and its header.
const helloMax = 16<<10 + recordHeader

const (
	recordHeader    = 5
	recordHandshake = 22
)

var errNotTLS = errors.New("poller: not a TLS handshake")

// stage is the state of a connection before it is opened, and of TLS for its whole life.
type stage struct {
	// Fixed after newStage.
	conn     *conn
	id       ID
	acceptor *acceptor

	// Touched by the loop only.
	remote   netip.AddrPort
	accepted time.Duration // engine time; the deadline counts from it
	proxy    bool          // a PROXY header may still come
	queued   bool          // given to shakers
	more     bool          // reading stopped although the TLS layer may hold more

	tls *tlsConn // nil on listeners without TLS
}

// stageFor is nil when the connection can be opened at once. A PROXY header is looked for on connections from trusted
// addresses only; on a strict listener nobody else is served.
func (a *acceptor) stageFor(remote netip.AddrPort) (s *stage, ok bool) {
	proxy := a.listener.Proxy != ProxyOff && a.proxies.Trusts(remote.Addr())
	if a.listener.Proxy == ProxyStrict && !proxy {
		return nil, false
	}
	if !proxy && a.listener.TLS == nil {
		return nil, true
	}
	return &stage{acceptor: a, proxy: proxy, remote: remote}, true
}

// stage begins with an accepted connection that is not opened yet.
func (l *loop) stage(c *conn, s *stage, accepted time.Duration) {
	s.conn, s.id, s.accepted = c, c.id(), accepted
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
	if c.stage.queued { // the bytes are for the handshake's goroutine
		c.stage.tls.waiting = false
		c.stage.tls.signal()
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
	s := c.stage
	if s.proxy {
		source, n, err := parseProxy(p)
		switch {
		case errors.Is(err, errNoProxyHeader) && s.acceptor.listener.Proxy == ProxyOptional:
		case err != nil:
			l.reject(c, CauseBadProxyHeader)
			return
		case n == 0:
			l.keep(c, p)
			l.await(c)
			return
		}
		s.proxy = false
		if source.IsValid() {
			s.remote = source
		}
		p = p[n:]
		if !l.admitProxied(c) {
			return
		}
	}
	l.keep(c, p)
	if s.acceptor.listener.TLS == nil {
		c.mu.Lock()
		c.stage = nil
		c.mu.Unlock()
		l.begin(c, s.remote, s.accepted)
		return
	}
	switch whole, err := wholeHello(p); {
	case err != nil:
		l.reject(c, CauseTLSFailed)
	case !whole:
		l.await(c)
	default:
		l.shake(c)
	}
}

// admitProxied asks for the limits per address once the real address is known.
func (l *loop) admitProxied(c *conn) bool {
	q, ok := l.engine.limits.Address(c.stage.acceptor.proxies.Counted(c.stage.remote.Addr()), time.Now())
	if !ok {
		l.reject(c, CauseAddressLimit)
		return false
	}
	c.mu.Lock()
	c.quota = q
	c.mu.Unlock()
	return true
}

// wholeHello reports whether p holds the whole first record of a handshake. Until then no goroutine is spent on it.
func wholeHello(p []byte) (bool, error) {
	if len(p) > 0 && p[0] != recordHandshake || len(p) > 1 && p[1] != 3 {
		return false, errNotTLS
	}
	if len(p) < recordHeader {
		return false, nil
	}
	n := recordHeader + int(p[3])<<8 + int(p[4])
	if n > helloMax {
		return false, errNotTLS
	}
	return len(p) >= n, nil
}

// shake hands the connection to the goroutines that do handshakes, with what was read so far.
func (l *loop) shake(c *conn) {
	s := c.stage
	c.mu.Lock()
	s.tls = newTLSConn(s, c.left)
	c.left = nil
	s.queued = true
	c.mu.Unlock()
	l.engine.shakers.submit(s.tls)
}

// shaken opens a connection whose handshake has succeeded. Records that came with its end are not announced by the
// kernel any more, so the first release reads them.
func (l *loop) shaken(c *conn) {
	c.stage.more = true
	l.begin(c, c.stage.remote, c.stage.accepted)
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
	if s.proxy {
		return CauseBadProxyHeader
	}
	return CauseTLSFailed
}
