package delivery

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// hint says that a user may have resends due. score is compared as Redis wrote it.
type hint struct {
	shard      int
	uid, score string
}

// due finds hints that are past in the given shards, at most limit a shard; full says that some shard may have more.
func (t *table) due(ctx context.Context, owned []int, limit int) (found []hint, full bool, err error) {
	if len(owned) == 0 {
		return nil, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	calls := make([]call, len(owned))
	for i, s := range owned {
		calls[i] = call{t.scripts.due, dueKey(s), []any{limit}}
	}
	for i, cmd := range run(ctx, t.rdb, calls) {
		v, e := cmd.Slice()
		if e != nil {
			// The other shards go on.
			err = fmt.Errorf("look for resends in shard %d: %w", owned[i], e)
			continue
		}
		for k := 0; k+1 < len(v); k += 2 {
			found = append(found, hint{owned[i], text(v[k]), text(v[k+1])})
		}
		full = full || len(v) >= 2*limit
	}
	return found, full, err
}

// taken are the due messages of one user.
type taken struct {
	uid string
	// next is the score of the user's earliest resend as text, empty = the user has no entries.
	next    string
	entries []entry
	err     error
}

// take claims the due messages of users for hold.
func (t *table) take(ctx context.Context, uids []string, limit int, hold time.Duration, resendsMax int) []taken {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	calls := make([]call, len(uids))
	for i, uid := range uids {
		calls[i] = call{t.scripts.take, userKeys(uid), []any{limit, millis(hold), resendsMax}}
	}
	out := make([]taken, len(uids))
	for i, cmd := range run(ctx, t.rdb, calls) {
		out[i].uid = uids[i]
		v, err := cmd.Slice()
		if err != nil {
			out[i].err = fmt.Errorf("take resends of %s: %w", uids[i], err)
			continue
		}
		out[i].next = text(v[0])
		for k := 1; k+2 < len(v); k += 3 {
			e, err := parseEntry(text(v[k]), int(number(v[k+1])), text(v[k+2]))
			if err != nil {
				out[i].err = fmt.Errorf("take resends of %s: %w", uids[i], err)
				continue
			}
			out[i].entries = append(out[i].entries, e)
		}
	}
	return out
}

// mode says what a resolution does to the schedule of an entry.
type mode string

const (
	modeResend mode = "resend"
	modeSooner mode = "sooner"
	modeKeep   mode = "keep"
)

// allGone in place of a list of devices ends the whole entry.
const allGone = "*"

// resolution is what a lookup or a push has shown of one message of a user.
type resolution struct {
	// left says that none of the user's devices is connected.
	left   bool
	msgID  int64
	mode   mode
	delay  time.Duration
	gone   string
	online string
}

// userResolutions are those of one user in one batch.
type userResolutions struct {
	uid   string
	items []resolution
	// Results.
	next           string
	offline, added int
	// resends of each item, -1 = it has no entry any more.
	resends []int
	err     error
}

// resolve changes entries that are still there; it never brings one back.
func (t *table) resolve(ctx context.Context, users []*userResolutions) {
	if len(users) == 0 {
		return
	}
	calls := make([]call, len(users), len(users)+shards)
	var hints touches
	for i, u := range users {
		var soonest time.Duration
		args := make([]any, 0, 5*len(u.items))
		for _, r := range u.items {
			args = append(args, r.msgID, string(r.mode), millis(r.delay), r.gone, r.online)
			if r.mode == modeSooner && (soonest == 0 || r.delay < soonest) {
				soonest = r.delay
			}
		}
		calls[i] = call{t.scripts.resolve, userKeys(u.uid), args}
		if soonest > 0 {
			hints.add(u.uid, soonest)
		}
	}
	for i, cmd := range t.runTouched(ctx, calls, &hints) {
		u := users[i]
		v, err := cmd.Slice()
		if err != nil {
			u.err = fmt.Errorf("resolve resends of %s: %w", u.uid, err)
			continue
		}
		u.next, u.offline, u.added = text(v[0]), int(number(v[1])), int(number(v[2]))
		for _, n := range v[3:] {
			u.resends = append(u.resends, int(number(n)))
		}
	}
}

// raise moves hints on to the user's next resend, unless they were touched since they were read.
func (t *table) raise(ctx context.Context, hints []hint, next []string) error {
	var args [shards][]any
	for i, h := range hints {
		args[h.shard] = append(args[h.shard], h.uid, h.score, next[i])
	}
	var calls []call
	for s, a := range args {
		if a != nil {
			calls = append(calls, call{t.scripts.raise, dueKey(s), a})
		}
	}
	return t.runAll(ctx, "move hints", calls)
}

// count sums up the pairs of (message, device) of users.
func (t *table) count(ctx context.Context, uids []string) (pairs int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	calls := make([]call, len(uids))
	for i, uid := range uids {
		calls[i] = call{t.scripts.count, userKeys(uid), nil}
	}
	for _, cmd := range run(ctx, t.rdb, calls) {
		n, err := cmd.Int64()
		if err != nil {
			return 0, fmt.Errorf("count entries: %w", err)
		}
		pairs += n
	}
	return pairs, nil
}

// page lists the users of a shard from rank on, whether due or not.
func (t *table) page(ctx context.Context, shard, from, limit int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	uids, err := t.rdb.ZRange(ctx, dueKey(shard)[0], int64(from), int64(from+limit-1)).Result()
	if err != nil {
		return nil, fmt.Errorf("list shard %d: %w", shard, err)
	}
	return uids, nil
}

func (t *table) runAll(ctx context.Context, what string, calls []call) error {
	if len(calls) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	var first *redis.Cmd
	for _, cmd := range run(ctx, t.rdb, calls) {
		if first == nil && cmd.Err() != nil {
			first = cmd
		}
	}
	if first != nil {
		return fmt.Errorf("%s: %w", what, first.Err())
	}
	return nil
}
