package routes

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestFindKnowsTheDead(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx, table := context.Background(), patient(rdb, Options{})
		gateway(t, rdb, "g1")
		gateway(t, rdb, "g2")
		claimOne(t, table, Claim{Route: route("u", "phone", "g1", 1)})
		claimOne(t, table, Claim{Route: route("u", "pad", "g2", 2)})
		claimOne(t, table, Claim{Route: route("v", "phone", "g2", 3)})
		if err := NewLease(rdb, LeaseOptions{Incarnation: "g2"}).Release(ctx); err != nil {
			t.Fatal(err)
		}
		found, err := table.Find(ctx, []string{"u", "v", "w"})
		if err != nil || len(found) != 1 || len(found["u"]) != 1 || found["u"][0].Incarnation != "g1" {
			t.Fatal(found, err)
		}
		if n := rdb.HLen(ctx, routeKey("u")).Val() + rdb.HLen(ctx, routeKey("v")).Val(); n != 1 {
			t.Fatalf("%d routes left of 1 live and 2 dead", n)
		}
	})
}

func TestPausedGatewayIsFoundAgain(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		live := NewLive(rdb, LiveOptions{Timeout: patience})
		table := patient(rdb, Options{Live: live})
		r := route("u", "phone", "g1", 1)
		r.Epoch = claimOne(t, table, Claim{Route: r}).Epoch
		if len(find(t, table, "u")) != 0 {
			t.Fatal("found without a lease")
		}
		gateway(t, rdb, "g1")
		table.Restore(context.Background(), []Route{r})
		if len(find(t, table, "u")) != 1 {
			t.Fatal("a gateway once taken for dead is dead for good")
		}
	})
}

func TestLiveIsRefreshed(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		var asked atomic.Int64
		rdb.AddHook(&counter{name: "pttl", seen: &asked})
		live := NewLive(rdb, LiveOptions{Every: 20 * time.Millisecond, Timeout: patience})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- live.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}()
		gateway(t, rdb, "g1")
		gateway(t, rdb, "g2")
		knows := func(want int) func() bool {
			return func() bool {
				live.mu.Lock()
				defer live.mu.Unlock()
				return len(live.until) == want
			}
		}
		waitFor(t, "both known", knows(2))
		if alive, err := live.Alive(ctx, "g2"); !alive || err != nil || asked.Load() != 0 {
			t.Fatal(alive, err, asked.Load())
		}
		if err := NewLease(rdb, LeaseOptions{Incarnation: "g2"}).Release(ctx); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "one known", knows(1))
		if alive, err := live.Alive(ctx, "g2"); alive || err != nil || asked.Load() != 1 {
			t.Fatal(alive, err, asked.Load())
		}
	})
}

func TestStrangerIsAskedOnce(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		gateway(t, rdb, "g1")
		var asked atomic.Int64
		hold := make(chan struct{})
		rdb.AddHook(&counter{name: "pttl", seen: &asked, hold: hold})
		live := NewLive(rdb, LiveOptions{Timeout: patience})
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if alive, err := live.Alive(context.Background(), "g1"); !alive || err != nil {
					t.Error(alive, err)
				}
			})
		}
		waitFor(t, "the question", func() bool { return asked.Load() > 0 })
		close(hold)
		wg.Wait()
		if alive, err := live.Alive(context.Background(), "g1"); !alive || err != nil || asked.Load() != 1 {
			t.Fatal(alive, err, asked.Load())
		}
	})
}

func TestLeaseThatCannotBeReadIsUnknown(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		table := patient(rdb, Options{})
		gateway(t, rdb, "g1")
		claimOne(t, table, Claim{Route: route("u", "phone", "g1", 1)})
		broken := errors.New("broken")
		rdb.AddHook(&counter{name: "pttl", seen: new(atomic.Int64), err: broken})
		found, err := table.Find(context.Background(), []string{"u", "nobody"})
		var unknown *UnknownError
		if !errors.As(err, &unknown) || !errors.Is(err, broken) || len(unknown.UIDs) != 1 || unknown.UIDs[0] != "u" || len(found) != 0 {
			t.Fatal(found, err)
		}
		if !strings.Contains(err.Error(), "1 users unknown") {
			t.Fatal(err)
		}
		if n := rdb.HLen(context.Background(), routeKey("u")).Val(); n != 1 {
			t.Fatal("an unknown gateway's route was removed")
		}
	})
}

// counter counts pipelines with a command, holds them up until hold is closed, and fails them with err if there is one.
type counter struct {
	name string
	seen *atomic.Int64
	hold chan struct{}
	err  error
}

func (c *counter) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			if cmd.Name() != c.name {
				continue
			}
			c.seen.Add(1)
			if c.hold != nil {
				<-c.hold
			}
			if c.err != nil {
				for _, cmd := range cmds {
					cmd.SetErr(c.err)
				}
				return c.err
			}
		}
		return next(ctx, cmds)
	}
}
