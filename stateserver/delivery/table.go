package delivery

import (
	"context"
	"fmt"
	"hash/fnv"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// shards of the hints (design: protocol 4): enough to share among StateServers, few enough to look at all in one trip.
	shards = 16
	// condemnGrace is how long a hint stays after its user was found without entries. An enrolment that takes longer than
	// half of it is not believed and made again; see scripts/raise.lua.
	condemnGrace = 5 * time.Second
)

// table is the resend table in Redis: what every user's devices still owe an ack for, and when it is to be sent again.
// Its methods make one round trip each and give an error per user, since in a Cluster one may fail alone.
type table struct {
	rdb       redis.UniversalClient
	scripts   scripts
	perUIDMax int
	timeout   time.Duration
	grace     time.Duration
}

func newTable(rdb redis.UniversalClient, c Config) *table {
	return &table{rdb: rdb, scripts: newScripts(), perUIDMax: c.Resend.PerUIDMax, timeout: c.RedisTimeout, grace: condemnGrace}
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
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	start := time.Now()
	var hints touches
	for _, u := range users {
		soonest := u.items[0].delay
		for _, e := range u.items[1:] {
			soonest = min(soonest, e.delay)
		}
		hints.add(u.uid, soonest)
	}
	calls := hints.calls(t)
	first := len(calls)
	for _, u := range users {
		args := make([]any, 0, 1+6*len(u.items))
		args = append(args, t.perUIDMax)
		for _, e := range u.items {
			args = append(args, e.msgID, millis(e.delay), e.seq, max(e.receivedAt, 0), e.conv, e.owing)
		}
		calls = append(calls, call{t.scripts.enrol, userKeys(u.uid), args})
	}
	out := run(ctx, t.rdb, calls)
	late := time.Since(start) > t.grace/2
	for i, u := range users {
		v, err := out[first+i].Slice()
		if err == nil {
			u.added, u.dropped, u.droppedPairs = int(number(v[0])), int(number(v[1])), int(number(v[2]))
			err = hints.err(u.uid, out)
		}
		if err == nil && late {
			err = fmt.Errorf("took %v, the hint may be gone", time.Since(start))
		}
		if err != nil {
			u.err = fmt.Errorf("enrol %s: %w", u.uid, err)
		}
	}
}

// touches gathers, by shard, the users whose hints are to be moved forward in time.
type touches struct {
	args [shards][]any
	call [shards]int
}

func (h *touches) add(uid string, delay time.Duration) {
	s := shardOf(uid)
	h.args[s] = append(h.args[s], uid, millis(delay))
}

// calls are to come first in a batch.
func (h *touches) calls(t *table) []call {
	var calls []call
	for s, args := range h.args {
		if len(args) > 0 {
			h.call[s] = len(calls)
			calls = append(calls, call{t.scripts.touch, dueKey(s), args})
		}
	}
	return calls
}

func (h *touches) err(uid string, out []*redis.Cmd) error { return out[h.call[shardOf(uid)]].Err() }

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
