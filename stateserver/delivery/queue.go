package delivery

import (
	"context"
	"sync"
)

// queue is first in, first out, bounded by count and by cost (bytes). One item always fits into an empty queue. Any
// number of goroutines may put; a consumer calls poll and, when nothing came, waits for ready.
type queue[T any] struct {
	countMax, costMax int
	// ready has a value when there may be something to poll; it is closed by close.
	ready chan struct{}

	mu sync.Mutex
	// Guarded by mu.
	items  []costed[T]
	cost   int
	closed bool
	// room is closed, and replaced, when somebody who waits for it may try again.
	room    chan struct{}
	waiting int
}

type costed[T any] struct {
	item T
	cost int
}

func newQueue[T any](countMax, costMax int) *queue[T] {
	return &queue[T]{countMax: countMax, costMax: costMax, ready: make(chan struct{}, 1), room: make(chan struct{})}
}

// put waits for room. It returns the context's error, or ErrStopped after close.
func (q *queue[T]) put(ctx context.Context, item T, cost int) error {
	q.mu.Lock()
	for !q.closed && !q.fits(cost) {
		room := q.room
		q.waiting++
		q.mu.Unlock()
		var err error
		select {
		case <-room:
		case <-ctx.Done():
			err = ctx.Err()
		}
		q.mu.Lock()
		q.waiting--
		if err != nil {
			q.mu.Unlock()
			return err
		}
	}
	defer q.mu.Unlock()
	if q.closed {
		return ErrStopped
	}
	q.add(item, cost)
	return nil
}

// offer takes the item if there is room.
func (q *queue[T]) offer(item T, cost int) bool {
	return q.offerAll([]costed[T]{{item, cost}}) == 1
}

// offerAll takes items from the front while there is room, all at once for the consumer, and says how many.
func (q *queue[T]) offerAll(items []costed[T]) (taken int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for ; taken < len(items) && !q.closed && q.fits(items[taken].cost); taken++ {
		q.add(items[taken].item, items[taken].cost)
	}
	return taken
}

// force takes the item whether there is room or not; the caller has a bound of its own. A closed queue drops it.
func (q *queue[T]) force(item T, cost int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.add(item, cost)
	}
}

func (q *queue[T]) fits(cost int) bool {
	return len(q.items) == 0 || len(q.items) < q.countMax && q.cost+cost <= q.costMax
}

func (q *queue[T]) add(item T, cost int) {
	q.items = append(q.items, costed[T]{item, cost})
	q.cost += cost
	q.wake()
}

func (q *queue[T]) wake() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// poll appends to dst what is there, at most countMax items and about costMax of cost, at least one item. open is false
// when the queue is closed and will stay empty.
func (q *queue[T]) poll(dst []T, countMax, costMax int) (batch []T, open bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, cost := 0, 0
	for n < len(q.items) && n < countMax && (n == 0 || cost+q.items[n].cost <= costMax) {
		dst = append(dst, q.items[n].item)
		cost += q.items[n].cost
		n++
	}
	clear(q.items[:n])
	q.items = q.items[n:]
	q.cost -= cost
	if n > 0 && q.waiting > 0 {
		close(q.room)
		q.room = make(chan struct{})
	}
	if len(q.items) > 0 && !q.closed {
		q.wake()
	}
	return dst, !q.closed || len(q.items) > 0
}

func (q *queue[T]) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.items)
}

// close lets nothing more in; what is there can still be polled. Calling it twice is harmless.
func (q *queue[T]) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.closed = true
	close(q.ready)
	close(q.room)
}
