package delivery

import (
	"context"
	"math/rand/v2"

	"github.com/sluice-im/sluice/stateclient/routes"
)

// mendBatchMax bounds one pass over failed pushes.
const mendBatchMax = 512

// why a push has to be mended.
type why uint8

const (
	// whyFailed: it may have arrived; the route stays, the next attempt is a resend.
	whyFailed why = iota
	// whyStale: the gateway says that the route is wrong; it goes, and the user is looked up once more.
	whyStale
	// whyDead: the gateway cannot be reached; the route stays, and the user is looked up once more.
	whyDead
)

type mend struct {
	parcel  parcel
	why     why
	outcome string
}

// mend counts a push that did not arrive and sees to it later. It never blocks.
func (d *Delivery) mend(m mend) {
	d.books.pushes[m.outcome].Inc()
	if m.parcel.kind == kindNotice && m.why != whyStale {
		d.noticeLater(m.parcel.notice())
		return
	}
	if m.why == whyFailed && !(m.parcel.kind == kindTracked && m.parcel.first) {
		// A failed resend has its next attempt in the schedule already; nothing else is done for the untracked.
		return
	}
	if !d.mends.offer(m, 0) {
		d.books.resolveSkip.Inc()
	}
}

func (d *Delivery) runMender(work context.Context) {
	var batch []mend
	for work.Err() == nil {
		var open bool
		batch, open = d.mends.poll(batch[:0], mendBatchMax, anyCost)
		if len(batch) > 0 {
			d.mendBatch(work, batch)
			clear(batch)
			continue
		}
		if !open {
			return
		}
		select {
		case <-d.mends.ready:
		case <-work.Done():
		}
	}
}

func (d *Delivery) mendBatch(ctx context.Context, batch []mend) {
	defer d.books.await()()
	d.clearRoutes(ctx, batch)
	f := d.lookupAgain(ctx, batch)
	byUID := make(map[string]*userResolutions)
	var users []*userResolutions
	resolve := func(uid string, r resolution) {
		u := byUID[uid]
		if u == nil {
			u = &userResolutions{uid: uid}
			byUID[uid] = u
			users = append(users, u)
		}
		u.items = append(u.items, r)
	}
	var again []parcel
	for _, m := range batch {
		p := m.parcel
		now, verdict := m.verdict(f)
		switch {
		case p.kind == kindNotice:
			d.noticeLater(p.notice())
		case verdict == verdictMoved:
			p.route, p.again = now, true
			again = append(again, p)
		case p.kind != kindTracked:
		case verdict == verdictOffline:
			resolve(p.route.UID, resolution{msgID: p.msgID, mode: modeKeep, gone: allGone, left: true})
		case verdict == verdictGone:
			resolve(p.route.UID, resolution{msgID: p.msgID, mode: modeKeep, gone: owing([]string{p.route.DeviceID})})
		case p.first:
			resolve(p.route.UID, resolution{msgID: p.msgID, mode: modeSooner, delay: d.schedule.failed(rand.Float64())})
		}
	}
	d.outlets.put(again)
	d.table.resolve(ctx, users)
	var bad trouble
	for _, u := range users {
		if u.err != nil {
			// The entries keep the schedule they have.
			bad.add(u.err)
			continue
		}
		d.books.note(pairOffline, u.offline)
		d.books.note(pairEnrolled, u.added)
		d.tellGone(u)
	}
	d.report("failed pushes not noted", bad)
}

// tellGone says who has left without confirming what was pushed to him; an ack that came before ended the entry otherwise.
func (d *Delivery) tellGone(u *userResolutions) {
	if u.offline == 0 {
		return
	}
	for _, r := range u.items {
		if r.left {
			d.deps.Gone(u.uid, r.msgID)
		}
	}
}

// verdict is what a second lookup says of a push.
type verdict uint8

const (
	// verdictLater: nothing new is known, the resend will see.
	verdictLater verdict = iota
	// verdictMoved: the device is connected elsewhere by now.
	verdictMoved
	// verdictGone: the device is not connected, others of the user are.
	verdictGone
	// verdictOffline: none is.
	verdictOffline
)

func (m mend) verdict(f found) (routes.Route, verdict) {
	old := m.parcel.route
	if m.why == whyFailed || m.parcel.again || f.unknown[old.UID] {
		return routes.Route{}, verdictLater
	}
	all := f.routes[old.UID]
	if len(all) == 0 {
		return routes.Route{}, verdictOffline
	}
	for _, r := range all {
		if r.DeviceID != old.DeviceID {
			continue
		}
		if r.Incarnation == old.Incarnation && r.ConnID == old.ConnID && r.Epoch == old.Epoch {
			return routes.Route{}, verdictLater
		}
		return r, verdictMoved
	}
	return routes.Route{}, verdictGone
}

// clearRoutes removes routes that their own gateways disowned, if they are unchanged.
func (d *Delivery) clearRoutes(ctx context.Context, batch []mend) {
	var stale []routes.Route
	seen := make(map[routes.Route]bool)
	for _, m := range batch {
		if m.why == whyStale && !seen[m.parcel.route] {
			seen[m.parcel.route] = true
			stale = append(stale, m.parcel.route)
		}
	}
	if len(stale) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.RedisTimeout)
	defer cancel()
	if err := d.deps.Routes.Remove(ctx, stale); err != nil {
		d.warnings.warn("stale routes not removed", "routes", len(stale), "error", err)
		return
	}
	d.books.cleared.Add(float64(len(stale)))
}

func (d *Delivery) lookupAgain(ctx context.Context, batch []mend) found {
	var uids []string
	seen := make(map[string]bool)
	for _, m := range batch {
		uid := m.parcel.route.UID
		if m.why != whyFailed && !m.parcel.again && m.parcel.kind != kindNotice && !seen[uid] {
			seen[uid] = true
			uids = append(uids, uid)
		}
	}
	return d.lookup(ctx, uids)
}
