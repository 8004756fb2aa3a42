package netpoll

import (
	"golang.org/x/sys/unix"

	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/poller/internal/socket"
)

// A close is either a hang-up (write what is queued, shut down writing, let netpoll read on so that unread input does not
// turn the close into RST, then close) or a cut (close now). Both end in finish, which only the owning lane runs.
//
// A connection that netpoll still reads is closed in two steps: the socket is shut down, which makes netpoll let go, and
// when it has, the descriptor is closed and the slot is free.

// hangup begins the lingering close. c.mu is held, and unlocked.
func (l *lane) hangup(c *conn) {
	if c.state == stateParked {
		l.parked.Add(-1)
	}
	c.state = stateClosing
	l.dropInput(c)
	// From here on the timer bounds the writing, then the lingering; the handler is not called any more.
	c.timerAt = l.wheel.Ceil(l.now + l.engine.cfg.WriteTimeout)
	if c.stage != nil {
		c.stage.layer.Farewell()
		c.stage.layer.Signal() // a handshake has nothing to wait for any more
	}
	c.flush()
	l.proceed(c)
}

// dropInput gives back all input. c.mu is held.
func (l *lane) dropInput(c *conn) {
	l.drop(c)
	c.held = 0
	if c.in != nil {
		l.engine.bufs.Give(c.in)
		c.in = nil
	}
}

// proceed takes the next step of a lingering close. c.mu is held, and unlocked.
func (l *lane) proceed(c *conn) {
	if c.out == nil && !c.shut && c.flags&flagCut == 0 {
		c.shut = true
		c.timerAt = l.wheel.Ceil(l.now + l.engine.cfg.Linger)
		_ = unix.Shutdown(int(c.fd), unix.SHUT_WR) // fails when the peer has reset, which netpoll says too
	}
	if c.discarded >= discardBytesMax {
		c.flags |= flagCut | flagAbort // or the client would go on into a window that nobody opens
	}
	if c.flags&flagCut != 0 || c.shut && c.flags&flagLoose != 0 {
		l.finish(c)
		return
	}
	l.refile(c)
	c.mu.Unlock()
}

// finish closes the connection now, or as soon as netpoll lets go of it. c.mu is held, and unlocked.
func (l *lane) finish(c *conn) {
	if c.state == stateParked {
		l.parked.Add(-1)
	}
	if c.flags&flagAttached == 0 || c.flags&flagLoose != 0 {
		l.bury(c)
		return
	}
	if c.state != stateLeaving {
		c.state = stateLeaving
		c.flags |= flagCut
		if unread(int(c.fd)) {
			c.flags |= flagAbort
		}
		c.dropOutbox()
		l.dropInput(c)
		l.wheel.Remove(c.slot)
		c.timerAt, c.stallAt = 0, 0
		if c.stage != nil {
			c.stage.layer.Signal() // a handshake has nothing to wait for any more
		}
		if !c.opened {
			l.engine.refused[c.cause].Add(1) // first, so that whoever sees the end finds it counted
		}
		_ = unix.Shutdown(int(c.fd), unix.SHUT_RDWR) // fails when the peer has reset, and netpoll lets go for that
	}
	c.mu.Unlock()
}

// bury closes the descriptor and frees the slot. From the new generation on no id reaches the connection, so nobody can
// use the descriptor any more. c.mu is held, and unlocked.
func (l *lane) bury(c *conn) {
	e := l.engine
	id, fd, cause, flags, listener, quota, stage, opened := c.id(), int(c.fd), c.cause, c.flags, c.listener, c.quota, c.stage, c.opened
	counted := opened || c.state == stateLeaving
	c.dropOutbox()
	l.dropInput(c)
	c.state, c.flags, c.cause, c.fd, c.quota = stateFree, 0, 0, -1, nil
	c.eof, c.broken, c.shut, c.opened, c.stage, c.stallAt, c.discarded = false, false, false, false, nil, 0, 0
	if c.gen++; c.gen == 0 {
		c.gen = 1
	}
	c.mu.Unlock()

	if stage != nil {
		stage.layer.Signal()
	}
	l.wheel.Remove(c.slot)
	c.timerAt, c.resume = 0, false
	if flags&flagWatched != 0 {
		e.watch.forget(fd)
	}
	if !counted {
		e.refused[cause].Add(1)
	}
	if fd >= 0 {
		socket.Close(fd, flags&flagAbort != 0)
	}
	e.limits.Left(quota)
	l.conns.Add(-1)
	if opened {
		e.gates.Left(listener)
		l.callClosed(id, cause)
	}
	e.slab.Put(c.slot)
}

// unread reports that the peer has sent what netpoll has not read. Closing a socket then sends RST; but it will have been
// shut down and read to its end by then, after which the kernel opens no window and says nothing to a peer that waits for
// one.
func unread(fd int) bool {
	n, err := unix.IoctlGetInt(fd, unix.SIOCINQ)
	return err == nil && n > 0
}

// hungUp reports whether both directions of the socket have ended: the peer has reset, or it has finished sending and so
// have we. c.mu is held.
func (c *conn) hungUp() bool {
	p := [1]unix.PollFd{{Fd: c.fd}}
	n, err := unix.Poll(p[:], 0)
	return err == nil && n == 1 && p[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
}

// gone reports that a connection was reset, as the watch sees it. c.mu is held.
func (c *conn) gone() {
	if c.state == stateClosing && c.shut {
		c.enlist()
		return
	}
	c.end(poller.CausePeerReset, flagCut)
}
