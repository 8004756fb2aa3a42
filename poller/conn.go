package poller

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-im/sluice/poller/internal/buffer"
	"github.com/sluice-im/sluice/poller/internal/gate"
	"github.com/sluice-im/sluice/poller/internal/wheel"
)

// state is where a connection is in the life of the lease (ARCHITECTURE.md, "The lease").
type state uint8

const (
	// stateFree: the slot is in the slab's free list.
	stateFree state = iota
	// stateOpening: accepted, and its loop has not seen it yet.
	stateOpening
	// stateStaging: shows its PROXY header or does its TLS handshake; the handler does not know it yet.
	stateStaging
	// stateArmed: reads when the kernel has bytes.
	stateArmed
	// stateLeased: its loop runs the handler.
	stateLeased
	// stateParked: reads nothing until woken.
	stateParked
	// stateClosing: hung up; writes what is queued, then waits for the peer's FIN.
	stateClosing
)

// flags of a connection, guarded by its mu.
type flags uint8

const (
	// flagListed: its loop's attention list holds it.
	flagListed flags = 1 << iota
	// flagRegistered: the epoll instance knows the descriptor.
	flagRegistered
	// flagBlocked: the kernel did not take all; writing waits for EPOLLOUT.
	flagBlocked
	// flagEnded: cause is set; nothing is queued any more.
	flagEnded
	// flagWake: a wake wants to be served, or met a lease.
	flagWake
	// flagHangup: the loop shall hang up.
	flagHangup
	// flagCut: the loop shall close at once.
	flagCut
	// flagAbort: closing throws away what the kernel still holds and sends RST.
	flagAbort
)

// disarmed is the mask of a descriptor whose next event the kernel will not report: ONESHOT has fired.
const disarmed = 1 << 31

// conn is one connection. It lives in the slab, is about a hundred bytes, and holds a buffer only while there is
// something in it.
type conn struct {
	mu sync.Mutex

	// Fixed while the slot is in use.
	loop     *loop
	fd       int32
	slot     uint32
	listener uint8

	// Written by the loop under mu, so that the loop reads them without.
	// quota is nil without limits per address; known after the PROXY header where there is one.
	quota *gate.Quota
	state state
	// eof: the peer has finished sending and all of it was read.
	eof bool
	// rdhup: the peer has finished sending; what it sent may still be in the kernel.
	rdhup bool
	// shut: our side has finished sending.
	shut bool
	// stage is nil for a plain connection that is open.
	stage *stage
	gen   uint32

	// Guarded by mu.
	flags     flags
	cause     Cause
	mask      uint32         // what the kernel was asked to report, or disarmed
	stallAt   uint32         // tick at which the write counts as stalled; 0 = not blocked
	accounted uint32         // share of the engine's OutboxBytes gauge
	out       *buffer.Buffer // nil while nothing is queued; the loop's scratch during a lease

	// Touched by the loop only.
	left      *buffer.Buffer // nil while nothing is left over
	discarded uint32         // bytes read and thrown away since the hang-up
	timerAt   uint32         // tick of the handler's timer, or of the end of the hang-up; 0 = none
	node      wheel.Node
	// resume: the last verdict on the bytes in left was Park.
	resume bool
	// opened: the handler was told of the connection.
	opened bool
}

func (c *conn) id() ID { return ID(c.slot) | ID(c.gen)<<32 }

// ID implements Conn.
func (c *conn) ID() ID { return c.id() }

// Loop implements Conn.
func (c *conn) Loop() int { return c.loop.index }

// Queue implements Conn.
func (c *conn) Queue(b []byte) Status {
	c.mu.Lock()
	s := c.queue(b)
	c.mu.Unlock()
	return s
}

// Queued implements Conn.
func (c *conn) Queued() int {
	c.mu.Lock()
	n := c.queued()
	c.mu.Unlock()
	return n
}

// SetTimer implements Conn.
func (c *conn) SetTimer(at time.Duration) {
	if at <= 0 {
		c.timerAt = 0
		return
	}
	c.timerAt = c.loop.wheel.Ceil(at)
	c.loop.wheel.Ensure(c.slot, c.timerAt)
}

// end notes why the connection ends; the first cause wins, but a cut overtakes a hang-up. c.mu is held.
func (c *conn) end(cause Cause, how flags) {
	if c.flags&flagEnded == 0 {
		c.cause = cause
	}
	c.flags |= flagEnded | how
	if c.state != stateLeased {
		c.enlist()
	}
}

// wake asks the loop for a lease of a parked connection and is remembered by a leased one. c.mu is held.
func (c *conn) wake() {
	switch c.state {
	case stateParked:
		c.flags |= flagWake
		c.enlist()
	case stateLeased:
		c.flags |= flagWake
	}
}

// enlist puts the connection on its loop's attention list, once. c.mu is held.
func (c *conn) enlist() {
	if c.flags&flagListed == 0 {
		c.flags |= flagListed
		c.loop.post(c.id())
	}
}

// wants is what the kernel should report: nothing is read while parked or while more than a quarter of the outbox is
// queued, and a hang-up is still seen (HUP and ERR always are). c.mu is held.
func (c *conn) wants() uint32 {
	var m uint32
	if c.flags&flagBlocked != 0 {
		m = unix.EPOLLOUT
	}
	switch c.state {
	case stateArmed:
		if c.queued() <= c.loop.engine.quarter {
			return m | unix.EPOLLIN
		}
		fallthrough
	case stateParked:
		if !c.rdhup && !c.eof {
			m |= unix.EPOLLRDHUP
		}
	case stateStaging:
		if s := c.stage; !s.before.shaking || s.waiting {
			m |= unix.EPOLLIN
		}
	case stateClosing:
		if !c.eof && c.discarded < discardBytesMax {
			m |= unix.EPOLLIN
		}
	}
	return m
}

// arm makes the kernel report what the connection wants. Nobody arms a leased connection: release does. c.mu is held.
func (c *conn) arm() {
	want := c.wants()
	if want == c.mask {
		return
	}
	op := unix.EPOLL_CTL_MOD
	if c.flags&flagRegistered == 0 {
		op = unix.EPOLL_CTL_ADD
	}
	if e := sysEpollCtl(c.loop.epfd, op, c.fd, want|unix.EPOLLONESHOT, c.id()); e != 0 {
		c.loop.engine.log.Error("poller: epoll_ctl failed", "op", op, "error", e)
		c.end(CauseInternal, flagCut)
		return
	}
	c.mask = want
	c.flags |= flagRegistered
}
