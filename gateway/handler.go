package gateway

import (
	"time"

	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/codec"
	"github.com/sluice-im/sluice/poller"
)

// The way of a frame up: Data → gate → Stream.Next → Scan → session (command.go) → lane (uplink.go) → PassEnd →
// Relay.Submit.

// handler is what the engine calls. It is a type of its own so that these methods are not part of Gateway's own.
type handler struct{ g *Gateway }

// turn is one lease: what Data and Timeout need of it. It lives on the stack.
type turn struct {
	g   *Gateway
	p   *peer
	l   *lane
	c   poller.Conn
	now time.Duration
	// queued is what the outbox held when last looked at.
	queued int
	// pongs is the size of the newest ping's payload in the lane's scratch, plus one; 0 = no ping came. The pings of one
	// lease are answered with one pong (RFC 6455, 5.5.3).
	pongs int
}

// Open implements poller.Handler.
func (h handler) Open(c poller.Conn, info poller.Info, now time.Duration) poller.Verdict {
	g, id := h.g, c.ID()
	l, p := &g.lanes[c.Loop()], g.peers.grow(id)
	l.mu.Lock()
	defer l.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tenant = tenant{id: id, listener: uint8(info.Listener), loop: uint8(c.Loop()), since: g.now().UnixMilli()}
	p.rarely().remote = info.Remote.String()
	first := awaitingLogin
	if g.listeners[info.Listener].websocket {
		first = upgrading
	}
	p.framed = first != upgrading
	p.session.opened(now, info.Accepted, p.rules(g), first)
	g.gauges.moved(info.Listener, states, first)
	t := turn{g: g, p: p, l: l, c: c, now: now}
	if g.overloaded.Load() {
		return t.end(reason.Overloaded)
	}
	t.arm()
	return poller.Rearm
}

// Data implements poller.Handler.
func (h handler) Data(c poller.Conn, in poller.Input) (int, poller.Verdict) {
	g, id := h.g, c.ID()
	l, p := &g.lanes[c.Loop()], g.peers.at(id)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pass) >= laneMax {
		g.submit(l)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t := turn{g: g, p: p, l: l, c: c, now: in.Now, queued: c.Queued()}
	used, v := t.data(&in)
	if v != poller.Hangup {
		t.arm()
	}
	t.park(v)
	return used, v
}

// data takes frames until there is none left, or a reason not to take the next one.
func (t *turn) data(in *poller.Input) (int, poller.Verdict) {
	s, used := &t.p.session, 0
	if len(in.Bytes) > 0 {
		s.active = t.now
	}
	if lg := t.p.login(); lg != nil && lg.done && (s.state == loggingIn || s.state == refreshing) {
		if v := t.loginDone(lg); v == poller.Hangup {
			return 0, v
		}
	}
	for {
		if s.gate(t.now, t.p.rules(t.g), t.queued) != 0 {
			t.flushPong()
			return used, t.gated(s.held)
		}
		if used == len(in.Bytes) {
			break
		}
		n, more, v := t.take(in.Bytes[used:])
		used += n
		if v == poller.Hangup {
			return used, v
		}
		if !more {
			break
		}
	}
	t.flushPong()
	s.partial(t.now, used < len(in.Bytes) || t.p.stream.Unfinished())
	if in.EOF {
		return used, t.eof()
	}
	return used, poller.Rearm
}

// gated parks, and counts when that is because of a limit.
func (t *turn) gated(held hold) poller.Verdict {
	if held&holdRate != 0 {
		_, kind := t.p.session.overLimit(t.now, t.p.rules(t.g))
		t.l.tally.limited[kind][limitPaused]++
	}
	return poller.Park
}

// take handles the next frame at the start of buf. more is false when buf has no whole frame.
func (t *turn) take(buf []byte) (n int, more bool, v poller.Verdict) {
	s := &t.p.session
	if s.state == upgrading {
		return t.upgrade(buf)
	}
	limits := &t.g.frameLimits
	if s.state == awaitingLogin {
		limits = &t.g.loginLimits
	}
	f, n, err := t.p.stream.Next(buf, limits)
	if err != nil {
		return n, false, t.end(codec.ReasonOf(err))
	}
	size := max(n, len(f.Payload))
	switch f.Kind {
	case codec.KindNone:
		return n, false, poller.Rearm
	case codec.KindCommand:
		s.frameAt = 0
		return n, true, t.command(f.Payload, size)
	case codec.KindPing, codec.KindPong:
		if !t.p.stream.Unfinished() {
			s.frameAt = 0
		}
		return n, true, t.control(f, size)
	case codec.KindClose:
		return n, false, t.peerClosed(f.Code)
	}
	return n, false, t.end(reason.UnsupportedData)
}

