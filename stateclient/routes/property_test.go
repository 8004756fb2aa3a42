package routes

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"
)

// history drives the connections of one user on two gateways at random, and checks after every step what the table holds
// against what it held before: who may have come, who may have gone.
type history struct {
	rdb    redis.UniversalClient
	tables [2]*Table
	policy Policy
	max    int

	conns []*conn
	table map[string]Route // by device, as it is in Redis
}

// conn is one connection, open until it is closed by its client or told to go.
type conn struct {
	route   Route
	gateway int
	open    bool
}

var devicesDrawn = rapid.SampledFrom([]string{"phone", "pad", "web", "tv"})

func TestPropertyOneOwnerByEpoch(t *testing.T) {
	servers(t, func(t *testing.T, rdb redis.UniversalClient) {
		gateway(t, rdb, "g0")
		gateway(t, rdb, "g1")
		rapid.Check(t, func(t *rapid.T) {
			h := &history{rdb: rdb, policy: rapid.SampledFrom([]Policy{Multi, Multi, Single}).Draw(t, "policy"), max: rapid.IntRange(1, 4).Draw(t, "max"), table: map[string]Route{}}
			o := Options{Policy: h.policy, DevicesMax: h.max}
			h.tables = [2]*Table{patient(rdb, o), patient(rdb, o)}
			rdb.Del(context.Background(), routeKey("u"))
			t.Repeat(map[string]func(*rapid.T){
				"claim":        func(t *rapid.T) { h.claim(t, 0) },
				"late claim":   func(t *rapid.T) { h.claim(t, h.age(t)) },
				"claim again":  h.claimAgain,
				"restore":      h.restore,
				"release":      h.release,
				"remove":       h.remove,
				"lose a route": h.lose,
				"":             h.consistent,
			})
			h.converge(t)
		})
	})
}

// age draws an age of a login: around those whose epochs are in the table, or any.
func (h *history) age(t *rapid.T) time.Duration {
	age := time.Duration(rapid.Int64Range(int64(200*time.Millisecond), int64(time.Hour)).Draw(t, "age"))
	if epochs := h.epochs(); len(epochs) > 0 && rapid.Bool().Draw(t, "near") {
		near := time.Since(time.UnixMicro(rapid.SampledFrom(epochs).Draw(t, "epoch")))
		age = max(age%time.Second, near+time.Duration(rapid.Int64Range(-300, 300).Draw(t, "by"))*time.Millisecond)
	}
	return age
}

func (h *history) epochs() (epochs []int64) {
	for _, r := range h.table {
		epochs = append(epochs, r.Epoch)
	}
	slices.Sort(epochs)
	return epochs
}

func (h *history) draw(t *rapid.T) *conn {
	if len(h.conns) == 0 {
		t.Skip("no connection yet")
	}
	return rapid.SampledFrom(h.conns).Draw(t, "conn")
}

// step runs one call and returns the table before and after it.
func (h *history) step(t *rapid.T, call func()) (before, after map[string]Route) {
	before = maps.Clone(h.table)
	call()
	h.table = map[string]Route{}
	for device, value := range h.rdb.HGetAll(context.Background(), routeKey("u")).Val() {
		r, err := parseValue("u", device, value)
		if err != nil {
			t.Fatal(err)
		}
		h.table[device] = r
	}
	return before, h.table
}

func same(a, b Route) bool { return a.Incarnation == b.Incarnation && a.ConnID == b.ConnID }

// rival says whether two connections cannot both stand.
func (h *history) rival(a, b Route) bool {
	return !same(a, b) && (h.policy == Single || a.DeviceID == b.DeviceID)
}

// gone lists what stood before and does not stand now.
func gone(before, after map[string]Route) (gone []Route) {
	for device, r := range before {
		if now, ok := after[device]; !ok || !same(r, now) {
			gone = append(gone, r)
		}
	}
	return gone
}

// mayGo checks that a connection displaced only what it may: older rivals, and the oldest of a full table.
func (h *history) mayGo(t *rapid.T, by Route, lost []Route, after map[string]Route) {
	for _, g := range lost {
		if same(g, by) || g.Epoch >= by.Epoch {
			t.Fatalf("%+v displaced the newer %+v", by, g)
		}
		if h.rival(g, by) {
			continue
		}
		if len(after) != h.max {
			t.Fatalf("%+v went though there was room: %+v", g, after)
		}
		for _, stays := range after {
			if stays.Epoch < g.Epoch && !same(stays, by) {
				t.Fatalf("%+v went, but the older %+v stays", g, stays)
			}
		}
	}
}

func (h *history) claim(t *rapid.T, age time.Duration) {
	g := rapid.IntRange(0, 1).Draw(t, "gateway")
	c := &conn{route: route("u", devicesDrawn.Draw(t, "device"), fmt.Sprint("g", g), uint64(len(h.conns)+1)), gateway: g, open: true}
	h.conns = append(h.conns, c)
	h.claimOf(t, c, age)
}

// claimAgain is what follows an unknown outcome.
func (h *history) claimAgain(t *rapid.T) {
	if c := h.draw(t); c.open {
		h.claimOf(t, c, h.age(t))
	}
}

