package delivery

import (
	"context"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluice-im/sluice/stateclient/routes"
)

const (
	// batchTasksMax and batchBytesMax bound one batch of a lane: beyond them a larger batch saves nothing more.
	batchTasksMax = 256
	batchBytesMax = 4 << 20
	// lookupMax and enrolMax bound one round trip, so that Redis is not held up by one batch of large groups.
	lookupMax = 512
	enrolMax  = 512
	// retryFirst and retryMax bound the pause between two tries while Redis does not answer.
	retryFirst = 100 * time.Millisecond
	retryMax   = time.Second
)

// job is a task on its way; it is in one place at a time.
type job struct {
	task Task
	// uids that are not settled yet.
	uids []string
	// retried says that an earlier try may have left entries behind.
	retried bool
	// offline are receivers, the sender excepted, who were found offline.
	offline []string
	payload []byte
}

func newJob(t Task) *job { return &job{task: t, uids: t.Receivers} }

// cost is about what the job holds in memory.
func (j *job) cost() int {
	const fixed, perUID = 256, 32
	return fixed + len(j.task.Message.Body) + len(j.task.Message.Content) + perUID*len(j.uids)
}

func (j *job) senderDevice(uid string) string {
	if uid == j.task.Message.FromUID {
		return j.task.SenderDevice
	}
	return ""
}

// once says that the message gets no entries in the resend table.
func (j *job) once(c Config) bool { return len(j.task.Receivers) > c.Resend.GroupMembersMax }

func laneOf(conv string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(conv)) // never fails
	return int(h.Sum32() % lanesCount)
}

// runLane works on one lane until it is closed and empty, or work ends. What gathered during a batch is the next one.
func (d *Delivery) runLane(work context.Context, q *queue[*job]) {
	// Before the first lease nobody could tell whether Redis lost what was enrolled.
	select {
	case <-d.leases.known:
	case <-work.Done():
		return
	}
	var batch []*job
	for work.Err() == nil {
		var open bool
		batch, open = q.poll(batch[:0], batchTasksMax, batchBytesMax)
		if len(batch) > 0 {
			left := d.process(work, batch)
			if len(left) > 0 {
				// Most failures are short: another try at once keeps the order of the conversation.
				left = d.process(work, left)
			}
			for _, j := range left {
				d.putOff(j)
			}
			clear(batch)
			continue
		}
		if !open {
			return
		}
		select {
		case <-q.ready:
		case <-work.Done():
		}
	}
}

// putOff keeps a job for when Redis answers again. When too many wait already, it is left to the rows above the mark,
// unless somebody waits for it to settle: those bound their jobs themselves.
func (d *Delivery) putOff(j *job) {
	d.books.retries.Inc()
	if j.task.Settled != nil {
		d.retries.force(j, j.cost())
	} else if !d.retries.offer(j, j.cost()) {
		d.stalled.Store(true)
	}
}

// runRetries tries again what was put off, less and less often while Redis does not answer.
func (d *Delivery) runRetries(ctx context.Context) {
	pause := retryFirst
	timer := time.NewTimer(pause)
	defer timer.Stop()
	var batch []*job
	for {
		if d.retries.len() == 0 {
			pause = retryFirst
			select {
			case <-d.retries.ready:
			case <-ctx.Done():
				return
			}
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		batch, _ = d.retries.poll(batch[:0], batchTasksMax, batchBytesMax)
		left := d.process(ctx, batch)
		for _, j := range left {
			d.putOff(j)
		}
		if len(left) > 0 {
			pause = min(2*pause, retryMax)
		} else {
			pause = retryFirst
		}
		clear(batch)
	}
}

// found is what a lookup brought.
type found struct {
	routes  map[string][]routes.Route
	unknown map[string]bool
}

// process takes jobs from lookup to push, and returns those that are not settled for some receiver.
func (d *Delivery) process(ctx context.Context, jobs []*job) (left []*job) {
	if len(jobs) == 0 {
		return nil
	}
	var uids []string
	seen := make(map[string]bool)
	for _, j := range jobs {
		for _, uid := range j.uids {
			if !seen[uid] {
				seen[uid] = true
				uids = append(uids, uid)
			}
		}
	}
	f := d.lookup(ctx, uids)
	d.deps.Failpoint(FailpointFound)
	failed := d.enrol(ctx, jobs, f)
	d.deps.Failpoint(FailpointEnrolled)
	parcels := d.parcels(jobs, f, failed)
	for _, j := range jobs {
		if d.sift(j, f, failed); len(j.uids) > 0 {
			j.retried = true
			left = append(left, j)
			continue
		}
		d.deps.Offline(j.task.Message.MsgID, j.offline)
		d.marks.settle(j.task.Message.MsgID)
		if j.task.Settled != nil {
			j.task.Settled()
		}
	}
	d.outlets.put(parcels)
	return left
}

// sift leaves those receivers with the job that are not settled, and notes those who are offline.
func (d *Delivery) sift(j *job, f found, failed map[string]bool) {
	still := j.uids[:0:0]
	for _, uid := range j.uids {
		switch {
		case f.unknown[uid] || failed[uid]:
			still = append(still, uid)
		case len(f.routes[uid]) == 0 && uid != j.task.Message.FromUID && !j.once(d.cfg):
			j.offline = append(j.offline, uid)
		}
	}
	j.uids = still
}

// lookup finds routes, in round trips of bounded size. A failed one makes its users unknown, never offline.
func (d *Delivery) lookup(ctx context.Context, uids []string) found {
	f := found{routes: make(map[string][]routes.Route, len(uids)), unknown: make(map[string]bool)}
	for part := range slices.Chunk(uids, lookupMax) {
		m, err := d.find(ctx, part)
		if err != nil {
			unknown := part
			var some *routes.UnknownError
			if errors.As(err, &some) {
				unknown = some.UIDs
			}
			d.warnings.warn("route lookup failed", "users", len(unknown), "error", err)
			for _, uid := range unknown {
				f.unknown[uid] = true
			}
		}
		for uid, r := range m {
			if !f.unknown[uid] {
				f.routes[uid] = r
			}
		}
	}
	return f
}

func (d *Delivery) find(ctx context.Context, uids []string) (map[string][]routes.Route, error) {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.LookupTimeout)
	defer cancel()
	return d.deps.Routes.Find(ctx, uids)
}

