package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/ident"
	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/codec"
	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/stateclient"
)

// The way of a login: upgrade or LOGIN → parked → verifiers check the token → claimers write the route, many at once
// (claim.go) → settleLogins announces the connection to the logic tier and wakes it → loginDone answers.

const (
	// verifyBatch bounds what one verifier takes at once, so that a storm is spread over all of them.
	verifyBatch = 16
	// sessionBytesMax and platformBytesMax bound what a client may call itself; both go into its route.
	// loginBytesMax bounds a frame before login: a token of tokenBytesMax with the rest of a LOGIN. Who has not said who
	// he is must not make the gateway hold more.
	loginBytesMax    = 12 << 10
	sessionBytesMax  = 64
	platformBytesMax = 32
)

// loginKind says what a login answers.
type loginKind uint8

const (
	// loginAtUpgrade is answered with the response to the upgrade.
	loginAtUpgrade loginKind = iota
	// loginByCommand is answered with LOGIN_REPLY.
	loginByCommand
	// loginAgain is a LOGIN on a connection that is logged in: the same identity, perhaps a newer token.
	loginAgain
	// loginRefresh is a TOKEN_REFRESH.
	loginRefresh
)

// login is one check of a token, and of a route, on its way. Until it is done it belongs to whoever works on it; then to
// the lease of its connection.
type login struct {
	id   poller.ID
	lane int
	kind loginKind
	at   time.Time
	// since is when the connection opened, ms since 1970: part of its route, so it must not differ from the audit's.
	since int64

	token string
	// trace is the traceparent that came with the upgrade.
	trace string
	// rules are the limits that the logic tier has set; nil = as configured.
	rules *rules
	// who is whom the connection will be.
	who *stateclient.Peer
	// before is who the connection is logged in as (loginAgain, loginRefresh).
	before *stateclient.Peer
	// upgrade is nil unless the response to the upgrade waits for the login.
	upgrade *codec.Upgrade

	expires time.Time
	reason  reason.Reason
	detail  string
	// claimed: the route was written, so it has to be released if the connection is gone.
	claimed bool

	// Guarded by the peer's mu.
	done bool
	// settled is closed, and nil then, once the connection is live or will never be. It is nil from the start for
	// those that are live already.
	settled chan struct{}
	// verified: who names the user and the device, and does not change any more.
	verified bool
	// lost is set when another login took this one's place before it was done.
	lost reason.Reason
}

// settle tells those who wait for the end of the login. The peer's mu is held.
func (lg *login) settle() {
	if lg.settled != nil {
		close(lg.settled)
		lg.settled = nil
	}
}

// login is the login on its way; nil when there is none.
func (p *tenant) login() *login {
	if p.rare == nil {
		return nil
	}
	return p.rare.login
}

// upgrade handles the WebSocket request at the start of buf.
func (t *turn) upgrade(buf []byte) (n int, more bool, v poller.Verdict) {
	u, n, err := codec.ParseUpgrade(buf, &t.g.listeners[t.p.listener].upgrade)
	switch {
	case err != nil:
		t.mark(codec.ReasonOf(err))
		t.write(codec.AppendUpgradeError(t.l.frame[:0], err))
		return 0, false, poller.Hangup
	case n == 0:
		return 0, false, poller.Rearm
	}
	if !t.forwardedFor(u.ForwardedFor) {
		return n, false, t.end(reason.AddressLimit)
	}
	t.p.stream, t.p.framed = codec.NewStream(u.Protocol), true
	t.p.rarely().trace = u.TraceParent
	if u.Token == "" {
		t.move(awaitingLogin)
		t.write(codec.AppendUpgradeResponse(t.l.frame[:0], &u))
		return n, true, poller.Rearm
	}
	t.move(loggingIn)
	t.check(&login{kind: loginAtUpgrade, token: u.Token, upgrade: &u,
		who: &stateclient.Peer{DeviceID: u.DeviceID, SessionID: u.SessionID, Platform: u.Platform}})
	return n, true, poller.Rearm
}

// move changes the session's state for the gauge.
func (t *turn) move(to state) {
	t.g.gauges.moved(int(t.p.listener), t.p.session.state, to)
	t.p.session.state = to
}

// loginCommand handles the first LOGIN. The session has moved to loggingIn.
func (t *turn) loginCommand(data []byte) poller.Verdict {
	t.g.gauges.moved(int(t.p.listener), awaitingLogin, loggingIn)
	var m clientv1.Login
	if err := m.UnmarshalVT(data); err != nil {
		return t.end(reason.NotLoggedIn)
	}
	t.check(&login{kind: loginByCommand, token: m.GetToken(),
		who: &stateclient.Peer{DeviceID: m.GetDeviceId(), SessionID: m.GetSessionId(), Platform: m.GetPlatform()}})
	return poller.Rearm // the gate parks it
}

