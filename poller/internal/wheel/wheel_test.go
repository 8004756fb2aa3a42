package wheel

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestWheel compares the wheel with a map of deadlines: no entry is visited early, none is missed, and Next never promises
// a visit later than the first deadline.
func TestWheel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const conns = 20
		var nodes [conns]Node
		tick := rapid.SampledFrom([]time.Duration{time.Millisecond, 50 * time.Millisecond}).Draw(t, "tick")
		now := rapid.SampledFrom([]int64{1, 5000, 1<<32 - 700}).Draw(t, "start")
		w := New(tick, func(slot uint32) *Node { return &nodes[slot] })
		w.Advance(now, func(slot uint32) { t.Fatalf("an empty wheel visits %d", slot) })
		want := map[uint32]int64{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			slot := rapid.Uint32Range(0, conns-1).Draw(t, "slot")
			switch rapid.IntRange(0, 3).Draw(t, "op") {
			case 0, 1:
				after := rapid.Int64Range(-3, 3*slots).Draw(t, "after")
				if old, ok := want[slot]; !ok || now+after < old {
					want[slot] = max(now+after, now+1)
				}
				w.Ensure(slot, w.Ceil(time.Duration(now+after)*tick))
			case 2:
				w.Remove(slot)
				delete(want, slot)
			case 3:
				checkNext(t, w, now, want)
				now += rapid.Int64Range(1, 2*slots).Draw(t, "pass")
				w.Advance(now, func(slot uint32) {
					if at, ok := want[slot]; !ok || at > now {
						t.Fatalf("visited slot %d at %d, due %d", slot, now, at)
					}
					delete(want, slot)
				})
				for slot, at := range want {
					if at <= now {
						t.Fatalf("slot %d, due %d, missed at %d", slot, at, now)
					}
				}
			}
		}
	})
}

func checkNext(t *rapid.T, w *Wheel, now int64, want map[uint32]int64) {
	d, ok := w.Next(time.Duration(now) * w.tick)
	if ok != (len(want) > 0) {
		t.Fatalf("Next says %v with %d entries", ok, len(want))
	}
	for slot, at := range want {
		if d > time.Duration(at-now)*w.tick {
			t.Fatalf("Next is in %v, slot %d due in %d ticks", d, slot, at-now)
		}
	}
}

// TestAgain files entries again from their own visit.
func TestAgain(t *testing.T) {
	var nodes [2]Node
	w := New(time.Millisecond, func(slot uint32) *Node { return &nodes[slot] })
	w.Ensure(0, 10)
	w.Ensure(1, 10)
	visits := 0
	for now := int64(1); now < 10+3*slots; now++ {
		w.Advance(now, func(slot uint32) {
			visits++
			w.Ensure(slot, uint32(w.Visited())+slots)
		})
	}
	if visits != 6 {
		t.Errorf("%d visits", visits)
	}
}
