package delivery

import (
	"context"
	"testing"
	"time"
)

func (o *outlets) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.byAddr)
}

func TestNothingIsPushedThatIsNotEnrolled(t *testing.T) {
	w := newWorld(t)
	g := newGateway(t)
	n := w.node(slowConfig())
	w.connect(g.route("bob", "phone", 1))
	eventually(t, "leases held", func() bool { return len(n.leases.owned(time.Now())) == shards })
	// A full Redis answers, but takes nothing.
	if err := w.rdb.ConfigSet(context.Background(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	n.send(to(1, "bob", 1))
	eventually(t, "tried again and again", func() bool { return n.metric("sluice_delivery_retries_total", "") >= 3 })
	if g.count() != 0 || n.Mark() != 0 {
		t.Fatalf("%d pushed, mark %d, without enrolment", g.count(), n.Mark())
	}
	if err := w.rdb.ConfigSet(context.Background(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "delivered", func() bool { return g.count() == 1 && n.Mark() == 1 })
	w.checkConserved(n)
}

func TestOutletsComeAndGo(t *testing.T) {
	w := newWorld(t)
	a, b := newGateway(t), newGateway(t)
	n := w.idle(slowConfig())
	n.outlets.idle, n.outlets.countMax = 30*time.Millisecond, 1
	n.run()
	w.connect(a.route("bob", "phone", 1))
	w.connect(b.route("carol", "phone", 2))
	n.send(to(1, "bob", 1))
	eventually(t, "pushed", func() bool { return a.count() == 1 })
	eventually(t, "idle outlet gone", func() bool { return n.outlets.count() == 0 })
	// With room for one only, the second gateway waits for its resend; the bound holds.
	n.send(to(2, "bob", 2))
	n.send(to(3, "carol", 1))
	eventually(t, "both served", func() bool {
		if got := n.outlets.count(); got > 1 {
			t.Fatalf("%d outlets", got)
		}
		return a.count() >= 2 && b.count() >= 1
	})
}

func TestFullOutletLeavesTheRestToResends(t *testing.T) {
	w := newWorld(t)
	g := newGateway(t)
	g.stall = make(chan struct{})
	n := w.idle(slowConfig())
	n.outlets.parcelsMax = 20
	n.run()
	w.connect(g.route("bob", "phone", 1))
	const all = 100
	for seq := int64(1); seq <= all; seq++ {
		n.send(to(seq, "bob", seq))
	}
	eventually(t, "outlet is full", func() bool { return n.metric("sluice_delivery_pushes_total", pushQueueFull) > 0 })
	close(g.stall)
	eventually(t, "all arrived", func() bool {
		got := map[int64]bool{}
		for _, s := range g.seqs("bob", "phone") {
			got[s] = true
		}
		return len(got) == all
	})
	w.checkConserved(n)
}

func TestWhoWaitsForSettledIsNotDropped(t *testing.T) {
	w := newWorld(t)
	n := w.idle(slowConfig())
	for i := range retriesMax {
		n.putOff(newJob(to(int64(i+1), "bob", int64(i+1))))
	}
	if n.stalled.Load() {
		t.Fatal("dropped below the bound")
	}
	waited := to(retriesMax+1, "bob", retriesMax+1)
	waited.Settled = func() {}
	n.putOff(newJob(waited))
	if n.stalled.Load() || n.retries.len() != retriesMax+1 {
		t.Fatal("a task that somebody waits for was dropped")
	}
	n.putOff(newJob(to(retriesMax+2, "bob", retriesMax+2)))
	if !n.stalled.Load() || n.retries.len() != retriesMax+1 {
		t.Fatal("the bound does not hold")
	}
}

func TestStopWhileRedisIsAway(t *testing.T) {
	for name, before := range map[string]bool{"away from the start": true, "gone later": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			g := newGateway(t)
			if before {
				w.redis.Kill()
			}
			c := slowConfig()
			c.RedisTimeout = 500 * time.Millisecond
			c.DrainTimeout = 300 * time.Millisecond
			n := w.node(c)
			if !before {
				eventually(t, "leases held", func() bool { return len(n.leases.owned(time.Now())) == shards })
				w.redis.Kill()
			}
			var tasks []Task
			for i, uid := range uids(100) {
				w.connect(g.route(uid, "d", uint64(i+1)))
				tasks = append(tasks, to(int64(i+1), uid, 1))
			}
			n.send(tasks...)
			acked := make(chan error)
			go func() {
				_, err := n.Acked(context.Background(), "bob", "phone", "g:x", 1)
				acked <- err
			}()
			if err := <-acked; err == nil {
				t.Error("an ack succeeded without redis")
			}
			began := time.Now()
			n.stop()
			if took := time.Since(began); took > waitMax/2 {
				t.Errorf("stopping took %v", took)
			}
			if n.Mark() != 0 || n.marks.last() != 0 || g.count() != 0 {
				t.Errorf("mark %d, %d pushed, without redis", n.Mark(), g.count())
			}
		})
	}
}

func TestMessageEnqueuedTwiceIsEnrolledOnce(t *testing.T) {
	w := newWorld(t)
	g := newGateway(t)
	n := w.idle(slowConfig())
	w.connect(g.route("bob", "phone", 1))
	// Both are there before the lane starts, so they meet in one batch; the third comes later.
	n.send(to(1, "bob", 1), to(1, "bob", 1))
	n.run()
	eventually(t, "pushed", func() bool { return g.count() == 2 })
	n.send(to(1, "bob", 1))
	eventually(t, "pushed again", func() bool { return g.count() == 3 })
	if n.pairs(pairEnrolled) != 1 || w.pending() != 1 {
		t.Fatalf("%d enrolled, %d pending", n.pairs(pairEnrolled), w.pending())
	}
	w.checkConserved(n)
}
