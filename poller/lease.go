package poller

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// The way of a lease: event → read → Handler.Data → keep what is left → release: flush, then re-arm, park or hang up.

const hangupEvents = unix.EPOLLHUP | unix.EPOLLERR

// event handles one event. The kernel has disarmed the descriptor.
func (l *loop) event(ev *unix.EpollEvent) {
	id := eventID(ev)
	c := l.engine.slab.At(id.Slot())
	if c == nil {
		return
	}
	c.mu.Lock()
	if c.id() != id || c.state == stateFree {
		c.mu.Unlock()
		return
	}
	c.mask = disarmed
	if ev.Events&unix.EPOLLOUT != 0 {
		c.flags &^= flagBlocked
		if c.flags&flagCut == 0 {
			c.flush()
		}
	}
	switch {
	case c.flags&flagCut != 0:
		l.finish(c)
	case c.state == stateClosing:
		l.linger(c, ev.Events)
	case c.flags&flagHangup != 0:
		l.hangup(c)
	case c.state == stateStaging:
		l.staged(c)
	case c.state == stateArmed && c.queued() <= l.engine.quarter:
		if ev.Events&^unix.EPOLLOUT == 0 {
			c.arm()
			c.mu.Unlock()
			return
		}
		l.lease(c)
		c.mu.Unlock()
		l.readable(c)
	case ev.Events&hangupEvents != 0:
		c.end(CausePeerReset, flagCut)
		l.finish(c)
	default:
		c.rdhup = c.rdhup || ev.Events&unix.EPOLLRDHUP != 0
		c.arm()
		c.mu.Unlock()
	}
}

// lease takes the connection for the loop. c.mu is held.
func (l *loop) lease(c *conn) {
	if c.state == stateParked {
		l.parked.Add(-1)
	}
	c.state = stateLeased
	l.leases++
}

// readable reads once and runs the handler.
func (l *loop) readable(c *conn) {
	p, e := l.read(c)
	switch {
	case e == unix.EAGAIN:
		l.release(c, Rearm, unix.Errno(0))
	case e != 0:
		l.release(c, Rearm, e)
	default:
		l.data(c, p)
	}
}

// resumed runs the handler on what is already here: what was left over, or what the TLS layer holds behind it.
func (l *loop) resumed(c *conn) {
	e := unix.EAGAIN
	var p []byte
	// Whoever parked with something left over has not asked for more: reading on at every wake would fill the bound.
	if c.stage != nil && !(c.resume && c.left != nil) {
		if p, e = l.read(c); e != 0 && e != unix.EAGAIN {
			l.release(c, Rearm, e)
			return
		}
	}
	if e != 0 && c.left != nil { // only now: read makes room in the buffer, and so may move what is in it
		p = c.left.Bytes()
	}
	l.data(c, p)
}

// data runs the handler on p and ends the lease.
func (l *loop) data(c *conn, p []byte) {
	n, v := l.callData(c, Input{Bytes: p, Now: l.now, EOF: c.eof})
	if !l.keep(c, p[min(max(n, 0), len(p)):]) {
		c.mu.Lock()
		c.end(CauseInputOverflow, flagHangup)
		c.mu.Unlock()
	}
	c.resume = v == Park
	if v == Rearm && c.eof {
		c.mu.Lock()
		c.end(CausePeerClosed, flagHangup)
		c.mu.Unlock()
	}
	l.release(c, v, 0)
}

// read reads once, behind what is left over, and returns all that the handler has not consumed. At the end of the
// stream it sets c.eof.
func (l *loop) read(c *conn) ([]byte, unix.Errno) {
	if c.left != nil && c.left.Len() > copyBytesMax {
		return l.readBehind(c)
	}
	have := 0
	if c.left != nil {
		have = copy(l.input, c.left.Bytes())
	}
	n, e := l.receive(c, l.input[have:have+l.engine.cfg.ReadBytes])
	if e != 0 {
		return nil, e
	}
	return l.input[:have+n], 0
}

// readBehind reads into the left-over buffer itself, which grows when little room is left in it.
func (l *loop) readBehind(c *conn) ([]byte, unix.Errno) {
	c.left = l.engine.bufs.Grown(c.left, copyBytesMax)
	p := c.left.Free(copyBytesMax)
	n, e := l.receive(c, p[:min(len(p), l.engine.cfg.ReadBytes)])
	if e != 0 {
		return nil, e
	}
	c.left.Extend(n)
	return c.left.Bytes(), 0
}

