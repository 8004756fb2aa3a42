package netpoll

import (
	"golang.org/x/sys/unix"

	"github.com/sluice-im/sluice/poller"
)

// queued is the number of bytes in the outbox. c.mu is held.
func (c *conn) queued() int {
	n := 0
	if c.out != nil {
		n = c.out.Len()
	}
	if c.stage != nil {
		n += c.stage.layer.Pending()
	}
	return n
}

// queue copies b into the outbox. c.mu is held.
func (c *conn) queue(b []byte) poller.Status {
	if c.flags&flagEnded != 0 {
		return poller.StatusGone
	}
	if bound := c.lane.engine.cfg.OutboxBytes; c.queued()+len(b) > bound {
		// The kernel may have room that nobody has asked for yet.
		if c.flush() == poller.StatusGone {
			return poller.StatusGone
		}
		if c.queued()+len(b) > bound {
			c.end(poller.CauseOutboxFull, flagCut|flagAbort)
			return poller.StatusOverflow
		}
	}
	c.put(b)
	return poller.StatusQueued
}

// put appends b, whatever the bound; under TLS it is encrypted by the next flush. c.mu is held.
func (c *conn) put(b []byte) {
	if len(b) > 0 && c.stage != nil {
		c.stage.layer.Queue(b)
		return
	}
	c.push(b)
}

// push appends b to what goes to the kernel as it is. c.mu is held.
func (c *conn) push(b []byte) {
	if len(b) == 0 {
		return
	}
	l := c.lane
	switch {
	case c.out == nil && c.state == stateLeased && len(b) <= scratchBytes:
		c.out = l.scratch
	case c.out == l.scratch && len(b) > c.out.Room():
		c.unscratch(len(b))
	default:
		c.out = l.engine.bufs.Grown(c.out, len(b))
	}
	c.out.Add(b)
}

// unscratch moves what is queued from the lane's scratch into a buffer with room for n more. c.mu is held.
func (c *conn) unscratch(n int) {
	s := c.lane.scratch
	c.out = c.lane.engine.bufs.Take(s.Len() + n)
	c.out.Add(s.Bytes())
	s.Clear()
}

// dropOut empties the outbox. c.mu is held.
func (c *conn) dropOut() {
	switch c.out {
	case nil:
		return
	case c.lane.scratch:
		c.out.Clear()
	default:
		c.lane.engine.bufs.Give(c.out)
	}
	c.out = nil
}

// dropOutbox empties the outbox of a connection that has ended. c.mu is held.
func (c *conn) dropOutbox() {
	c.dropOut()
	if c.stage != nil {
		c.stage.layer.Drop()
	}
	c.account(0)
}

// flush writes what is queued as far as the kernel takes it. A write that failed ends the connection. c.mu is held.
func (c *conn) flush() poller.Status {
	before := c.queued()
	if before == 0 {
		return poller.StatusWritten
	}
	if c.flags&flagBlocked != 0 {
		c.account(uint32(before))
		return poller.StatusQueued
	}
	if c.stage != nil && c.stage.layer.Seal() != nil {
		c.end(poller.CauseTLSFailed, flagHangup) // what was sealed before still goes, the alert above all
		return poller.StatusGone
	}
	for {
		n, err := unix.Write(int(c.fd), c.out.Bytes())
		if err == nil {
			c.out.Skip(n)
			break
		}
		if err == unix.EAGAIN {
			break
		}
		if err != unix.EINTR {
			c.end(poller.CausePeerReset, flagCut)
			return poller.StatusGone
		}
	}
	return c.flushed(before)
}

// flushed settles the outbox after a write: before bytes were queued. A partial write means that the kernel is full; to ask
// again would only be told so. c.mu is held.
func (c *conn) flushed(before int) poller.Status {
	e, rest := c.lane.engine, c.out.Len()
	s := poller.StatusWritten
	if rest == 0 {
		c.dropOut()
		c.stallAt = 0
		if c.state == stateClosing {
			c.enlist() // the next step is the lane's
		}
	} else {
		s = poller.StatusQueued
		c.flags |= flagBlocked
		if c.out == c.lane.scratch {
			c.unscratch(0)
		}
		if c.stallAt == 0 {
			c.enlist() // the wheel is the lane's
		}
		if c.stallAt == 0 || rest < before {
			c.stallAt = e.clock.After(e.cfg.WriteTimeout)
		}
		c.watch()
	}
	c.account(uint32(rest))
	if before > e.quarter && rest <= e.quarter {
		c.wake()
		if c.state == stateArmed && (c.stored() > 0 || c.eof || c.hidden()) {
			c.enlist()
		}
	}
	return s
}

// account keeps the engine's gauge of queued bytes. c.mu is held.
func (c *conn) account(rest uint32) {
	if rest != c.accounted {
		c.lane.engine.outboxBytes.Add(int64(rest) - int64(c.accounted))
		c.accounted = rest
	}
}
