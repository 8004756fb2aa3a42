package delivery

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gatewayv1 "github.com/sluice-im/sluice/api/gateway/v1"
	"github.com/sluice-im/sluice/stateclient/routes"
)

var errBroken = errors.New("broken on purpose")

func always(r gatewayv1.Result) func(*gatewayv1.Target) gatewayv1.Result {
	return func(*gatewayv1.Target) gatewayv1.Result { return r }
}

// firstly answers each device once with r, then writes.
func firstly(r gatewayv1.Result) func(*gatewayv1.Target) gatewayv1.Result {
	seen := map[string]bool{}
	return func(t *gatewayv1.Target) gatewayv1.Result {
		if key := t.GetUid() + "/" + t.GetDeviceId(); !seen[key] {
			seen[key] = true
			return r
		}
		return gatewayv1.Result_RESULT_WRITTEN
	}
}

func TestDeadGatewayReceiverReconnectedElsewhere(t *testing.T) {
	w := newWorld(t)
	dead, alive := newGateway(t), newGateway(t)
	dead.server.Stop()
	n := w.node(slowConfig())
	w.connect(dead.route("bob", "phone", 1))
	// The receiver is elsewhere by the time the push fails.
	w.fakeRoutes.found = func() { w.byUID["bob"] = []routes.Route{alive.route("bob", "phone", 2)} }
	n.send(to(1, "bob", 1))
	eventually(t, "pushed to the other gateway", func() bool { return len(alive.seqs("bob", "phone")) == 1 })
	if n.metric("sluice_delivery_pushes_total", pushUnreachable) == 0 || n.metric("sluice_route_cleared_total", "") != 0 {
		t.Fatal("a gateway that cannot be reached keeps its routes")
	}
	w.checkConserved(n)
}

func TestDeadGatewayComesBack(t *testing.T) {
	w := newWorld(t)
	g := newGateway(t)
	g.server.Stop()
	c := slowConfig()
	c.Resend.Max = 10
	n := w.node(c)
	w.connect(g.route("bob", "phone", 1))
	n.send(to(1, "bob", 1))
	eventually(t, "push failed", func() bool { return n.metric("sluice_delivery_pushes_total", pushUnreachable) > 0 })
	g.start(g.addr)
	eventually(t, "resent", func() bool { return len(g.seqs("bob", "phone")) > 0 })
	if len(w.removed) != 0 {
		t.Fatal("the route was removed")
	}
}

func TestStaleRoute(t *testing.T) {
	for name, c := range map[string]struct {
		// before changes the table when the stale route has been looked up.
		after         func(w *world, other *gateway)
		pushed, owing int
		offline       int
	}{
		"reconnected elsewhere": {func(w *world, other *gateway) { w.byUID["bob"] = []routes.Route{other.route("bob", "phone", 2)} }, 1, 1, 0},
		"offline by now":        {func(*world, *gateway) {}, 0, 0, 1},
		"other devices remain": {func(w *world, other *gateway) {
			w.byUID["bob"] = append(w.byUID["bob"], other.route("bob", "tablet", 3))
		}, 0, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			g, other := newGateway(t), newGateway(t)
			g.answer(always(gatewayv1.Result_RESULT_STALE_ROUTE))
			n := w.node(slowConfig())
			w.connect(g.route("bob", "phone", 1))
			once := sync.OnceFunc(func() { c.after(w, other) })
			w.fakeRoutes.found = once
			n.send(to(1, "bob", 1))
			eventually(t, "route cleared", func() bool { return n.metric("sluice_route_cleared_total", "") == 1 })
			eventually(t, "as it should be", func() bool {
				return len(other.seqs("bob", "phone")) == c.pushed && w.pending() == c.owing && n.pairs(pairOffline) == c.offline
			})
			w.checkConserved(n)
		})
	}
}

