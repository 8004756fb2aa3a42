package routes

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-im/sluice/internal/testenv"
)

// stopped lets a server stand still, as a machine that swaps or a paused virtual machine does.
func stopped(t *testing.T, s *testenv.Server) {
	t.Helper()
	s.Signal(syscall.SIGSTOP)
	t.Cleanup(func() { resumed(s) })
}

func resumed(s *testenv.Server) { s.Signal(syscall.SIGCONT) }

// unknownEverywhere checks that every call on the table is answered with unknown, and soon.
func unknownEverywhere(t *testing.T, table *Table, r Route) {
	t.Helper()
	ctx, begun := context.Background(), time.Now()
	found, err := table.Find(ctx, []string{r.UID})
	var unknown *UnknownError
	if !errors.As(err, &unknown) || !slices.Equal(unknown.UIDs, []string{r.UID}) || len(found) != 0 {
		t.Fatalf("find: %v, %v", found, err)
	}
	if got := table.Claim(ctx, []Claim{{Route: r}})[0]; got.Err == nil || got.Epoch != 0 {
		t.Fatalf("claim: %+v", got)
	}
	if got := table.Restore(ctx, []Route{r})[0]; got != Unknown {
		t.Fatalf("restore: %v", got)
	}
	if table.Release(ctx, []Route{r}) == nil || table.Remove(ctx, []Route{r}) == nil {
		t.Fatal("release or remove without an error")
	}
	if took := time.Since(begun); took > patience {
		t.Fatalf("took %v", took)
	}
}

func TestRedisStandsStill(t *testing.T) {
	s := testenv.Redis(t)
	rdb := connect(t, s.Addr)
	table := New(rdb, Options{})
	warm := patient(rdb, Options{})
	gateway(t, rdb, "g1")
	r := route("u", "phone", "g1", 1)
	r.Epoch = claimOne(t, warm, Claim{Route: r}).Epoch
	stopped(t, s)
	unknownEverywhere(t, table, r)
	resumed(s)
	// The claim, the restore and the release that were called unknown may all have run by now, in any order.
	waitFor(t, "known again", func() bool { return table.Restore(context.Background(), []Route{r})[0] != Unknown })
	waitFor(t, "found again", func() bool {
		found, err := table.Find(context.Background(), []string{"u"})
		return err == nil && len(found["u"]) == 1
	})
}

func TestStalledClaimDisplacesNothing(t *testing.T) {
	s := testenv.Redis(t)
	rdb, other := connect(t, s.Addr), connect(t, s.Addr)
	gateway(t, rdb, "g1")
	gateway(t, rdb, "g2")
	hasty := New(rdb, Options{Timeout: 100 * time.Millisecond})
	waitFor(t, "a first claim", func() bool {
		return hasty.Claim(context.Background(), []Claim{{Route: route("w", "x", "g1", 9)}})[0].Err == nil
	})

	// A claim arrives at a Redis that stands still, and so do, later, other claims: one whose socket happens to be
	// served first must win nevertheless.
	stopped(t, s)
	if r := hasty.Claim(context.Background(), []Claim{{Route: route("u", "phone", "g1", 1)}})[0]; r.Err == nil {
		t.Fatalf("a claim at a stopped server: %+v", r)
	}
	begun := time.Now()
	waitFor(t, "time passes", func() bool { return time.Since(begun) > 300*time.Millisecond })
	resumed(s)
	newer := claimOne(t, patient(other, Options{}), Claim{Route: route("u", "phone", "g2", 2)})
	if len(newer.Displaced) > 0 {
		t.Fatalf("the claim that nobody waited for got in: %+v", newer.Displaced)
	}
	// Were the newer one first, the old one still must not pass: the same bytes once more.
	calls := []call{hasty.place(&Route{UID: "u", DeviceID: "phone", Incarnation: "g1", ConnID: 1}, "claim", Multi, 16,
		0, hasty.clock.now()-time.Second.Microseconds(), lateAfter.Microseconds(), (2 * hasty.o.Timeout).Microseconds())}
	reply, err := parsePlaced(run(context.Background(), other, calls)[0])
	if err != nil || reply.status != "stale" {
		t.Fatal(reply, err)
	}
	if found := find(t, patient(other, Options{}), "u"); found["phone"].ConnID != 2 {
		t.Fatalf("found %+v", found)
	}
}

