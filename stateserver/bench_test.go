package stateserver

import (
	"fmt"
	"testing"
	"time"

	statev1 "github.com/sluice-im/sluice/api/state/v1"
)

// BenchmarkRelay is the whole way of a message over one stream: gate, group commit on SQLite, answer; 1,024 in flight.
func BenchmarkRelay(b *testing.B) {
	s := start(b, nil)
	s.delivery.look(func() { s.delivery.forget = true })
	g := s.gateway("gw")
	const window, conns = 1024, 256
	payloads := make([][]byte, b.N)
	for i := range payloads {
		payloads[i] = up(fmt.Sprintf("%08x-%d", uint32(i)*2654435761, i), fmt.Sprintf("user%d", (i+1)%conns), "sixty-four bytes of text, more or less, as people write them")
	}
	b.ReportAllocs()
	b.ResetTimer()
	sent, seen := 0, 0
	for seen < b.N {
		var items []*statev1.UplinkItem
		for sent < b.N && sent-seen < window && len(items) < batchItemsMax {
			it := g.frame(uint64(sent%conns), fmt.Sprintf("user%d", sent%conns), payloads[sent])
			it.ReceivedAtMs = time.Now().UnixMilli()
			items = append(items, it)
			sent++
		}
		if len(items) > 0 {
			g.send(items...)
		}
		g.await("answers", func() bool {
			n := len(g.got)
			g.got = g.got[:0]
			seen += n
			return n > 0 || sent-seen < window
		})
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
}