func TestFailedPushIsResentSoonAndKeepsTheRoute(t *testing.T) {
	for name, r := range map[string]gatewayv1.Result{
		pushSlow: gatewayv1.Result_RESULT_DROPPED_SLOW, pushDraining: gatewayv1.Result_RESULT_DRAINING, pushRefused: gatewayv1.Result_RESULT_UNSPECIFIED,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			g := newGateway(t)
			g.answer(firstly(r))
			// Without the failure the resend would come in an hour.
			n := w.node(slowConfig())
			g.ackAll(n)
			w.connect(g.route("bob", "phone", 1))
			n.send(to(1, "bob", 1))
			eventually(t, "resent and acked", func() bool { return n.pairs(pairAcked) == 1 })
			if n.metric("sluice_resends_total", "1") != 1 || n.metric("sluice_delivery_pushes_total", name) != 1 || len(w.removed) != 0 {
				t.Fatal("not one failed push, one resend, and the route in place")
			}
			w.checkConserved(n)
		})
	}
}

func TestPausedGatewayDelaysNobodyElse(t *testing.T) {
	w := newWorld(t)
	paused, fine := newGateway(t), newGateway(t)
	paused.stall = make(chan struct{})
	c := slowConfig()
	c.Push.Timeout = 2 * time.Second // the other gateway must not reach it, however busy the machine is
	n := w.node(c)
	const each = 400
	w.connect(paused.route("p", "d", 1))
	w.connect(fine.route("f", "d", 2))
	g := Task{Receivers: []string{"p", "f"}}
	for seq := int64(1); seq <= each; seq++ {
		// One conversation, so one lane: the pause must not hold it up.
		g.Message = message(seq, "alice", "room", seq)
		g.Message.ConvID = "g:room"
		n.send(g)
	}
	eventually(t, "others served", func() bool { return len(fine.seqs("f", "d")) == each })
	if len(paused.seqs("p", "d")) != 0 || !slices.IsSorted(fine.seqs("f", "d")) {
		t.Fatal("the paused gateway took something, or order was lost")
	}
	eventually(t, "mark is past all", func() bool { return n.Mark() == each })
	eventually(t, "time-outs", func() bool { return n.metric("sluice_delivery_pushes_total", pushTimeout) > 0 })
	close(paused.stall)
	eventually(t, "resent to the one that was paused", func() bool {
		// The table keeps 200 of a user: the last must come.
		return slices.Contains(paused.seqs("p", "d"), each)
	})
	w.checkConserved(n)
}

func TestUnknownLookupHoldsTheMark(t *testing.T) {
	w := newWorld(t)
	g := newGateway(t)
	n := w.node(slowConfig())
	w.connect(g.route("bob", "phone", 1))
	w.failFind(errBroken)
	n.send(to(1, "bob", 1))
	eventually(t, "enrolled with unknown devices", func() bool { return w.pending() == 1 })
	if n.Mark() != 0 {
		t.Fatal("the mark passed an unknown lookup")
	}
	eventually(t, "lag seen", func() bool { return n.metric("sluice_delivery_mark_lag_seconds", "") > 0 })
	w.failFind(nil)
	eventually(t, "pushed", func() bool { return len(g.seqs("bob", "phone")) > 0 })
	eventually(t, "mark", func() bool { return n.Mark() == 1 })
	if advanced, err := n.Acked(context.Background(), "bob", "phone", "u:alice:bob", 1); err != nil || !advanced {
		t.Fatal(advanced, err)
	}
	w.checkConserved(n)
}

func TestUnknownThenOffline(t *testing.T) {
	w := newWorld(t)
	n := w.node(slowConfig())
	w.failFind(errBroken)
	n.send(to(1, "bob", 1))
	eventually(t, "enrolled with unknown devices", func() bool { return w.pending() == 1 })
	w.failFind(nil)
	eventually(t, "mark", func() bool { return n.Mark() == 1 })
	eventually(t, "entry gone", func() bool { return w.pending() == 0 && n.pairs(pairOffline) >= 1 })
	w.checkConserved(n)
}

func TestOfflineAtTheResend(t *testing.T) {
	w := newWorld(t)
	g := newGateway(t)
	c := fastConfig()
	c.Resend.Max = 10 // a busy machine may see one or the other before bob leaves
	n := w.node(c)
	w.connect(g.route("bob", "phone", 1))
	n.send(to(1, "bob", 1))
	eventually(t, "pushed", func() bool { return g.count() >= 1 })
	w.disconnect("bob", "phone")
	eventually(t, "entry dropped", func() bool { return n.pairs(pairOffline) == 1 && w.pending() == 0 })
	w.checkConserved(n)
}

