package commit

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/sluice-im/sluice/stateserver/store"
)

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
			<-f.appending // the batch whose outcome is unknown is closed to others
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
