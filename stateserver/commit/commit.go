// Package commit is the group commit of the reference logic tier. All messages of one conversation go through one
// committer, which runs one transaction at a time over whatever has gathered meanwhile:
//
//  1. take      what waits, within the bounds of a batch
//  2. start     each item may still say no (it waited too long, or one before it failed)
//  3. number    message ids, begun with the delivery before COMMIT, so that the delivery mark cannot pass them
//  4. append    one transaction; its outcome is known before the next one starts, however long that takes
//  5. answer    every item
//  6. deliver   what was stored, in order
//
// (design: guarantees 1 to 4)
package commit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-im/sluice/stateserver/store"
)

// Errors with which an item ends.
var (
	// ErrFull: the committer's queue is full; nothing was done.
	ErrFull = errors.New("too many messages wait for the store")
	// ErrStopped: the committers are ending; nothing was done.
	ErrStopped = errors.New("committers have stopped")
	// ErrNotKnown: the item was to be answered only if it had been stored before, and it had not.
	ErrNotKnown = errors.New("not stored before")
)

// Item is one message on its way to the store. Its methods are called by one goroutine at a time.
type Item interface {
	// Message is what to store; the committer sets MsgID and ServerAt, and Seq in the end.
	Message() *store.Message
	// Start is asked just before the item joins a transaction. After false nothing more is called.
	Start() Start
	// Done ends an item that was started. After an error nothing was stored. It must not block.
	Done(r store.Result, err error)
}

// Start is an item's answer to whether it shall run.
type Start uint8

const (
	// No: the item was answered already.
	No Start = iota
	// Insert stores it, or finds it stored.
	Insert
	// OnlyKnown finds it stored, else it ends with ErrNotKnown: storing it now would break the order of its sender.
	OnlyKnown
)

// IDs draws message ids of the node that this process holds.
type IDs interface {
	// NextID is the next id and its time in ms since 1970.
	NextID() (id, at int64, err error)
	// Lease is the node that the ids are of.
	Lease() store.NodeLease
}

// Delivery is told of ids before COMMIT and of messages after it.
type Delivery interface {
	Begin(msgIDs []int64)
	Abandon(msgIDs []int64)
	// Deliver takes items that were stored by this process, in order; it may block.
	Deliver(ctx context.Context, stored []Item)
}

// Store is what committers need of the store.
type Store interface {
	store.Appender
	Find(ctx context.Context, keys []store.Key) (map[store.Key]store.Result, error)
}

// Observer is told of each transaction; nil fields are not called.
type Observer struct {
	// Transaction: its size, how long it took, and how it ended.
	Transaction func(items int, took time.Duration, err error)
	// Collision: an id that was taken; an alarm.
	Collision func()
}

// Config is what committers are made with; zero values of bounds take the defaults.
type Config struct {
	// Committers is how many transactions may run at once; 0 = what the store gains from.
	Committers int
	// QueueMax and QueueBytesMax bound what waits for one committer. Default 16,384 and 64 MiB: at 80,000 messages/s it is
	// as much as one may wait for (200 ms).
	QueueMax      int
	QueueBytesMax int
	// BatchMax and BatchBytesMax bound one transaction. Default 512 and 4 MiB: by then the cost of a sync is nothing beside
	// the rows, and a transaction stays short.
	BatchMax      int
	BatchBytesMax int
}

func (c *Config) fill(s Store) {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Committers, s.Parallel())
	def(&c.QueueMax, 16384)
	def(&c.QueueBytesMax, 64<<20)
	def(&c.BatchMax, 512)
	def(&c.BatchBytesMax, 4<<20)
}

// Deps are what committers work with.
type Deps struct {
	Store    Store
	IDs      IDs
	Delivery Delivery
	Observer Observer
	Log      *slog.Logger
	// Failpoint is called at store.after_commit.
	Failpoint func(name string)
}

// Committers store messages. Submit may be called from any goroutine.
type Committers struct {
	cfg        Config
	deps       Deps
	committers []*committer

	// numbering is held while ids are drawn and begun: a higher id must not be settled before a lower one is begun.
	numbering sync.Mutex
}

// New makes committers; Run runs them.
func New(cfg Config, deps Deps) *Committers {
	cfg.fill(deps.Store)
	c := &Committers{cfg: cfg, deps: deps}
	for range cfg.Committers {
		c.committers = append(c.committers, &committer{all: c, wake: make(chan struct{}, 1)})
	}
	return c
}

// Run works until ctx ends; what waits then is answered with ErrStopped.
func (c *Committers) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, k := range c.committers {
		wg.Go(func() { k.run(ctx) })
	}
	wg.Wait()
}

// Submit queues an item behind what was submitted before for its conversation; ErrFull or ErrStopped when it was not taken.
func (c *Committers) Submit(it Item) error {
	conv := it.Message().ConvID
	return c.committers[xxhash.Sum64String(conv)%uint64(len(c.committers))].put(it)
}

// Waiting is how many items wait for a transaction.
func (c *Committers) Waiting() int {
	n := 0
	for _, k := range c.committers {
		k.mu.Lock()
		n += len(k.queue)
		k.mu.Unlock()
	}
	return n
}

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

// Pauses between two looks at an unknown outcome.
const (
	resolvePauseMin = 10 * time.Millisecond
	resolvePauseMax = time.Second
)

// resolve finds out what a transaction whose COMMIT failed has left. Until that is known, the next transaction of these
// conversations must not start: it could overtake. Those who wait are answered RETRY by their own deadline meanwhile.
func (k *committer) resolve(ctx context.Context, b *store.Batch) ([]store.Result, error) {
	keys := make([]store.Key, len(b.Messages))
	for i := range b.Messages {
		keys[i] = store.Key{FromUID: b.Messages[i].FromUID, UUID: b.Messages[i].UUID}
	}
	for pause := resolvePauseMin; ; pause = min(2*pause, resolvePauseMax) {
		found, err := k.all.deps.Store.Resolve(ctx, keys)
		if err == nil {
			return k.resolved(b, keys, found)
		}
		k.all.deps.Log.Warn("outcome of a commit is still unknown", "messages", len(keys), "err", err)
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", store.ErrUnknown, ctx.Err())
		case <-time.After(pause):
		}
	}
}

// errNotCommitted: the transaction turned out not to have happened.
var errNotCommitted = errors.New("the transaction was not committed")

func (k *committer) resolved(b *store.Batch, keys []store.Key, found map[store.Key]store.Result) ([]store.Result, error) {
	mine := make(map[int64]bool, len(k.ids))
	for _, id := range k.ids {
		mine[id] = true
	}
	results := make([]store.Result, len(keys))
	first := make(map[store.Key]bool, len(keys))
	committed, missing := false, false
	for i, key := range keys {
		r, ok := found[key]
		if !ok {
			// If the transaction is there, this one was refused by it.
			missing = true
			results[i] = store.Result{Outcome: store.NoGroup, ConvID: b.Messages[i].ConvID}
			continue
		}
		results[i] = asCopy(r, &b.Messages[i])
		if mine[r.MsgID] {
			committed = true
			if !first[key] {
				first[key] = true
				results[i].Outcome = store.Stored
			}
		}
	}
	if missing && !committed {
		return nil, errNotCommitted
	}
	return results, nil
}
