package netpoll

import "github.com/sluice-im/sluice/poller"

// finalBytesMax is what Close may queue beyond the outbox's bound, so that a close frame with its reason still fits
// behind a full outbox.
const finalBytesMax = 4 << 10

// find locks the connection that id names; nil if it is gone, or not yet opened.
func (e *engine) find(id poller.ID) *conn { return e.lookup(id, stateArmed) }

// lookup locks the connection that id names; nil if it is gone, or has not come to the least state yet.
func (e *engine) lookup(id poller.ID, least state) *conn {
	c := e.slab.At(id.Slot())
	if c == nil {
		return nil
	}
	c.mu.Lock()
	if c.id() != id || c.state < least {
		c.mu.Unlock()
		return nil
	}
	return c
}

// Queue implements poller.Conns.
func (e *engine) Queue(id poller.ID, b []byte) poller.Status {
	c := e.find(id)
	if c == nil {
		return poller.StatusGone
	}
	defer c.mu.Unlock()
	return c.queue(b)
}

// Flush implements poller.Conns. What is queued during a lease leaves with the lease's own write.
func (e *engine) Flush(id poller.ID) poller.Status {
	c := e.find(id)
	if c == nil {
		return poller.StatusGone
	}
	defer c.mu.Unlock()
	switch {
	case c.flags&flagEnded != 0:
		return poller.StatusGone
	case c.state != stateLeased:
		return c.flush()
	case c.queued() == 0:
		return poller.StatusWritten
	}
	return poller.StatusQueued
}

// Wake implements poller.Conns.
func (e *engine) Wake(id poller.ID) {
	c := e.find(id)
	if c == nil {
		return
	}
	defer c.mu.Unlock()
	if c.flags&flagEnded == 0 {
		c.wake()
	}
}

// Close implements poller.Conns.
func (e *engine) Close(id poller.ID, final []byte) bool {
	c := e.find(id)
	if c == nil {
		return false
	}
	defer c.mu.Unlock()
	if c.flags&flagEnded != 0 {
		return false
	}
	if c.queued()+len(final) <= e.cfg.OutboxBytes+finalBytesMax {
		c.put(final)
	}
	c.end(poller.CauseHandler, flagHangup)
	return true
}

// Reset implements poller.Conns. A connection that lingers after a hang-up is closed too.
func (e *engine) Reset(id poller.ID) bool {
	c := e.find(id)
	if c == nil {
		return false
	}
	defer c.mu.Unlock()
	if c.flags&flagCut != 0 {
		return false
	}
	c.end(poller.CauseHandler, flagCut|flagAbort)
	return true
}
