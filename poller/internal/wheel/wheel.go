// Package wheel holds coarse timers, one a connection, in intrusive lists: a timer costs no memory beyond its Node, and
// setting it costs no system call.
package wheel

import (
	"math"
	"math/bits"
	"time"
)

// slots of a wheel: at a tick of 50 ms one turn takes 51 s, so that a timer of an idle connection (75 s) is looked at once
// in between.
const slots = 1024

// ticksMax keeps differences of 32-bit ticks meaningful: a later timer is cut to it (20 months at 50 ms).
const ticksMax = 1 << 30

// Node is a connection's place in the wheel.
type Node struct {
	at         uint32
	prev, next uint32 // slot+1 of the neighbours; prev is first at the head of a list, and 0 out of the wheel
}

// first stands for the neighbour before the head of a list; it is no slot+1, since a slab is far smaller.
const first = math.MaxUint32

func (n *Node) in() bool { return n.prev != 0 }

// Wheel holds the timers of one goroutine. It is lazy: a deadline that moves back or is taken away leaves the entry where
// it is, and the visit finds out.
type Wheel struct {
	tick  time.Duration
	node  func(slot uint32) *Node
	now   int64 // the last tick that was visited; nodes hold its low 32 bits
	heads [slots]uint32
	bits  [slots / 64]uint64
}

// New is an empty wheel of the given grain; node finds the Node of a connection by its slot.
func New(tick time.Duration, node func(slot uint32) *Node) *Wheel {
	return &Wheel{tick: tick, node: node}
}

// Visited is the last tick that was visited.
func (w *Wheel) Visited() int64 { return w.now }

// Floor is the tick that has begun at d.
func (w *Wheel) Floor(d time.Duration) int64 { return int64(d / w.tick) }

// Ceil is the first tick that does not begin before d. It is never 0, which may stand for "no timer".
func (w *Wheel) Ceil(d time.Duration) uint32 {
	t := min(int64((d+w.tick-1)/w.tick), w.now+ticksMax)
	return max(uint32(t), 1)
}

// Before compares ticks across the turn of the 32-bit counter.
func Before(a, b uint32) bool { return int32(a-b) < 0 }

// add files the connection in slot under tick at; it is not in the wheel.
func (w *Wheel) add(n *Node, slot, at uint32) {
	if !Before(uint32(w.now), at) {
		at = uint32(w.now + 1)
	}
	i := at % slots
	*n = Node{at: at, prev: first, next: w.heads[i]}
	if n.next != 0 {
		w.node(n.next - 1).prev = slot + 1
	}
	w.heads[i] = slot + 1
	w.bits[i/64] |= 1 << (i % 64)
}

// Remove takes the connection in slot out, if it is in.
func (w *Wheel) Remove(slot uint32) {
	n := w.node(slot)
	if !n.in() {
		return
	}
	i := n.at % slots
	if n.next != 0 {
		w.node(n.next - 1).prev = n.prev
	}
	if n.prev != first {
		w.node(n.prev - 1).next = n.next
	} else if w.heads[i] = n.next; n.next == 0 {
		w.bits[i/64] &^= 1 << (i % 64)
	}
	*n = Node{}
}

// Ensure files the connection in slot under tick at, or leaves it where an earlier visit will look at it anyway.
func (w *Wheel) Ensure(slot, at uint32) {
	n := w.node(slot)
	if n.in() {
		if !Before(at, n.at) {
			return
		}
		w.Remove(slot)
	}
	w.add(n, slot, at)
}

// Advance visits the ticks up to now and calls due for each connection whose entry has come; the entry is out by then. due
// may file that connection again.
func (w *Wheel) Advance(now int64, due func(slot uint32)) {
	w.now = max(w.now, now-slots)
	for w.now < now {
		w.now++
		for i := w.heads[w.now%slots]; i != 0; {
			slot := i - 1
			n := w.node(slot)
			i = n.next
			if !Before(uint32(now), n.at) {
				w.Remove(slot)
				due(slot)
			}
		}
	}
}

// Next is how long after now the wheel wants to be visited; false when it is empty.
func (w *Wheel) Next(now time.Duration) (time.Duration, bool) {
	start := uint32(w.now+1) % slots
	word, shift := start/64, start%64
	for n := uint32(0); n <= slots/64; n++ {
		at := (word + n) % (slots / 64)
		set := w.bits[at]
		if n == 0 {
			set &= ^uint64(0) << shift
		}
		if set != 0 {
			slot := at*64 + uint32(bits.TrailingZeros64(set))
			ticks := (slot-start)%slots + 1
			return max(time.Duration(w.now+int64(ticks))*w.tick-now, 0), true
		}
	}
	return 0, false
}
