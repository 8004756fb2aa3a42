package commit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-im/sluice/stateserver/store"
)

type committer struct {
	all  *Committers
	wake chan struct{}

	mu sync.Mutex
	// Guarded by mu.
	queue   []Item
	bytes   int
	stopped bool

	// Owned by run.
	spare []Item
	batch []Item
	ids   []int64
}

func size(m *store.Message) int { return len(m.Content) + len(m.Body) + 256 }

func (k *committer) put(it Item) error {
	n := size(it.Message())
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.stopped:
		return ErrStopped
	case len(k.queue) >= k.all.cfg.QueueMax || (k.bytes+n > k.all.cfg.QueueBytesMax && len(k.queue) > 0):
		return ErrFull
	}
	k.queue = append(k.queue, it)
	k.bytes += n
	select {
	case k.wake <- struct{}{}:
	default:
	}
	return nil
}

func (k *committer) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			k.stop()
			return
		case <-k.wake:
		}
		for ctx.Err() == nil && k.round(ctx) {
		}
	}
}

func (k *committer) stop() {
	k.mu.Lock()
	rest := k.queue
	k.queue, k.stopped = nil, true
	k.mu.Unlock()
	for _, it := range rest {
		if it.Start() != No {
			it.Done(store.Result{}, ErrStopped)
		}
	}
}

// take moves what waits, within the bounds of a batch, to the front of spare.
func (k *committer) take() []Item {
	k.mu.Lock()
	defer k.mu.Unlock()
	n, bytes := 0, 0
	for n < len(k.queue) && n < k.all.cfg.BatchMax {
		s := size(k.queue[n].Message())
		if n > 0 && bytes+s > k.all.cfg.BatchBytesMax {
			break
		}
		n, bytes = n+1, bytes+s
	}
	taken := append(k.spare[:0], k.queue[:n]...)
	rest := copy(k.queue, k.queue[n:])
	clear(k.queue[rest:])
	k.queue, k.bytes = k.queue[:rest], k.bytes-bytes
	k.spare = taken
	return taken
}

// round runs one transaction; false when nothing waited.
func (k *committer) round(ctx context.Context) bool {
	taken := k.take()
	if len(taken) == 0 {
		return false
	}
	k.batch = k.batch[:0]
	var known []Item
	inBatch := func(it Item) bool {
		key := keyOf(it)
		for _, b := range k.batch {
			if keyOf(b) == key {
				return true
			}
		}
		return false
	}
	for _, it := range taken {
		switch it.Start() {
		case Insert:
			k.batch = append(k.batch, it)
		case OnlyKnown:
			// Its first copy may be in this very transaction; then the store tells it.
			if inBatch(it) {
				k.batch = append(k.batch, it)
			} else {
				known = append(known, it)
			}
		}
	}
	k.answerKnown(ctx, known)
	if len(k.batch) > 0 {
		k.commit(ctx)
	}
	clear(taken)
	clear(k.batch)
	return true
}

func keyOf(it Item) store.Key {
	m := it.Message()
	return store.Key{FromUID: m.FromUID, UUID: m.UUID}
}

// answerKnown answers items that must not be inserted any more.
func (k *committer) answerKnown(ctx context.Context, items []Item) {
	if len(items) == 0 {
		return
	}
	keys := make([]store.Key, len(items))
	for i, it := range items {
		keys[i] = keyOf(it)
	}
	found, err := k.all.deps.Store.Find(ctx, keys)
	for i, it := range items {
		r, ok := found[keys[i]]
		switch {
		case err != nil:
			it.Done(store.Result{}, err)
		case !ok:
			it.Done(store.Result{}, ErrNotKnown)
		default:
			it.Done(asCopy(r, it.Message()), nil)
		}
	}
}

// asCopy is what a stored message is for another copy of it.
func asCopy(r store.Result, m *store.Message) store.Result {
	r.Outcome = store.Duplicate
	if r.Hash != m.Hash {
		r.Outcome = store.Reused
	}
	return r
}

// number gives the items of the batch their ids and begins them.
func (c *Committers) number(ids []int64, items []Item) ([]int64, error) {
	c.numbering.Lock()
	defer c.numbering.Unlock()
	for _, it := range items {
		id, at, err := c.deps.IDs.NextID()
		if err != nil {
			return ids, fmt.Errorf("draw a message id: %w", err)
		}
		m := it.Message()
		m.MsgID, m.ServerAt = id, at
		ids = append(ids, id)
	}
	c.deps.Delivery.Begin(ids)
	return ids, nil
}

func (k *committer) commit(ctx context.Context) {
	d := &k.all.deps
	// The lease is read first: if the node changes in between, the transaction is refused by the fence.
	lease := d.IDs.Lease()
	var err error
	if k.ids, err = k.all.number(k.ids[:0], k.batch); err != nil {
		k.answer(nil, err)
		return
	}
	b := &store.Batch{Lease: lease, Messages: make([]store.Message, len(k.batch)), NewID: func() (int64, int64, error) {
		k.all.numbering.Lock()
		defer k.all.numbering.Unlock()
		id, at, err := d.IDs.NextID()
		if err != nil {
			return 0, 0, fmt.Errorf("draw a message id: %w", err)
		}
		d.Delivery.Begin([]int64{id})
		k.ids = append(k.ids, id)
		return id, at, nil
	}}
	for i, it := range k.batch {
		b.Messages[i] = *it.Message()
	}
	begin := time.Now()
	results, err := d.Store.Append(ctx, b)
	if d.Observer.Transaction != nil {
		d.Observer.Transaction(len(k.batch), time.Since(begin), err)
	}
	if errors.Is(err, store.ErrUnknown) {
		d.Log.Error("outcome of a commit is unknown", "messages", len(k.batch), "err", err)
		results, err = k.resolve(ctx, b)
		if errors.Is(err, store.ErrUnknown) {
			// Not even now, and we are ending: the ids stay begun, so the mark stays below them and the next start
			// looks at the rows themselves.
			k.answer(nil, err)
			return
		}
	}
	if err != nil {
		d.Delivery.Abandon(k.ids)
		k.answer(nil, err)
		return
	}
	d.Failpoint("store.after_commit")
	k.finish(ctx, results)
}

// finish answers everybody and hands over what this transaction stored.
func (k *committer) finish(ctx context.Context, results []store.Result) {
	d := &k.all.deps
	stored := make([]Item, 0, len(results))
	used := make(map[int64]bool, len(results))
	for i := range results {
		r, m := &results[i], k.batch[i].Message()
		if r.Collided && d.Observer.Collision != nil {
			d.Observer.Collision()
		}
		if r.Outcome == store.Stored {
			m.MsgID, m.Seq, m.ServerAt = r.MsgID, r.Seq, r.ServerAt
			used[r.MsgID] = true
			stored = append(stored, k.batch[i])
		}
	}
	unused := k.ids[:0]
	for _, id := range k.ids {
		if !used[id] {
			unused = append(unused, id)
		}
	}
	if len(unused) > 0 {
		d.Delivery.Abandon(unused)
	}
	k.answer(results, nil)
	if len(stored) > 0 {
		d.Delivery.Deliver(ctx, stored)
	}
}

func (k *committer) answer(results []store.Result, err error) {
	for i, it := range k.batch {
		if err != nil {
			it.Done(store.Result{}, err)
			continue
		}
		it.Done(results[i], nil)
	}
}
