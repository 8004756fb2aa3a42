package routes

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestClaimIsFoundAsItWasMade(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		table := patient(rdb, Options{})
		gateway(t, rdb, "g1")
		want := route("alice", "phone", "g1", math.MaxUint64)
		want.Platform, want.SessionID = "a|b%7C\r\n\x00ü", "100%25|"
		begun := time.Now()
		before := begun.Add(-time.Second)
		got := claimOne(t, table, Claim{Route: want})
		if got.Epoch < before.UnixMicro() || got.Epoch > time.Now().Add(time.Second).UnixMicro() {
			t.Fatalf("epoch %d is not now in µs", got.Epoch)
		}
		if got.Lost || wronglyLate(got, begun) || len(got.Displaced) != 0 {
			t.Fatalf("first claim: %+v", got)
		}
		want.Epoch = got.Epoch
		if r := find(t, table, "alice")["phone"]; r != want {
			t.Fatalf("found %+v\nwant  %+v", r, want)
		}
		if all, err := table.Find(context.Background(), []string{"nobody", "alice", "alice", "not valid!"}); err != nil || len(all) != 1 || len(all["alice"]) != 1 {
			t.Fatalf("find: %v, %v", all, err)
		}
	})
}

func TestFreshClaimDisplacesTheSameDeviceOnly(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		table := patient(rdb, Options{})
		gateway(t, rdb, "g1")
		gateway(t, rdb, "g2")
		first := claimOne(t, table, Claim{Route: route("u", "phone", "g1", 1)})
		claimOne(t, table, Claim{Route: route("u", "pad", "g1", 2)})
		third := claimOne(t, table, Claim{Route: route("u", "phone", "g2", 1)})
		if len(third.Displaced) != 1 || third.Displaced[0].Epoch != first.Epoch || third.Displaced[0].SessionID != "s-1" {
			t.Fatalf("displaced %+v", third.Displaced)
		}
		if found := find(t, table, "u"); len(found) != 2 || found["phone"].Incarnation != "g2" || found["pad"].ConnID != 2 {
			t.Fatalf("found %+v", found)
		}
	})
}

func TestSingleLeavesOne(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		table := patient(rdb, Options{Policy: Single})
		gateway(t, rdb, "g1")
		claimOne(t, table, Claim{Route: route("u", "phone", "g1", 1), Policy: Single})
		r := claimOne(t, table, Claim{Route: route("u", "pad", "g1", 2), Policy: Single})
		if len(r.Displaced) != 1 || r.Displaced[0].DeviceID != "phone" {
			t.Fatalf("displaced %+v", r.Displaced)
		}
		if late := claimOne(t, table, Claim{Route: route("u", "web", "g1", 3), Policy: Single, LoginAge: time.Minute}); !late.Lost {
			t.Fatalf("a late claim of another device in single mode: %+v", late)
		}
		if found := find(t, table, "u"); len(found) != 1 || found["pad"].ConnID != 2 {
			t.Fatalf("found %+v", found)
		}
	})
}

func TestSeventeenthDeviceDisplacesTheOldest(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		table := patient(rdb, Options{})
		gateway(t, rdb, "g1")
		for i := range 20 {
			r := claimOne(t, table, Claim{Route: route("u", fmt.Sprint("d", i), "g1", uint64(i)), DevicesMax: 1000})
			var gone []string
			for _, d := range r.Displaced {
				gone = append(gone, d.DeviceID)
			}
			var want []string
			if i >= DevicesMax {
				want = []string{fmt.Sprint("d", i-DevicesMax)}
			}
			if !slices.Equal(gone, want) {
				t.Fatalf("device %d displaced %v, want %v", i, gone, want)
			}
		}
		if n := rdb.HLen(context.Background(), routeKey("u")).Val(); n != DevicesMax {
			t.Fatalf("%d fields", n)
		}
		// A late claim that is older than everything in a full table has no place; one that is not does have one.
		if r := claimOne(t, table, Claim{Route: route("u", "old", "g1", 99), LoginAge: time.Hour}); !r.Lost {
			t.Fatalf("older than all: %+v", r)
		}
		// A lower bound takes effect with the next claim.
		if r := claimOne(t, table, Claim{Route: route("u", "d19", "g2", 100), DevicesMax: 3}); len(r.Displaced) != DevicesMax-3+1 {
			t.Fatalf("displaced %d", len(r.Displaced))
		}
	})
}

