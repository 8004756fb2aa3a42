package routes

import (
	"context"
	"strconv"
	"testing"

	"github.com/sluice-im/sluice/internal/testenv"
)

// The figures are per route or user, over loopback; most of the time is Redis'.

func benchTable(b *testing.B, users int) (*Table, []Claim, []string) {
	rdb := connect(b, testenv.Redis(b).Addr)
	gateway(b, rdb, "g1")
	table := patient(rdb, Options{})
	claims, uids := make([]Claim, users), make([]string, users)
	for i := range claims {
		uids[i] = "user" + strconv.Itoa(i)
		claims[i] = Claim{Route: route(uids[i], "phone", "g1", uint64(i))}
	}
	for _, r := range table.Claim(context.Background(), claims) {
		if r.Err != nil {
			b.Fatal(r.Err)
		}
	}
	return table, claims, uids
}

func perItem(b *testing.B, batch int, run func(from, to int) error) {
	b.ReportAllocs()
	done := 0
	for b.Loop() {
		from := done % (batchMax / batch * batch)
		if err := run(from, from+batch); err != nil {
			b.Fatal(err)
		}
		done += batch
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(done), "ns/route")
}

func BenchmarkClaim(b *testing.B) {
	table, claims, _ := benchTable(b, batchMax)
	for _, batch := range []int{1, 16, 128, 512} {
		b.Run(strconv.Itoa(batch), func(b *testing.B) {
			perItem(b, batch, func(from, to int) error {
				for i := from; i < to; i++ {
					claims[i].Route.ConnID++ // a new connection each time, which displaces the one before
				}
				return table.Claim(context.Background(), claims[from:to])[0].Err
			})
		})
	}
}

func BenchmarkFind(b *testing.B) {
	table, _, uids := benchTable(b, batchMax)
	for _, batch := range []int{1, 16, 128, 512} {
		b.Run(strconv.Itoa(batch), func(b *testing.B) {
			perItem(b, batch, func(from, to int) error {
				_, err := table.Find(context.Background(), uids[from:to])
				return err
			})
		})
	}
}

func BenchmarkRestore(b *testing.B) {
	table, claims, _ := benchTable(b, batchMax)
	routes := make([]Route, len(claims))
	for i, r := range table.Claim(context.Background(), claims) {
		routes[i] = claims[i].Route
		routes[i].Epoch = r.Epoch
	}
	b.Run("512", func(b *testing.B) {
		perItem(b, batchMax, func(from, to int) error {
			table.Restore(context.Background(), routes[from:to])
			return nil
		})
	})
}
