package poller

import (
	"golang.org/x/sys/unix"

	"github.com/sluice-im/sluice/poller/internal/socket"
)

// A close is either a hang-up (write what is queued, shut down writing, read on so that unread input does not turn the
// close into RST, then close) or a cut (close now). Both end in finish, which only the owning loop runs. How much a peer
// goes on to send does not shorten the linger: RST as soon as discardBytesMax have come would throw away what the peer has
// not received yet.

// hangup begins the lingering close. c.mu is held, and unlocked.
func (l *loop) hangup(c *conn) {
	if c.state == stateParked {
		l.parked.Add(-1)
	}
	c.state = stateClosing
	l.drop(c)
	// From here on the timer bounds the writing, then the lingering; the handler is not called any more.
	c.timerAt = l.wheel.Ceil(l.now + l.engine.cfg.WriteTimeout)
	if c.stage != nil {
		c.stage.layer.Farewell()
		c.stage.layer.Signal() // a handshake has nothing to wait for any more
	}
	c.flush()
	l.proceed(c)
}

// linger handles an event of a hung-up connection. c.mu is held, and unlocked.
func (l *loop) linger(c *conn, events uint32) {
	if events&^unix.EPOLLOUT != 0 {
		if c.eof || c.discarded >= discardBytesMax {
			if events&hangupEvents != 0 {
				c.flags |= flagCut
			}
		} else {
			l.discard(c)
		}
	}
	l.proceed(c)
}

// discard reads once and throws away. c.mu is held.
func (l *loop) discard(c *conn) {
	n, e := sysRead(c.fd, l.input)
	switch {
	case e == unix.EAGAIN || e == unix.EINTR:
	case e != 0:
		c.flags |= flagCut
	case n == 0:
		c.eof = true
	default:
		c.discarded += uint32(n)
	}
}

// proceed takes the next step of a lingering close. c.mu is held, and unlocked.
func (l *loop) proceed(c *conn) {
	if c.out == nil && !c.shut && c.flags&flagCut == 0 {
		c.shut = true
		c.timerAt = l.wheel.Ceil(l.now + l.engine.cfg.Linger)
		_ = unix.Shutdown(int(c.fd), unix.SHUT_WR) // fails when the peer has reset, which the next event says too
	}
	// A peer that has sent discardBytesMax is not read any more, and waits for room until the linger is over.
	if c.flags&flagCut != 0 || c.shut && c.eof {
		l.finish(c)
		return
	}
	l.wheel.Ensure(c.slot, c.timerAt)
	if c.stallAt != 0 {
		l.wheel.Ensure(c.slot, c.stallAt)
	}
	c.arm()
	c.mu.Unlock()
}

// finish closes the descriptor and frees the slot. From the new generation on no id reaches the connection, so nobody
// can use the descriptor any more. c.mu is held, and unlocked.
func (l *loop) finish(c *conn) {
	e := l.engine
	id, fd, cause, flags, listener, quota, stage := c.id(), c.fd, c.cause, c.flags, c.listener, c.quota, c.stage
	if c.state == stateParked {
		l.parked.Add(-1)
	}
	c.dropOut()
	if stage != nil {
		stage.drop()
	}
	c.account(0)
	c.stage = nil
	c.state, c.flags, c.cause, c.fd, c.quota = stateFree, 0, 0, -1, nil
	c.eof, c.rdhup, c.shut, c.stallAt = false, false, false, 0
	if c.gen++; c.gen == 0 {
		c.gen = 1
	}
	c.mu.Unlock()

	if stage != nil {
		stage.layer.Signal()
	}
	l.drop(c)
	l.wheel.Remove(c.slot)
	c.timerAt, c.discarded, c.resume = 0, 0, false
	if flags&flagRegistered != 0 {
		_ = unix.EpollCtl(l.epfd, unix.EPOLL_CTL_DEL, int(fd), nil)
	}
	if !c.opened {
		e.refused[cause].Add(1)
	}
	socket.Close(int(fd), flags&flagAbort != 0)
	e.limits.Left(quota)
	l.conns.Add(-1)
	if c.opened {
		c.opened = false
		e.gates.Left(listener)
		l.callClosed(id, cause)
	}
	e.slab.Put(c.slot)
}