// enrol enters every message for every user that is, or may be, connected; failed are the users for whom that is not
// certain.
func (d *Delivery) enrol(ctx context.Context, jobs []*job, f found) (failed map[string]bool) {
	defer d.books.await()()
	failed = make(map[string]bool)
	var users []*userEnrolments
	byUID := make(map[string]*userEnrolments)
	offline := make(map[string]*userResolutions)
	for _, j := range jobs {
		if j.once(d.cfg) {
			continue
		}
		for _, uid := range j.uids {
			e, isOffline := d.enrolment(j, uid, f)
			switch {
			case isOffline && j.retried:
				d.resolveOffline(offline, uid, j.task.Message.MsgID)
			case isOffline && uid != j.task.Message.FromUID:
				d.books.offlineAtOnce()
			case e.owing != "":
				u := byUID[uid]
				if u == nil {
					u = &userEnrolments{uid: uid}
					byUID[uid] = u
					users = append(users, u)
				}
				// A message that was enqueued again may meet itself here.
				if !slices.ContainsFunc(u.items, func(o enrolment) bool { return o.msgID == e.msgID }) {
					u.items = append(u.items, e)
				}
			}
		}
	}
	for part := range slices.Chunk(users, enrolMax) {
		d.table.enrol(ctx, part)
		d.noteEnrolled(part, failed)
	}
	d.endOffline(ctx, offline, failed)
	return failed
}

func (d *Delivery) noteEnrolled(users []*userEnrolments, failed map[string]bool) {
	var bad trouble
	var full int
	var example string
	for _, u := range users {
		if u.err != nil {
			bad.add(u.err)
			failed[u.uid] = true
			continue
		}
		d.books.note(pairEnrolled, u.added)
		// Resolving an unknown entry may end it: then fewer pairs are owed than before.
		d.books.note(pairOffline, -u.added)
		if u.dropped > 0 {
			d.books.overflowed(u.dropped, u.droppedPairs)
			full, example = full+u.dropped, u.uid
		}
	}
	d.report("enrolment failed", bad)
	if full > 0 {
		d.warnings.warn("resend tables of users are full, oldest dropped", "messages", full, "uid", example)
	}
}

// enrolment is empty when the user needs none: none of his devices but the sending one is connected.
func (d *Delivery) enrolment(j *job, uid string, f found) (e enrolment, offline bool) {
	m := &j.task.Message
	e = enrolment{msgID: m.MsgID, seq: m.Seq, receivedAt: m.ReceivedAt, conv: m.ConvID}
	not := j.senderDevice(uid)
	if f.unknown[uid] {
		e.owing, e.delay = owingUnknown(not), d.schedule.failed(rand.Float64())
		return e, false
	}
	all := f.routes[uid]
	if len(all) == 0 {
		return e, true
	}
	devices := make([]string, 0, len(all))
	for _, r := range all {
		if r.DeviceID != not {
			devices = append(devices, r.DeviceID)
		}
	}
	if len(devices) > 0 {
		e.owing, e.delay = owing(devices), d.schedule.pushed(rand.Float64())
	}
	return e, false
}

func (d *Delivery) resolveOffline(offline map[string]*userResolutions, uid string, msgID int64) {
	u := offline[uid]
	if u == nil {
		u = &userResolutions{uid: uid}
		offline[uid] = u
	}
	u.items = append(u.items, resolution{msgID: msgID, mode: modeKeep, gone: allGone})
}

// endOffline takes back entries that an earlier try made for users that turned out to be offline.
func (d *Delivery) endOffline(ctx context.Context, offline map[string]*userResolutions, failed map[string]bool) {
	var users []*userResolutions
	for _, u := range offline {
		users = append(users, u)
	}
	var bad trouble
	for part := range slices.Chunk(users, enrolMax) {
		d.table.resolve(ctx, part)
		for _, u := range part {
			if u.err != nil {
				bad.add(u.err)
				failed[u.uid] = true
				continue
			}
			d.books.note(pairOffline, u.offline)
			if u.offline == 0 {
				d.books.offlineAtOnce()
			}
		}
	}
	d.report("entries of offline users not ended", bad)
}

// parcels are the pushes of a batch, in the order of its messages.
func (d *Delivery) parcels(jobs []*job, f found, failed map[string]bool) []parcel {
	var out []parcel
	for _, j := range jobs {
		kind := kindTracked
		if j.once(d.cfg) {
			kind = kindOnce
		}
		for _, uid := range j.uids {
			if failed[uid] {
				continue
			}
			not := j.senderDevice(uid)
			for _, r := range f.routes[uid] {
				if r.DeviceID == not {
					continue
				}
				if j.payload == nil {
					payload, err := encodeDown(&j.task.Message)
					if err != nil {
						d.log.Error("message cannot be encoded", "msg_id", j.task.Message.MsgID, "error", err)
						continue
					}
					j.payload = payload
				}
				out = append(out, parcel{payload: j.payload, route: r, msgID: j.task.Message.MsgID, kind: kind, first: true})
			}
		}
	}
	return out
}
