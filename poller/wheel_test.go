package poller

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-im/sluice/poller/internal/slab"
)

// TestWheel compares the wheel with a plain map of deadlines: no entry is visited early, none is missed, and next never
// promises a visit later than the first deadline.
func TestWheel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const conns = 20
		tick := rapid.SampledFrom([]time.Duration{time.Millisecond, 50 * time.Millisecond}).Draw(t, "tick")
		start := rapid.SampledFrom([]int64{1, 5000, 1<<32 - 700}).Draw(t, "start")
		w := wheel{slab: slots(conns), tick: tick, now: start}
		var all []*conn
		for range conns {
			all = append(all, w.slab.Take())
		}
		want := map[*conn]int64{}
		now := start
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			c := all[rapid.IntRange(0, conns-1).Draw(t, "conn")]
			switch rapid.IntRange(0, 3).Draw(t, "op") {
			case 0, 1:
				after := rapid.Int64Range(-3, 3*wheelSlots).Draw(t, "after")
				at := w.ceil(time.Duration(now+after) * tick)
				if old, ok := want[c]; !ok || now+after < old {
					want[c] = max(now+after, now+1)
				}
				w.ensure(c, at)
			case 2:
				w.remove(c)
				delete(want, c)
			case 3:
				checkNext(t, &w, now, want)
				now += rapid.Int64Range(1, 2*wheelSlots).Draw(t, "pass")
				w.advance(now, func(c *conn) {
					if at, ok := want[c]; !ok || at > now {
						t.Fatalf("visited slot %d at %d, due %d", c.slot, now, at)
					}
					delete(want, c)
				})
				for c, at := range want {
					if at <= now {
						t.Fatalf("slot %d, due %d, missed at %d", c.slot, at, now)
					}
				}
			}
		}
	})
}

func checkNext(t *rapid.T, w *wheel, now int64, want map[*conn]int64) {
	d, ok := w.next(time.Duration(now) * w.tick)
	if ok != (len(want) > 0) {
		t.Fatalf("next says %v with %d entries", ok, len(want))
	}
	for c, at := range want {
		if d > time.Duration(at)*w.tick {
			t.Fatalf("next is %v, slot %d due at tick %d", d, c.slot, at)
		}
	}
}

func slots(n int) *slab.Slab[conn] { return slab.New(n, func(c *conn, slot uint32) { c.slot = slot }) }

// TestWheelAgain files an entry again from its own visit.
func TestWheelAgain(t *testing.T) {
	w := wheel{slab: slots(4), tick: time.Millisecond, now: 1}
	a, b := w.slab.Take(), w.slab.Take()
	w.add(a, 10)
	w.add(b, 10)
	visits := 0
	due := func(c *conn) {
		visits++
		w.add(c, uint32(w.now)+wheelSlots)
	}
	for now := int64(2); now < 10+3*wheelSlots; now++ {
		w.advance(now, due)
	}
	if visits != 6 {
		t.Errorf("%d visits", visits)
	}
}
