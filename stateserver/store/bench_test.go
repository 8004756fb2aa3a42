package store

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-im/sluice/internal/testenv"
)

// BenchmarkAppend stores messages in batches: the figure of merit is msgs/s, and its ratio to a batch of one (one commit
// a message) within one run.
func BenchmarkAppend(b *testing.B) {
	open := map[string]func(b *testing.B) *Database{
		"sqlite": func(b *testing.B) *Database {
			db, err := openSQLite(b.Context(), filepath.Join(b.TempDir(), "b.db"), withDefaults(Options{}), sameConnector)
			if err != nil {
				b.Fatal(err)
			}
			return db
		},
		"mariadb": func(b *testing.B) *Database {
			db, err := openMySQL(b.Context(), testenv.MariaDB(b).DSN(), Options{Log: slog.New(slog.DiscardHandler), Failpoint: func(string) {}}, sameConnector)
			if err != nil {
				b.Fatal(err)
			}
			return db
		},
	}
	for name, fresh := range open {
		for _, size := range []int{1, 16, 128, 512} {
			b.Run(fmt.Sprintf("%s/batch=%d", name, size), func(b *testing.B) {
				db := fresh(b)
				defer func() { _ = db.Close() }()
				s := &ids{}
				l, err := db.LeaseNode(b.Context(), "bench", time.Hour)
				if err != nil {
					b.Fatal(err)
				}
				text := strings.Repeat("x", 64)
				batch := make([]Message, size)
				b.ResetTimer()
				stored := 0
				for b.Loop() {
					for i := range batch {
						n := stored + i
						batch[i] = message(s, fmt.Sprintf("user%d", n%1000), fmt.Sprintf("user%d", (n+1)%1000), fmt.Sprintf("%x-%d", n*7919%1000003, n), text)
					}
					if _, err := db.Append(b.Context(), &Batch{Messages: batch, NewID: s.draw, Lease: l}); err != nil {
						b.Fatal(err)
					}
					stored += size
				}
				b.ReportMetric(float64(stored)/b.Elapsed().Seconds(), "msgs/s")
			})
		}
	}
}
