package delivery

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluice-im/sluice/stateclient/routes"
	"github.com/sluice-im/sluice/stateserver/store"
)

const (
	// dueMax is how many users of one shard one look takes.
	dueMax = 128
	// takeUsersMax and takeMessagesMax bound one step: 1,024 messages of 64 KiB at most in memory.
	takeUsersMax    = 64
	takeMessagesMax = 16
	// loadTimeout bounds one load from the store; after it the messages come up again when their hold ends.
	loadTimeout = 2 * time.Second
	// passesMax bounds looks without a pause in between, so that a flood of resends does not keep the scanner from
	// noticing that it lost a lease.
	passesMax = 16
)

// runScanner looks for resends that are due in the shards that this instance holds.
func (d *Delivery) runScanner(ctx context.Context) {
	tick := time.NewTicker(d.cfg.Resend.ScanEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for range passesMax {
			if full := d.scan(ctx); !full || ctx.Err() != nil {
				break
			}
		}
	}
}

// scan makes one pass; full says that there is more.
func (d *Delivery) scan(ctx context.Context) (full bool) {
	hints, full, err := d.table.due(ctx, d.leases.owned(time.Now()), dueMax)
	if err != nil && ctx.Err() == nil {
		d.warnings.warn("resend scan failed", "error", err)
		full = false
	}
	for part := range slices.Chunk(hints, takeUsersMax) {
		d.resend(ctx, part)
	}
	return full
}

// resend takes what is due for some users, looks it up, moves its schedule on, and pushes it.
func (d *Delivery) resend(ctx context.Context, hints []hint) {
	defer d.books.await()()
	uids := make([]string, len(hints))
	for i, h := range hints {
		uids[i] = h.uid
	}
	users := d.takeDue(ctx, uids)
	messages, known := d.load(ctx, users)
	next := make([]string, len(users))
	for i, u := range users {
		next[i] = u.next
	}
	var parcels []parcel
	if known && len(messages.wanted) > 0 {
		f := d.lookup(ctx, messages.uids)
		plans := d.plan(users, messages, f)
		all := make([]*userResolutions, 0, len(plans))
		for _, p := range plans {
			all = append(all, &p.resolutions)
		}
		d.table.resolve(ctx, all)
		var bad trouble
		for _, p := range plans {
			r := &p.resolutions
			if r.err != nil {
				bad.add(r.err)
				continue
			}
			next[p.user] = r.next
			d.books.note(pairOffline, r.offline)
			d.books.note(pairEnrolled, r.added)
			d.tellGone(r)
			parcels = append(parcels, d.resendParcels(p, messages)...)
		}
		d.report("resends not noted", bad)
	}
	d.raise(ctx, hints, users, next)
	d.outlets.put(parcels)
}

// takeDue claims what is due; entries that were resent often enough end here.
func (d *Delivery) takeDue(ctx context.Context, uids []string) []taken {
	users := d.table.take(ctx, uids, takeMessagesMax, d.schedule.hold(), d.schedule.max)
	var bad trouble
	var exhausted int
	var example entry
	for i := range users {
		u := &users[i]
		if u.err != nil {
			bad.add(u.err)
			continue
		}
		u.entries = slices.DeleteFunc(u.entries, func(e entry) bool {
			if e.resends < d.schedule.max {
				return false
			}
			exhausted++
			example = e
			d.books.gaveUp(e.pairs())
			return true
		})
		// In the order they were numbered, so that the receiver needs to hold back less.
		slices.SortFunc(u.entries, func(a, b entry) int { return cmp.Compare(a.msgID, b.msgID) })
	}
	d.report("resends not taken", bad)
	if exhausted > 0 {
		d.warnings.warn("resends exhausted", "messages", exhausted, "msg_id", example.msgID, "conv_id", example.conv)
	}
	return users
}

// loaded are the messages of one step and the users that wait for them.
type loaded struct {
	uids   []string
	wanted []int64
	byID   map[int64]*store.Message
	// payloads are encoded at most once a message.
	payloads map[int64][]byte
}