func (t *turn) control(f codec.Frame, size int) poller.Verdict {
	st := t.p.session.control(t.now, t.p.rules(t.g), f.Kind, size)
	t.limited(st)
	switch st.verb {
	case doPong:
		t.pongs = 1 + copy(t.l.pong[:], f.Payload)
	case doClose:
		return t.end(st.reason)
	}
	return poller.Rearm
}

// limited counts a frame that met a limit, in a dry run too.
func (t *turn) limited(st step) {
	if st.limited == limitNone {
		return
	}
	how := limitRejected
	if t.g.rules.dryRun {
		how = limitDryRun
	}
	t.l.tally.limited[st.limited][how]++
}

func (t *turn) flushPong() {
	if t.pongs == 0 {
		return
	}
	t.write(t.p.stream.AppendPong(t.l.frame[:0], t.l.pong[:t.pongs-1]))
	t.pongs = 0
}

// write queues bytes that are framed already; the lane keeps their buffer as scratch.
func (t *turn) write(framed []byte) {
	t.l.frame = scratch(framed)
	t.c.Queue(framed)
	t.queued = t.c.Queued()
}

// peerClosed answers the peer's close frame with its own code (RFC 6455, 5.5.1).
func (t *turn) peerClosed(code uint16) poller.Verdict {
	t.flushPong()
	t.mark(reason.ClientClosed)
	t.write(t.p.stream.AppendClose(t.l.frame[:0], code, ""))
	return poller.Hangup
}

// eof goes on without the peer, which has finished sending: what is in flight is still answered.
func (t *turn) eof() poller.Verdict {
	s := &t.p.session
	if s.inflight == 0 {
		t.mark(reason.ClientClosed)
		return poller.Hangup
	}
	was := s.state
	if s.leave(reason.ClientClosed) {
		t.g.gauges.moved(int(t.p.listener), was, leaving)
		t.g.leaveLater(t.p)
	}
	s.held = holdLeave
	return poller.Park
}

// end closes the connection for why: the last bytes are queued, and the engine hangs up behind them.
func (t *turn) end(why reason.Reason) poller.Verdict {
	t.flushPong()
	t.l.frame = scratch(t.g.closingBytes(t.l.frame[:0], t.p, why))
	t.mark(why)
	t.c.Queue(t.l.frame)
	return poller.Hangup
}

// mark notes that the connection is being closed for why.
func (t *turn) mark(why reason.Reason) {
	was := t.p.session.state
	if t.p.session.close(why) {
		t.g.gauges.moved(int(t.p.listener), was, closing)
	}
}

// arm sets the engine's timer to when the session has to be looked at next. A timer that goes off too early costs one
// look; so it is never moved back, and steady traffic sets no timer at all.
func (t *turn) arm() {
	at := t.p.session.next(t.now, t.p.rules(t.g))
	if at != 0 && (t.p.armed == 0 || at < t.p.armed) {
		t.c.SetTimer(at)
		t.p.armed = at
	}
}

// park keeps the gauge of parked connections, by the first of the reasons.
func (t *turn) park(v poller.Verdict) {
	held := hold(0)
	if t.p.parked = v == poller.Park; t.p.parked {
		held = t.p.session.held
	}
	t.g.gauges.parked(&t.p.counted, held)
}

// Timeout implements poller.Handler.
func (h handler) Timeout(c poller.Conn, now time.Duration) poller.Verdict {
	g, id := h.g, c.ID()
	l, p := &g.lanes[c.Loop()], g.peers.at(id)
	v, wake := h.timeout(l, p, c, now)
	if wake {
		// It meets this lease and is remembered: the engine runs Data on what is left over.
		g.conns.Wake(id)
	}
	return v
}

func (h handler) timeout(l *lane, p *peer, c poller.Conn, now time.Duration) (v poller.Verdict, wake bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	t := turn{g: h.g, p: p, l: l, c: c, now: now, queued: c.Queued()}
	p.armed = 0
	if why := p.session.expired(now, p.rules(h.g)); why != reason.None {
		return t.end(why), false
	}
	if !p.parked {
		t.arm()
		return poller.Rearm, false
	}
	wake = p.session.gate(now, p.rules(h.g), t.queued) == 0
	t.arm()
	return poller.Park, wake
}

// PassEnd implements poller.Handler.
func (h handler) PassEnd(loop int) {
	l := &h.g.lanes[loop]
	l.mu.Lock()
	defer l.mu.Unlock()
	h.g.submit(l)
}
