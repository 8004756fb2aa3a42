package stateserver

import (
	"context"
	"sync"

	"github.com/sluice-im/sluice/stateserver/dedup"
	"github.com/sluice-im/sluice/stateserver/store"
)

const (
	// memoryMax bounds results that wait to be written to Redis; what is dropped costs the store one look at a resend.
	memoryMax = 1 << 15
	// memoryBatchMax bounds one round trip.
	memoryBatchMax = 512
)

// memory writes first results behind the gate, after the answers: they only make resends cheap.
type memory struct {
	s    *Server
	wake chan struct{}

	mu sync.Mutex
	// Guarded by mu.
	queue []dedup.Stored
}

func newMemory(s *Server) *memory { return &memory{s: s, wake: make(chan struct{}, 1)} }

func (m *memory) add(uid, uuid string, r store.Result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.queue) >= memoryMax {
		m.s.metrics.forgotten.Inc()
		return
	}
	m.queue = append(m.queue, dedup.Stored{Key: store.Key{FromUID: uid, UUID: uuid}, MsgID: r.MsgID, Seq: r.Seq, Hash: r.Hash})
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *memory) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
		}
		for batch := m.take(); len(batch) > 0 && ctx.Err() == nil; batch = m.take() {
			if err := m.s.gate.Remember(ctx, batch); err != nil {
				m.s.metrics.forgotten.Add(float64(len(batch)))
			}
		}
	}
}

func (m *memory) take() []dedup.Stored {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := min(len(m.queue), memoryBatchMax)
	batch := append([]dedup.Stored(nil), m.queue[:n]...)
	m.queue = append(m.queue[:0], m.queue[n:]...)
	return batch
}
