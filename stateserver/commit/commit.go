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
