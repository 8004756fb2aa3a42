package gateway

import (
	"bytes"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-im/sluice/poller"
)

// fakeEngine is an engine without sockets: one goroutine is its loop, and a test is every client. It keeps the rules of
// the contract: a lease is exclusive, a wake that meets one is remembered, parked connections are not read.
type fakeEngine struct {
	h     poller.Handler
	bound int
	start time.Time
	jobs  chan func()
	done  chan struct{}

	mu sync.Mutex
	// Guarded by mu.
	conns   []*fakeConn // by slot; nil = free
	gen     uint32
	flushes int
}

// fakeConn is both the engine's and the client's side of one connection.
type fakeConn struct {
	e  *fakeEngine
	id poller.ID

	// Touched by the loop only.
	left []byte
	eof  bool

	// Guarded by e.mu.
	pending []byte // sent by the client, not read yet
	fin     bool
	parked  bool
	leased  bool
	wake    bool
	queued  []byte // not written yet
	written []byte // what the client has received
	stalled bool   // the client does not read
	timer   *time.Timer
	ended   bool
	hungUp  bool
	cause   poller.Cause
}

func newFakeEngine(c poller.Config, h poller.Handler, _ *slog.Logger) (poller.Engine, error) {
	e := &fakeEngine{h: h, bound: c.OutboxBytes, start: time.Now().Add(-time.Minute), jobs: make(chan func(), 1024), done: make(chan struct{})}
	go e.loop()
	return e, nil
}

func (e *fakeEngine) loop() {
	defer close(e.done)
	for job := range e.jobs {
		job()
		e.h.PassEnd(0)
	}
}

func (e *fakeEngine) now() time.Duration                       { return time.Since(e.start) }
func (e *fakeEngine) Conns() poller.Conns                      { return e }
func (e *fakeEngine) Listen(poller.Listener) (net.Addr, error) { return &net.TCPAddr{}, nil }
func (e *fakeEngine) StopAccepting()                           {}
func (e *fakeEngine) Stats() poller.Stats                      { return poller.Stats{} }

func (e *fakeEngine) Shutdown() {
	for _, c := range e.open() {
		c.end(poller.CauseShutdown)
	}
	close(e.jobs)
	<-e.done
}

func (e *fakeEngine) open() (open []*fakeConn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.conns {
		if c != nil {
			open = append(open, c)
		}
	}
	return open
}

// dial opens a connection on a listener, which was accepted so long ago: what stands before the handler took that time.
func (e *fakeEngine) dial(listener int, ago time.Duration) *fakeConn {
	e.mu.Lock()
	slot := slices.Index(e.conns, nil)
	if slot < 0 {
		slot = len(e.conns)
		e.conns = append(e.conns, nil)
	}
	e.gen++
	c := &fakeConn{e: e, id: poller.ID(slot) | poller.ID(e.gen)<<32}
	e.conns[slot] = c
	e.mu.Unlock()
	e.jobs <- func() {
		now := e.now()
		info := poller.Info{Listener: listener, Remote: netip.MustParseAddrPort("192.0.2.1:4711"), Accepted: now - ago}
		c.lease(func() poller.Verdict { return e.h.Open(c, info, now) })
	}
	return c
}

// lease runs a call of the handler and does what its verdict says.
func (c *fakeConn) lease(call func() poller.Verdict) {
	e := c.e
	e.mu.Lock()
	if c.ended || c.hungUp {
		e.mu.Unlock()
		return
	}
	c.leased, c.parked, c.wake = true, false, false
	e.mu.Unlock()
	v := call()
	e.mu.Lock()
	c.leased = false
	c.flush()
	if v == poller.Rearm && c.eof {
		v = poller.Hangup
	}
	hangup := v == poller.Hangup || c.hungUp
	c.parked = v == poller.Park
	again := c.wake && c.parked
	more := v == poller.Rearm && len(c.pending) > 0
	e.mu.Unlock()
	switch {
	case hangup:
		c.finish(poller.CauseHandler)
	case again, more:
		c.data()
	}
}

// data reads and runs Data. It runs on the loop.
func (c *fakeConn) data() {
	c.lease(func() poller.Verdict {
		c.e.mu.Lock()
		c.left = append(c.left, c.pending...)
		c.pending = nil
		c.eof = c.fin
		c.e.mu.Unlock()
		n, v := c.e.h.Data(c, poller.Input{Bytes: c.left, Now: c.e.now(), EOF: c.eof})
		c.left = bytes.Clone(c.left[n:])
		return v
	})
}

