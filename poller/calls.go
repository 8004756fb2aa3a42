package poller

// The calls into the handler. A panic closes that one connection; the loop goes on.

func (l *loop) callOpen(c *conn, info Info) (v Verdict) {
	defer l.recovered("Open", c, &v)
	return l.engine.handler.Open(c, info, l.now)
}

func (l *loop) callData(c *conn, in Input) (n int, v Verdict) {
	defer l.recovered("Data", c, &v)
	return l.engine.handler.Data(c, in)
}

func (l *loop) callTimeout(c *conn) (v Verdict) {
	defer l.recovered("Timeout", c, &v)
	return l.engine.handler.Timeout(c, l.now)
}

func (l *loop) callClosed(id ID, cause Cause) {
	defer l.survived("Closed")
	l.engine.handler.Closed(id, cause)
}

func (l *loop) callPassEnd() {
	defer l.survived("PassEnd")
	l.engine.handler.PassEnd(l.index)
}

// recovered turns a panic under the lease into a hang-up.
func (l *loop) recovered(call string, c *conn, v *Verdict) {
	p := recover()
	if p == nil {
		return
	}
	l.engine.panics.Note(call, p)
	c.mu.Lock()
	c.end(CauseInternal, flagHangup)
	c.mu.Unlock()
	*v = Hangup
}

// survived counts a panic outside a lease, where there is no connection to close.
func (l *loop) survived(call string) {
	if p := recover(); p != nil {
		l.engine.panics.Note(call, p)
	}
}
