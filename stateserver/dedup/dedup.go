// Package dedup is the first gate against doubled messages: a short-lived key in Redis per (sender, uuid) that also
// replays the first result (design: protocol 4, guarantees 3). It only spares the store work. What is stored once is
// decided by the store's unique key alone, so whatever Redis forgets or repeats cannot double a message.
package dedup

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-im/sluice/stateserver/store"
)

const (
	// inWork is the value while a message is on its way to the store, for inWorkFor: a hint, so a crash blocks nothing.
	inWork    = "-1"
	inWorkFor = 2 * time.Second
	// pauseFor is how long the gate answers Unavailable by itself after Redis failed: without it each batch would wait
	// for the whole timeout.
	pauseFor = 100 * time.Millisecond
)

// Verdict is what the gate knows of a message.
type Verdict uint8

const (
	// Fresh: not seen within the key's life. It goes to the store.
	Fresh Verdict = iota
	// InWork: somebody is at it, or was and died. It goes to the store, whose unique key decides.
	InWork
	// Known: stored before; the answer has the first result.
	Known
	// Reused: another payload is stored under this uuid.
	Reused
	// Unavailable: Redis did not answer. The message is not stored now: without Redis it could not be delivered either,
	// and the documents want the client to back off (ACK_RETRY).
	Unavailable
)

// Query is one message at the gate.
type Query struct {
	Key  store.Key
	Hash uint64
}

// Answer is the gate's word on one Query; MsgID and Seq are set when it is Known.
type Answer struct {
	Verdict Verdict
	MsgID   int64
	Seq     int64
}

// Gate is safe for concurrent use.
type Gate struct {
	rdb     redis.UniversalClient
	ttl     time.Duration
	timeout time.Duration
	// pausedUntil is when Redis is asked again, in ns of the monotonic clock since start.
	pausedUntil atomic.Int64
	start       time.Time
}

// New makes a gate. ttl is the life of a result (at least as long as clients resend), timeout bounds one Check.
func New(rdb redis.UniversalClient, ttl, timeout time.Duration) *Gate {
	return &Gate{rdb: rdb, ttl: ttl, timeout: timeout, start: time.Now()}
}

func name(k store.Key) string { return "dedup:up:{" + k.FromUID + "}:" + k.UUID }

// Check asks for all queries in one round trip and fills answers, one a query. It never fails as a whole.
func (g *Gate) Check(ctx context.Context, queries []Query, answers []Answer) {
	if len(queries) == 0 {
		return
	}
	if int64(time.Since(g.start)) < g.pausedUntil.Load() {
		for i := range queries {
			answers[i] = Answer{Verdict: Unavailable}
		}
		return
	}
	// A caller who goes away must not look like a Redis that fails.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.timeout)
	defer cancel()
	pipe := g.rdb.Pipeline()
	sets := make([]*redis.BoolCmd, len(queries))
	gets := make([]*redis.StringCmd, len(queries))
	for i, q := range queries {
		n := name(q.Key)
		sets[i] = pipe.SetNX(ctx, n, inWork, inWorkFor)
		gets[i] = pipe.Get(ctx, n)
	}
	// Each command has its own error; the pipeline's is the first of them, and a key that is not there counts as one.
	_, _ = pipe.Exec(ctx)
	failed := false
	for i, q := range queries {
		answers[i] = judge(q, sets[i], gets[i])
		failed = failed || answers[i].Verdict == Unavailable
	}
	if failed {
		g.pausedUntil.Store(int64(time.Since(g.start) + pauseFor))
	}
}

func judge(q Query, set *redis.BoolCmd, get *redis.StringCmd) Answer {
	if set.Err() != nil {
		return Answer{Verdict: Unavailable}
	}
	if set.Val() {
		return Answer{Verdict: Fresh}
	}
	value, err := get.Result()
	switch {
	case errors.Is(err, redis.Nil): // it ended between the two commands
		return Answer{Verdict: InWork}
	case err != nil:
		return Answer{Verdict: Unavailable}
	case value == inWork:
		return Answer{Verdict: InWork}
	}
	id, seq, hash, err := parse(value)
	if err != nil {
		// Whatever wrote this, the store knows better.
		return Answer{Verdict: InWork}
	}
	if hash != q.Hash {
		return Answer{Verdict: Reused}
	}
	return Answer{Verdict: Known, MsgID: id, Seq: seq}
}

// Stored is one result to remember.
type Stored struct {
	Key   store.Key
	MsgID int64
	Seq   int64
	Hash  uint64
}

// Remember writes results in one round trip. What gets lost on the way costs the store one look later.
func (g *Gate) Remember(ctx context.Context, results []Stored) error {
	ctx, cancel := context.WithTimeout(ctx, g.timeout)
	defer cancel()
	_, err := g.rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, r := range results {
			pipe.Set(ctx, name(r.Key), format(r), g.ttl)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("remember %d results: %w", len(results), err)
	}
	return nil
}

// format writes msg_id:seq:hash8, hash8 being the eight bytes of the hash as hex digits.
func format(r Stored) string {
	return strconv.FormatInt(r.MsgID, 10) + ":" + strconv.FormatInt(r.Seq, 10) + ":" + fmt.Sprintf("%016x", r.Hash)
}

func parse(value string) (id, seq int64, hash uint64, err error) {
	first, rest, _ := strings.Cut(value, ":")
	second, third, _ := strings.Cut(rest, ":")
	id, e1 := strconv.ParseInt(first, 10, 64)
	seq, e2 := strconv.ParseInt(second, 10, 64)
	hash, e3 := strconv.ParseUint(third, 16, 64)
	if err := errors.Join(e1, e2, e3); err != nil {
		return 0, 0, 0, fmt.Errorf("dedup value: %w", err)
	}
	return id, seq, hash, nil
}
