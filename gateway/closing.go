package gateway

import (
	"log/slog"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/codec"
	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/stateclient"
)

// told reports whether a client on WebSocket gets an ERROR beside the close code: where there is more to say than a code,
// because the client did something that can be put right.
func told(why reason.Reason) bool {
	switch why {
	case reason.NotLoggedIn, reason.LoginTimeout, reason.ErrorBudget, reason.RouteConflict, reason.Superseded,
		reason.BadToken, reason.TokenExpired, reason.WrongIdentity, reason.AuthRefused, reason.AuthUnavailable,
		reason.RoutesUnavailable, reason.TooManyDevices:
		return true
	}
	return false
}

// closingBytes appends the last bytes of a connection that is closed for why, unless it was leaving for another reason
// already: an HTTP response while the upgrade was not answered yet, else KICK or ERROR, and a close frame where there is
// one. p.mu is held, and the session is not closing yet.
func (g *Gateway) closingBytes(dst []byte, p *peer, why reason.Reason) []byte {
	if p.session.ending != reason.None {
		why = p.session.ending
	}
	detail, lg := "", p.login()
	if lg != nil && lg.done {
		detail = lg.detail
	}
	switch {
	case !p.framed:
		return codec.AppendUpgradeError(dst, &codec.UpgradeError{Reason: why})
	case lg != nil && lg.upgrade != nil:
		// A script in a browser can read a close code, but no HTTP status.
		if lg.upgrade.Origin == "" && why.Status() != 0 {
			return codec.AppendUpgradeError(dst, &codec.UpgradeError{Reason: why, Detail: detail})
		}
		dst = codec.AppendUpgradeResponse(dst, lg.upgrade)
	}
	switch why {
	case reason.ClientClosed:
		return dst
	case reason.Kicked, reason.Displaced:
		dst = g.appendKick(dst, p, why)
	default:
		if why != reason.LoggedOut && (p.stream.Protocol() == codec.TCP || told(why)) {
			command := codec.AppendCommand(nil, clientv1.CommandType_ERROR, int32(why.Code()), &clientv1.Error{Reason: why.String(), Detail: detail})
			dst, _ = p.stream.Append(dst, command) // our own commands can always be encoded
		}
	}
	return p.stream.AppendClose(dst, why.Code(), why.String())
}

func (g *Gateway) appendKick(dst []byte, p *peer, why reason.Reason) []byte {
	kick := &clientv1.Kick{ConnId: uint64(p.id), Reason: why.String()}
	if p.rare != nil {
		kick.ByDevice = p.rare.byDevice
	}
	command := codec.AppendCommand(nil, clientv1.CommandType_KICK, int32(why.Code()), kick)
	dst, _ = p.stream.Append(dst, command) // our own commands can always be encoded
	return dst
}

// hangUp closes a connection from outside of its lease, for why, or for what it is leaving for. It reports false when
// that connection was gone or closing already.
func (g *Gateway) hangUp(id poller.ID, why reason.Reason) bool {
	p := g.peers.locked(id)
	if p == nil {
		return false
	}
	was := p.session.state
	if was == closing {
		p.mu.Unlock()
		return false
	}
	final := g.closingBytes(nil, p, why)
	p.session.close(why)
	g.gauges.moved(int(p.listener), was, closing)
	p.mu.Unlock()
	return g.conns.Close(id, final)
}

// leave closes a connection from outside of its lease once its answers are written, or after leaveMax.
func (g *Gateway) leave(id poller.ID, why reason.Reason) bool {
	p := g.peers.locked(id)
	if p == nil {
		return false
	}
	was := p.session.state
	if !p.session.leave(why) {
		p.mu.Unlock()
		return false
	}
	g.gauges.moved(int(p.listener), was, leaving)
	drained := p.session.drained()
	if !drained {
		g.leaveLater(p)
	}
	p.mu.Unlock()
	if drained {
		g.hangUp(id, reason.None)
	}
	return true
}

// leaveLater sets the end of a leave. p.mu is held.
func (g *Gateway) leaveLater(p *peer) {
	p.rarely().leaveAt = g.clock() + leaveMax
	g.pacer.add(p.id, leaveMax)
}

// Closed implements poller.Handler.
func (h handler) Closed(id poller.ID, cause poller.Cause) {
	g := h.g
	p := g.peers.locked(id)
	if p == nil {
		g.gauges.closed(causeReason(cause)) // it never opened: TLS or the PROXY header failed
		return
	}
	lane := int(p.loop)
	p.mu.Unlock()
	l := &g.lanes[lane]
	l.mu.Lock()
	p.mu.Lock() // only this call takes id away, so it is still there
	gone := p.tenant
	p.tenant = tenant{}
	p.mu.Unlock()
	g.forget(l, &gone, cause)
	l.mu.Unlock()
	if gone.who != nil {
		g.courier.collect(lane)
	}
}

