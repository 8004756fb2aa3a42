package routes

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"
)

const (
	// gatewaysMax bounds the set of live gateways: far more than there are, about 200 KiB an answer. A gateway beyond it is
	// asked for by its own key.
	gatewaysMax = 4096
	// asksMax bounds how many unknown gateways one lookup asks for at the same time: as many as a client has connections.
	asksMax = poolSize
	// noKey is what PTTL answers when there is no such key.
	noKey = time.Duration(-2)
)

// LiveOptions of a Live. A zero field means its default.
type LiveOptions struct {
	// Every is how often Run reads the set (2 s).
	Every time.Duration
	// Timeout bounds each question to Redis (50 ms).
	Timeout time.Duration
	// Log is told when the set cannot be refreshed and when it can again (nobody).
	Log *slog.Logger
}

// Live is the set of gateways whose lease stands, kept in memory. Each is known for as long as its lease was seen to
// last; what is not known is asked for, and only a clear "no" of Redis means that a gateway is gone. That "no" is not kept:
// a gateway that was paused comes back under the same name.
type Live struct {
	// Fixed after NewLive.
	rdb  redis.UniversalClient
	o    LiveOptions
	role roleQuestion

	asks singleflight.Group

	mu sync.Mutex
	// Guarded by mu.
	until map[string]time.Time
}

// NewLive makes a Live on a client as Connect makes it. It works without Run too: then each gateway is asked for once in
// the life of a lease.
func NewLive(rdb redis.UniversalClient, o LiveOptions) *Live {
	o.Every = cmp.Or(o.Every, 2*time.Second)
	o.Timeout = cmp.Or(o.Timeout, 50*time.Millisecond)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Live{rdb: rdb, o: o, role: roleOf(rdb), until: make(map[string]time.Time)}
}

// Run refreshes the set until ctx ends, and then returns nil.
func (l *Live) Run(ctx context.Context) error {
	failing := false
	for {
		err := l.refresh(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !failing:
			l.o.Log.Warn("live gateways not refreshed; lookups ask for each", "err", err)
		case err == nil && failing:
			l.o.Log.Info("live gateways refreshed again")
		}
		failing = err != nil
		// Jittered, so that many StateServers do not ask in step.
		wait := time.NewTimer(l.o.Every*3/4 + rand.N(l.o.Every/2))
		select {
		case <-ctx.Done():
			wait.Stop()
			return nil
		case <-wait.C:
		}
	}
}

func (l *Live) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.o.Timeout)
	defer cancel()
	asked := time.Now()
	reply, err := run(ctx, l.rdb, []call{{script: livingScript, key: leasesKey, args: []any{gatewaysMax}}})[0].StringSlice()
	if err != nil {
		return fmt.Errorf("routes: live gateways: %w", err)
	}
	until := make(map[string]time.Time, len(reply)/2)
	for i := 0; i+1 < len(reply); i += 2 {
		left, err := strconv.ParseInt(reply[i+1], 10, 64)
		if err != nil {
			return fmt.Errorf("routes: live gateways: %w: %q", errReply, reply[i+1])
		}
		until[reply[i]] = asked.Add(time.Duration(left) * time.Millisecond)
	}
	l.mu.Lock()
	l.until = until
	l.mu.Unlock()
	return nil
}

// Alive reports whether the lease of a gateway stands. An error means unknown.
func (l *Live) Alive(ctx context.Context, incarnation string) (bool, error) {
	set := map[string]liveness{incarnation: {}}
	l.look(ctx, set)
	return set[incarnation].alive, set[incarnation].err
}

// liveness is what is known of one gateway; err means unknown.
type liveness struct {
	alive bool
	err   error
}

// look fills in the liveness of every gateway that is a key of set.
func (l *Live) look(ctx context.Context, set map[string]liveness) {
	var strangers []string
	now := time.Now()
	l.mu.Lock()
	for incarnation := range set {
		if now.Before(l.until[incarnation]) {
			set[incarnation] = liveness{alive: true}
		} else {
			strangers = append(strangers, incarnation)
		}
	}
	l.mu.Unlock()
	if len(strangers) == 0 {
		return
	}
	answers := make([]liveness, len(strangers))
	var group errgroup.Group
	group.SetLimit(asksMax)
	for i, incarnation := range strangers {
		group.Go(func() error {
			answers[i] = l.ask(ctx, incarnation)
			return nil
		})
	}
	_ = group.Wait() // the answers hold the errors
	for i, incarnation := range strangers {
		set[incarnation] = answers[i]
	}
}

// ask looks for the lease itself; lookups that meet the same stranger at the same time share one question.
func (l *Live) ask(ctx context.Context, incarnation string) liveness {
	answer := l.asks.DoChan(incarnation, func() (any, error) {
		// The question belongs to all who wait for it: it outlives the caller that came first, not its own timeout.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.o.Timeout)
		defer cancel()
		return l.question(ctx, incarnation)
	})
	select {
	case <-ctx.Done():
		return liveness{err: fmt.Errorf("routes: lease of %s: %w", incarnation, ctx.Err())}
	case r := <-answer:
		alive, _ := r.Val.(bool)
		return liveness{alive: alive, err: r.Err}
	}
}

func (l *Live) question(ctx context.Context, incarnation string) (alive bool, err error) {
	asked := time.Now()
	pipe := l.rdb.Pipeline()
	role := l.role(ctx, pipe)
	left := pipe.PTTL(ctx, leaseKey(incarnation))
	_, _ = pipe.Exec(ctx) // each command holds its own error
	if err := cmp.Or(left.Err(), role()); err != nil {
		return false, fmt.Errorf("routes: lease of %s: %w", incarnation, err)
	}
	switch left.Val() {
	case noKey:
		return false, nil
	case 0: // at its very end, or never answered
		return false, fmt.Errorf("routes: lease of %s: %w", incarnation, errReply)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.until) >= gatewaysMax {
		return true, nil
	}
	l.until[incarnation] = asked.Add(left.Val())
	return true, nil
}