// receive reads once into p, from the socket or through TLS. n is 0 at the end of the stream, which it notes in c.eof.
func (l *loop) receive(c *conn, p []byte) (n int, e unix.Errno) {
	if c.stage != nil && c.stage.layer.Done() {
		return l.decrypt(c, p)
	}
	n, e = sysRead(c.fd, p)
	for e == unix.EINTR {
		n, e = sysRead(c.fd, p)
	}
	if e == 0 && n == 0 {
		c.mu.Lock()
		c.eof = true
		c.mu.Unlock()
	}
	return n, e
}

// decrypt is receive through TLS. A bad record ends the connection, with an alert.
func (l *loop) decrypt(c *conn, p []byte) (int, unix.Errno) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stage
	n, eof, more, err := s.layer.Read(p, l.engine.cfg.ReadBytes)
	s.more = more
	c.eof = c.eof || eof
	switch {
	case err != nil && s.broken:
		return 0, unix.ECONNRESET
	case err != nil:
		c.end(CauseTLSFailed, flagHangup)
		return 0, unix.EAGAIN
	case n == 0 && !eof:
		return 0, unix.EAGAIN
	}
	return n, 0
}

// keep holds rest, the end of what the handler was given, until the next lease. It reports false when that is over the
// bound.
func (l *loop) keep(c *conn, rest []byte) bool { return l.hold(c, rest, l.engine.cfg.LeftoverBytes) }

// hold is keep with another bound.
func (l *loop) hold(c *conn, rest []byte, bound int) bool {
	if len(rest) == 0 {
		l.drop(c)
		return true
	}
	if len(rest) > bound {
		l.drop(c)
		return false
	}
	if c.left != nil {
		if in := c.left.Bytes(); &rest[len(rest)-1] == &in[len(in)-1] { // it was read behind
			c.left.Skip(len(in) - len(rest))
			return true
		}
		c.left.Clear()
	}
	c.left = l.engine.bufs.Grown(c.left, len(rest))
	c.left.Add(rest)
	return true
}

// drop gives the left-over buffer back.
func (l *loop) drop(c *conn) {
	if c.left != nil {
		l.engine.bufs.Give(c.left)
		c.left = nil
	}
}

// release ends the lease: first everything queued leaves in one write, then v decides, unless the connection has ended
// meanwhile. e is what reading failed with, if it did.
func (l *loop) release(c *conn, v Verdict, e unix.Errno) {
	c.mu.Lock()
	if e != 0 {
		c.end(CausePeerReset, flagCut)
	}
	if v == Hangup {
		c.end(CauseHandler, flagHangup)
	}
	if c.flags&flagCut == 0 {
		c.flush()
	}
	if v == Rearm && c.stage != nil && c.stage.more {
		// The kernel will not announce what TLS holds: read on in the next pass, or when the outbox has drained.
		if v = Park; c.queued() <= l.engine.quarter {
			c.flags |= flagWake
		}
	}
	switch {
	case c.flags&flagCut != 0:
		l.finish(c)
		return
	case c.flags&flagHangup != 0:
		l.hangup(c)
		return
	case v == Park || c.flags&flagWake != 0 && c.left != nil:
		l.park(c)
	default:
		c.flags &^= flagWake
		c.state = stateArmed
		c.arm()
	}
	if c.stallAt != 0 {
		l.wheel.Ensure(c.slot, c.stallAt)
	}
	c.mu.Unlock()
}

// park leaves the connection until it is woken, at once if a wake met the lease. c.mu is held.
func (l *loop) park(c *conn) {
	c.state = stateParked
	l.parked.Add(1)
	if c.flags&flagWake != 0 {
		c.enlist()
		return
	}
	c.arm()
}

// open takes an accepted connection over.
func (l *loop) open(a incoming) {
	c := l.engine.slab.At(a.id.Slot())
	if a.stage != nil {
		l.stage(c, a.stage, a.accepted)
		return
	}
	l.begin(c, a.remote, a.accepted)
}

// begin lets the handler look at a connection for the first time. What came behind a PROXY header is waiting for it.
func (l *loop) begin(c *conn, remote netip.AddrPort, accepted time.Duration) {
	c.mu.Lock()
	l.engine.gates.Entered(c.listener)
	c.opened, c.timerAt = true, 0
	c.state = stateLeased
	l.leases++
	if l.closing {
		c.end(CauseShutdown, flagHangup)
	}
	c.mu.Unlock()
	// The pass may have begun before the connection was accepted.
	v := l.callOpen(c, Info{Listener: int(c.listener), Remote: remote, TLS: c.stage != nil, Accepted: min(accepted, l.now)})
	if v == Rearm && c.left != nil {
		c.mu.Lock()
		c.flags |= flagWake
		c.mu.Unlock()
	}
	c.resume = v == Park
	l.release(c, v, 0)
}
