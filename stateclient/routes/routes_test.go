package routes

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-im/sluice/internal/devredis"
	"github.com/sluice-im/sluice/internal/testenv"
	"github.com/sluice-im/sluice/internal/testenv/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// patience bounds every wait for a condition. A Sentinel that a busy machine has made to tilt takes half of it.
const patience = 60 * time.Second

// servers runs a test against a real Redis and against the embedded one.
func servers(t *testing.T, test func(t *testing.T, rdb redis.UniversalClient)) {
	t.Run("redis", func(t *testing.T) { test(t, connect(t, testenv.Redis(t).Addr)) })
	t.Run("devredis", func(t *testing.T) {
		s, err := devredis.Start("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		test(t, connect(t, s.Addr()))
	})
}

func connect(t testing.TB, addr string) redis.UniversalClient {
	t.Helper()
	rdb, err := Connect(RedisOptions{Addrs: []string{addr}, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// patient is a Table whose timeouts a busy machine does not reach.
func patient(rdb redis.UniversalClient, o Options) *Table {
	o.Timeout, o.LookupTimeout = patience, patience
	return New(rdb, o)
}

// gateway makes a lease of that name, as its own Lease would.
func gateway(t testing.TB, rdb redis.UniversalClient, incarnation string) {
	t.Helper()
	l := NewLease(rdb, LeaseOptions{Incarnation: incarnation, Addr: "127.0.0.1:1", TTL: time.Hour, Timeout: patience})
	if _, err := l.renew(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func route(uid, device, incarnation string, conn uint64) Route {
	return Route{UID: uid, DeviceID: device, Incarnation: incarnation, Addr: "10.0.0.1:9090", ConnID: conn,
		Platform: "web", SessionID: "s-" + strconv.FormatUint(conn, 10), Since: time.UnixMilli(1_760_000_000_123)}
}

func claimOne(t testing.TB, table *Table, c Claim) ClaimResult {
	t.Helper()
	r := table.Claim(context.Background(), []Claim{c})[0]
	if r.Err != nil {
		t.Fatalf("claim: %v", r.Err)
	}
	return r
}

// wronglyLate says whether a fresh claim was called late, though it began only a moment ago. On a busy machine a claim can
// take lateAfter, and is late then.
func wronglyLate(r ClaimResult, begun time.Time) bool { return r.Late && time.Since(begun) < lateAfter }

func find(t testing.TB, table *Table, uid string) map[string]Route {
	t.Helper()
	all, err := table.Find(context.Background(), []string{uid})
	if err != nil {
		t.Fatalf("find: %v", err)
	}
	byDevice := make(map[string]Route)
	for _, r := range all[uid] {
		byDevice[r.DeviceID] = r
	}
	return byDevice
}

func waitFor(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		wait := time.NewTimer(5 * time.Millisecond)
		<-wait.C
	}
}
