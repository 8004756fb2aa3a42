package routes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/redis/go-redis/v9"
)

// Loss is why a gateway has to claim all its routes again.
type Loss uint8

const (
	// LeaseGone: the lease had expired or was deleted, so the routes counted as dead for a while, or are gone too.
	LeaseGone Loss = iota
	// RunIDChanged: a master's run_id is another than before, or may be, since the master that first held the lease did not
	// tell it: it was restarted or failed over, and what it had may be lost.
	RunIDChanged
	// MasterNew: a Cluster has a master that was not there before, after a failover or since it has grown.
	MasterNew
)

// String is the loss as a log field or label.
func (l Loss) String() string {
	switch l {
	case LeaseGone:
		return "lease_gone"
	case RunIDChanged:
		return "run_id_changed"
	case MasterNew:
		return "master_new"
	default:
		return "unknown"
	}
}

// LeaseOptions of a Lease. Incarnation and Addr are required; of the rest a zero field means its default.
type LeaseOptions struct {
	// Incarnation names this run of this gateway, and no other run.
	Incarnation string
	// Addr, Build and Zone are told to whoever reads the lease.
	Addr, Build, Zone string
	// TTL is how long the lease lasts (15 s), Every how often it is renewed (5 s).
	TTL, Every time.Duration
	// Timeout bounds one renewal (1 s).
	Timeout time.Duration
	// Table is the one that claims this gateway's routes: after a loss of the lease it writes every route anew.
	Table *Table
	// OnLost is told when all routes have to be claimed again (Table.Restore, paced). It is called on the goroutine of Run
	// and must return at once; the lease stands again by then.
	OnLost func(Loss)
	// Log is told when the lease cannot be renewed, when it can again, and of each loss (nobody).
	Log *slog.Logger
}

// Lease keeps gateway:<incarnation> alive: the one key that keeps all routes of a gateway alive. It wants a client of its
// own, so that no batch of claims can delay it.
type Lease struct {
	// Fixed after NewLease.
	rdb   redis.UniversalClient
	o     LeaseOptions
	start time.Time

	// Owned by Run.
	renewals uint64            // numbers the attempts
	mark     string            // of the renewal that created the lease; empty before the first answer
	masters  map[string]string // address -> run_id; nil before the first answer
	unseen   bool              // the lease was held while masters was nil, since they did not answer

	// heldUntil is when the lease ends unless it is renewed, in nanoseconds since start; 0 while the last renewal failed.
	heldUntil atomic.Int64
}

// NewLease makes a Lease on a client as Connect makes it.
func NewLease(rdb redis.UniversalClient, o LeaseOptions) *Lease {
	o.TTL = cmp.Or(o.TTL, 15*time.Second)
	o.Every = cmp.Or(o.Every, 5*time.Second)
	o.Timeout = cmp.Or(o.Timeout, time.Second)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Lease{rdb: rdb, o: o, start: time.Now()}
}

// Healthy reports whether the last renewal was answered and its lease has not run out since.
func (l *Lease) Healthy() bool { return time.Since(l.start).Nanoseconds() < l.heldUntil.Load() }

// Run renews the lease until ctx ends, and then returns nil. It does not release it: a draining gateway still has
// connections. Failures are retried after 0.2 to 2 s, jittered.
func (l *Lease) Run(ctx context.Context) error {
	retry := &backoff.ExponentialBackOff{InitialInterval: 200 * time.Millisecond, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: 2 * time.Second}
	retry.Reset()
	failing := false
	for {
		losses, err := l.renew(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failing:
			l.o.Log.Warn("lease: redis does not answer", "incarnation", l.o.Incarnation, "err", err)
		case err == nil && failing:
			l.o.Log.Info("lease: redis answers again", "incarnation", l.o.Incarnation)
		}
		failing = err != nil
		l.report(losses)
		// Up to a tenth early, so that many gateways do not renew in step.
		pause := l.o.Every - rand.N(l.o.Every/10+1)
		if failing {
			pause = retry.NextBackOff()
		} else {
			retry.Reset()
		}
		wait := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			wait.Stop()
			return nil
		case <-wait.C:
		}
	}
}

// report tells of the gravest loss only: each asks for the same repair.
func (l *Lease) report(losses []Loss) {
	if len(losses) == 0 {
		return
	}
	l.o.Log.Warn("routes have to be claimed again", "incarnation", l.o.Incarnation, "reason", losses[0].String())
	if l.o.OnLost != nil {
		l.o.OnLost(losses[0])
	}
}

// renew is one attempt. An error leaves the losses that were seen for certain.
func (l *Lease) renew(ctx context.Context) (losses []Loss, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.o.Timeout)
	defer cancel()
	begun := time.Since(l.start)
	l.renewals++
	ttl := strconv.FormatInt(l.o.TTL.Milliseconds(), 10)
	value := make([]string, 0, 3)
	for _, s := range [...]string{l.o.Addr, l.o.Build, l.o.Zone} {
		value = append(value, escaper.Replace(s))
	}
	cmds := run(ctx, l.rdb, []call{
		{script: renewScript, key: leaseKey(l.o.Incarnation), args: []any{l.renewals, strings.Join(value, "|"), ttl}},
		{script: listScript, key: leasesKey, args: []any{l.o.Incarnation, ttl}},
	})
	mark, err := cmds[0].Text()
	if err != nil {
		l.heldUntil.Store(0)
		return nil, fmt.Errorf("routes: renew lease %s: %w", l.o.Incarnation, err)
	}
	l.heldUntil.Store((begun + l.o.TTL).Nanoseconds())
	if l.mark != "" && l.mark != mark {
		losses = append(losses, LeaseGone)
		if l.o.Table != nil {
			l.o.Table.renewed()
		}
	}
	l.mark = mark
	more, err := l.watchMasters(ctx)
	// The index is a hint: without it a StateServer asks for the lease itself.
	if err = errors.Join(cmds[1].Err(), err); err != nil {
		err = fmt.Errorf("routes: renew lease %s: %w", l.o.Incarnation, err)
	}
	return append(losses, more...), err
}

// Release ends the lease at once, so that nobody looks for this gateway any more. Call it when Run has returned and the
// last connection is closed.
func (l *Lease) Release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.o.Timeout)
	defer cancel()
	l.heldUntil.Store(0)
	pipe := l.rdb.Pipeline()
	pipe.Del(ctx, leaseKey(l.o.Incarnation))
	pipe.ZRem(ctx, leasesKey, l.o.Incarnation)
	if _, err := pipe.Exec(ctx); err != nil {
		return fmt.Errorf("routes: release lease %s: %w", l.o.Incarnation, err)
	}
	return nil
}
