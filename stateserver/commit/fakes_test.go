package commit

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-im/sluice/internal/testenv/leaks"
	"github.com/sluice-im/sluice/stateserver/store"
)

func TestMain(m *testing.M) { leaks.Main(m) }

const waitMax = 60 * time.Second

// fakeStore keeps rows in memory. It fails and lies when told to.
type fakeStore struct {
	mu sync.Mutex
	// Guarded by mu.
	rows      map[store.Key]store.Result
	last      map[string]int64
	batches   []int
	lies      []lie
	resolves  []error
	collide   bool
	parallel  int
	running   map[string]bool
	overlaps  int
	hold      chan struct{}
	appending chan struct{}
}

// lie is what the next Append does instead of its work.
type lie struct {
	err    error
	effect bool
}

func newFakeStore() *fakeStore {
	return &fakeStore{rows: map[store.Key]store.Result{}, last: map[string]int64{}, parallel: 1, running: map[string]bool{}, appending: make(chan struct{}, 1000)}
}

func (f *fakeStore) Parallel() int { return f.parallel }

func (f *fakeStore) enter(b *store.Batch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.batches = append(f.batches, len(b.Messages))
	for _, m := range b.Messages {
		if f.running[m.ConvID] {
			f.overlaps++
		}
	}
	for _, m := range b.Messages {
		f.running[m.ConvID] = true
	}
}

func (f *fakeStore) Append(_ context.Context, b *store.Batch) ([]store.Result, error) {
	f.enter(b)
	f.appending <- struct{}{}
	if f.hold != nil {
		<-f.hold
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.running)
	var l lie
	if len(f.lies) > 0 {
		l, f.lies = f.lies[0], f.lies[1:]
	}
	if l.err != nil && !l.effect {
		return nil, l.err
	}
	results := make([]store.Result, len(b.Messages))
	for i := range b.Messages {
		m := &b.Messages[i]
		k := store.Key{FromUID: m.FromUID, UUID: m.UUID}
		if m.ConvID == "g:none" {
			results[i] = store.Result{Outcome: store.NoGroup}
			continue
		}
		if old, ok := f.rows[k]; ok {
			results[i] = asCopy(old, m)
			continue
		}
		id, at := m.MsgID, m.ServerAt
		if f.collide {
			var err error
			if id, at, err = b.NewID(); err != nil {
				return nil, err
			}
		}
		f.last[m.ConvID]++
		results[i] = store.Result{Outcome: store.Stored, MsgID: id, ConvID: m.ConvID, Seq: f.last[m.ConvID], ServerAt: at, Hash: m.Hash, Collided: f.collide}
		f.rows[k] = results[i]
	}
	return results, l.err
}

func (f *fakeStore) Resolve(ctx context.Context, keys []store.Key) (map[store.Key]store.Result, error) {
	f.mu.Lock()
	if len(f.resolves) > 0 {
		err := f.resolves[0]
		f.resolves = f.resolves[1:]
		f.mu.Unlock()
		return nil, err
	}
	f.mu.Unlock()
	return f.Find(ctx, keys)
}

func (f *fakeStore) Find(_ context.Context, keys []store.Key) (map[store.Key]store.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := map[store.Key]store.Result{}
	for _, k := range keys {
		if r, ok := f.rows[k]; ok {
			r.Outcome = store.Duplicate
			out[k] = r
		}
	}
	return out, nil
}

// fakeIDs counts; it fails when told to.
type fakeIDs struct {
	mu   sync.Mutex
	next int64
	err  error
}

func (f *fakeIDs) NextID() (int64, int64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	return f.next, 1000 + f.next, f.err
}

func (f *fakeIDs) Lease() store.NodeLease { return store.NodeLease{Node: 1, Owner: "me"} }

// fakeDelivery knows which ids are open.
type fakeDelivery struct {
	t  *testing.T
	mu sync.Mutex
	// Guarded by mu.
	open      map[int64]bool
	delivered []store.Message
	highest   int64
}

func (d *fakeDelivery) Begin(ids []int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range ids {
		if id <= d.highest {
			d.t.Errorf("id %d begun after %d", id, d.highest)
		}
		d.highest = id
		d.open[id] = true
	}
}

func (d *fakeDelivery) Abandon(ids []int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range ids {
		delete(d.open, id)
	}
}

func (d *fakeDelivery) Deliver(_ context.Context, stored []Item) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, it := range stored {
		m := it.Message()
		if !d.open[m.MsgID] {
			d.t.Errorf("message %d was delivered and not begun", m.MsgID)
		}
		delete(d.open, m.MsgID)
		d.delivered = append(d.delivered, *m)
	}
}

func (d *fakeDelivery) state() (open []int64, delivered []store.Message) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.open)), slices.Clone(d.delivered)
}

type item struct {
	m     store.Message
	start Start
	done  chan outcome
}

type outcome struct {
	r   store.Result
	err error
}

func (it *item) Message() *store.Message { return &it.m }
func (it *item) Start() Start            { return it.start }
func (it *item) Done(r store.Result, err error) {
	it.done <- outcome{r, err}
}

func newItem(from, conv, uuid string) *item {
	return &item{m: store.Message{FromUID: from, UUID: uuid, ConvID: conv, Hash: 7}, start: Insert, done: make(chan outcome, 1)}
}

func (it *item) wait(t *testing.T) outcome {
	t.Helper()
	select {
	case o := <-it.done:
		return o
	case <-time.After(waitMax):
		t.Fatalf("no answer for %s", it.m.UUID)
		return outcome{}
	}
}

type rig struct {
	*Committers
	store    *fakeStore
	ids      *fakeIDs
	delivery *fakeDelivery
	stop     func()
}

func run(t *testing.T, f *fakeStore, c Config) *rig {
	t.Helper()
	r := &rig{store: f, ids: &fakeIDs{}, delivery: &fakeDelivery{t: t, open: map[int64]bool{}}}
	r.Committers = New(c, Deps{Store: f, IDs: r.ids, Delivery: r.delivery, Log: slog.New(slog.DiscardHandler), Failpoint: func(string) {}})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx)
	}()
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			<-ended
		})
	}
	t.Cleanup(r.stop)
	return r
}

func (r *rig) submit(t *testing.T, items ...*item) {
	t.Helper()
	for _, it := range items {
		if err := r.Submit(it); err != nil {
			t.Fatal(err)
		}
	}
}
