package commit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-im/sluice/stateserver/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const waitMax = 20 * time.Second

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

func TestGroupCommitKeepsOrder(t *testing.T) {
	for _, parallel := range []int{1, 4} {
		t.Run(fmt.Sprint(parallel), func(t *testing.T) {
			f := newFakeStore()
			f.parallel, f.hold = parallel, make(chan struct{})
			r := run(t, f, Config{})
			const convs, each = 10, 100
			var items []*item
			for i := range each {
				for c := range convs {
					items = append(items, newItem("a", fmt.Sprintf("c%d", c), fmt.Sprintf("%d-%d", c, i)))
				}
			}
			r.submit(t, items[0])
			<-f.appending
			r.submit(t, items[1:]...)
			close(f.hold)
			for i, it := range items {
				if o := it.wait(t); o.err != nil || o.r.Seq != int64(i/convs+1) {
					t.Fatalf("item %d: %+v", i, o)
				}
			}
			r.stop()
			if n := len(f.batches); n > 1+4*parallel {
				t.Errorf("%d transactions for what waited while the first ran", n)
			}
			if f.overlaps > 0 {
				t.Errorf("%d times two transactions had one conversation at once", f.overlaps)
			}
			open, delivered := r.delivery.state()
			if len(open) > 0 || len(delivered) != convs*each {
				t.Errorf("open %v, delivered %d", open, len(delivered))
			}
			last := map[string]int64{}
			for _, m := range delivered {
				if m.Seq != last[m.ConvID]+1 || m.MsgID == 0 || m.ServerAt == 0 {
					t.Fatalf("delivered %+v after number %d", m, last[m.ConvID])
				}
				last[m.ConvID] = m.Seq
			}
		})
	}
}

func TestOutcomes(t *testing.T) {
	f := newFakeStore()
	r := run(t, f, Config{})
	first := newItem("a", "c", "1")
	r.submit(t, first)
	want := first.wait(t).r
	again, reused, none := newItem("a", "c", "1"), newItem("a", "c", "1"), newItem("a", "g:none", "2")
	reused.m.Hash++
	r.submit(t, again, reused, none)
	if o := again.wait(t); o.r.Outcome != store.Duplicate || o.r.MsgID != want.MsgID || o.r.Seq != want.Seq {
		t.Errorf("duplicate: %+v", o)
	}
	if o := reused.wait(t); o.r.Outcome != store.Reused {
		t.Errorf("reused: %+v", o)
	}
	if o := none.wait(t); o.r.Outcome != store.NoGroup {
		t.Errorf("no group: %+v", o)
	}
	f.mu.Lock()
	f.collide = true
	f.mu.Unlock()
	collided := newItem("a", "c", "3")
	r.submit(t, collided)
	if o := collided.wait(t); o.err != nil || !o.r.Collided {
		t.Errorf("collided: %+v", o)
	}
	r.stop()
	if open, delivered := r.delivery.state(); len(open) > 0 || len(delivered) != 2 || delivered[1].MsgID == 0 {
		t.Errorf("open %v, delivered %v", open, delivered)
	}
}

func TestItemsThatDoNotInsert(t *testing.T) {
	f := newFakeStore()
	f.hold = make(chan struct{})
	r := run(t, f, Config{})
	first := newItem("a", "c", "1")
	r.submit(t, first)
	<-f.appending
	no, known, unknown := newItem("a", "c", "no"), newItem("a", "c", "1"), newItem("a", "c", "9")
	fresh, copied := newItem("a", "c", "2"), newItem("a", "c", "2")
	no.start, known.start, unknown.start, copied.start = No, OnlyKnown, OnlyKnown, OnlyKnown
	r.submit(t, no, known, unknown, fresh, copied)
	close(f.hold)
	if o := known.wait(t); o.err != nil || o.r.Seq != 1 || o.r.Outcome != store.Duplicate {
		t.Errorf("known: %+v", o)
	}
	if o := unknown.wait(t); !errors.Is(o.err, ErrNotKnown) {
		t.Errorf("not known: %+v", o)
	}
	if o := copied.wait(t); o.err != nil || o.r.Seq != 2 || o.r.Outcome != store.Duplicate {
		t.Errorf("copy of one in the same transaction: %+v", o)
	}
	r.stop()
	select {
	case o := <-no.done:
		t.Errorf("an item that said no was answered: %+v", o)
	default:
	}
}

var errDisk = errors.New("disk full")