// forget undoes what a connection has done: its books, its route, its announcement to the logic tier. l.mu is held.
func (g *Gateway) forget(l *lane, gone *tenant, cause poller.Cause) {
	why := gone.session.ending
	if why == reason.None || cause != poller.CauseHandler && gone.session.state != closing {
		why = causeReason(cause)
	}
	g.gauges.moved(int(gone.listener), gone.session.state, states)
	g.gauges.parked(&gone.counted, 0)
	g.gauges.closed(why)

	announced := gone.who != nil
	for u := gone.first; u != nil; u = u.next {
		if u == gone.refused && u.kind == stateclient.KindConnect {
			announced = false // the logic tier never heard of it
		}
		g.lost(l, u)
	}
	if lg := gone.login(); lg != nil {
		lg.settle()
	}
	if gone.rare != nil {
		g.addresses.leave(gone.rare.admitted)
		for u := gone.rare.later; u != nil; {
			next := u.next
			g.lost(l, u)
			g.pools.give(u) // the relay has answered it, so nobody else holds it
			u = next
		}
	}
	if gone.who != nil {
		g.routes.release(g.routeOf(gone.who, gone.epoch(), gone.since))
	}
	if announced {
		g.farewells.Add(1)
		l.pass = append(l.pass, stateclient.Uplink{Peer: gone.who, Seq: gone.session.number(),
			Kind: stateclient.KindDisconnect, Received: g.now(), Reason: why.String(),
			TraceParent: gone.trace()})
	}
	g.record(gone, why, cause)
}

// lost counts an uplink whose connection ended before its answer.
func (g *Gateway) lost(l *lane, u *uplink) {
	if u.command == clientv1.CommandType_MESSAGEUP {
		l.tally.inflight--
		l.tally.results[resultLost]++
	}
}

// causeReason names what the engine saw.
func causeReason(cause poller.Cause) reason.Reason {
	switch cause {
	case poller.CausePeerClosed:
		return reason.ClientClosed
	case poller.CausePeerReset:
		return reason.PeerReset
	case poller.CauseOutboxFull, poller.CauseWriteStalled:
		return reason.SlowConsumer
	case poller.CauseInputOverflow:
		return reason.InputOverflow
	case poller.CauseTLSFailed:
		return reason.TLSFailed
	case poller.CauseBadProxyHeader:
		return reason.BadProxyHeader
	case poller.CauseShutdown:
		return reason.Draining
	case poller.CauseConnectionLimit:
		return reason.ConnectionLimit
	case poller.CauseAcceptRate:
		return reason.AcceptRate
	case poller.CauseAddressLimit:
		return reason.AddressLimit
	}
	return reason.Internal
}

// endedBy says who ended a connection that ended for why.
func endedBy(why reason.Reason) reason.By {
	switch why {
	case reason.ClientClosed, reason.LoggedOut:
		return reason.ByClient
	case reason.PeerReset:
		return reason.ByNetwork
	}
	return reason.ByServer
}

// record writes the one log line of a connection that has ended. Everything in it is of a closed list, a number, an
// address or an id that was checked: nothing else that a client sent is logged.
func (g *Gateway) record(gone *tenant, why reason.Reason, cause poller.Cause) {
	message := "connection closed"
	if gone.who == nil && endedBy(why) == reason.ByServer {
		message = "login refused"
		g.gauges.refused(why)
	}
	attrs := []slog.Attr{
		slog.String("reason", why.String()), slog.String("by", string(endedBy(why))), slog.Int("cause", int(cause)),
		slog.Uint64("conn_id", uint64(gone.id)), slog.String("listener", g.listeners[gone.listener].Name),
		slog.Duration("open_for", time.Duration(g.now().UnixMilli()-gone.since)*time.Millisecond),
		slog.Uint64("uplinks", gone.session.seq),
	}
	switch {
	case gone.who != nil:
		attrs = append(attrs, slog.String("uid", gone.who.UID), slog.String("device", gone.who.DeviceID),
			slog.String("remote", gone.who.RemoteAddr))
	case gone.rare != nil:
		attrs = append(attrs, slog.String("remote", gone.rare.remote))
		if gone.rare.login != nil && gone.rare.login.detail != "" {
			attrs = append(attrs, slog.String("detail", gone.rare.login.detail))
		}
	}
	g.journal.write(slog.LevelInfo, message, attrs)
}