func TestDeviceGoneAtTheResendWhileOthersRemain(t *testing.T) {
	w := newWorld(t)
	g := newGateway(t)
	c := fastConfig()
	c.Resend.AckTimeout = time.Second // the phone leaves before the first resend
	n := w.node(c)
	w.connect(g.route("bob", "phone", 1))
	w.connect(g.route("bob", "tablet", 2))
	n.send(to(1, "bob", 1))
	eventually(t, "pushed to both", func() bool { return g.count() == 2 })
	w.disconnect("bob", "phone")
	eventually(t, "resent to the tablet, then exhausted", func() bool { return n.pairs(pairExhausted) == 1 && g.count() >= 5 })
	if n.pairs(pairOffline) != 1 || len(g.seqs("bob", "phone")) != 1 || len(g.seqs("bob", "tablet")) != 4 {
		t.Fatal("the debt of the device that left was not dropped at the first resend")
	}
	w.checkConserved(n)
}

func TestStoreAwayAtTheResendCostsNoAttempt(t *testing.T) {
	w := newWorld(t)
	g := newGateway(t)
	n := w.node(fastConfig())
	w.connect(g.route("bob", "phone", 1))
	w.failLoad(errBroken)
	n.send(to(1, "bob", 1))
	before := time.Now()
	eventually(t, "well past the schedule", func() bool { return time.Since(before) > 600*time.Millisecond })
	if n.pairs(pairExhausted) != 0 || w.pending() != 1 {
		t.Fatal("attempts were used up without a push")
	}
	w.failLoad(nil)
	eventually(t, "all three resends", func() bool { return n.pairs(pairExhausted) == 1 && g.count() >= 4 })
	if got := len(g.seqs("bob", "phone")); got != 4 {
		t.Fatalf("%d pushes", got)
	}
}

func TestCrashAfterEnrolmentIsMadeGoodByAnother(t *testing.T) {
	w := newWorld(t)
	g := newGateway(t)
	w.connect(g.route("bob", "phone", 1))
	// What a StateServer leaves behind that dies between enrolment and push.
	m := message(1, "alice", "bob", 1)
	w.add(m)
	u := &userEnrolments{uid: "bob", items: []enrolment{{msgID: 1, seq: 1, conv: m.ConvID, owing: owing([]string{"phone"}), delay: 30 * time.Millisecond}}}
	newTable(w.rdb, fastConfig()).enrol(context.Background(), []*userEnrolments{u})
	if u.err != nil {
		t.Fatal(u.err)
	}
	n := w.node(fastConfig())
	g.ackAll(n)
	eventually(t, "resent and acked", func() bool { return n.pairs(pairAcked) == 1 })
	// The other's books died with it; the audit finds what they lack.
	w.checkConserved(n)
}

func TestTwoInstancesShareTheShards(t *testing.T) {
	w := newWorld(t)
	g := newGateway(t)
	c := fastConfig()
	// Half of it is how long a message is taken: longer than a slow machine stops.
	c.Resend.AckTimeout = time.Second
	a, b := w.node(c), w.node(c)
	eventually(t, "half each", func() bool {
		return len(a.leases.owned(time.Now())) == shards/2 && len(b.leases.owned(time.Now())) == shards/2
	})
	const users = 200
	for i, uid := range uids(users) {
		w.connect(g.route(uid, "d", uint64(i+1)))
	}
	for i, uid := range uids(users) {
		b.send(to(int64(i+1), uid, 1))
	}
	eventually(t, "all pushed and resent at least once", func() bool {
		a, b := a.metric("sluice_resends_total", "1"), b.metric("sluice_resends_total", "1")
		return a > 0 && b > 0 && a+b >= users
	})
	eventually(t, "all exhausted", func() bool { return a.pairs(pairExhausted)+b.pairs(pairExhausted) == users })
	eventually(t, "all pushes arrived", func() bool { return g.count() >= 4*users })
	for _, uid := range uids(users) {
		if got := len(g.seqs(uid, "d")); got != 4 {
			t.Fatalf("%s got %d pushes, want 4", uid, got)
		}
	}
	w.checkConserved(a, b)
	a.stop()
	eventually(t, "the other has all", func() bool { return len(b.leases.owned(time.Now())) == shards })
}

