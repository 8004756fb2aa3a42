package netpoll

import (
	"sync"
	"time"

	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/poller/internal/buffer"
	"github.com/sluice-im/sluice/poller/internal/gate"
	"github.com/sluice-im/sluice/poller/internal/wheel"
)

// state is where a connection is in the life of the lease (ARCHITECTURE.md, "The lease").
type state uint8

const (
	// stateFree: the slot is in the slab's free list.
	stateFree state = iota
	// stateOpening: accepted, and its lane has not seen it yet.
	stateOpening
	// stateLeaving: shut down, and netpoll has not let go yet. No id reaches it any more.
	stateLeaving
	// stateStaging: shows its PROXY header or does its TLS handshake; the handler does not know it yet.
	stateStaging
	// stateArmed: its handler runs when there is input.
	stateArmed
	// stateLeased: its lane runs the handler.
	stateLeased
	// stateParked: its handler does not run until it is woken.
	stateParked
	// stateClosing: hung up; writes what is queued, then waits for the peer's FIN.
	stateClosing
)

// flags of a connection, guarded by its mu.
type flags uint16

const (
	// flagListed: its lane's attention list holds it.
	flagListed flags = 1 << iota
	// flagAttached: netpoll reads it.
	flagAttached
	// flagLoose: netpoll has let go of it, or never had it.
	flagLoose
	// flagWatched: the watch's epoll instance knows the descriptor.
	flagWatched
	// flagBlocked: the kernel did not take all; writing waits for the watch.
	flagBlocked
	// flagEnded: cause is set; nothing is queued any more.
	flagEnded
	// flagWake: a wake wants to be served, or met a lease.
	flagWake
	// flagHangup: the lane shall hang up.
	flagHangup
	// flagCut: the lane shall close at once.
	flagCut
	// flagAbort: closing throws away what the kernel still holds and sends RST.
	flagAbort
)

// conn is one connection. It lives in the slab and holds a buffer only while there is something in it.
type conn struct {
	mu sync.Mutex

	// Fixed while the slot is in use.
	lane     *lane
	fd       int32
	slot     uint32
	listener uint8

	// Written by the lane under mu, so that the lane reads them without.
	// quota is nil without limits per address; known after the PROXY header where there is one.
	quota *gate.Quota
	state state
	// eof: netpoll has let go, no more input comes, and the peer may still read.
	eof bool
	// broken: the peer has reset; what it sent before is still handled.
	broken bool
	// shut: our side has finished sending.
	shut bool
	// opened: the handler was told of the connection.
	opened bool
	// stage is nil for a plain connection that is open.
	stage *stage
	gen   uint32

	// Guarded by mu.
	flags     flags
	cause     poller.Cause
	mask      uint32         // what the watch was asked to report, or disarmed
	stallAt   uint32         // tick at which the write counts as stalled; 0 = not blocked
	accounted uint32         // share of the engine's OutboxBytes gauge
	held      uint32         // size of left when it was last looked at under mu
	discarded uint32         // bytes that came after the hang-up
	in        *buffer.Buffer // what netpoll has read and no lease has taken, encrypted under TLS; nil while empty
	out       *buffer.Buffer // nil while nothing is queued; the lane's scratch during a lease

	// Touched by the lane only.
	left    *buffer.Buffer // nil while nothing is left over
	kept    int            // how much of left the handler has seen
	timerAt uint32         // tick of the handler's timer, or of the end of the hang-up; 0 = none
	node    wheel.Node
	// resume: the last verdict on the bytes in left was Park.
	resume bool
}

func (c *conn) id() poller.ID { return poller.ID(c.slot) | poller.ID(c.gen)<<32 }

// ID implements poller.Conn.
func (c *conn) ID() poller.ID { return c.id() }

// Loop implements poller.Conn: lanes are this engine's loops.
func (c *conn) Loop() int { return c.lane.index }

// Queue implements poller.Conn.
func (c *conn) Queue(b []byte) poller.Status {
	c.mu.Lock()
	s := c.queue(b)
	c.mu.Unlock()
	return s
}

// Queued implements poller.Conn.
func (c *conn) Queued() int {
	c.mu.Lock()
	n := c.queued()
	c.mu.Unlock()
	return n
}

// SetTimer implements poller.Conn.
func (c *conn) SetTimer(at time.Duration) {
	if at <= 0 {
		c.timerAt = 0
		return
	}
	c.timerAt = c.lane.wheel.Ceil(at)
	c.lane.wheel.Ensure(c.slot, c.timerAt)
}

// end notes why the connection ends; the first cause wins, but a cut overtakes a hang-up. c.mu is held.
func (c *conn) end(cause poller.Cause, how flags) {
	if c.flags&flagEnded == 0 {
		c.cause = cause
	}
	c.flags |= flagEnded | how
	if c.state != stateLeased {
		c.enlist()
	}
}

// wake asks the lane for a lease of a parked connection and is remembered by a leased one. c.mu is held.
func (c *conn) wake() {
	switch c.state {
	case stateParked:
		c.flags |= flagWake
		c.enlist()
	case stateLeased:
		c.flags |= flagWake
	}
}

// enlist puts the connection on its lane's attention list, once. c.mu is held.
func (c *conn) enlist() {
	if c.flags&flagListed == 0 {
		c.flags |= flagListed
		c.lane.post(c.id())
	}
}

// flowing reports whether the handler may run on new input: not while parked, nor while more than a quarter of the outbox
// is queued. During a lease that is not yet known. c.mu is held.
func (c *conn) flowing() bool {
	return c.state == stateLeased || c.state == stateArmed && c.queued() <= c.lane.engine.quarter
}

// ready reports that an armed connection has something to tell its handler. c.mu is held, by the lane.
func (c *conn) ready() bool {
	return c.flowing() && (c.in != nil || c.unseen() || c.eof || c.hidden())
}

// hidden reports that the TLS layer may hold something for the handler: bytes, or the end. c.mu is held.
func (c *conn) hidden() bool { return c.stage != nil && (c.stage.more || c.stage.eof) }

// unseen reports that the handler has not yet been shown all of left.
func (c *conn) unseen() bool { return c.left != nil && c.left.Len() > c.kept }

// stored is the input that waits above netpoll. c.mu is held.
func (c *conn) stored() int {
	n := int(c.held)
	if c.in != nil {
		n += c.in.Len()
	}
	return n
}

// storable bounds stored. c.mu is held.
func (c *conn) storable() int {
	n := c.lane.engine.cfg.LeftoverBytes
	switch {
	case c.flowing():
		n += burstBytesMax
	case c.state == stateStaging:
		n += prefaceBytesMax
	}
	return n
}
