package routes

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// errStalled is a claim that reached Redis so late that nobody can have waited for it.
var errStalled = errors.New("the claim was delayed on its way to Redis")

// errReply is an answer that no script of this package gives.
var errReply = errors.New("unexpected reply")

// redisClock reckons what time it is at Redis, from the last answer of a script. It is ahead by one round trip at most,
// which errs towards "sent just now".
type redisClock struct {
	start  time.Time
	known  atomic.Bool
	offset atomic.Int64 // µs of Redis time at start
}

func (c *redisClock) elapsed() int64 { return time.Since(c.start).Microseconds() }

// now is 0 until the first answer: the script then refuses the claim with the time, and it is sent again.
func (c *redisClock) now() int64 {
	if !c.known.Load() {
		return 0
	}
	return c.offset.Load() + c.elapsed()
}

// learn takes the Redis time of an answer to something that was sent at elapsed.
func (c *redisClock) learn(redisTime, elapsed int64) {
	c.offset.Store(redisTime - elapsed)
	c.known.Store(true)
}

// Claim asks for many routes at once, in one round trip for each 512. It never returns early: results[i] is what became of
// claims[i]. A claim that stalls on its way (a stopped Redis that goes on, a full socket) ages there, and is refused once
// nobody can be waiting for it any more: it cannot displace a connection that came after it.
func (t *Table) Claim(ctx context.Context, claims []Claim) []ClaimResult {
	results := make([]ClaimResult, len(claims))
	for start := 0; start < len(claims); start += batchMax {
		end := min(start+batchMax, len(claims))
		t.claimBatch(ctx, claims[start:end], results[start:end])
	}
	return results
}

func (t *Table) claimBatch(ctx context.Context, claims []Claim, results []ClaimResult) {
	ctx, cancel := context.WithTimeout(ctx, t.o.Timeout)
	defer cancel()
	begun, now := t.clock.elapsed(), t.clock.now()
	pass := make([]pending, 0, len(claims))
	for i := range claims {
		if err := check(&claims[i].Route); err != nil {
			results[i].Err = fmt.Errorf("routes: claim: %w", err)
			continue
		}
		pass = append(pass, pending{index: i, now: now})
	}
	// The second pass is for those that were refused because the clock of their master was not known, or has jumped.
	for range 2 {
		pass = t.claimPass(ctx, begun, claims, results, pass)
	}
}

// pending is a claim that is to be sent; now is what time it is reckoned to be at its master.
type pending struct {
	index int
	now   int64
}

// claimPass sends claims and returns those that were refused as stalled.
func (t *Table) claimPass(ctx context.Context, begun int64, claims []Claim, results []ClaimResult, pass []pending) []pending {
	if len(pass) == 0 {
		return nil
	}
	sent := t.clock.elapsed()
	calls := make([]call, len(pass))
	for j, p := range pass {
		c := &claims[p.index]
		age := max(c.LoginAge.Microseconds(), 0) + sent - begun
		calls[j] = t.place(&c.Route, "claim", c.Policy, devicesMax(c.DevicesMax),
			age, p.now, lateAfter.Microseconds(), (2 * t.o.Timeout).Microseconds())
	}
	var stalled []pending
	for j, cmd := range run(ctx, t.rdb, calls) {
		i := pass[j].index
		reply, err := parsePlaced(cmd)
		if err == nil {
			t.clock.learn(reply.now, sent)
			results[i], err = reply.claimResult(claims[i].Route.UID)
		}
		if errors.Is(err, errStalled) {
			stalled = append(stalled, pending{index: i, now: reply.now + t.clock.elapsed() - sent})
		}
		if err != nil {
			results[i] = ClaimResult{Err: fmt.Errorf("routes: claim %s/%s: %w", claims[i].Route.UID, claims[i].Route.DeviceID, err)}
		}
	}
	return stalled
}

// placed is the answer of place.lua.
type placed struct {
	status string
	now    int64
	rest   []any
}

func parsePlaced(cmd *redis.Cmd) (placed, error) {
	reply, err := cmd.Slice()
	if err != nil {
		return placed{}, err
	}
	if len(reply) < 2 {
		return placed{}, errReply
	}
	status, _ := reply[0].(string)
	micros, _ := reply[1].(string)
	now, err := strconv.ParseInt(micros, 10, 64)
	if err != nil {
		return placed{}, fmt.Errorf("%w: time %q", errReply, micros)
	}
	return placed{status: status, now: now, rest: reply[2:]}, nil
}

func (p *placed) claimResult(uid string) (ClaimResult, error) {
	switch {
	case p.status == "stale":
		return ClaimResult{}, errStalled
	case p.status == "lost":
		return ClaimResult{Lost: true, Late: true}, nil
	case (p.status != "set" && p.status != "held") || len(p.rest) < 2:
		return ClaimResult{}, errReply
	}
	text := func(i int) string { s, _ := p.rest[i].(string); return s }
	epoch, err := strconv.ParseInt(text(0), 10, 64)
	if err != nil {
		return ClaimResult{}, fmt.Errorf("%w: epoch %q", errReply, text(0))
	}
	result := ClaimResult{Epoch: epoch, Late: text(1) == "late"}
	for i := 2; i+1 < len(p.rest); i += 2 {
		// An unreadable value names no connection that could be told.
		if r, err := parseValue(uid, text(i), text(i+1)); err == nil {
			result.Displaced = append(result.Displaced, r)
		}
	}
	return result, nil
}
