package netpoll

import "github.com/sluice-im/sluice/poller"

// The calls into the handler. A panic closes that one connection; the lane goes on.

func (l *lane) callOpen(c *conn, info poller.Info) (v poller.Verdict) {
	defer l.recovered("Open", c, &v)
	return l.engine.handler.Open(c, info, l.now)
}

func (l *lane) callData(c *conn, in poller.Input) (n int, v poller.Verdict) {
	defer l.recovered("Data", c, &v)
	return l.engine.handler.Data(c, in)
}

func (l *lane) callTimeout(c *conn) (v poller.Verdict) {
	defer l.recovered("Timeout", c, &v)
	return l.engine.handler.Timeout(c, l.now)
}

func (l *lane) callClosed(id poller.ID, cause poller.Cause) {
	defer l.survived("Closed")
	l.engine.handler.Closed(id, cause)
}

func (l *lane) callPassEnd() {
	defer l.survived("PassEnd")
	l.engine.handler.PassEnd(l.index)
}

// recovered turns a panic under the lease into a hang-up.
func (l *lane) recovered(call string, c *conn, v *poller.Verdict) {
	p := recover()
	if p == nil {
		return
	}
	l.engine.panics.Note(call, p)
	c.mu.Lock()
	c.end(poller.CauseInternal, flagHangup)
	c.mu.Unlock()
	*v = poller.Hangup
}

// survived counts a panic outside a lease, where there is no connection to close.
func (l *lane) survived(call string) {
	if p := recover(); p != nil {
		l.engine.panics.Note(call, p)
	}
}
