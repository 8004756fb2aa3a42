package stateclient

// wheelBuckets spread Config.Timeout: one timer a lane, armed for the first bucket that holds something, is late by at
// most a 64th of the timeout (5 ms for 300 ms).
const wheelBuckets = 64

// wheel sorts the items of a lane by deadline. Deadlines lie at most Config.Timeout ahead, so an item's bucket comes up
// in the first round; when the clock has run ahead of due (a paused process), an item met a round early stays.
type wheel struct {
	// tick is the width of a bucket in nanoseconds.
	tick int64
	// done is the last tick whose bucket holds nothing that was due.
	done    int64
	count   int
	buckets [wheelBuckets + 2]list
}

func newWheel(timeout int64) wheel { return wheel{tick: max(timeout/wheelBuckets, 1)} }

// dueTick is the first tick at whose beginning the deadline has passed.
func (w *wheel) dueTick(deadline int64) int64 { return deadline/w.tick + 1 }

func (w *wheel) add(s *slab, i int32, now int64) {
	if w.count == 0 {
		w.done = now / w.tick
	}
	w.put(s, i, max(w.dueTick(s.items[i].deadline), w.done+1))
}

func (w *wheel) put(s *slab, i int32, tick int64) {
	w.count++
	b := int32(tick % int64(len(w.buckets)))
	s.items[i].bucket = b
	s.push(&w.buckets[b], wheelLink, i)
}

func (w *wheel) remove(s *slab, i int32) {
	w.count--
	s.remove(&w.buckets[s.items[i].bucket], wheelLink, i)
}

// postpone moves an item that is due and cannot be answered yet to the next tick.
func (w *wheel) postpone(s *slab, i int32, now int64) {
	w.remove(s, i)
	w.put(s, i, now/w.tick+1)
}

// next is the time at which the first bucket that holds something comes up; the end of time when none does.
func (w *wheel) next() int64 {
	if w.count == 0 {
		return never
	}
	n := int64(len(w.buckets))
	for t := w.done + 1; t < w.done+n; t++ {
		if w.buckets[t%n].head != 0 {
			return t * w.tick
		}
	}
	return (w.done + n) * w.tick
}

// due returns an item whose deadline has passed, or 0. The item stays: the caller removes or postpones it.
func (w *wheel) due(s *slab, now int64) int32 {
	n, last := int64(len(w.buckets)), now/w.tick
	for t := w.done + 1; t <= last && w.count > 0; t++ {
		for i := w.buckets[t%n].head; i != 0; i = s.items[i].links[wheelLink].next {
			if w.dueTick(s.items[i].deadline) <= last {
				return i
			}
		}
		w.done = t
	}
	return 0
}
