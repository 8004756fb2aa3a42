package gateway

import "sync"

// gather collects what many ask for until somebody takes it all: the batch grows while the one before is in work, with
// no timer.
type gather[T any] struct {
	mu   sync.Mutex
	some *sync.Cond
	// Guarded by mu.
	items   []T
	max     int
	closed  bool
	dropped uint64
}

func newGather[T any](most int) *gather[T] {
	q := &gather[T]{max: most}
	q.some = sync.NewCond(&q.mu)
	return q
}

// put adds an item; false when the bound is reached, which is counted, or when the gather is closed.
func (q *gather[T]) put(item T) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	if len(q.items) >= q.max {
		q.dropped++
		return false
	}
	q.items = append(q.items, item)
	q.some.Signal()
	return true
}

// take waits for something and returns up to most of it, appended to batch; ok is false once the gather is closed and
// empty.
func (q *gather[T]) take(batch []T, most int) (_ []T, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.items) == 0 && !q.closed {
		q.some.Wait()
	}
	n := min(most, len(q.items))
	batch = append(batch, q.items[:n]...)
	rest := copy(q.items, q.items[n:])
	clear(q.items[rest:])
	q.items = q.items[:rest]
	if rest > 0 {
		q.some.Signal()
	}
	return batch, n > 0
}

// close lets takers finish what is there, and then end.
func (q *gather[T]) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.some.Broadcast()
}

// depth is how many items wait, and how many were dropped.
func (q *gather[T]) depth() (waiting int, dropped uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items), q.dropped
}
