package slab

import (
	"math"
	"testing"
)

func TestSlab(t *testing.T) {
	const limit = chunkSlots + 7
	type value struct {
		slot  uint32
		inUse bool
	}
	s := New(limit, func(v *value, slot uint32) { v.slot = slot })
	if s.At(0) != nil || s.At(math.MaxUint32) != nil {
		t.Error("an empty slab holds something")
	}
	seen := map[uint32]*value{}
	for range limit {
		v := s.Take()
		if v == nil || v.inUse || seen[v.slot] != nil || v.slot >= limit {
			t.Fatalf("took %+v", v)
		}
		v.inUse, seen[v.slot] = true, v
	}
	if v := s.Take(); v != nil {
		t.Fatalf("slot %d is above the limit", v.slot)
	}
	for slot, v := range seen {
		if s.At(slot) != v {
			t.Fatalf("slot %d has moved", slot)
		}
	}
	s.Put(5)
	if v := s.Take(); v == nil || v.slot != 5 {
		t.Errorf("took %+v, slot 5 was free", v)
	}
	if s.Used() != limit {
		t.Errorf("%d slots were used", s.Used())
	}
}