// load reads the messages; known is false when the store did not answer.
func (d *Delivery) load(ctx context.Context, users []taken) (l loaded, known bool) {
	l = loaded{byID: make(map[int64]*store.Message), payloads: make(map[int64][]byte)}
	for _, u := range users {
		if u.err != nil || len(u.entries) == 0 {
			continue
		}
		l.uids = append(l.uids, u.uid)
		for _, e := range u.entries {
			if _, ok := l.byID[e.msgID]; !ok {
				l.byID[e.msgID] = nil
				l.wanted = append(l.wanted, e.msgID)
			}
		}
	}
	if len(l.wanted) == 0 {
		return l, true
	}
	ctx, cancel := context.WithTimeout(ctx, loadTimeout)
	defer cancel()
	messages, err := d.deps.Messages.Load(ctx, l.wanted)
	if err != nil {
		d.warnings.warn("messages for resends not loaded", "messages", len(l.wanted), "error", err)
		return l, false
	}
	for i := range messages {
		l.byID[messages[i].MsgID] = &messages[i]
	}
	return l, true
}

// plan is what is to become of one user's taken messages.
type plan struct {
	// user is the index among those taken.
	user        int
	resolutions userResolutions
	// pushes of each resolution.
	pushes [][]routes.Route
}

func (d *Delivery) plan(users []taken, l loaded, f found) []*plan {
	var plans []*plan
	for i, u := range users {
		if u.err != nil || len(u.entries) == 0 || f.unknown[u.uid] {
			// The messages of a user that is not known come up again when their hold ends.
			continue
		}
		p := &plan{user: i, resolutions: userResolutions{uid: u.uid}}
		all := f.routes[u.uid]
		online := make([]string, len(all))
		for k, r := range all {
			online[k] = r.DeviceID
		}
		for _, e := range u.entries {
			res, pushes := d.planEntry(e, all, online)
			if l.byID[e.msgID] == nil {
				// Not stored any more: retention took it, nobody can get it.
				res, pushes = resolution{msgID: e.msgID, mode: modeKeep, gone: allGone}, nil
				d.warnings.warn("message for a resend is not stored", "msg_id", e.msgID, "conv_id", e.conv)
			}
			p.resolutions.items = append(p.resolutions.items, res)
			p.pushes = append(p.pushes, pushes)
		}
		plans = append(plans, p)
	}
	return plans
}

func (d *Delivery) planEntry(e entry, all []routes.Route, online []string) (resolution, []routes.Route) {
	push, gone := e.split(online)
	if len(push) == 0 {
		return resolution{msgID: e.msgID, mode: modeKeep, gone: allGone, left: len(all) == 0}, nil
	}
	r := resolution{msgID: e.msgID, mode: modeResend, delay: d.schedule.resent(e.resends+1, rand.Float64())}
	if len(gone) > 0 {
		r.gone = owing(gone)
	}
	if e.unknown {
		r.online = owing(online)
	}
	var pushes []routes.Route
	for _, route := range all {
		if slices.Contains(push, route.DeviceID) {
			pushes = append(pushes, route)
		}
	}
	return r, pushes
}

// resendParcels leaves out entries that an ack ended meanwhile.
func (d *Delivery) resendParcels(p *plan, l loaded) []parcel {
	var out []parcel
	for k, attempt := range p.resolutions.resends {
		id := p.resolutions.items[k].msgID
		if attempt < 0 || len(p.pushes[k]) == 0 {
			continue
		}
		payload := l.payloads[id]
		if payload == nil {
			var err error
			if payload, err = encodeDown(l.byID[id]); err != nil {
				d.log.Error("message cannot be encoded", "msg_id", id, "error", err)
				continue
			}
			l.payloads[id] = payload
		}
		d.books.resent(attempt, len(p.pushes[k]))
		for _, r := range p.pushes[k] {
			out = append(out, parcel{payload: payload, route: r, msgID: id, kind: kindTracked})
		}
	}
	return out
}

// raise moves the hints on; those of users that gave no answer stay, and come up in the next pass.
func (d *Delivery) raise(ctx context.Context, hints []hint, users []taken, next []string) {
	var done []hint
	var to []string
	for i, u := range users {
		if u.err == nil {
			done = append(done, hints[i])
			to = append(to, next[i])
		}
	}
	if err := d.table.raise(ctx, done, to); err != nil {
		d.warnings.warn("hints not moved", "error", err)
	}
}
