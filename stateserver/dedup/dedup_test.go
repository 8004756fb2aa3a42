package dedup

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-im/sluice/internal/testenv"
	"github.com/sluice-im/sluice/internal/testenv/leaks"
	"github.com/sluice-im/sluice/stateserver/store"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// waitMax bounds every wait of a test.
const waitMax = 60 * time.Second

func open(t *testing.T, timeout time.Duration) (*Gate, *redis.Client, *testenv.Server) {
	t.Helper()
	srv := testenv.Redis(t)
	rdb := redis.NewClient(&redis.Options{Addr: srv.Addr, ContextTimeoutEnabled: true, MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	return New(rdb, 5*time.Minute, timeout), rdb, srv
}

func (g *Gate) verdicts(t *testing.T, queries ...Query) []Verdict {
	t.Helper()
	answers := make([]Answer, len(queries))
	g.Check(t.Context(), queries, answers)
	out := make([]Verdict, len(answers))
	for i, a := range answers {
		out[i] = a.Verdict
	}
	return out
}

func query(uid, uuid string, hash uint64) Query {
	return Query{store.Key{FromUID: uid, UUID: uuid}, hash}
}

func TestGate(t *testing.T) {
	g, rdb, _ := open(t, 5*time.Second)
	ctx := t.Context()
	if got := g.verdicts(t, query("a", "1", 7), query("a", "1", 7), query("b", "1", 7)); !slices.Equal(got, []Verdict{Fresh, InWork, Fresh}) {
		t.Errorf("first look: %v", got)
	}
	if ttl := rdb.PTTL(ctx, "dedup:up:{a}:1").Val(); ttl <= 0 || ttl > inWorkFor {
		t.Errorf("the hint lives %v, at most %v is allowed", ttl, inWorkFor)
	}
	if err := g.Remember(ctx, []Stored{{store.Key{FromUID: "a", UUID: "1"}, 1 << 60, 12, 7}}); err != nil {
		t.Fatal(err)
	}
	if v := rdb.Get(ctx, "dedup:up:{a}:1").Val(); v != "1152921504606846976:12:0000000000000007" {
		t.Errorf("value %q", v)
	}
	if ttl := rdb.PTTL(ctx, "dedup:up:{a}:1").Val(); ttl < 4*time.Minute {
		t.Errorf("the result lives %v", ttl)
	}
	answers := make([]Answer, 1)
	if g.Check(ctx, []Query{query("a", "1", 7)}, answers); answers[0] != (Answer{Known, 1 << 60, 12}) {
		t.Errorf("replay: %+v", answers[0])
	}
	if got := g.verdicts(t, query("a", "1", 8)); got[0] != Reused {
		t.Errorf("another payload: %v", got)
	}
	for _, value := range []string{"", "x", "1:2", "1:2:zz", "1:2:3:4", "-1:"} {
		rdb.Set(ctx, "dedup:up:{a}:1", value, time.Minute)
		if got := g.verdicts(t, query("a", "1", 7)); got[0] != InWork {
			t.Errorf("value %q: %v, want the store to decide", value, got)
		}
	}
	rdb.Del(ctx, "dedup:up:{a}:1")
	rdb.LPush(ctx, "dedup:up:{a}:1", "a list")
	if got := g.verdicts(t, query("a", "1", 7)); got[0] != Unavailable {
		t.Errorf("a key of another type: %v", got)
	}
}

func TestRedisGone(t *testing.T) {
	for name, ruin := range map[string]func(*testenv.Server){
		"killed": func(s *testenv.Server) { s.Kill() },
		"hung":   func(s *testenv.Server) { s.Signal(syscall.SIGSTOP) },
	} {
		t.Run(name, func(t *testing.T) {
			g, _, srv := open(t, 100*time.Millisecond)
			g.verdicts(t, query("a", "0", 7))
			ruin(srv)
			for i := range 50 {
				// Two dozen looks share a few time-outs: after one, the gate answers by itself for a while.
				if got := g.verdicts(t, query("a", fmt.Sprint(i), 7), query("b", "x", 7)); !slices.Equal(got, []Verdict{Unavailable, Unavailable}) {
					t.Fatalf("look %d: %v", i, got)
				}
			}
			if err := g.Remember(context.Background(), []Stored{{store.Key{FromUID: "a", UUID: "1"}, 1, 1, 7}}); err == nil {
				t.Error("remembered without Redis")
			}
			if name == "hung" {
				srv.Signal(syscall.SIGCONT)
			} else {
				srv.Start()
			}
			deadline := time.Now().Add(waitMax)
			for i := 0; ; i++ {
				if got := g.verdicts(t, query("a", fmt.Sprintf("after-%d", i), 7)); got[0] == Fresh {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("does not recover")
				}
				time.Sleep(5 * time.Millisecond) // the pause between two looks at a condition with a deadline
			}
		})
	}
}

func TestReadOnlyReplica(t *testing.T) {
	g, rdb, _ := open(t, 5*time.Second)
	if err := rdb.Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if got := g.verdicts(t, query("a", "1", 7)); got[0] != Unavailable {
		t.Errorf("on a replica: %v", got)
	}
}
