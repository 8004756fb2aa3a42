package poller

// find locks the connection that id names; nil if it is gone.
func (e *engine) find(id ID) *conn {
	c := e.slab.At(id.Slot())
	if c == nil {
		return nil
	}
	c.mu.Lock()
	if c.id() != id || c.state <= stateStaging {
		c.mu.Unlock()
		return nil
	}
	return c
}

// Queue implements Conns.
func (e *engine) Queue(id ID, b []byte) Status {
	c := e.find(id)
	if c == nil {
		return StatusGone
	}
	defer c.mu.Unlock()
	return c.queue(b)
}

// Flush implements Conns. What is queued during a lease leaves with the lease's own write.
func (e *engine) Flush(id ID) Status {
	c := e.find(id)
	if c == nil {
		return StatusGone
	}
	defer c.mu.Unlock()
	if c.flags&flagEnded != 0 {
		return StatusGone
	}
	if c.state == stateLeased {
		if c.queued() == 0 {
			return StatusWritten
		}
		return StatusQueued
	}
	s := c.flush()
	if s != StatusGone {
		c.arm()
	}
	return s
}

// Wake implements Conns.
func (e *engine) Wake(id ID) {
	c := e.find(id)
	if c == nil {
		return
	}
	defer c.mu.Unlock()
	if c.flags&flagEnded == 0 {
		c.wake()
	}
}

// Close implements Conns.
func (e *engine) Close(id ID, final []byte) bool {
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
	c.end(CauseHandler, flagHangup)
	return true
}

// Reset implements Conns. A connection that lingers after a hang-up is closed too.
func (e *engine) Reset(id ID) bool {
	c := e.find(id)
	if c == nil {
		return false
	}
	defer c.mu.Unlock()
	if c.flags&flagCut != 0 {
		return false
	}
	c.end(CauseHandler, flagCut|flagAbort)
	return true
}
