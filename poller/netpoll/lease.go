package netpoll

import (
	"net/netip"
	"time"

	"github.com/sluice-im/sluice/poller"
)

// The way of a lease: lease takes the input → decrypt, under TLS → Handler.Data → keep what is left → release: flush, then
// arm, park or hang up.

// open takes an accepted connection over. One that has no stage is shown to the handler, and then given to netpoll.
func (l *lane) open(a incoming) {
	c := l.engine.slab.At(a.id.Slot())
	if a.stage != nil {
		l.enter(c, a.stage, a.accepted)
		return
	}
	c.mu.Lock()
	v := l.introduce(c, a.remote, a.accepted)
	c.attach()
	l.release(c, v)
}

// introduce lets the handler look at a connection for the first time, under a lease. c.mu is held, and unlocked.
func (l *lane) introduce(c *conn, remote netip.AddrPort, accepted time.Duration) poller.Verdict {
	l.engine.gates.Entered(c.listener)
	c.opened, c.state = true, stateLeased
	l.leases++
	if l.closing {
		c.end(poller.CauseShutdown, flagHangup)
	}
	// The pass may have begun before the connection was accepted.
	info := poller.Info{Listener: int(c.listener), Remote: remote, TLS: c.stage != nil, Accepted: min(accepted, l.now)}
	c.mu.Unlock()
	return l.callOpen(c, info)
}

// lease takes the connection for the lane, and its input but for what is encrypted. c.mu is held.
func (l *lane) lease(c *conn) {
	if c.state == stateParked {
		l.parked.Add(-1)
	}
	c.state = stateLeased
	c.flags &^= flagWake
	l.leases++
	switch {
	case c.in == nil || c.stage != nil:
	case c.left == nil:
		c.left, c.in = c.in, nil
	default:
		c.left = l.engine.bufs.Grown(c.left, c.in.Len())
		c.left.Add(c.in.Bytes())
		l.engine.bufs.Give(c.in)
		c.in = nil
	}
	c.held = c.leftover()
}

// leftover is the size of left.
func (c *conn) leftover() uint32 {
	if c.left == nil {
		return 0
	}
	return uint32(c.left.Len())
}

// decrypt reads once through TLS, behind what is left over, and reports whether there is something to show to the handler.
// A bad record ends the connection, with an alert.
func (l *lane) decrypt(c *conn) bool {
	s := c.stage
	// Whoever parked with something left over has not asked for more: it stays encrypted.
	if s == nil || c.resume && c.left != nil {
		return true
	}
	if l.plain == nil {
		l.plain = make([]byte, l.engine.cfg.ReadBytes)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n, eof, more, err := s.layer.Read(l.plain, len(l.plain))
	s.more, s.eof = more, s.eof || eof
	if err != nil {
		c.end(poller.CauseTLSFailed, flagHangup)
	}
	if n > 0 {
		c.left = l.engine.bufs.Grown(c.left, n)
		c.left.Add(l.plain[:n])
		c.held = c.leftover()
	}
	return n > 0 || s.eof
}

// ended reports that no more than what is left over will come for the handler.
func (c *conn) ended() bool {
	if c.stage != nil {
		return c.stage.eof
	}
	return c.eof
}

// data runs the handler on what it has left over and at most Config.ReadBytes more, and ends the lease.
func (l *lane) data(c *conn) {
	var p []byte
	last := true
	if c.left != nil {
		p = c.left.Bytes()
		if n := c.kept + l.engine.cfg.ReadBytes; n < len(p) {
			p, last = p[:n], false
		}
	}
	eof := c.ended() && last
	n, v := l.callData(c, poller.Input{Bytes: p, Now: l.now, EOF: eof})
	if !l.keep(c, len(p), min(max(n, 0), len(p))) {
		c.mu.Lock()
		c.end(poller.CauseInputOverflow, flagHangup)
		c.mu.Unlock()
	}
	c.resume = v == poller.Park
	if v == poller.Rearm && eof {
		c.mu.Lock()
		c.end(poller.CausePeerClosed, flagHangup)
		c.mu.Unlock()
	}
	l.release(c, v)
}

// keep takes what the handler has consumed out of what it was shown. It reports false when it left more than it may.
func (l *lane) keep(c *conn, shown, consumed int) bool {
	c.kept = shown - consumed
	if c.left == nil {
		return true
	}
	c.left.Skip(consumed)
	if c.left.Len() == 0 {
		l.drop(c)
		return true
	}
	c.left = l.engine.bufs.Fitted(c.left)
	return c.kept <= l.engine.cfg.LeftoverBytes
}

// drop gives the left-over buffer back.
func (l *lane) drop(c *conn) {
	if c.left != nil {
		l.engine.bufs.Give(c.left)
		c.left = nil
	}
	c.kept = 0
}

// release ends the lease: first everything queued leaves in one write, then v decides, unless the connection has ended
// meanwhile.
func (l *lane) release(c *conn, v poller.Verdict) {
	c.mu.Lock()
	if v == poller.Hangup {
		c.end(poller.CauseHandler, flagHangup)
	}
	if c.flags&flagCut == 0 {
		c.flush()
	}
	c.held = c.leftover()
	if c.flags&flagEnded == 0 {
		l.settle(c, v)
	}
	switch {
	case c.flags&flagCut != 0:
		l.finish(c)
		return
	case c.flags&flagHangup != 0:
		l.hangup(c)
		return
	}
	if c.stallAt != 0 {
		l.wheel.Ensure(c.slot, c.stallAt)
	}
	c.mu.Unlock()
}

// settle parks or arms a connection that goes on, unless more waits for it than may. c.mu is held.
func (l *lane) settle(c *conn, v poller.Verdict) {
	switch {
	case v == poller.Park || c.flags&flagWake != 0 && c.left != nil:
		c.state = stateParked
		l.parked.Add(1)
		if c.flags&flagWake != 0 {
			c.enlist()
		}
	default:
		c.flags &^= flagWake
		c.state = stateArmed
		if c.ready() {
			c.enlist()
		}
	}
	switch {
	case c.stored() > c.storable():
		c.end(poller.CauseInputOverflow, flagHangup)
	case c.broken && !c.ready():
		c.end(poller.CausePeerReset, flagCut)
	}
}

// loosened looks, once, at a connection that netpoll has let go of: either the peer has only finished sending, and the
// watch looks after the connection from now on, or it has reset. c.mu is held.
func (l *lane) loosened(c *conn) {
	if c.eof || c.broken || c.state == stateLeaving || c.flags&flagCut != 0 {
		return
	}
	if !c.hungUp() {
		c.eof = true
		c.watch()
		return
	}
	c.broken = true
	if c.state == stateParked || !c.ready() {
		c.end(poller.CausePeerReset, flagCut)
	}
}
