package poller

import (
	"golang.org/x/sys/unix"
)

// scratchBytes is the size of the buffer that a loop lends as outbox to the connection it leases, so that replies of a
// lease cost no buffer of their own. More than that moves into a buffer from the pools.
const scratchBytes = 32 << 10

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
func (c *conn) queue(b []byte) Status {
	if c.flags&flagEnded != 0 {
		return StatusGone
	}
	e := c.loop.engine
	if bound := e.cfg.OutboxBytes; c.queued()+len(b) > bound {
		// The kernel may have room that nobody has asked for yet.
		if c.flush() == StatusGone {
			return StatusGone
		}
		if c.queued()+len(b) > bound {
			c.end(CauseOutboxFull, flagCut|flagAbort)
			return StatusOverflow
		}
	}
	c.put(b)
	return StatusQueued
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
	l := c.loop
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

// unscratch moves what is queued from the loop's scratch into a buffer with room for n more. c.mu is held.
func (c *conn) unscratch(n int) {
	s := c.loop.scratch
	c.out = c.loop.engine.bufs.Take(s.Len() + n)
	c.out.Add(s.Bytes())
	s.Clear()
}

// dropOut empties the outbox. c.mu is held.
func (c *conn) dropOut() {
	switch c.out {
	case nil:
		return
	case c.loop.scratch:
		c.out.Clear()
	default:
		c.loop.engine.bufs.Give(c.out)
	}
	c.out = nil
}

// flush writes what is queued as far as the kernel takes it; it does not arm. A write that failed ends the connection.
// c.mu is held.
func (c *conn) flush() Status {
	before := c.queued()
	if before == 0 {
		return StatusWritten
	}
	if c.flags&flagBlocked != 0 {
		c.account(uint32(before))
		return StatusQueued
	}
	if c.stage != nil && c.stage.layer.Seal() != nil {
		c.end(CauseTLSFailed, flagHangup) // what was sealed before still goes, the alert above all
		return StatusGone
	}
	for {
		n, e := sysSend(c.fd, c.out.Bytes())
		if e == 0 {
			c.out.Skip(n)
			break
		}
		if e == unix.EAGAIN {
			break
		}
		if e != unix.EINTR {
			c.end(CausePeerReset, flagCut)
			return StatusGone
		}
	}
	return c.flushed(before)
}

// flushed settles the outbox after a write: before bytes were queued. A partial write means that the kernel is full; to
// ask again would only be told so. c.mu is held.
func (c *conn) flushed(before int) Status {
	e, rest := c.loop.engine, c.out.Len()
	s := StatusWritten
	if rest == 0 {
		c.dropOut()
		c.stallAt = 0
	} else {
		s = StatusQueued
		c.flags |= flagBlocked
		if c.out == c.loop.scratch {
			c.unscratch(0)
		}
		if c.stallAt == 0 {
			c.enlist() // the wheel is the loop's
		}
		if c.stallAt == 0 || rest < before {
			c.stallAt = e.clock.After(e.cfg.WriteTimeout)
		}
	}
	c.account(uint32(rest))
	if before > e.quarter && rest <= e.quarter {
		c.wake()
	}
	return s
}

// account keeps the engine's gauge of queued bytes. c.mu is held.
func (c *conn) account(rest uint32) {
	if rest != c.accounted {
		c.loop.engine.outboxBytes.Add(int64(rest) - int64(c.accounted))
		c.accounted = rest
	}
}
