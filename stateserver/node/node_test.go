package node

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-im/sluice/internal/testenv/leaks"
	"github.com/sluice-im/sluice/stateserver/snowflake"
	"github.com/sluice-im/sluice/stateserver/store"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// fakeNodes is the table of nodes; it fails when told to.
type fakeNodes struct {
	mu sync.Mutex
	// Guarded by mu.
	rows []row
	err  error
}

func (f *fakeNodes) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

func (f *fakeNodes) row(n int) row {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rows[n]
}

type row struct {
	owner    string
	until    time.Time
	mark     int64
	idsUntil int64
}

func (f *fakeNodes) LeaseNode(_ context.Context, owner string, life time.Duration) (store.NodeLease, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return store.NodeLease{}, f.err
	}
	n := 0
	for n < len(f.rows) && time.Now().Before(f.rows[n].until) {
		n++
	}
	if n == len(f.rows) {
		f.rows = append(f.rows, row{})
	}
	r := &f.rows[n]
	r.owner, r.until = owner, time.Now().Add(life)
	return store.NodeLease{Node: n, Owner: owner, Mark: r.mark, IDsUntil: r.idsUntil}, nil
}

func (f *fakeNodes) of(l store.NodeLease) (*row, error) {
	if f.err != nil {
		return nil, f.err
	}
	if r := &f.rows[l.Node]; r.owner == l.Owner {
		return r, nil
	}
	return nil, store.ErrLeaseLost
}

func (f *fakeNodes) RenewNode(_ context.Context, l store.NodeLease, life time.Duration, idsUntil int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, err := f.of(l)
	if err == nil {
		r.until, r.idsUntil = time.Now().Add(life), max(r.idsUntil, idsUntil)
	}
	return err
}

func (f *fakeNodes) SaveMark(_ context.Context, l store.NodeLease, mark int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, err := f.of(l)
	if err == nil {
		r.mark = max(r.mark, mark)
	}
	return err
}

func (f *fakeNodes) ReleaseNode(_ context.Context, l store.NodeLease, idsUntil int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, err := f.of(l)
	if err == nil {
		r.until, r.owner, r.idsUntil = time.Time{}, "", idsUntil
	}
	return err
}

func (f *fakeNodes) TakeOver(context.Context, string, time.Duration) (store.NodeLease, bool, error) {
	return store.NodeLease{}, false, nil
}

// run acquires a node and renews it until stop.
func run(t *testing.T, f *fakeNodes) (n *Node, stop func()) {
	t.Helper()
	n, err := Acquire(t.Context(), f, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.Run(ctx)
	}()
	return n, func() {
		cancel()
		<-ended
	}
}

func mustID(t *testing.T, n *Node, above int64) int64 {
	t.Helper()
	id, at, err := n.NextID()
	if err != nil {
		t.Fatal(err)
	}
	if id <= above || at != snowflake.Time(id) || snowflake.Node(id) != n.Lease().Node {
		t.Fatalf("id %d at %d after %d", id, at, above)
	}
	return id
}

func TestLeaseIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(30 * 365 * 24 * time.Hour) // the bubble's clock starts before the epoch of ids
		f := &fakeNodes{}
		n, stop := run(t, f)
		last := int64(0)
		for range 100 {
			last = mustID(t, n, last)
			if d := time.Until(time.UnixMilli(snowflake.Time(last))); d > 0 || d < -time.Second {
				t.Fatalf("the id's time is %v off", d)
			}
			if snowflake.Time(last) > f.row(0).idsUntil {
				t.Fatal("an id above what is on record")
			}
			time.Sleep(700 * time.Millisecond)
			synctest.Wait()
		}
		if err := n.SaveMark(t.Context(), last); err != nil || f.row(0).mark != last || n.Mark() != last {
			t.Errorf("mark %d, %v", f.row(0).mark, err)
		}
		stop()
		if err := n.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, _, err := n.NextID(); !errors.Is(err, ErrNoLease) {
			t.Errorf("id after release: %v", err)
		}
		again, stop := run(t, f)
		defer stop()
		mustID(t, again, last)
	})
}

func TestNoIDsWithoutRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(30 * 365 * 24 * time.Hour)
		f := &fakeNodes{}
		n, stop := run(t, f)
		defer stop()
		last := mustID(t, n, 0)
		f.change(func() { f.err = errors.New("database away") })
		time.Sleep(Life)
		synctest.Wait()
		if _, _, err := n.NextID(); !errors.Is(err, ErrNoLease) || n.Valid() {
			t.Errorf("id without a lease: %v", err)
		}
		f.change(func() { f.err = nil })
		time.Sleep(2 * renewEvery)
		synctest.Wait()
		mustID(t, n, last)
	})
}

func TestLostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(30 * 365 * 24 * time.Hour)
		f := &fakeNodes{}
		n, stop := run(t, f)
		defer stop()
		last := mustID(t, n, 0)
		f.change(func() { f.rows[0].owner, f.rows[0].until = "another", time.Now().Add(time.Hour) })
		time.Sleep(2 * renewEvery)
		synctest.Wait()
		if n.Lease().Node == 0 {
			t.Fatal("still the lost node")
		}
		mustID(t, n, last)
		if err := n.SaveMark(t.Context(), last); err != nil || f.row(0).mark != 0 || f.row(1).mark != last {
			t.Errorf("marks %+v and %+v, %v", f.row(0), f.row(1), err)
		}
	})
}

// TestKilled restarts without Release: ids go on above all that may have been given.
func TestKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(30 * 365 * 24 * time.Hour)
		f := &fakeNodes{}
		last := int64(0)
		for range 20 {
			n, stop := run(t, f)
			for range 5000 {
				last = mustID(t, n, last)
			}
			stop()
			f.change(func() { f.rows[0].until = time.Time{} })
		}
		if ahead := time.Until(time.UnixMilli(snowflake.Time(last))); ahead > 21*reserve {
			t.Errorf("ids are %v ahead", ahead)
		}
	})
}