// refresh handles TOKEN_REFRESH, and LOGIN on a connection that is logged in. The session has moved to refreshing.
func (t *turn) refresh(h *codec.Header) poller.Verdict {
	t.g.gauges.moved(int(t.p.listener), live, refreshing)
	lg := &login{kind: loginRefresh, before: t.p.who, who: &stateclient.Peer{}}
	if h.Type == clientv1.CommandType_LOGIN {
		var m clientv1.Login
		if err := m.UnmarshalVT(h.Data); err != nil {
			return t.end(reason.BadToken)
		}
		lg.kind, lg.token = loginAgain, m.GetToken()
		lg.who.DeviceID = m.GetDeviceId()
	} else {
		var m clientv1.TokenRefresh
		if err := m.UnmarshalVT(h.Data); err != nil {
			return t.end(reason.BadToken)
		}
		lg.token = m.GetToken()
	}
	t.check(lg)
	return poller.Rearm
}

// check hands a login over. The queue holds at most one a connection, so it cannot overflow.
func (t *turn) check(lg *login) {
	lg.id, lg.lane, lg.at, lg.since = t.p.id, int(t.p.loop), t.g.now(), t.p.since
	lg.who.ConnID, lg.who.RemoteAddr, lg.trace = uint64(t.p.id), t.p.remote(), t.p.trace()
	if lg.before == nil {
		lg.settled = make(chan struct{})
	}
	t.p.rarely().login = lg
	if !t.g.verifying.put(lg) {
		lg.done, lg.reason = true, reason.Draining // closed: the gateway is about to end
	}
}

// verifier checks tokens until the queue is closed.
func (g *Gateway) verifier(ctx context.Context) {
	var batch, settled []*login
	_, most := g.verifiers()
	for {
		var ok bool
		if batch, ok = g.verifying.take(batch[:0], most); !ok {
			return
		}
		settled = settled[:0]
		for _, lg := range batch {
			g.verify(ctx, lg)
			g.verified(lg)
			if lg.reason != reason.None || lg.before != nil || !g.claiming.put(lg) {
				settled = append(settled, lg)
			}
		}
		g.settleLogins(settled)
		clear(batch)
		clear(settled)
	}
}

// verify fills in who the token names, or why it is refused.
func (g *Gateway) verify(ctx context.Context, lg *login) {
	if !g.waits(lg) {
		lg.reason = reason.ConnectionGone // nobody is to be asked about it any more
		return
	}
	who, err := g.identify(ctx, lg)
	lg.token = "" // not needed any more, and not to be found in a heap dump
	var refused *refusedToken
	if errors.As(err, &refused) {
		lg.reason, lg.detail = refused.reason, refused.detail
		return
	}
	lg.expires, lg.rules = who.expires, who.rules
	asked := lg.who.DeviceID
	if lg.before != nil {
		if who.uid != lg.before.UID || who.device != "" && who.device != lg.before.DeviceID || asked != "" && asked != lg.before.DeviceID {
			lg.reason, lg.detail = reason.WrongIdentity, "the connection is logged in as somebody else"
		}
		return
	}
	switch {
	case who.device != "" && asked != "" && asked != who.device:
		lg.reason, lg.detail = reason.WrongIdentity, "the token is for another device"
	case asked == "" && who.device != "":
		lg.who.DeviceID = who.device
	case asked == "":
		lg.who.DeviceID = "auto-" + rand.Text()
	}
	if !ident.ValidUID(lg.who.DeviceID) {
		lg.reason, lg.detail = reason.WrongIdentity, "the device_id is not of the alphabet of ids"
	}
	if s := lg.who.SessionID; s != "" && (len(s) > sessionBytesMax || !ident.ValidUUID(s)) {
		lg.reason, lg.detail = reason.WrongIdentity, "the session_id is not 1 to 64 printable characters"
	}
	if len(lg.who.Platform) > platformBytesMax || !ident.ValidUID(lg.who.Platform) {
		lg.who.Platform = "" // for statistics only
	}
	lg.who.UID = who.uid
}

// verified lets others see whom the login is for.
func (g *Gateway) verified(lg *login) {
	if p := g.peers.locked(lg.id); p != nil {
		lg.verified = lg.reason == reason.None && lg.before == nil
		p.mu.Unlock()
	}
}