func (h *history) claimOf(t *rapid.T, c *conn, age time.Duration) {
	var result ClaimResult
	earliest := time.Now().Add(-age).UnixMicro()
	before, after := h.step(t, func() {
		result = h.tables[c.gateway].Claim(context.Background(), []Claim{{Route: c.route, LoginAge: age, Policy: h.policy, DevicesMax: h.max}})[0]
	})
	if result.Err != nil {
		t.Fatal(result.Err)
	}
	now, stands := after[c.route.DeviceID]
	stands = stands && same(now, c.route)
	if result.Lost {
		c.open = false
		if stands || len(gone(before, after)) > 0 && !same(before[c.route.DeviceID], c.route) {
			t.Fatalf("lost, but changed the table: %+v -> %+v", before, after)
		}
		if !slices.ContainsFunc(h.epochs(), func(e int64) bool { return e >= earliest-time.Second.Microseconds() }) && before[c.route.DeviceID].Epoch < c.route.Epoch {
			t.Fatalf("lost to nothing newer: %+v", after)
		}
		return
	}
	if !stands || now.Epoch != result.Epoch {
		t.Fatalf("claimed %+v, stands %+v", result, now)
	}
	c.route.Epoch = result.Epoch
	h.mayGo(t, c.route, gone(before, after), after)
	if len(gone(before, after)) != len(result.Displaced) {
		t.Fatalf("gone %+v, told %+v", gone(before, after), result.Displaced)
	}
	for _, d := range result.Displaced {
		// Told, mostly: a kick may also get lost, and the audit has to find out.
		if other := h.conns[d.ConnID-1]; rapid.Bool().Draw(t, "told") {
			other.open = false
		}
	}
	if before[c.route.DeviceID] != c.route && age == 0 {
		for _, r := range before {
			if r.Epoch >= result.Epoch {
				t.Fatalf("a fresh login got epoch %d, there was %d", result.Epoch, r.Epoch)
			}
		}
	}
}

func (h *history) restore(t *rapid.T) {
	c := h.draw(t)
	if c.route.Epoch == 0 || !c.open {
		t.Skip("it has no route to restore")
	}
	h.restoreOf(t, c)
}

func (h *history) restoreOf(t *rapid.T, c *conn) {
	var result RestoreResult
	before, after := h.step(t, func() {
		result = h.tables[c.gateway].Restore(context.Background(), []Route{c.route})[0]
	})
	switch result {
	case Held, Restored:
		if after[c.route.DeviceID] != c.route || (before[c.route.DeviceID] == c.route) != (result == Held) {
			t.Fatalf("%v: %+v, table %+v", result, c.route, after)
		}
		h.mayGo(t, c.route, gone(before, after), after)
	case LostToNewer:
		c.open = false
		if same(after[c.route.DeviceID], c.route) {
			t.Fatalf("lost, but it stands: %+v", c.route)
		}
		if epochs := h.epochs(); len(epochs) == 0 || epochs[len(epochs)-1] < c.route.Epoch {
			t.Fatalf("%+v lost to %v", c.route, epochs)
		}
	default:
		t.Fatal(result)
	}
}

func (h *history) release(t *rapid.T) {
	c := h.draw(t)
	c.open = false
	before, after := h.step(t, func() {
		if err := h.tables[c.gateway].Release(context.Background(), []Route{c.route}); err != nil {
			t.Fatal(err)
		}
	})
	h.onlyOwn(t, c, before, after)
	if same(after[c.route.DeviceID], c.route) {
		t.Fatal("not released")
	}
}

func (h *history) remove(t *rapid.T) {
	c := h.draw(t)
	r := c.route
	r.Epoch += rapid.Int64Range(-1, 1).Draw(t, "other epoch")
	before, after := h.step(t, func() {
		if err := h.tables[1-c.gateway].Remove(context.Background(), []Route{r}); err != nil {
			t.Fatal(err)
		}
	})
	h.onlyOwn(t, c, before, after)
	if stood := before[r.DeviceID]; same(stood, r) && stood.Epoch != r.Epoch && after[r.DeviceID] != stood {
		t.Fatal("removed though it had another epoch")
	}
}

// onlyOwn checks that nothing but the connection's own route went, and that nothing else changed.
func (h *history) onlyOwn(t *rapid.T, c *conn, before, after map[string]Route) {
	for device, r := range before {
		if after[device] != r && !same(r, c.route) {
			t.Fatalf("%+v took away %+v", c.route, r)
		}
	}
	if len(after) > len(before) {
		t.Fatalf("%+v -> %+v", before, after)
	}
}

// lose is a Redis that forgets: one route, or all.
func (h *history) lose(t *rapid.T) {
	h.step(t, func() {
		if rapid.Bool().Draw(t, "all") {
			h.rdb.Del(context.Background(), routeKey("u"))
			return
		}
		h.rdb.HDel(context.Background(), routeKey("u"), devicesDrawn.Draw(t, "device"))
	})
}

func (h *history) consistent(t *rapid.T) {
	if len(h.table) > h.max || (h.policy == Single && len(h.table) > 1) {
		t.Fatalf("too many: %+v", h.table)
	}
}

// converge audits all open connections until nothing changes: then each place belongs to the newest of them.
func (h *history) converge(t *rapid.T) {
	for range 3 {
		for _, c := range rapid.Permutation(h.conns).Draw(t, "audit") {
			if c.open && c.route.Epoch > 0 {
				h.restoreOf(t, c)
			}
		}
	}
	for _, c := range h.conns {
		if c.open && c.route.Epoch > 0 && !same(h.table[c.route.DeviceID], c.route) {
			t.Fatalf("open, but not reachable: %+v in %+v", c.route, h.table)
		}
	}
}
