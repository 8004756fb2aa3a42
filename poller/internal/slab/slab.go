// Package slab hands out the slots of a bounded number of connections. What stands in a slot never moves, so that a
// pointer to it stays good and a look-up needs no lock.
package slab

import (
	"sync"
	"sync/atomic"
)

// chunkSlots is how many slots one piece holds: some hundred KiB, so that a small gateway stays small and a large one has
// a thousand pieces.
const chunkSlots = 1024

// Slab holds values of one type by slot.
type Slab[T any] struct {
	// Fixed after New.
	fresh  func(v *T, slot uint32)
	limit  uint32
	chunks []atomic.Pointer[[chunkSlots]T]

	mu sync.Mutex
	// Guarded by mu. free is a stack, and never longer than grown.
	free  []uint32
	grown uint32
}

// New is a slab of at most limit slots; fresh sees each value once, before it is first handed out.
func New[T any](limit int, fresh func(v *T, slot uint32)) *Slab[T] {
	return &Slab[T]{fresh: fresh, limit: uint32(limit), chunks: make([]atomic.Pointer[[chunkSlots]T], (limit+chunkSlots-1)/chunkSlots)}
}

// At is the value in a slot; nil for a slot that never was in use.
func (s *Slab[T]) At(slot uint32) *T {
	if int(slot/chunkSlots) >= len(s.chunks) {
		return nil
	}
	chunk := s.chunks[slot/chunkSlots].Load()
	if chunk == nil {
		return nil
	}
	return &chunk[slot%chunkSlots]
}

// Take hands out a free slot's value, nil when the limit is reached. Any goroutine may call it.
func (s *Slab[T]) Take() *T {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.free); n > 0 {
		slot := s.free[n-1]
		s.free = s.free[:n-1]
		return s.At(slot)
	}
	if s.grown == s.limit {
		return nil
	}
	slot := s.grown
	if slot%chunkSlots == 0 {
		chunk := new([chunkSlots]T)
		for i := range chunk {
			s.fresh(&chunk[i], slot+uint32(i))
		}
		s.chunks[slot/chunkSlots].Store(chunk)
	}
	s.grown++
	return s.At(slot)
}

// Put takes a slot back, to which nothing refers any more but stale ids.
func (s *Slab[T]) Put(slot uint32) {
	s.mu.Lock()
	s.free = append(s.free, slot)
	s.mu.Unlock()
}

// Used is the number of slots that were ever in use; each is below it.
func (s *Slab[T]) Used() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.grown
}
