package gateway

import (
	"context"
	"errors"

	"github.com/sluice-im/sluice/api/ident"
	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/stateclient"
)

// Auth mode backend: the logic tier decides who may log in, as whom, and how much he may send. A connection is parked
// meanwhile, so that only a bounded pool of verifiers ever waits for it.

// callsMax is the bound of auth.backend.calls: each is a goroutine and a stream.
const callsMax = 16384

// verifiers is how many logins are checked at once, and how many of them one verifier takes at a time. A check of a
// signature is nothing but CPU; a question to the logic tier is nothing but waiting, and nobody may wait for another's.
func (g *Gateway) verifiers() (count, batch int) {
	if g.cfg.Auth.Mode == authBackend {
		return g.cfg.Auth.Backend.Calls, 1
	}
	return g.cfg.Engine.Loops, verifyBatch
}

// identify says whom the token of a login names. The error is a *refusedToken.
func (g *Gateway) identify(ctx context.Context, lg *login) (identity, error) {
	if g.cfg.Auth.Mode == authBackend {
		return g.askBackend(ctx, lg)
	}
	return g.auth.authenticate(lg.token)
}

// askBackend is one question to the logic tier. What is left of its time counts from the login: who waited for a verifier
// as long is not asked for any more.
func (g *Gateway) askBackend(ctx context.Context, lg *login) (identity, error) {
	if len(lg.token) > tokenBytesMax {
		return identity{}, &refusedToken{reason.BadToken, "the token is too long"}
	}
	ctx, cancel := context.WithTimeout(ctx, g.cfg.Auth.Backend.Timeout-g.now().Sub(lg.at))
	defer cancel()
	about := lg.who
	if lg.before != nil {
		about = &stateclient.Peer{ConnID: lg.before.ConnID, UID: lg.before.UID, DeviceID: lg.before.DeviceID, Epoch: lg.before.Epoch,
			Platform: lg.before.Platform, SessionID: lg.before.SessionID, RemoteAddr: lg.before.RemoteAddr}
	}
	grant, err := g.relay.Authenticate(ctx, stateclient.Login{Peer: about, Token: lg.token, TraceParent: lg.trace})
	switch {
	case errors.Is(err, stateclient.ErrNoConnect):
		if !g.connectless.Swap(true) {
			g.log.Error("nobody can log in: auth.mode is backend, and the logic tier does not implement Connect", "err", err)
		}
		return identity{}, &refusedToken{reason.AuthUnavailable, "the logic tier cannot check logins: it does not implement Connect"}
	case err != nil:
		return identity{}, &refusedToken{reason.AuthUnavailable, "the logic tier does not answer"}
	case grant.Refused:
		g.connectless.Store(false)
		return identity{}, &refusedToken{reason.AuthRefused, grant.Reason}
	}
	g.connectless.Store(false)
	uid := grant.UID
	if uid == "" {
		uid = about.UID // "as asked": nobody was at the first login
	}
	if !ident.ValidUID(uid) || grant.DeviceID != "" && !ident.ValidUID(grant.DeviceID) {
		g.log.Warn("the logic tier let a connection in without a valid user or device id", "conn_id", about.ConnID)
		return identity{}, &refusedToken{reason.AuthUnavailable, "the logic tier names no valid user or device id"}
	}
	if grant.DeviceID != "" && lg.before == nil {
		lg.who.DeviceID = grant.DeviceID // it names the device, whatever was asked for
	}
	return identity{uid: uid, device: grant.DeviceID, expires: grant.Expires, rules: g.override(grant.Limits)}, nil
}

// overridesMax is how many different sets of limits are shared between connections. Logic tiers have a few classes of
// users; more than that many are kept by each connection for itself.
const overridesMax = 1024

// override is the configured limits with those that a logic tier has set; nil = as configured.
func (g *Gateway) override(l stateclient.Limits) *rules {
	if l == (stateclient.Limits{}) {
		return nil
	}
	g.overridesMu.Lock()
	defer g.overridesMu.Unlock()
	if r := g.overrides[l]; r != nil {
		return r
	}
	r := g.rules.with(&g.cfg.Limits.Uplink, l)
	if len(g.overrides) < overridesMax {
		g.overrides[l] = r
	}
	return r
}

// with is a copy of r with other limits, each within the bounds of the configuration's own.
func (r rules) with(u *UplinkLimit, l stateclient.Limits) *rules {
	choose := func(own int, theirs uint32, most int) int {
		if theirs == 0 {
			return own
		}
		return int(min(int64(theirs), int64(most)))
	}
	r.messages = newRate(choose(u.MessagesPerSecond, l.MessagesPerSecond, messagesRateMax), choose(u.MessagesBurst, l.MessagesBurst, messagesBurstMax))
	r.bytes = newRate(choose(u.BytesPerSecond, l.BytesPerSecond, bytesRateMax), choose(u.BytesBurst, l.BytesBurst, bytesRateMax))
	r.windowFrames = choose(r.windowFrames, l.InflightFrames, inflightMax)
	return &r
}

// rules are the limits of this connection.
func (p *tenant) rules(g *Gateway) *rules {
	if p.rare != nil && p.rare.rules != nil {
		return p.rare.rules
	}
	return &g.rules
}