func TestLateClaim(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		table := patient(rdb, Options{})
		gateway(t, rdb, "g1")
		older := claimOne(t, table, Claim{Route: route("u", "phone", "g1", 1), LoginAge: time.Hour})
		if older.Lost || !older.Late {
			t.Fatalf("a late claim without a rival: %+v", older)
		}
		newer := claimOne(t, table, Claim{Route: route("u", "phone", "g2", 2), LoginAge: time.Minute})
		if newer.Lost || !newer.Late || len(newer.Displaced) != 1 {
			t.Fatalf("a late claim that is newer: %+v", newer)
		}
		if between := claimOne(t, table, Claim{Route: route("u", "phone", "g1", 3), LoginAge: 30 * time.Minute}); !between.Lost {
			t.Fatalf("a late claim that is older: %+v", between)
		}
		if other := claimOne(t, table, Claim{Route: route("u", "pad", "g1", 4), LoginAge: 30 * time.Minute}); other.Lost || other.Epoch >= newer.Epoch {
			t.Fatalf("a late claim of another device: %+v", other)
		}
	})
}

func TestClaimedAgainAfterAnUnknownOutcomeKeepsItsEpoch(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		table := patient(rdb, Options{})
		gateway(t, rdb, "g1")
		r := route("u", "phone", "g1", 1)
		first := claimOne(t, table, Claim{Route: r})
		for _, age := range []time.Duration{0, time.Hour} {
			if again := claimOne(t, table, Claim{Route: r, LoginAge: age}); again.Lost || again.Epoch != first.Epoch || len(again.Displaced) != 0 {
				t.Fatalf("again after %v: %+v, first %+v", age, again, first)
			}
		}
	})
}

func TestEpochGrowsWhenTheClockStandsBack(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		table := patient(rdb, Options{})
		gateway(t, rdb, "g1")
		for _, epoch := range []int64{1<<53 - 1, 1 << 53, 1<<53 + 1, 799_999_999_999_999_999, 899_999_999_999_999_999} {
			ahead := route("u", "phone", "g1", 1)
			ahead.Epoch = epoch
			if got := table.Restore(context.Background(), []Route{ahead}); got[0] != Restored {
				t.Fatalf("restore %d: %v", epoch, got)
			}
			r := claimOne(t, table, Claim{Route: route("u", "phone", "g2", 2)})
			if r.Epoch != epoch+1 || len(r.Displaced) != 1 || r.Displaced[0].Epoch != epoch {
				t.Fatalf("after %d: %+v", epoch, r)
			}
			if err := table.Release(context.Background(), []Route{route("u", "phone", "g2", 2)}); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func TestReleaseAndRemoveCompareExactly(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		table, ctx := patient(rdb, Options{}), context.Background()
		gateway(t, rdb, "g1")
		// Two neighbours that are one number to a double.
		const conn = 1<<63 + 1
		r := route("u", "phone", "g1", conn)
		r.Epoch = claimOne(t, table, Claim{Route: r}).Epoch
		wrong := map[string]Route{"conn": r, "incarnation": r, "device": r, "uid": r}
		edit := func(name string, f func(*Route)) { w := r; f(&w); wrong[name] = w }
		edit("conn", func(w *Route) { w.ConnID-- })
		edit("incarnation", func(w *Route) { w.Incarnation = "g" })
		edit("device", func(w *Route) { w.DeviceID = "phon" })
		edit("uid", func(w *Route) { w.UID = "u2" })
		for name, w := range wrong {
			if err := errors.Join(table.Release(ctx, []Route{w}), table.Remove(ctx, []Route{w})); err != nil {
				t.Fatal(err)
			}
			if len(find(t, table, "u")) != 1 {
				t.Fatalf("another %s took the route away", name)
			}
		}
		w := r
		w.Epoch++
		if err := table.Remove(ctx, []Route{w}); err != nil || len(find(t, table, "u")) != 1 {
			t.Fatalf("another epoch took the route away (%v)", err)
		}
		if err := table.Remove(ctx, []Route{r}); err != nil || len(find(t, table, "u")) != 0 {
			t.Fatalf("not removed (%v)", err)
		}
		claimOne(t, table, Claim{Route: r})
		if err := table.Release(ctx, []Route{w}); err != nil || len(find(t, table, "u")) != 0 {
			t.Fatalf("not released (%v)", err)
		}
		if err := table.Release(ctx, []Route{r}); err != nil {
			t.Fatalf("a second release: %v", err)
		}
	})
}

