package commit

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-im/sluice/api/ident"
	"github.com/sluice-im/sluice/internal/testenv"
	"github.com/sluice-im/sluice/stateserver/store"
)

type nowhere struct{}

func (nowhere) Begin([]int64)                   {}
func (nowhere) Abandon([]int64)                 {}
func (nowhere) Deliver(context.Context, []Item) {}

type leased struct {
	fakeIDs
	lease store.NodeLease
}

func (l *leased) Lease() store.NodeLease { return l.lease }

// BenchmarkStored stores messages durably through the committers, 1,024 in flight: with group commit, and with one
// transaction a message. Compare msgs/s within one run.
func BenchmarkStored(b *testing.B) {
	dsn := map[string]func(*testing.B) string{
		"sqlite":  func(b *testing.B) string { return "sqlite://" + filepath.Join(b.TempDir(), "b.db") },
		"mariadb": func(b *testing.B) string { return "mysql://" + testenv.MariaDB(b).DSN() },
	}
	for name, where := range dsn {
		for _, batch := range []int{512, 1} {
			b.Run(fmt.Sprintf("%s/batch=%d", name, batch), func(b *testing.B) { benchStored(b, where(b), batch) })
		}
	}
}

func benchStored(b *testing.B, dsn string, batch int) {
	db, err := store.Open(b.Context(), dsn, store.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	l, err := db.LeaseNode(b.Context(), "bench", 1<<40)
	if err != nil {
		b.Fatal(err)
	}
	c := New(Config{BatchMax: batch}, Deps{Store: db, IDs: &leased{lease: l}, Delivery: nowhere{}, Log: slog.New(slog.DiscardHandler), Failpoint: func(string) {}})
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	defer func() {
		stop()
		running.Wait()
	}()
	const inFlight = 1024
	text := strings.Repeat("x", 64)
	var senders sync.WaitGroup
	b.ResetTimer()
	for s := range inFlight {
		n := b.N / inFlight
		if s < b.N%inFlight {
			n++
		}
		senders.Go(func() {
			from, to := fmt.Sprintf("user%d", s), fmt.Sprintf("user%d", (s+1)%inFlight)
			it := &item{start: Insert, done: make(chan outcome, 1)}
			for i := range n {
				it.m = store.Message{FromUID: from, UUID: fmt.Sprintf("%08x-%d-%d", uint32(i*s)*2654435761, s, i), ReceiverID: to, ConvID: ident.Conversation(from, to), Type: 1, Content: text}
				it.m.Hash = store.HashOf(&it.m)
				if err := c.Submit(it); err != nil {
					b.Error(err)
					return
				}
				if o := <-it.done; o.err != nil {
					b.Error(o.err)
					return
				}
			}
		})
	}
	senders.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
}
