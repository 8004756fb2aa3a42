package poller

import (
	"math/bits"
	"time"

	"github.com/sluice-im/sluice/poller/internal/slab"
)

// wheelSlots is the number of slots of a wheel: at the default tick of 50 ms one turn takes 51 s, so that a timer of an
// idle connection (75 s) is looked at once in between.
const wheelSlots = 1024

// ticksMax keeps differences of 32-bit ticks meaningful: a later timer is cut to it (17 months at 50 ms).
const ticksMax = 1 << 30

// wheel holds the timers of one loop: an intrusive list per slot, one entry a connection. It is lazy: a deadline that
// moves back or is taken away leaves the entry where it is, and the visit finds out. Only the loop touches it.
type wheel struct {
	slab  *slab.Slab[conn]
	tick  time.Duration
	now   int64 // the last tick that was visited; entries hold its low 32 bits
	heads [wheelSlots]uint32
	bits  [wheelSlots / 64]uint64
}

// floor is the tick that has begun at d.
func (w *wheel) floor(d time.Duration) int64 { return int64(d / w.tick) }

// ceil is the first tick that does not begin before d. It is never 0, which stands for "no timer".
func (w *wheel) ceil(d time.Duration) uint32 {
	t := min(int64((d+w.tick-1)/w.tick), w.now+ticksMax)
	return max(uint32(t), 1)
}

// before compares ticks across the turn of the 32-bit counter.
func before(a, b uint32) bool { return int32(a-b) < 0 }

// add files c under tick at; c is not in the wheel.
func (w *wheel) add(c *conn, at uint32) {
	if !before(uint32(w.now), at) {
		at = uint32(w.now + 1)
	}
	i := at % wheelSlots
	c.wheelAt, c.wheelIn, c.prev, c.next = at, true, 0, w.heads[i]
	if c.next != 0 {
		w.slab.At(c.next - 1).prev = c.slot + 1
	}
	w.heads[i] = c.slot + 1
	w.bits[i/64] |= 1 << (i % 64)
}

// remove takes c out, if it is in.
func (w *wheel) remove(c *conn) {
	if !c.wheelIn {
		return
	}
	i := c.wheelAt % wheelSlots
	if c.next != 0 {
		w.slab.At(c.next - 1).prev = c.prev
	}
	if c.prev != 0 {
		w.slab.At(c.prev - 1).next = c.next
	} else if w.heads[i] = c.next; c.next == 0 {
		w.bits[i/64] &^= 1 << (i % 64)
	}
	c.wheelIn, c.prev, c.next = false, 0, 0
}

// ensure files c under tick at or leaves it where an earlier visit will look at it anyway.
func (w *wheel) ensure(c *conn, at uint32) {
	if c.wheelIn {
		if !before(at, c.wheelAt) {
			return
		}
		w.remove(c)
	}
	w.add(c, at)
}

// advance visits the ticks up to now and calls due for each connection whose entry has come; the entry is out by then.
// due may file that connection again.
func (w *wheel) advance(now int64, due func(*conn)) {
	w.now = max(w.now, now-wheelSlots)
	for w.now < now {
		w.now++
		for i := w.heads[w.now%wheelSlots]; i != 0; {
			c := w.slab.At(i - 1)
			i = c.next
			if !before(uint32(now), c.wheelAt) {
				w.remove(c)
				due(c)
			}
		}
	}
}

// next is when the wheel wants to be visited, not before now; false when it is empty.
func (w *wheel) next(now time.Duration) (time.Duration, bool) {
	start := uint32(w.now+1) % wheelSlots
	word, shift := start/64, start%64
	for n := uint32(0); n <= wheelSlots/64; n++ {
		at := (word + n) % (wheelSlots / 64)
		set := w.bits[at]
		if n == 0 {
			set &= ^uint64(0) << shift
		}
		if set != 0 {
			slot := at*64 + uint32(bits.TrailingZeros64(set))
			ticks := (slot-start)%wheelSlots + 1
			return max(time.Duration(w.now+int64(ticks))*w.tick, now), true
		}
	}
	return 0, false
}