// settleLogins hands logins back to their connections: a good one is announced to the logic tier before its connection
// can send a frame. What a connection that is gone has left behind is undone.
func (g *Gateway) settleLogins(batch []*login) {
	for i := range g.lanes {
		if slices.ContainsFunc(batch, func(lg *login) bool { return lg.lane == i }) {
			g.settleLane(&g.lanes[i], i, batch)
		}
	}
	for _, lg := range batch {
		g.conns.Wake(lg.id)
	}
}

func (g *Gateway) settleLane(l *lane, index int, batch []*login) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lg := range batch {
		if lg.lane == index {
			g.settleLogin(l, lg)
		}
	}
	g.submit(l)
}

// settleLogin hands one login back. The lane's lock is held.
func (g *Gateway) settleLogin(l *lane, lg *login) {
	p := g.peers.locked(lg.id)
	if p == nil || p.login() != lg || p.session.state == closing {
		if p != nil {
			p.mu.Unlock()
		}
		if lg.claimed {
			g.routes.release(g.routeOf(lg.who, lg.who.Epoch, lg.since))
		}
		return
	}
	defer p.mu.Unlock()
	if lg.reason == reason.None {
		lg.reason = lg.lost
	}
	lg.done = true
	if lg.reason != reason.None || lg.before != nil {
		if lg.claimed {
			g.routes.release(g.routeOf(lg.who, lg.who.Epoch, lg.since))
		}
		return
	}
	pack(lg.who)
	p.who = lg.who
	p.rare.remote = ""
	u := &uplink{kind: stateclient.KindConnect, seq: p.session.number()}
	p.push(u)
	l.add(p, u, g.now())
}

// loginDone answers a login that has been settled. It runs under the lease.
func (t *turn) loginDone(lg *login) poller.Verdict {
	lg.settle()
	if lg.reason != reason.None {
		return t.loginRefused(lg)
	}
	t.p.rare.login, t.p.rare.rules = nil, lg.rules
	t.p.tidy()
	t.g.gauges.moved(int(t.p.listener), t.p.session.state, live)
	t.p.session.loggedIn(t.now, tokenEnd(t.now, lg.expires, t.g.now()))
	switch lg.kind {
	case loginAtUpgrade:
		t.write(codec.AppendUpgradeResponse(t.l.frame[:0], lg.upgrade))
	case loginByCommand, loginAgain:
		t.say(clientv1.CommandType_LOGIN_REPLY, t.g.loginReply(t.p))
	case loginRefresh:
		reply := &clientv1.TokenRefreshReply{}
		if !lg.expires.IsZero() {
			reply.ExpiresAtMs = lg.expires.UnixMilli()
		}
		t.say(clientv1.CommandType_TOKEN_REFRESH_REPLY, reply)
	}
	return poller.Rearm
}

// tokenEnd is when a connection ends with its token, in the engine's time; 0 = never. What is longer than a connection can
// last is never, too: with a date like the end of the year 9999 the sum would not fit.
func tokenEnd(now time.Duration, expires, clock time.Time) time.Duration {
	left := expires.Sub(clock) // as far as it fits
	if expires.IsZero() || left > tokenLifeMax {
		return 0
	}
	return now + max(left+tokenSkew, 1)
}

// loginRefused closes the connection; but who is logged in already and only brought a bad token stays as long as the
// token before it is good.
func (t *turn) loginRefused(lg *login) poller.Verdict {
	if lg.before == nil || lg.reason == reason.WrongIdentity {
		return t.end(lg.reason)
	}
	t.p.rare.login = nil
	t.p.tidy()
	t.move(live)
	st := t.p.session.misbehaved(t.now, t.p.rules(t.g), step{verb: doError, reason: lg.reason})
	if st.verb == doClose {
		return t.end(st.reason)
	}
	command := clientv1.CommandType_TOKEN_REFRESH
	if lg.kind == loginAgain {
		command = clientv1.CommandType_LOGIN
	}
	t.say(clientv1.CommandType_ERROR, &clientv1.Error{Reason: lg.reason.String(), Detail: lg.detail, Command: command})
	return poller.Rearm
}

func (g *Gateway) loginReply(p *peer) *clientv1.LoginReply {
	who := p.who
	return &clientv1.LoginReply{Uid: who.UID, ConnId: who.ConnID, DeviceId: who.DeviceID,
		HeartbeatIntervalMs: milliseconds(g.cfg.Heartbeat.Interval), ServerTimeMs: g.now().UnixMilli(),
		Limits: &clientv1.Limits{FrameBytes: uint32(g.frameLimits.FrameBytes),
			// Half of what is admitted, so that a resend finds room (design: protocol 1, "Windowed sender").
			Window: uint32(max(p.rules(g).windowFrames/2, 1))}}
}
