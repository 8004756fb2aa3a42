package gateway

import (
	"math"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// memoryEvery is how often the memory is looked at.
	memoryEvery = time.Second
	// trimConnectionsMin is the number of connections below which the garbage of logins is not worth a collection.
	trimConnectionsMin = 1000
	// trimShare: a collection is forced when the number of connections has changed by an eighth since the last one.
	trimShare = 8
	// trimCalm: it waits until fewer than one in a hundred connections came or went since the last look.
	trimCalm = 100
)

// watchMemory refuses new connections while the memory is nearly used up, and gives back what a wave of logins or closes
// has left behind.
func (g *Gateway) watchMemory(stop <-chan struct{}) {
	limit := debug.SetMemoryLimit(-1) // GOMEMLIMIT; without one there is nothing to compare with
	high := uint64(math.MaxUint64)
	if limit != math.MaxInt64 {
		high = uint64(float64(limit) * g.cfg.Backpressure.MemoryHigh)
	}
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	ticker := time.NewTicker(memoryEvery)
	defer ticker.Stop()
	var t trim
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
		}
		metrics.Read(samples)
		g.overloaded.Store(samples[0].Value.Uint64()-samples[1].Value.Uint64() > high)
		if t.due(g.gauges.open()) {
			debug.FreeOSMemory()
		}
	}
}

// trim decides when a collection pays. Idle connections allocate nothing, so after a wave of logins the collector would
// leave as much garbage behind as there is live memory: up to twice what a million connections need, for good.
type trim struct{ last, trimmed int64 }

// due is told how many connections are open, once every memoryEvery.
func (t *trim) due(open int64) bool {
	moved := abs(open - t.last)
	t.last = open
	if moved > max(open, t.trimmed)/trimCalm {
		return false
	}
	if changed := abs(open - t.trimmed); changed < trimConnectionsMin || changed < t.trimmed/trimShare {
		return false
	}
	t.trimmed = open
	return true
}

func abs(n int64) int64 { return max(n, -n) }
