package gateway

import (
	"context"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	gatewayv1 "github.com/sluice-im/sluice/api/gateway/v1"
	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/codec"
	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/stateclient/routes"
)

const (
	// kicksMax bounds the kicks for other gateways that wait. One that is dropped is made up for by the other gateway's
	// audit, which finds its route lost.
	kicksMax = 4096
	// kickers is how many are under way: a gateway that does not answer holds up one of them for kickTimeout.
	kickers     = 4
	kickTimeout = time.Second
	// kickTries is how often a kick is sent to a gateway that does not answer, kickRetry the pause between: a gateway that
	// stands still for a moment must not keep two owners until its audit.
	kickTries = 4
	kickRetry = time.Second
)

// kick is one request to another gateway.
type kick struct {
	addr  string
	req   *gatewayv1.KickRequest
	tries int
}

// displaceAll ends the connections whose routes a login took. late: it was no fresh login, so nobody is kicked for it
// (design: protocol 4, "Claim").
func (g *Gateway) displaceAll(displaced []routes.Route, late bool, byDevice, bySession string) {
	for i := range displaced {
		r := &displaced[i]
		why := reason.Displaced
		if late {
			why = reason.RouteConflict
		}
		target := targetOf(r)
		if r.Incarnation == g.incarnation {
			g.displace(target, why, byDevice, bySession)
			continue
		}
		if !g.kicks.put(kick{addr: r.Addr, req: &gatewayv1.KickRequest{Targets: []*gatewayv1.Target{target},
			Reason: why.String(), ByDevice: byDevice, BySessionId: bySession}}) {
			g.counters.kick(kickFailed)
		}
	}
}

// displace ends one connection of this gateway, if it is still the one that the target names. It reports whether it was.
func (g *Gateway) displace(target *gatewayv1.Target, why reason.Reason, byDevice, bySession string) bool {
	id := poller.ID(target.GetConnId())
	p := g.peers.locked(id)
	if p == nil {
		return false
	}
	if p.who == nil {
		// Its own login has not been settled yet: it learns there that it has lost.
		pending := p.pending(target)
		if pending {
			p.rare.login.lost = reason.RouteConflict
		}
		p.mu.Unlock()
		return pending
	}
	if !p.named(target) {
		p.mu.Unlock()
		return false
	}
	if (why == reason.Displaced || why == reason.RouteConflict) && bySession != "" && bySession == p.who.SessionID {
		why = reason.Superseded
	}
	if why == reason.Displaced || why == reason.Kicked {
		p.rarely().byDevice = byDevice
	}
	p.mu.Unlock()
	if why == reason.Superseded || why == reason.RouteConflict {
		return g.leave(id, why)
	}
	return g.hangUp(id, why)
}

// named reports whether this is the connection that the target means. One without an epoch was let in while Redis was
// away: if somebody knows a route to it, that route has just been written.
func (p *tenant) named(target *gatewayv1.Target) bool {
	return p.who != nil && p.who.UID == target.GetUid() && p.who.DeviceID == target.GetDeviceId() &&
		(p.epoch() == target.GetEpoch() || p.epoch() == 0)
}

// pending reports whether a login is on its way that makes this the connection that the target means. Its epoch is not
// known yet, but the route table may show it to others already.
func (p *tenant) pending(target *gatewayv1.Target) bool {
	lg := p.login()
	return lg != nil && lg.verified && lg.settled != nil && lg.who.UID == target.GetUid() && lg.who.DeviceID == target.GetDeviceId()
}

// resync tells a client that it may have missed something, since its route was written after its login.
func (g *Gateway) resync(id poller.ID) {
	p := g.peers.locked(id)
	if p == nil {
		return
	}
	command := codec.AppendCommand(nil, clientv1.CommandType_RESYNC, 0, &clientv1.Resync{Reason: reason.RouteRestored.String()})
	framed, err := p.stream.Append(nil, command)
	p.mu.Unlock()
	if err != nil {
		return
	}
	g.conns.Queue(id, framed)
	g.conns.Flush(id)
}

// kicker passes kicks on to other gateways until the queue is closed.
func (g *Gateway) kicker(ctx context.Context) {
	var batch []kick
	for {
		var ok bool
		if batch, ok = g.kicks.take(batch[:0], 1); !ok {
			return
		}
		for _, k := range batch {
			g.passOn(ctx, k)
		}
		clear(batch)
	}
}

func (g *Gateway) passOn(ctx context.Context, k kick) {
	ctx, cancel := context.WithTimeout(ctx, kickTimeout)
	defer cancel()
	_, err := g.neighbours.kick(ctx, k.addr, k.req)
	if err == nil {
		g.counters.kick(kickSent)
		return
	}
	if k.tries++; k.tries >= kickTries || !g.unkicked.put(k) {
		// Its route is gone, so nobody pushes there any more, and its gateway's audit will end it.
		g.counters.kick(kickFailed)
	}
}

// rekicker queues kicks again that were not answered, after a pause, until the queue is closed or ctx ends.
func (g *Gateway) rekicker(ctx context.Context) {
	var batch []kick
	for {
		var ok bool
		if batch, ok = g.unkicked.take(batch[:0], kicksMax); !ok || !wait(ctx, kickRetry) {
			return
		}
		for _, k := range batch {
			if !g.kicks.put(k) {
				g.counters.kick(kickFailed)
			}
		}
		clear(batch)
	}
}
