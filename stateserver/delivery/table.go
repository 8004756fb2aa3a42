package delivery

import (
	"context"
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// shards of the hints (design: protocol 4): enough to share among StateServers, few enough to look at all in one trip.
const shards = 16

// table is the resend table in Redis: what every user's devices still owe an ack for, and when it is to be sent again.
// Its methods make one round trip each and give an error per user, since in a Cluster one may fail alone.
type table struct {
	rdb       redis.UniversalClient
	scripts   scripts
	perUIDMax int
	timeout   time.Duration
}

func newTable(rdb redis.UniversalClient, c Config) *table {
	return &table{rdb: rdb, scripts: newScripts(), perUIDMax: c.Resend.PerUIDMax, timeout: c.RedisTimeout}
}

func userKeys(uid string) []string {
	return []string{"unack:uid:{" + uid + "}", "unack:meta:{" + uid + "}", "retry:cnt:{" + uid + "}:"}
}

func dueKey(shard int) []string { return []string{"unack:due:" + strconv.Itoa(shard)} }

func shardOf(uid string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(uid)) // never fails
	return int(h.Sum32() % shards)
}

func millis(d time.Duration) int64 { return max(d.Milliseconds(), 1) }

// enrolment is one message for one user.
type enrolment struct {
	msgID, seq, receivedAt int64
	conv                   string
	owing                  string
	delay                  time.Duration
}

// userEnrolments are those of one user in one batch, in the order of their messages.
type userEnrolments struct {
	uid   string
	items []enrolment
	// Results.
	added, dropped, droppedPairs int
	err                          error
}

// enrol enters messages before they are pushed. Doing it again is harmless.
func (t *table) enrol(ctx context.Context, users []*userEnrolments) {
	if len(users) == 0 {
		return
	}
	calls := make([]call, len(users), len(users)+shards)
	var hints touches
	for i, u := range users {
		soonest := u.items[0].delay
		args := make([]any, 0, 1+6*len(u.items))
		args = append(args, t.perUIDMax)
		for _, e := range u.items {
			soonest = min(soonest, e.delay)
			args = append(args, e.msgID, millis(e.delay), e.seq, max(e.receivedAt, 0), e.conv, e.owing)
		}
		calls[i] = call{t.scripts.enrol, userKeys(u.uid), args}
		hints.add(u.uid, soonest)
	}
	out := t.runTouched(ctx, calls, &hints)
	for i, u := range users {
		v, err := out[i].Slice()
		if err == nil {
			u.added, u.dropped, u.droppedPairs = int(number(v[0])), int(number(v[1])), int(number(v[2]))
			// Without its hint an entry would never be looked at.
			err = hints.err(u.uid)
		}
		if err != nil {
			u.err = fmt.Errorf("enrol %s: %w", u.uid, err)
		}
	}
}

// touches gathers, by shard, the users whose hints are to be moved forward in time.
type touches struct {
	args [shards][]any
	errs [shards]error
}

func (h *touches) add(uid string, delay time.Duration) {
	s := shardOf(uid)
	h.args[s] = append(h.args[s], uid, millis(delay))
}

func (h *touches) err(uid string) error { return h.errs[shardOf(uid)] }

// runTouched runs calls and then touches hints; the order is what scripts/raise.lua relies on. One round trip, but two in
// a Cluster, whose client sends the parts of a pipeline to their nodes side by side.
func (t *table) runTouched(ctx context.Context, calls []call, hints *touches) []*redis.Cmd {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	var touch []call
	var touched []int
	for s, args := range hints.args {
		if len(args) > 0 {
			touch = append(touch, call{t.scripts.touch, dueKey(s), args})
			touched = append(touched, s)
		}
	}
	var out, of []*redis.Cmd
	if _, cluster := t.rdb.(*redis.ClusterClient); cluster {
		out = run(ctx, t.rdb, calls)
		of = run(ctx, t.rdb, touch)
	} else {
		all := run(ctx, t.rdb, append(calls, touch...))
		out, of = all[:len(calls)], all[len(calls):]
	}
	for i, cmd := range of {
		hints.errs[touched[i]] = cmd.Err()
	}
	return out
}

// ack is one cumulative ack.
type ack struct {
	uid, device, conv string
	seq               int64
}

// settled is what became of one ack.
type settled struct {
	// receivedAt of each message whose debt of this device ended; 0 = not known.
	receivedAt []int64
	err        error
}

// ack ends debts. Acks of one user make one script.
func (t *table) ack(ctx context.Context, acks []ack) []settled {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	byUID := make(map[string][]int, len(acks))
	order := make([]string, 0, len(acks))
	for i, a := range acks {
		if byUID[a.uid] == nil {
			order = append(order, a.uid)
		}
		byUID[a.uid] = append(byUID[a.uid], i)
	}
	calls := make([]call, 0, len(order))
	for _, uid := range order {
		args := make([]any, 0, 3*len(byUID[uid]))
		for _, i := range byUID[uid] {
			args = append(args, acks[i].device, acks[i].conv, acks[i].seq)
		}
		calls = append(calls, call{t.scripts.ack, userKeys(uid), args})
	}
	out := make([]settled, len(acks))
	for c, cmd := range run(ctx, t.rdb, calls) {
		of := byUID[order[c]]
		v, err := cmd.Slice()
		if err != nil {
			for _, i := range of {
				out[i].err = fmt.Errorf("ack of %s: %w", order[c], err)
			}
			continue
		}
		for k := 0; k+1 < len(v); k += 2 {
			i := of[number(v[k])]
			out[i].receivedAt = append(out[i].receivedAt, number(v[k+1]))
		}
	}
	return out
}
