package netpoll

import (
	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/poller/internal/wheel"
)

// due is called by the wheel: the connection's timer has come, or its write has stalled, or it is the end of a hang-up, or
// nothing, if the deadline has moved.
func (l *lane) due(slot uint32) {
	c := l.engine.slab.At(slot)
	now := uint32(l.wheel.Visited())
	c.mu.Lock()
	if c.stallAt != 0 && !wheel.Before(now, c.stallAt) {
		l.stalled(c)
	}
	switch {
	case c.flags&flagCut != 0:
		l.finish(c)
		return
	case c.flags&flagHangup != 0 && c.state != stateClosing:
		l.hangup(c)
		return
	case c.timerAt == 0 || wheel.Before(now, c.timerAt):
		l.refile(c)
		c.mu.Unlock()
		return
	}
	c.timerAt = 0
	switch c.state {
	case stateStaging:
		l.reject(c, c.stage.lateCause())
		return
	case stateClosing:
		if !c.shut {
			c.flags |= flagAbort // it has not even taken what was queued
		}
		l.finish(c)
		return
	}
	l.lease(c)
	c.mu.Unlock()
	l.timeout(c)
}

// timeout runs the handler's Timeout and ends the lease. A verdict of Rearm on a connection whose bytes were parked gives
// these bytes to Data first.
func (l *lane) timeout(c *conn) {
	v := l.callTimeout(c)
	if v == poller.Rearm && c.resume && c.left != nil {
		c.mu.Lock()
		c.flags |= flagWake
		c.mu.Unlock()
		v = poller.Park
	}
	l.release(c, v)
}

// stalled ends a connection whose kernel has taken nothing for WriteTimeout. It asks once more first: readiness for writing
// is reported only when a third of the buffer is free, and a slow reader may have freed less. c.mu is held.
func (l *lane) stalled(c *conn) {
	was := c.stallAt
	c.flags &^= flagBlocked
	c.flush()
	if c.stallAt == was {
		c.end(poller.CauseWriteStalled, flagCut|flagAbort)
	}
}

// refile files the deadlines that are left. c.mu is held.
func (l *lane) refile(c *conn) {
	if c.timerAt != 0 {
		l.wheel.Ensure(c.slot, c.timerAt)
	}
	if c.stallAt != 0 {
		l.wheel.Ensure(c.slot, c.stallAt)
	}
}