func TestClaimAgesOnItsWay(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		table := patient(rdb, Options{})
		gateway(t, rdb, "g1")
		rival := claimOne(t, table, Claim{Route: route("u", "phone", "g1", 1)})
		// The clock of Redis is known by now; a table that is half a minute behind sees what a claim sees that was sent then.
		table.clock.offset.Add(-patience.Microseconds() / 2)
		if r := claimOne(t, table, Claim{Route: route("u", "phone", "g1", 2), LoginAge: time.Millisecond}); !r.Lost {
			t.Fatalf("sent half a minute before %+v: %+v", rival, r)
		}
		// A clock that has jumped far ahead looks like a stall; the claim is refused and sent once more.
		table.clock.offset.Add(-time.Hour.Microseconds())
		begun := time.Now()
		if r := claimOne(t, table, Claim{Route: route("u", "phone", "g1", 3)}); r.Lost || wronglyLate(r, begun) || len(r.Displaced) != 1 {
			t.Fatalf("after a jump ahead: %+v", r)
		}
		table.clock.offset.Add(time.Hour.Microseconds())
		begun = time.Now()
		if r := claimOne(t, table, Claim{Route: route("u", "phone", "g1", 4)}); r.Lost || wronglyLate(r, begun) || len(r.Displaced) != 1 || r.Epoch > time.Now().Add(time.Minute).UnixMicro() {
			t.Fatalf("after a jump back: %+v", r)
		}
	})
}

func TestRedisIsKilledAndComesBackEmpty(t *testing.T) {
	s := testenv.Redis(t)
	rdb := connect(t, s.Addr)
	table := patient(rdb, Options{})
	gateway(t, rdb, "g1")
	r := route("u", "phone", "g1", 1)
	r.Epoch = claimOne(t, table, Claim{Route: r}).Epoch
	s.Kill()
	unknownEverywhere(t, table, r)
	s.Start()
	gateway(t, rdb, "g1")
	if got := table.Restore(context.Background(), []Route{r})[0]; got != Restored { // by a script it does not know any more
		t.Fatal(got)
	}
	if found := find(t, table, "u"); found["phone"] != r {
		t.Fatalf("found %+v", found)
	}
}

func TestClaimIsSentOnce(t *testing.T) {
	s := testenv.Redis(t)
	rdb, ctx := connect(t, s.Addr), context.Background()
	var deaf atomic.Bool
	// A client with retries, over connections that break after a request has been sent.
	retrying := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: 3, ContextTimeoutEnabled: true,
		Dialer: func(_ context.Context, network, addr string) (net.Conn, error) {
			c, err := net.Dial(network, addr)
			return &deafConn{Conn: c, deaf: &deaf}, err
		}})
	defer func() { _ = retrying.Close() }()
	table := patient(retrying, Options{})
	claimOne(t, table, Claim{Route: route("u", "phone", "g1", 1)})
	if err := rdb.ConfigResetStat(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	deaf.Store(true)
	if r := table.Claim(ctx, []Claim{{Route: route("u", "phone", "g1", 2)}})[0]; r.Err == nil {
		t.Fatalf("%+v", r)
	}
	waitFor(t, "the claim runs", func() bool { return strings.Contains(rdb.HGet(ctx, routeKey("u"), "phone").Val(), "|2|g1|") })
	if stats := rdb.Info(ctx, "commandstats").Val(); !strings.Contains(stats, "cmdstat_evalsha:calls=1,") {
		t.Fatal(stats)
	}
}

// deafConn loses every answer while deaf is set.
type deafConn struct {
	net.Conn
	deaf *atomic.Bool
}

func (c *deafConn) Read(b []byte) (int, error) {
	if c.deaf.Load() {
		return 0, io.EOF
	}
	return c.Conn.Read(b)
}

