package routes

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Two gateways claim one device of one user at the same time, again and again, and release and audit what they lost.
func TestSameDeviceOnTwoGatewaysAtOnce(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx := context.Background()
		const gateways, claimsEach = 2, 100
		won, displaced := make([][]Route, gateways), make([][]Route, gateways)
		var wg sync.WaitGroup
		for g := range gateways {
			name := fmt.Sprint("g", g)
			gateway(t, rdb, name)
			table := patient(rdb, Options{})
			wg.Go(func() {
				for i := range claimsEach {
					r := route("u", "phone", name, uint64(g*claimsEach+i+1))
					result := table.Claim(ctx, []Claim{{Route: r}})[0]
					if result.Err != nil || result.Lost {
						// On a busy machine a claim can take 100 ms, and is late then.
						if !result.Late {
							t.Errorf("claim: %+v", result)
						}
						continue
					}
					r.Epoch = result.Epoch
					won[g] = append(won[g], r)
					displaced[g] = append(displaced[g], result.Displaced...)
					// What it had before is closed, late: that must not touch whoever stands there now.
					if i%3 == 0 && len(won[g]) > 1 {
						if err := table.Release(ctx, won[g][:len(won[g])-1]); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		wg.Wait()
		all := slices.Concat(won...)
		slices.SortFunc(all, func(a, b Route) int { return int(a.Epoch - b.Epoch) })
		for i := 1; i < len(all); i++ {
			if all[i].Epoch == all[i-1].Epoch {
				t.Fatalf("two connections have the epoch %d", all[i].Epoch)
			}
		}
		newest := all[len(all)-1]
		table := patient(rdb, Options{})
		if found := find(t, table, "u"); len(found) != 1 || found["phone"] != newest {
			t.Fatalf("found %+v, newest %+v", found, newest)
		}
		// Each of the others was displaced exactly once.
		told := make(map[uint64]int)
		for _, d := range slices.Concat(displaced...) {
			told[d.ConnID]++
		}
		for _, r := range all[:len(all)-1] {
			if told[r.ConnID] != 1 {
				t.Fatalf("conn %d was displaced %d times", r.ConnID, told[r.ConnID])
			}
		}
		for i, result := range table.Restore(ctx, all) {
			if want := map[bool]RestoreResult{false: LostToNewer, true: Held}[i == len(all)-1]; result != want {
				t.Fatalf("audit of %+v: %v", all[i], result)
			}
		}
	})
}

func TestLeaseEndsByItself(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		ctx, live := context.Background(), NewLive(rdb, LiveOptions{Timeout: patience})
		for _, name := range []string{"brief", "briefer"} {
			if _, err := NewLease(rdb, LeaseOptions{Incarnation: name, TTL: 200 * time.Millisecond, Timeout: patience}).renew(ctx); err != nil {
				t.Fatal(err)
			}
		}
		waitFor(t, "they end", func() bool {
			first, errFirst := live.Alive(ctx, "brief")
			second, errSecond := live.Alive(ctx, "briefer")
			return !first && !second && errFirst == nil && errSecond == nil
		})
		// The index forgets them with the next gateway that enters it.
		gateway(t, rdb, "g1")
		if members := rdb.ZRange(ctx, leasesKey, 0, -1).Val(); !slices.Equal(members, []string{"g1"}) {
			t.Fatal(members)
		}
	})
}
