package netpoll

import (
	"io"
	"net/netip"
	"time"

	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/poller/internal/proxy"
	"github.com/sluice-im/sluice/poller/internal/secure"
)

// What lies before the handler: on some listeners a connection first shows a PROXY header, then a TLS handshake, and only
// then is opened. The way: open → enter → staged, whenever something has come: header → whole ClientHello → handshake on a
// goroutine of secure.Shakers → begin. HandshakeTimeout bounds all of it.

// prefaceBytesMax is what may come before the handler beyond Config.LeftoverBytes: a PROXY header and a ClientHello. The
// rest of a handshake is read as it comes.
const prefaceBytesMax = proxy.HeaderMax + secure.HelloMax

// stage is the state of a connection before it is opened, and of TLS for its whole life. It is the layer's secure.Link.
type stage struct {
	// Fixed after host.Accepted; conn after lane.enter.
	conn *conn
	host *host

	// Guarded by conn.mu.
	remote   netip.AddrPort
	accepted time.Duration // engine time; the deadline counts from it
	proxy    bool          // a PROXY header may still come
	shaking  bool          // given to the shakers
	more     bool          // reading stopped although the layer may hold more
	eof      bool          // the peer has said that it has finished sending
	layer    secure.Layer
}

// stageFor is nil when the connection can be opened at once. A PROXY header is looked for on connections from trusted
// addresses only; on a strict listener nobody else is served.
func (h *host) stageFor(remote netip.AddrPort) (s *stage, served bool) {
	header, served := h.policy.Expects(remote.Addr())
	if !served || !header && h.tls == nil {
		return nil, served
	}
	return &stage{host: h, proxy: header, remote: remote}, true
}

// enter begins the stage of an accepted connection, and gives it to netpoll.
func (l *lane) enter(c *conn, s *stage, accepted time.Duration) {
	s.conn, s.accepted = c, accepted
	c.mu.Lock()
	c.stage, c.state = s, stateStaging
	if l.closing {
		l.reject(c, poller.CauseShutdown)
		return
	}
	c.mu.Unlock()
	c.timerAt = l.wheel.Ceil(accepted + l.engine.cfg.HandshakeTimeout)
	l.wheel.Ensure(c.slot, c.timerAt)
	c.attach()
}

// staged looks at what has come so far for a connection that is not opened yet, and takes the next step. c.mu is held, and
// unlocked.
func (l *lane) staged(c *conn) {
	s := c.stage
	switch {
	case s.shaking && s.layer.Done():
		l.begin(c)
		return
	case s.shaking: // netpoll has let go, which the handshake is to see
		s.layer.Signal()
		c.mu.Unlock()
		return
	}
	if s.proxy {
		source, n, whole, err := s.host.policy.Read(c.came())
		switch {
		case err != nil:
			l.reject(c, poller.CauseBadProxyHeader)
			return
		case !whole:
			l.await(c)
			return
		}
		c.take(n)
		s.proxy = false
		if source.IsValid() {
			s.remote = source
		}
		if !c.admitProxied() {
			l.reject(c, poller.CauseAddressLimit)
			return
		}
	}
	if s.host.tls == nil {
		l.begin(c)
		return
	}
	switch whole, err := secure.WholeHello(c.came()); {
	case err != nil:
		l.reject(c, poller.CauseTLSFailed)
	case !whole:
		l.await(c)
	default:
		s.shaking = true
		s.layer.Begin(s, s.host.tls, l.engine.bufs)
		c.mu.Unlock()
		l.engine.shakers.Submit(&s.layer)
	}
}

// begin opens a connection that has passed its stage. Records that came with the end of its handshake may be in the layer.
// c.mu is held, and unlocked.
func (l *lane) begin(c *conn) {
	s := c.stage
	if s.host.tls == nil {
		c.stage = nil
	} else {
		s.more = true
	}
	c.timerAt = 0
	l.release(c, l.introduce(c, s.remote, s.accepted))
}

// came is the input that no lease has taken. c.mu is held.
func (c *conn) came() []byte {
	if c.in == nil {
		return nil
	}
	return c.in.Bytes()
}

// take takes n bytes from the front of what came. c.mu is held.
func (c *conn) take(n int) {
	if n == 0 {
		return
	}
	if c.in.Skip(n); c.in.Len() == 0 {
		c.lane.engine.bufs.Give(c.in)
		c.in = nil
	}
}

// admitProxied asks for the limits per address once the real address is known. c.mu is held.
func (c *conn) admitProxied() bool {
	s := c.stage
	q, ok := c.lane.engine.limits.Address(s.host.policy.Counted(s.remote.Addr()), time.Now())
	c.quota = q
	return ok
}

// await waits for more bytes, unless none will come. c.mu is held, and unlocked.
func (l *lane) await(c *conn) {
	if c.eof {
		l.reject(c, poller.CausePeerClosed)
		return
	}
	c.mu.Unlock()
}

// reject closes a connection that was never opened. c.mu is held, and unlocked.
func (l *lane) reject(c *conn, cause poller.Cause) {
	c.end(cause, flagCut)
	l.finish(c)
}

// lateCause is why a connection that was not opened in time is closed. c.mu is held.
func (s *stage) lateCause() poller.Cause {
	if s.proxy {
		return poller.CauseBadProxyHeader
	}
	return poller.CauseTLSFailed
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

// Receive implements secure.Link: from what netpoll has read.
func (s *stage) Receive(p []byte) (int, error) {
	c := s.conn
	switch {
	case c.in != nil:
		n := copy(p, c.in.Bytes())
		c.take(n)
		return n, nil
	case c.eof:
		return 0, io.EOF
	}
	return 0, secure.ErrAgain
}

// Send implements secure.Link.
func (s *stage) Send(record []byte) error {
	c := s.conn
	if c.state != stateStaging {
		c.push(record)
		return nil
	}
	if c.queued()+len(record) > c.lane.engine.cfg.OutboxBytes {
		return io.ErrShortBuffer
	}
	c.push(record)
	if c.flush() == poller.StatusGone {
		return io.ErrClosedPipe
	}
	return nil
}

// Shaken implements secure.Link: it is for the lane to go on.
func (s *stage) Shaken(err error) {
	if err != nil {
		s.conn.end(poller.CauseTLSFailed, flagHangup) // the alert is in the outbox
		return
	}
	s.conn.enlist()
}
