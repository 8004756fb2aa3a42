package routes

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-im/sluice/internal/testenv"
)

// running is a Lease whose Run is under way.
type running struct {
	*Lease
	mu   sync.Mutex
	lost []Loss
	stop func()
}

func (r *running) losses() []Loss {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.lost)
}

func runLease(t *testing.T, rdb redis.UniversalClient, o LeaseOptions) *running {
	t.Helper()
	r := &running{}
	o.OnLost = func(l Loss) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.lost = append(r.lost, l)
	}
	r.Lease = NewLease(rdb, o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

func TestLeaseIsRenewedAndReleased(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx := context.Background()
		l := runLease(t, rdb, LeaseOptions{Incarnation: "g1", Addr: "10.0.0.1:9090", Build: "v1|x", Zone: "a", TTL: time.Hour, Every: 50 * time.Millisecond, Timeout: patience})
		waitFor(t, "healthy", l.Healthy)
		rdb.PExpire(ctx, leaseKey("g1"), patience)
		waitFor(t, "renewed", func() bool { return rdb.PTTL(ctx, leaseKey("g1")).Val() > patience })
		if v := rdb.Get(ctx, leaseKey("g1")).Val(); v != "1|1|10.0.0.1:9090|v1%7Cx|a" {
			t.Fatalf("lease %q", v)
		}
		if got := l.losses(); len(got) != 0 {
			t.Fatalf("lost %v", got)
		}
		l.stop()
		if err := l.Release(ctx); err != nil {
			t.Fatal(err)
		}
		if n := rdb.DBSize(ctx).Val(); n != 0 || l.Healthy() {
			t.Fatalf("%d keys after the release, healthy %v", n, l.Healthy())
		}
	})
}

func TestLeaseGone(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx, table := context.Background(), patient(rdb, Options{})
		l := runLease(t, rdb, LeaseOptions{Incarnation: "g1", TTL: time.Hour, Every: 20 * time.Millisecond, Timeout: patience, Table: table})
		waitFor(t, "healthy", l.Healthy)
		r := route("u", "phone", "g1", 1)
		r.Epoch = claimOne(t, table, Claim{Route: r}).Epoch
		old := find(t, table, "u")["phone"]
		rdb.Del(ctx, leaseKey("g1"))
		waitFor(t, "told", func() bool { return slices.Equal(l.losses(), []Loss{LeaseGone}) })
		// The route still stands, but may have been taken for dead: it is written anew.
		if got := table.Restore(ctx, []Route{r, r}); !slices.Equal(got, []RestoreResult{Restored, Held}) {
			t.Fatal(got)
		}
		// A removal that was decided meanwhile misses it.
		if err := table.removeDead(ctx, []Route{old}); err != nil || len(find(t, table, "u")) != 1 {
			t.Fatalf("removed what was restored (%v)", err)
		}
		rdb.FlushAll(ctx)
		waitFor(t, "told of the flush", func() bool { return len(l.losses()) == 2 })
	})
}

func TestLeaseGoneIsSeenWhenItsAnswerWasLost(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx, l := context.Background(), NewLease(rdb, LeaseOptions{Incarnation: "g1", Timeout: patience})
		if losses, err := l.renew(ctx); err != nil || len(losses) != 0 {
			t.Fatal(losses, err)
		}
		rdb.Del(ctx, leaseKey("g1"))
		// The renewal that made the lease again, whose answer never came.
		known := l.mark
		if _, err := l.renew(ctx); err != nil {
			t.Fatal(err)
		}
		l.mark = known
		if losses, err := l.renew(ctx); err != nil || !slices.Equal(losses, []Loss{LeaseGone}) {
			t.Fatal(losses, err)
		}
	})
}

func TestLeaseOverAKill(t *testing.T) {
	s := testenv.Redis(t, "--appendonly", "yes")
	rdb := connect(t, s.Addr)
	l := runLease(t, rdb, LeaseOptions{Incarnation: "g1", TTL: time.Hour, Every: 20 * time.Millisecond})
	waitFor(t, "healthy", l.Healthy)
	s.Kill()
	waitFor(t, "unhealthy", func() bool { return !l.Healthy() })
	s.Start()
	waitFor(t, "healthy again", l.Healthy)
	waitFor(t, "told", func() bool { return len(l.losses()) > 0 })
	// With the lease still in the log of the server only the run_id says so; a lost tail may have cost the lease too.
	if got := l.losses()[0]; got != RunIDChanged && got != LeaseGone {
		t.Fatal(got)
	}
	if v := rdb.Get(context.Background(), leaseKey("g1")).Val(); strings.HasPrefix(v, "1|1|") && l.losses()[0] != RunIDChanged {
		t.Fatalf("lease %q survived, told %v", v, l.losses())
	}
}

// A master that dies between the first renewal and the first look at its run_id may come back without the routes that were
// claimed in between.
func TestMasterThatWasNotSeenAtFirst(t *testing.T) {
	l := NewLease(nil, LeaseOptions{Incarnation: "g1"})
	seen := map[string]string{"master": "one"}
	for i, s := range []struct {
		seen map[string]string
		err  error
		want []Loss
	}{
		{err: io.EOF},
		{seen: seen, want: []Loss{RunIDChanged}},
		{seen: seen},
	} {
		if got := l.compareMasters(s.seen, s.err); !slices.Equal(got, s.want) {
			t.Errorf("look %d: %v, want %v", i, got, s.want)
		}
	}
}

func TestLeaseRunsOutWhileRedisStandsStill(t *testing.T) {
	s := testenv.Redis(t)
	l := runLease(t, connect(t, s.Addr), LeaseOptions{Incarnation: "g1", TTL: 300 * time.Millisecond, Every: 20 * time.Millisecond, Timeout: 100 * time.Millisecond})
	waitFor(t, "healthy", l.Healthy)
	stopped(t, s)
	waitFor(t, "unhealthy", func() bool { return !l.Healthy() })
	begun := time.Now()
	waitFor(t, "the lease's time passes", func() bool { return time.Since(begun) > 400*time.Millisecond })
	resumed(s)
	waitFor(t, "healthy again", l.Healthy)
	waitFor(t, "told", func() bool { return slices.Contains(l.losses(), LeaseGone) })
}

func TestServerWithoutRunID(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		l := NewLease(rdb, LeaseOptions{Incarnation: "g1"})
		l.masters = map[string]string{"master": "before"}
		rdb.AddHook(noInfo{})
		if losses, err := l.renew(context.Background()); err != nil || len(losses) != 0 || !l.Healthy() {
			t.Fatal(losses, err)
		}
	})
}

// noInfo makes INFO an unknown command.
type noInfo struct{}

func (noInfo) DialHook(next redis.DialHook) redis.DialHook { return next }
func (noInfo) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "info" {
			unknown := redis.NewCmd(ctx, "sluice.unknown")
			err := next(ctx, unknown)
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}
func (noInfo) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
