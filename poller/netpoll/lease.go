package netpoll

import (
	"github.com/sluice-im/sluice/poller"
)

// The way of a lease: lease takes the input → Handler.Data → keep what is left → release: flush, then arm, park or hang
// up.

// open lets the handler look at an accepted connection, and then gives it to netpoll.
func (l *lane) open(a incoming) {
	c := l.engine.slab.At(a.id.Slot())
	c.mu.Lock()
	l.engine.gates.Entered(c.listener)
	c.state = stateLeased
	l.leases++
	if l.closing {
		c.end(poller.CauseShutdown, flagHangup)
	}
	c.mu.Unlock()
	// The pass may have begun before the connection was accepted.
	v := l.callOpen(c, poller.Info{Listener: int(c.listener), Remote: a.remote, Accepted: min(a.accepted, l.now)})
	c.attach()
	l.release(c, v)
}

// lease takes the connection and its input for the lane. c.mu is held.
func (l *lane) lease(c *conn) {
	if c.state == stateParked {
		l.parked.Add(-1)
	}
	c.state = stateLeased
	c.flags &^= flagWake
	l.leases++
	switch {
	case c.in == nil:
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
	eof := c.eof && last
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