func TestScriptsAreForgotten(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		table := patient(rdb, Options{})
		gateway(t, rdb, "g1")
		var claims []Claim
		for i := range 10 {
			claims = append(claims, Claim{Route: route("u", "phone", "g1", uint64(i))})
		}
		for range 2 {
			rdb.ScriptFlush(context.Background())
			var last int64
			for i, r := range table.Claim(context.Background(), claims) {
				// In their order, though they were sent twice.
				if r.Err != nil || r.Epoch <= last || (i > 0 && (len(r.Displaced) != 1 || r.Displaced[0].ConnID != uint64(i-1))) {
					t.Fatalf("claim %d: %+v", i, r)
				}
				last = r.Epoch
			}
		}
	})
}

func TestReplicaIsNotBelieved(t *testing.T) {
	master, demoted := testenv.Redis(t), testenv.Redis(t)
	rdb, ctx := connect(t, demoted.Addr), context.Background()
	table := patient(rdb, Options{})
	gateway(t, rdb, "g1")
	r := route("u", "phone", "g1", 1)
	r.Epoch = claimOne(t, table, Claim{Route: r}).Epoch
	host, port, _ := net.SplitHostPort(master.Addr)
	if err := rdb.SlaveOf(ctx, host, port).Err(); err != nil {
		t.Fatal(err)
	}
	unknownEverywhere(t, table, r)
	if _, err := table.Find(ctx, []string{"nobody"}); !errors.Is(err, errReplica) {
		t.Fatalf("find: %v", err)
	}
	l := NewLease(rdb, LeaseOptions{Incarnation: "g1", Timeout: patience})
	if _, err := l.renew(ctx); err == nil || l.Healthy() {
		t.Fatalf("a lease on a replica: %v", err)
	}
	if err := rdb.SlaveOf(ctx, "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	gateway(t, rdb, "g1")
	if got := table.Restore(ctx, []Route{r})[0]; got == Unknown || got == LostToNewer {
		t.Fatal(got)
	}
}

func TestRedisIsFull(t *testing.T) {
	s := testenv.Redis(t)
	rdb, ctx := connect(t, s.Addr), context.Background()
	table := patient(rdb, Options{})
	gateway(t, rdb, "g1")
	r := route("u", "phone", "g1", 1)
	r.Epoch = claimOne(t, table, Claim{Route: r}).Epoch
	if err := rdb.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if got := table.Claim(ctx, []Claim{{Route: route("v", "phone", "g1", 2)}})[0]; got.Err == nil {
		t.Fatalf("claim: %+v", got)
	}
	if found := find(t, table, "u"); found["phone"] != r {
		t.Fatalf("found %+v", found)
	}
}

func TestForeignValues(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		table, ctx := patient(rdb, Options{}), context.Background()
		gateway(t, rdb, "g1")
		key := routeKey("u")
		for device, value := range map[string]string{
			"garbage": "x", "empty": "", "short": "1|2|3|g1|0|a|b", "zero": "0|2|3|g1|0|a|b|c|5", "huge": "1|99999999999999999999|3|g1|0|a|b|c|5",
			"later": "2|7|3|g1|0|10.0.0.1:1|ios|s|5|more|fields",
		} {
			rdb.HSet(ctx, key, device, value)
		}
		found := find(t, table, "u")
		if len(found) != 1 || found["later"].Epoch != 7 || found["later"].SessionID != "s" {
			t.Fatalf("found %+v", found)
		}
		r := claimOne(t, table, Claim{Route: route("u", "garbage", "g1", 1)})
		if len(r.Displaced) != 0 || rdb.HLen(ctx, key).Val() != 6 {
			t.Fatalf("%+v", r)
		}
		rdb.Set(ctx, routeKey("v"), "another type", 0)
		if _, err := table.Find(ctx, []string{"v"}); err == nil {
			t.Fatal("a key of another type is not offline")
		}
		if r := table.Claim(ctx, []Claim{{Route: route("v", "phone", "g1", 1)}})[0]; r.Err == nil {
			t.Fatalf("%+v", r)
		}
	})
}