func TestRedisGoneBetweenEnrolmentAndPush(t *testing.T) {
	w := newWorld(t)
	g := newGateway(t)
	w.connect(g.route("bob", "phone", 1))
	var kill atomic.Bool
	n := w.node(slowConfig(), func(d *Deps) {
		d.Failpoint = func(name string) {
			if name == FailpointEnrolled && kill.Swap(false) {
				w.redis.Kill()
			}
		}
	})
	eventually(t, "leases held", func() bool { return len(n.leases.owned(time.Now())) == shards })
	n.send(to(1, "bob", 1))
	eventually(t, "first pushed", func() bool { return g.count() == 1 })
	kill.Store(true)
	n.send(to(2, "bob", 2))
	eventually(t, "pushed although redis died", func() bool { return g.count() == 2 })
	w.redis.Start()
	eventually(t, "loss reported", func() bool { return n.lostCount() == 1 })
	// Nothing was on disk: both entries are gone.
	eventually(t, "loss counted", func() bool { return n.pairs(pairLost) == 2 })
	w.checkConserved(n)
	// It goes on.
	g.ackAll(n)
	n.send(to(3, "bob", 3))
	eventually(t, "acked", func() bool { return n.pairs(pairAcked) == 1 })
	w.checkConserved(n)
}

func TestFlushIsNoticed(t *testing.T) {
	w := newWorld(t)
	g := newGateway(t)
	w.connect(g.route("bob", "phone", 1))
	n := w.node(slowConfig())
	for seq := int64(1); seq <= 5; seq++ {
		n.send(to(seq, "bob", seq))
	}
	eventually(t, "pushed", func() bool { return g.count() == 5 })
	eventually(t, "books published", func() bool { return n.metric("sluice_unacked", "") == 5 })
	if err := w.rdb.FlushAll(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "loss reported", func() bool { return n.lostCount() == 1 })
	eventually(t, "loss counted", func() bool { return n.pairs(pairLost) == 5 && n.metric("sluice_unacked", "") == 0 })
	w.checkConserved(n)
}

func TestRedisAwayForLong(t *testing.T) {
	w := newWorld(t)
	g := newGateway(t)
	const users, last = 50, 6000
	for i, uid := range uids(users) {
		w.connect(g.route(uid, "d", uint64(i+1)))
	}
	var all []Task
	for id := int64(1); id <= last; id++ {
		all = append(all, to(id, uids(users)[id%users], id))
	}
	var running atomic.Pointer[node]
	n := w.node(slowConfig(), func(d *Deps) {
		// As the StateServer does: what is above the mark is enqueued again.
		d.RedisLost = func(ctx context.Context) {
			n := running.Load()
			above := slices.IndexFunc(all, func(task Task) bool { return task.Message.MsgID > n.Mark() })
			if above >= 0 {
				_ = n.Enqueue(ctx, all[above:]) // fails when the test ends
			}
		}
	})
	running.Store(n)
	eventually(t, "leases held", func() bool { return len(n.leases.owned(time.Now())) == shards })
	w.redis.Kill()
	n.send(all...)
	// More than may wait in memory: the rest is left to the rows above the mark.
	eventually(t, "given up for now", n.stalled.Load)
	if n.Mark() != 0 {
		t.Fatalf("the mark moved to %d without redis", n.Mark())
	}
	w.redis.Start()
	eventually(t, "mark", func() bool { return n.Mark() == last })
	eventually(t, "all arrived", func() bool {
		got := map[int64]bool{}
		for _, uid := range uids(users) {
			for _, s := range g.seqs(uid, "d") {
				got[s] = true
			}
		}
		return len(got) == last
	})
	for _, uid := range uids(users) {
		if _, err := n.Acked(context.Background(), uid, "d", message(0, "alice", uid, 0).ConvID, last); err != nil {
			t.Fatal(err)
		}
	}
	w.checkConserved(n)
}