func TestRestore(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		table, ctx := patient(rdb, Options{}), context.Background()
		gateway(t, rdb, "g1")
		gateway(t, rdb, "g2")
		old := route("u", "phone", "g1", 1)
		old.Epoch = claimOne(t, table, Claim{Route: old}).Epoch
		restore := func(r Route, want RestoreResult) {
			t.Helper()
			if got := table.Restore(ctx, []Route{r})[0]; got != want {
				t.Fatalf("restore %v/%d: %v, want %v", r.DeviceID, r.ConnID, got, want)
			}
		}
		restore(old, Held)
		rdb.FlushAll(ctx)
		gateway(t, rdb, "g1")
		gateway(t, rdb, "g2")
		restore(old, Restored)
		restore(old, Held)
		newer := route("u", "phone", "g2", 2)
		newer.Epoch = claimOne(t, table, Claim{Route: newer}).Epoch
		restore(old, LostToNewer)
		restore(newer, Held)
		rdb.FlushAll(ctx)
		gateway(t, rdb, "g2")
		restore(old, Restored)
		restore(newer, Restored)
		restore(old, LostToNewer)
		if found := find(t, table, "u"); found["phone"] != newer {
			t.Fatalf("found %+v", found)
		}
		tie := newer
		tie.ConnID++
		restore(tie, LostToNewer)
		never := newer
		never.Epoch = 0
		restore(never, Unknown)
	})
}

func TestRestoreInSingleKeepsTheNewest(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		table, ctx := patient(rdb, Options{Policy: Single}), context.Background()
		gateway(t, rdb, "g1")
		a, b := route("u", "phone", "g1", 1), route("u", "pad", "g1", 2)
		a.Epoch, b.Epoch = 99, 200 // as text the other way round
		if got := table.Restore(ctx, []Route{a, b, a}); !slices.Equal(got, []RestoreResult{Restored, Restored, LostToNewer}) {
			t.Fatal(got)
		}
		// Also when both got in, under another policy.
		patient(rdb, Options{}).Restore(ctx, []Route{a})
		if got := table.Restore(ctx, []Route{a}); got[0] != LostToNewer || rdb.HLen(ctx, routeKey("u")).Val() != 1 {
			t.Fatal(got)
		}
		if got := table.Restore(ctx, []Route{b}); got[0] != Held {
			t.Fatal(got)
		}
		if found := find(t, table, "u"); len(found) != 1 || found["pad"].Epoch != 200 {
			t.Fatalf("found %+v", found)
		}
	})
}

func TestEpochsThatOneDoubleHoldsAreTwo(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		table, ctx := patient(rdb, Options{}), context.Background()
		a, b := route("u", "phone", "g1", 1), route("u", "phone", "g1", 2)
		a.Epoch, b.Epoch = 1<<53, 1<<53+1
		if got := table.Restore(ctx, []Route{a, b, a}); !slices.Equal(got, []RestoreResult{Restored, Restored, LostToNewer}) {
			t.Fatal(got)
		}
	})
}

