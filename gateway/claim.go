package gateway

import (
	"context"
	"slices"
	"time"

	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/stateclient"
	"github.com/sluice-im/sluice/stateclient/routes"
)

const (
	// claimBatch bounds one round trip of claims, so that it neither holds up Redis nor a login for long.
	claimBatch = 256
	// claimers is how many round trips may be under way: one slow answer must not hold up every login behind it.
	claimers = 4
	// releaseBatch and auditBatch bound the other round trips.
	releaseBatch = 256
	auditBatch   = 256
	// releaseRetry is the pause before a release is tried again; it doubles up to releaseRetryMax.
	releaseRetry    = 100 * time.Millisecond
	releaseRetryMax = 5 * time.Second
	// repairPause is the pause between two batches of a repair: about 25,000 routes a second.
	repairPause = 10 * time.Millisecond
	// unroutedEvery is how often connections without a route try again to get one.
	unroutedEvery = time.Second
)

// RouteTable is what the gateway needs of the route table; *routes.Table is one.
type RouteTable interface {
	// Claim writes routes, in as few round trips as it can; results are in the order of the claims.
	Claim(ctx context.Context, claims []routes.Claim) []routes.ClaimResult
	// Release deletes routes that are still of the connection that they name. An error means unknown: call it again.
	Release(ctx context.Context, gone []routes.Route) error
	// Restore writes again what is missing, and renews the rest.
	Restore(ctx context.Context, held []routes.Route) []routes.RestoreResult
	// Find returns the routes of each uid; an error means unknown.
	Find(ctx context.Context, uids []string) (map[string][]routes.Route, error)
	// Remove deletes routes that are unchanged, which their own gateway did not know.
	Remove(ctx context.Context, stale []routes.Route) error
}

// RouteLease keeps this gateway's routes alive; *routes.Lease is one.
type RouteLease interface {
	// Run renews the lease until ctx ends.
	Run(ctx context.Context) error
	// Healthy reports whether the lease stands, as far as is known.
	Healthy() bool
	// Release ends the lease, once Run has returned and no connection is left.
	Release(ctx context.Context) error
}

// routing keeps the table and the connections in step.
type routing struct {
	g        *Gateway
	table    RouteTable
	releases *gather[routes.Route]
	// lost wakes the repair: the table may have lost everything.
	lost <-chan struct{}
}

// newRouting bounds the releases that wait by the number of connections: only a Redis that is away for long while
// clients come and go reaches it. A route that is not released is found stale by whoever uses it.
func newRouting(g *Gateway, table RouteTable, lost <-chan struct{}) *routing {
	return &routing{g: g, table: table, releases: newGather[routes.Route](g.cfg.Limits.Connections), lost: lost}
}

func (g *Gateway) routeOf(who *stateclient.Peer, epoch, since int64) routes.Route {
	return routes.Route{UID: who.UID, DeviceID: who.DeviceID, Incarnation: g.incarnation, Addr: g.advertise,
		ConnID: who.ConnID, Epoch: epoch, Platform: who.Platform, SessionID: who.SessionID, Since: time.UnixMilli(since)}
}

// release queues the release of a route until it is answered.
func (r *routing) release(route routes.Route) { r.releases.put(route) }

func (r *routing) claim(route routes.Route, age time.Duration) routes.Claim {
	c := r.g.cfg.Routes
	claim := routes.Claim{Route: route, LoginAge: age, DevicesMax: c.DevicesMax}
	claim.Route.Epoch = 0
	if c.Policy == policySingle {
		claim.Policy = routes.Single
	}
	return claim
}

// claimer writes the routes of logins until the queue is closed.
func (g *Gateway) claimer(ctx context.Context) {
	var batch []*login
	for {
		var ok bool
		if batch, ok = g.claiming.take(batch[:0], claimBatch); !ok {
			return
		}
		// Who has gone meanwhile must not take anybody's place.
		batch = slices.DeleteFunc(batch, func(lg *login) bool { return !g.waits(lg) })
		if len(batch) == 0 {
			continue
		}
		claims := make([]routes.Claim, len(batch))
		now := g.now()
		for i, lg := range batch {
			claims[i] = g.routes.claim(g.routeOf(lg.who, lg.who.Epoch, lg.since), now.Sub(lg.at))
		}
		results := g.routes.table.Claim(ctx, claims)
		for i, lg := range batch {
			g.claimed(lg, &results[i])
		}
		g.settleLogins(batch)
		for i, lg := range batch {
			g.displaceAll(results[i].Displaced, results[i].Late, lg.who.DeviceID, lg.who.SessionID)
		}
		clear(batch)
	}
}

// waits reports whether the connection of a login is still there.
func (g *Gateway) waits(lg *login) bool {
	p := g.peers.locked(lg.id)
	if p == nil {
		return false
	}
	defer p.mu.Unlock()
	return p.login() == lg && p.session.state < leaving
}

// claimed notes what became of one claim.
func (g *Gateway) claimed(lg *login, result *routes.ClaimResult) {
	switch {
	case result.Err != nil && g.cfg.Routes.OnRedisDown == redisAccept:
		g.counters.route(opClaim, routeUnknown)
		g.unrouted.Store(true)
	case result.Err != nil:
		// It may have been written all the same.
		g.counters.route(opClaim, routeUnknown)
		g.routes.release(g.routeOf(lg.who, lg.who.Epoch, lg.since))
		lg.reason, lg.detail = reason.RoutesUnavailable, "the route table does not answer"
	case result.Lost:
		g.counters.route(opClaim, routeLost)
		lg.reason = reason.RouteConflict
	default:
		g.counters.route(opClaim, routeOK)
		lg.who.Epoch, lg.claimed = result.Epoch, true
	}
}

