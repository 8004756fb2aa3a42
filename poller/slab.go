package poller

import (
	"sync"
	"sync/atomic"
)

// chunkSlots is how many connections one piece of the slab holds: about 100 KiB, so that a small gateway stays small and
// a large one has a thousand pieces.
const chunkSlots = 1024

// slab holds the connections in chunks that never move, so that a pointer to one stays good and find needs no lock.
type slab struct {
	chunks []atomic.Pointer[[chunkSlots]conn]

	mu sync.Mutex
	// Guarded by mu.
	free  uint32 // slot+1 of the first free connection, linked through conn.next; 0 = none
	grown uint32 // slots that exist
	limit uint32
}

func newSlab(limit int) *slab {
	return &slab{chunks: make([]atomic.Pointer[[chunkSlots]conn], (limit+chunkSlots-1)/chunkSlots), limit: uint32(limit)}
}

// at is the connection in a slot; nil for a slot that never was in use.
func (s *slab) at(slot uint32) *conn {
	if int(slot/chunkSlots) >= len(s.chunks) {
		return nil
	}
	chunk := s.chunks[slot/chunkSlots].Load()
	if chunk == nil {
		return nil
	}
	return &chunk[slot%chunkSlots]
}

// take hands out a free connection, nil when the limit is reached. Its slot and generation are set.
func (s *slab) take() *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free != 0 {
		c := s.at(s.free - 1)
		s.free, c.next = c.next, 0
		return c
	}
	if s.grown == s.limit {
		return nil
	}
	slot := s.grown
	if slot%chunkSlots == 0 {
		chunk := new([chunkSlots]conn)
		for i := range chunk {
			chunk[i].slot, chunk[i].gen = slot+uint32(i), 1
		}
		s.chunks[slot/chunkSlots].Store(chunk)
	}
	s.grown++
	return s.at(slot)
}

// put takes back a connection that nothing refers to any more but stale ids.
func (s *slab) put(c *conn) {
	s.mu.Lock()
	c.next, s.free = s.free, c.slot+1
	s.mu.Unlock()
}

// used is the number of slots that exist; each is below it.
func (s *slab) used() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.grown
}