func TestRouteLivesThreeAudits(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		table, ctx := patient(rdb, Options{Audit: time.Minute}), context.Background()
		gateway(t, rdb, "g1")
		r := route("u", "phone", "g1", 1)
		r.Epoch = claimOne(t, table, Claim{Route: r}).Epoch
		full := func() {
			t.Helper()
			if left := rdb.PTTL(ctx, routeKey("u")).Val(); left <= 2*time.Minute || left > 3*time.Minute {
				t.Fatalf("%v left", left)
			}
		}
		full()
		rdb.PExpire(ctx, routeKey("u"), time.Minute)
		table.Restore(ctx, []Route{r})
		full()
		brief := patient(rdb, Options{Audit: 50 * time.Millisecond})
		claimOne(t, brief, Claim{Route: route("v", "phone", "g1", 2)})
		waitFor(t, "the route expires", func() bool { return rdb.Exists(ctx, routeKey("v")).Val() == 0 })
	})
}

func TestInvalidIsRefusedBeforeRedis(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		table, ctx := patient(rdb, Options{}), context.Background()
		gateway(t, rdb, "g1")
		keys := rdb.DBSize(ctx).Val()
		for _, bad := range []string{"", "a:b", "*", "{x}", "x}y{", "\r\nFLUSHALL\r\n", "a\x00b", "аlice", strings.Repeat("a", 64<<10)} {
			uid, device := route(bad, "phone", "g1", 1), route("u", bad, "g1", 1)
			good := route("good", "phone", "g1", 1)
			for i, r := range table.Claim(ctx, []Claim{{Route: uid}, {Route: device}, {Route: good}}) {
				if (i < 2) != errors.Is(r.Err, ErrInvalid) {
					t.Fatalf("claim %d of %.20q: %v", i, bad, r.Err)
				}
			}
			uid.Epoch, device.Epoch = 1, 1
			if got := table.Restore(ctx, []Route{uid, device}); !slices.Equal(got, []RestoreResult{Unknown, Unknown}) {
				t.Fatal(got)
			}
			if err := errors.Join(table.Release(ctx, []Route{uid, device, good}), table.Remove(ctx, []Route{uid, device})); err != nil {
				t.Fatal(err)
			}
			if found, err := table.Find(ctx, []string{bad}); err != nil || len(found) != 0 {
				t.Fatal(found, err)
			}
		}
		if now := rdb.DBSize(ctx).Val(); now != keys {
			t.Fatalf("%d keys, before %d", now, keys)
		}
		long := route("u", "phone", "g1", 1)
		long.SessionID = strings.Repeat("s", textBytesMax+1)
		if r := table.Claim(ctx, []Claim{{Route: long}})[0]; !errors.Is(r.Err, ErrInvalid) {
			t.Fatal(r.Err)
		}
	})
}

func TestLargeBatches(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		table, ctx := patient(rdb, Options{}), context.Background()
		gateway(t, rdb, "g1")
		const users = 2*batchMax + 3
		claims, uids, routes := make([]Claim, users), make([]string, users), make([]Route, users)
		for i := range claims {
			uids[i] = fmt.Sprint("u", i)
			claims[i].Route = route(uids[i], "phone", "g1", uint64(i))
		}
		for i, r := range table.Claim(ctx, claims) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
			routes[i] = claims[i].Route
			routes[i].Epoch = r.Epoch
		}
		found, err := table.Find(ctx, uids)
		if err != nil || len(found) != users {
			t.Fatal(len(found), err)
		}
		for i, r := range table.Restore(ctx, routes) {
			if r != Held || found[uids[i]][0] != routes[i] {
				t.Fatalf("%d: %v, %+v", i, r, found[uids[i]])
			}
		}
		if err := table.Release(ctx, routes); err != nil {
			t.Fatal(err)
		}
		if found, err := table.Find(ctx, uids); err != nil || len(found) != 0 {
			t.Fatal(len(found), err)
		}
	})
}