// send is what the client does; it is read unless the connection is parked.
func (c *fakeConn) send(b []byte) {
	c.e.mu.Lock()
	c.pending = append(c.pending, b...)
	c.e.mu.Unlock()
	c.post()
}

// close is the client's FIN.
func (c *fakeConn) close() {
	c.e.mu.Lock()
	c.fin = true
	c.e.mu.Unlock()
	c.post()
}

func (c *fakeConn) post() {
	c.e.jobs <- func() {
		c.e.mu.Lock()
		parked := c.parked
		c.e.mu.Unlock()
		if !parked {
			c.data()
		}
	}
}

// finish ends the connection on the loop.
func (c *fakeConn) finish(cause poller.Cause) {
	e := c.e
	e.mu.Lock()
	if c.ended {
		e.mu.Unlock()
		return
	}
	c.ended, c.cause = true, cause
	if c.timer != nil {
		c.timer.Stop()
	}
	e.mu.Unlock()
	e.h.Closed(c.id, cause)
	e.mu.Lock()
	e.conns[c.id.Slot()] = nil
	e.mu.Unlock()
}

// end ends the connection from outside.
func (c *fakeConn) end(cause poller.Cause) { c.e.jobs <- func() { c.finish(cause) } }

// flush writes what is queued unless the client is stalled. e.mu is held.
func (c *fakeConn) flush() {
	if !c.stalled && len(c.queued) > 0 {
		c.written = append(c.written, c.queued...)
		c.queued = nil
		c.e.flushes++
	}
}

// received takes what the client has got so far.
func (c *fakeConn) received() []byte {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	b := c.written
	c.written = nil
	return b
}

func (c *fakeConn) over() (bool, poller.Cause) {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	return c.ended, c.cause
}

func (c *fakeConn) ID() poller.ID { return c.id }
func (c *fakeConn) Loop() int     { return 0 }

func (c *fakeConn) Queue(b []byte) poller.Status { return c.e.Queue(c.id, b) }

func (c *fakeConn) Queued() int {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	return len(c.queued)
}

func (c *fakeConn) SetTimer(at time.Duration) {
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
	if at == 0 {
		return
	}
	c.timer = time.AfterFunc(at-e.now(), func() {
		defer func() { _ = recover() }() // the engine may have been shut down
		e.jobs <- func() { c.lease(func() poller.Verdict { return e.h.Timeout(c, e.now()) }) }
	})
}

// find is the connection that id names. e.mu is held.
func (e *fakeEngine) find(id poller.ID) *fakeConn {
	if int(id.Slot()) >= len(e.conns) {
		return nil
	}
	if c := e.conns[id.Slot()]; c != nil && c.id == id && !c.ended {
		return c
	}
	return nil
}

func (e *fakeEngine) Queue(id poller.ID, b []byte) poller.Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.find(id)
	if c == nil || c.hungUp {
		return poller.StatusGone
	}
	if len(c.queued)+len(b) > e.bound {
		c.hungUp = true
		go c.end(poller.CauseOutboxFull)
		return poller.StatusOverflow
	}
	c.queued = append(c.queued, b...)
	return poller.StatusQueued
}

func (e *fakeEngine) Flush(id poller.ID) poller.Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.find(id)
	if c == nil {
		return poller.StatusGone
	}
	if c.flush(); len(c.queued) > 0 {
		return poller.StatusQueued
	}
	return poller.StatusWritten
}

func (e *fakeEngine) Wake(id poller.ID) {
	e.mu.Lock()
	c := e.find(id)
	parked := c != nil && c.parked
	if c != nil && c.leased {
		c.wake = true
	}
	e.mu.Unlock()
	if parked {
		e.jobs <- c.data
	}
}

func (e *fakeEngine) Close(id poller.ID, final []byte) bool {
	e.mu.Lock()
	c := e.find(id)
	if c == nil || c.hungUp {
		e.mu.Unlock()
		return false
	}
	c.queued = append(c.queued, final...)
	c.hungUp = true
	c.flush()
	e.mu.Unlock()
	c.end(poller.CauseHandler)
	return true
}

func (e *fakeEngine) Reset(id poller.ID) bool {
	e.mu.Lock()
	c := e.find(id)
	e.mu.Unlock()
	if c == nil {
		return false
	}
	c.end(poller.CauseHandler)
	return true
}