// releaser releases routes until the queue is closed and empty, or ctx ends.
func (r *routing) releaser(ctx context.Context) {
	var batch []routes.Route
	for {
		var ok bool
		if batch, ok = r.releases.take(batch[:0], releaseBatch); !ok {
			return
		}
		for pause := releaseRetry; ; pause = min(2*pause, releaseRetryMax) {
			err := r.table.Release(ctx, batch)
			if err == nil {
				r.g.counters.routes(opRelease, routeOK, len(batch))
				break
			}
			r.g.counters.routes(opRelease, routeUnknown, len(batch))
			if !wait(ctx, pause) {
				return
			}
		}
		clear(batch)
	}
}

// audit walks all connections once an audit period, and at once when the table may have lost them.
func (r *routing) audit(ctx context.Context) {
	period := r.g.cfg.Routes.Audit
	next := time.NewTimer(period)
	defer next.Stop()
	unrouted := time.NewTicker(unroutedEvery)
	defer unrouted.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.lost:
			r.walk(ctx, repairPause)
			continue
		case <-unrouted.C:
			if r.g.unrouted.Swap(false) {
				r.reclaim(ctx)
			}
			continue
		case <-next.C:
		}
		next.Reset(period)
		batches := int(r.g.gauges.live())/auditBatch + 1
		r.walk(ctx, period*9/10/time.Duration(batches))
	}
}

// held is one live connection's route, and where it is.
type held struct {
	id    poller.ID
	route routes.Route
}

// walk compares the routes of all connections with the table, batch by batch. A loss on the way starts it anew, without
// the pauses of an audit.
func (r *routing) walk(ctx context.Context, pause time.Duration) {
	for {
		again := false
		r.batches(func(h *held) bool { return h.route.Epoch != 0 }, func(batch []held) bool {
			r.restore(ctx, batch)
			select {
			case <-r.lost:
				again = true
				return false
			default:
				return wait(ctx, pause)
			}
		})
		if !again || ctx.Err() != nil {
			return
		}
		pause = repairPause
	}
}

// batches gives the live connections that want says, auditBatch at a time, to f, until it returns false.
func (r *routing) batches(want func(h *held) bool, f func(batch []held) bool) {
	batch, on := make([]held, 0, auditBatch), true
	r.g.peers.each(func(_ uint32, p *peer) bool {
		p.mu.Lock()
		if p.who != nil && (p.session.state == live || p.session.state == refreshing) {
			h := held{id: p.id, route: r.g.routeOf(p.who, p.epoch(), p.since)}
			if want(&h) {
				batch = append(batch, h)
			}
		}
		p.mu.Unlock()
		if len(batch) == auditBatch {
			on = f(batch)
			batch = batch[:0]
		}
		return on
	})
	if on && len(batch) > 0 {
		f(batch)
	}
}

func (r *routing) restore(ctx context.Context, batch []held) {
	list := make([]routes.Route, len(batch))
	for i := range batch {
		list[i] = batch[i].route
	}
	for i, result := range r.table.Restore(ctx, list) {
		switch result {
		case routes.Held:
			r.g.counters.route(opAudit, routeOK)
		case routes.Restored:
			r.g.counters.route(opAudit, routeRestored)
			r.g.resync(batch[i].id)
		case routes.LostToNewer:
			r.g.counters.route(opAudit, routeLost)
			r.g.leave(batch[i].id, reason.RouteConflict)
		case routes.Unknown:
			r.g.counters.route(opAudit, routeUnknown)
		}
	}
}

// reclaim gets routes for connections that were let in while Redis was away.
func (r *routing) reclaim(ctx context.Context) {
	r.batches(func(h *held) bool { return h.route.Epoch == 0 }, func(batch []held) bool {
		list, now := make([]routes.Claim, len(batch)), r.g.now()
		for i := range batch {
			list[i] = r.claim(batch[i].route, now.Sub(batch[i].route.Since))
		}
		for i, result := range r.table.Claim(ctx, list) {
			switch {
			case result.Err != nil:
				r.g.counters.route(opClaim, routeUnknown)
				r.g.unrouted.Store(true)
				return false // still away: once a tick is enough
			case result.Lost:
				r.g.counters.route(opClaim, routeLost)
				r.g.leave(batch[i].id, reason.RouteConflict)
			default:
				r.g.counters.route(opClaim, routeOK)
				r.g.routed(batch[i].id, batch[i].route, result.Epoch)
				r.g.displaceAll(result.Displaced, true, batch[i].route.DeviceID, batch[i].route.SessionID)
			}
		}
		return wait(ctx, repairPause)
	})
}

// routed gives a connection the epoch of the route that it got late.
func (g *Gateway) routed(id poller.ID, route routes.Route, epoch int64) {
	p := g.peers.locked(id)
	if p == nil || p.who == nil {
		if p != nil {
			p.mu.Unlock()
		}
		g.routes.release(route)
		return
	}
	p.rarely().epoch = epoch
	p.mu.Unlock()
	g.resync(id)
}

// wait is a pause that ends early with ctx; false = ctx has ended.
func wait(ctx context.Context, pause time.Duration) bool {
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
