package routes

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// DevicesMax bounds the routes of one user: a lookup reads all of them.
	DevicesMax = 16
	// batchMax bounds one pipeline, so that one batch neither holds a connection nor Redis itself for long: 512 claims
	// are about 200 KiB and some milliseconds.
	batchMax = 512
	// lateAfter is the age from which a login is no longer fresh (design: protocol 4).
	lateAfter = 100 * time.Millisecond
	// epochMax is what the scripts take for an epoch: 18 digits, so that it can always grow within 63 bits.
	epochMax = 1e18 - 1
	// auditsPerTTL is how many audits a route outlives without being renewed: one may fail and one may be late.
	auditsPerTTL = 3
)

// Options of a Table. A zero field means its default.
type Options struct {
	// Policy and DevicesMax (16, which is also the most) are what Restore applies; a Claim carries its own.
	Policy     Policy
	DevicesMax int
	// Audit is how often a gateway audits its routes (10 min). A route lives three times as long.
	Audit time.Duration
	// Timeout bounds a call that writes, for each 512 routes (500 ms).
	Timeout time.Duration
	// LookupTimeout bounds Find, for each 512 users (50 ms).
	LookupTimeout time.Duration
	// Live knows which gateways are alive, for Find. Without one the Table makes its own, which learns of each gateway
	// when it first meets it.
	Live *Live
}

// Table is the route table. All methods may be called from any goroutine. A network error or timeout always means that
// the outcome is unknown: the script may have run, or may still run once a stalled Redis goes on.
type Table struct {
	// Fixed after New.
	rdb   redis.UniversalClient
	o     Options
	ttlMS string
	role  roleQuestion

	clock      redisClock
	generation atomic.Uint64
}

// New makes a Table on a client that honours the deadlines of contexts, as Connect makes it.
func New(rdb redis.UniversalClient, o Options) *Table {
	o.DevicesMax = devicesMax(o.DevicesMax)
	o.Audit = cmp.Or(o.Audit, 10*time.Minute)
	o.Timeout = cmp.Or(o.Timeout, 500*time.Millisecond)
	o.LookupTimeout = cmp.Or(o.LookupTimeout, 50*time.Millisecond)
	if o.Live == nil {
		o.Live = NewLive(rdb, LiveOptions{Timeout: o.LookupTimeout})
	}
	return &Table{
		rdb: rdb, o: o,
		ttlMS: strconv.FormatInt((auditsPerTTL * o.Audit).Milliseconds(), 10),
		role:  roleOf(rdb),
		clock: redisClock{start: time.Now()},
	}
}

func devicesMax(n int) int {
	if n <= 0 || n > DevicesMax {
		return DevicesMax
	}
	return n
}

// Restore is the audit: each route is compared with the table, written again where it is missing or older, and its TTL
// renewed. The routes keep their epochs; one without an epoch, or with an invalid id, is Unknown.
func (t *Table) Restore(ctx context.Context, routes []Route) []RestoreResult {
	results := make([]RestoreResult, len(routes))
	for start := 0; start < len(routes); start += batchMax {
		end := min(start+batchMax, len(routes))
		t.restoreBatch(ctx, routes[start:end], results[start:end])
	}
	return results
}

func (t *Table) restoreBatch(ctx context.Context, routes []Route, results []RestoreResult) {
	ctx, cancel := context.WithTimeout(ctx, t.o.Timeout)
	defer cancel()
	calls, index := make([]call, 0, len(routes)), make([]int, 0, len(routes))
	for i := range routes {
		results[i] = Unknown
		r := &routes[i]
		if r.Epoch < 1 || r.Epoch > epochMax || check(r) != nil {
			continue
		}
		calls = append(calls, t.place(r, "restore", t.o.Policy, t.o.DevicesMax, strconv.FormatInt(r.Epoch, 10)))
		index = append(index, i)
	}
	for j, cmd := range run(ctx, t.rdb, calls) {
		p, err := parsePlaced(cmd)
		if err != nil {
			continue
		}
		switch p.status {
		case "held":
			results[index[j]] = Held
		case "set":
			results[index[j]] = Restored
		case "lost":
			results[index[j]] = LostToNewer
		}
	}
}

// place builds the call of place.lua; args are the mode's own.
func (t *Table) place(r *Route, mode string, policy Policy, devices int, args ...any) call {
	placed := *r
	placed.Generation = t.generation.Load()
	name := "multi"
	if policy == Single {
		name = "single"
	}
	all := []any{mode, r.DeviceID, owner(&placed), tail(&placed), name, devices, t.ttlMS}
	return call{script: placeScript, key: routeKey(r.UID), args: append(all, args...)}
}

// Release deletes routes that still belong to the connection, by incarnation and conn_id. An error means that some of
// them are unknown: call it again with the same routes, it does no harm.
func (t *Table) Release(ctx context.Context, routes []Route) error {
	return t.drop(ctx, "release", routes, func(*Route) (epoch, generation string) { return "", "" })
}

// Remove deletes routes that are unchanged, by incarnation, conn_id and epoch: for those that their gateway itself called
// stale. An error means that some of them are unknown.
func (t *Table) Remove(ctx context.Context, routes []Route) error {
	return t.drop(ctx, "remove", routes, func(r *Route) (epoch, generation string) {
		return strconv.FormatInt(r.Epoch, 10), ""
	})
}

// removeDead is Remove for routes whose gateway had no lease: it also compares the generation.
func (t *Table) removeDead(ctx context.Context, routes []Route) error {
	return t.drop(ctx, "remove dead", routes, func(r *Route) (epoch, generation string) {
		return strconv.FormatInt(r.Epoch, 10), strconv.FormatUint(r.Generation, 10)
	})
}

func (t *Table) drop(ctx context.Context, op string, routes []Route, match func(*Route) (epoch, generation string)) error {
	var first error
	failed := 0
	for start := 0; start < len(routes); start += batchMax {
		calls := make([]call, 0, min(batchMax, len(routes)-start))
		for i := start; i < min(start+batchMax, len(routes)); i++ {
			r := &routes[i]
			if check(r) != nil {
				continue // it was never written
			}
			epoch, generation := match(r)
			calls = append(calls, call{script: dropScript, key: routeKey(r.UID), args: []any{r.DeviceID, owner(r), epoch, generation}})
		}
		batch, cancel := context.WithTimeout(ctx, t.o.Timeout)
		for _, cmd := range run(batch, t.rdb, calls) {
			if err := cmd.Err(); err != nil {
				failed++
				first = cmp.Or(first, err)
			}
		}
		cancel()
	}
	if failed > 0 {
		return fmt.Errorf("routes: %s: %d of %d unknown: %w", op, failed, len(routes), first)
	}
	return nil
}

// renewed is called by the Lease when it was gone: every route now counts as to be written again.
func (t *Table) renewed() { t.generation.Add(1) }