func TestFailedTransaction(t *testing.T) {
	f := newFakeStore()
	f.lies = []lie{{err: errDisk}}
	r := run(t, f, Config{})
	a, b := newItem("a", "c", "1"), newItem("a", "c", "1")
	r.submit(t, a)
	if o := a.wait(t); !errors.Is(o.err, errDisk) {
		t.Errorf("%+v", o)
	}
	if open, _ := r.delivery.state(); len(open) > 0 {
		t.Errorf("open %v", open)
	}
	r.submit(t, b)
	if o := b.wait(t); o.err != nil || o.r.Seq != 1 {
		t.Errorf("%+v", o)
	}
	r.ids.mu.Lock()
	r.ids.err = errors.New("no lease")
	r.ids.mu.Unlock()
	c := newItem("a", "c", "2")
	r.submit(t, c)
	if o := c.wait(t); o.err == nil {
		t.Error("stored without an id")
	}
	if open, _ := r.delivery.state(); len(open) > 0 {
		t.Errorf("open %v", open)
	}
}

func TestUnknownOutcome(t *testing.T) {
	lost := fmt.Errorf("%w: connection lost", store.ErrUnknown)
	for name, c := range map[string]struct {
		effect bool
		failed bool
	}{"committed": {effect: true}, "not committed": {failed: true}} {
		t.Run(name, func(t *testing.T) {
			f := newFakeStore()
			f.resolves = []error{errors.New("still down"), errors.New("still down")}
			r := run(t, f, Config{})
			old := newItem("a", "c", "old")
			r.submit(t, old)
			old.wait(t)
			f.mu.Lock()
			f.hold = make(chan struct{})
			f.mu.Unlock()
			<-f.appending
			plug := newItem("a", "x", "plug")
			r.submit(t, plug)
			<-f.appending
			items := []*item{newItem("a", "c", "1"), newItem("a", "c", "old"), newItem("a", "c", "2"), newItem("a", "g:none", "3"), newItem("a", "c", "1")}
			next := newItem("a", "c", "next")
			f.mu.Lock()
			f.lies = []lie{{}, {lost, c.effect}}
			f.mu.Unlock()
			r.submit(t, items...)
			close(f.hold)
			plug.wait(t)
			r.submit(t, next)
			if c.failed {
				for i, it := range items {
					if o := it.wait(t); o.err == nil {
						t.Errorf("item %d: %+v", i, o)
					}
				}
			} else {
				want := []store.Outcome{store.Stored, store.Duplicate, store.Stored, store.NoGroup, store.Duplicate}
				for i, it := range items {
					if o := it.wait(t); o.err != nil || o.r.Outcome != want[i] {
						t.Errorf("item %d: %+v, want outcome %d", i, o, want[i])
					}
				}
			}
			if o := next.wait(t); o.err != nil {
				t.Errorf("the one behind: %+v", o)
			}
			r.stop()
			open, delivered := r.delivery.state()
			rows := 0
			for k := range f.rows {
				if k.UUID != "" {
					rows++
				}
			}
			if len(open) > 0 || len(delivered) != rows {
				t.Errorf("open %v; %d rows, %d delivered", open, rows, len(delivered))
			}
		})
	}
}

func TestUnknownAtTheEndStaysOpen(t *testing.T) {
	f := newFakeStore()
	f.lies = []lie{{store.ErrUnknown, true}}
	for range 1000 {
		f.resolves = append(f.resolves, errors.New("down"))
	}
	r := run(t, f, Config{})
	a := newItem("a", "c", "1")
	r.submit(t, a)
	<-f.appending
	r.stop()
	if o := a.wait(t); !errors.Is(o.err, store.ErrUnknown) {
		t.Errorf("%+v", o)
	}
	if open, _ := r.delivery.state(); !slices.Equal(open, []int64{1}) {
		t.Errorf("open %v: the mark would pass a message that may be stored", open)
	}
	if err := r.Submit(newItem("a", "c", "2")); !errors.Is(err, ErrStopped) {
		t.Errorf("submit after the end: %v", err)
	}
}

func TestQueueIsBounded(t *testing.T) {
	f := newFakeStore()
	f.hold = make(chan struct{})
	r := run(t, f, Config{QueueMax: 3, QueueBytesMax: 10_000, BatchBytesMax: 3000})
	first := newItem("a", "c", "0")
	r.submit(t, first)
	<-f.appending
	var items []*item
	for i := range 3 {
		it := newItem("a", "c", fmt.Sprint(i+1))
		it.m.Body = make([]byte, 2000)
		items = append(items, it)
	}
	r.submit(t, items...)
	if n := r.Waiting(); n != 3 {
		t.Errorf("%d wait, want 3", n)
	}
	if err := r.Submit(newItem("a", "c", "x")); !errors.Is(err, ErrFull) {
		t.Errorf("fourth: %v", err)
	}
	close(f.hold)
	for _, it := range items {
		it.wait(t)
	}
	r.stop()
	if want := []int{1, 1, 1, 1}; !slices.Equal(f.batches, want) {
		t.Errorf("batches %v, want %v by the byte bound", f.batches, want)
	}
}
