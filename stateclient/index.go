package stateclient

import "math/bits"

// index finds the connections that have uplinks on a lane by their id: open addressing with linear probing, at most half
// full, grown to what was needed once. A lane adds and removes a connection for nearly every uplink, and at that rate the
// built-in map costs twice as much.
type index struct {
	// slots has a power of two of places; a place without a peer is free.
	slots []indexSlot
	count int
}

type indexSlot struct {
	id   uint64
	peer *Peer
}

// indexMin is the smallest number of places.
const indexMin = 64

func newIndex() index { return index{slots: make([]indexSlot, indexMin)} }

// home is the place at which the search for an id begins. Ids are slot numbers with a generation above: neighbours must
// spread, which multiplication by the golden ratio does.
func (x *index) home(id uint64) int {
	return int(id * 0x9e3779b97f4a7c15 >> (64 - bits.Len(uint(len(x.slots)-1))))
}

// find returns nil when the id is not there.
func (x *index) find(id uint64) *Peer {
	mask := len(x.slots) - 1
	for i := x.home(id); x.slots[i].peer != nil; i = (i + 1) & mask {
		if x.slots[i].id == id {
			return x.slots[i].peer
		}
	}
	return nil
}

// put adds a peer, or replaces the one that has its id.
func (x *index) put(p *Peer) {
	if 2*(x.count+1) > len(x.slots) {
		x.grow()
	}
	mask := len(x.slots) - 1
	i := x.home(p.ConnID)
	for x.slots[i].peer != nil && x.slots[i].id != p.ConnID {
		i = (i + 1) & mask
	}
	if x.slots[i].peer == nil {
		x.count++
	}
	x.slots[i] = indexSlot{p.ConnID, p}
}

func (x *index) grow() {
	old := x.slots
	x.slots = make([]indexSlot, 2*len(old))
	x.count = 0
	for _, s := range old {
		if s.peer != nil {
			x.put(s.peer)
		}
	}
}

// remove takes a peer out; another one with its id stays.
func (x *index) remove(p *Peer) {
	mask := len(x.slots) - 1
	i := x.home(p.ConnID)
	for x.slots[i].peer != nil && x.slots[i].id != p.ConnID {
		i = (i + 1) & mask
	}
	if x.slots[i].peer != p {
		return
	}
	x.count--
	// Whoever stands behind the gap and is searched for through it moves into it, so that no search ends too soon.
	for j := (i + 1) & mask; x.slots[j].peer != nil; j = (j + 1) & mask {
		if h := x.home(x.slots[j].id); (j-h)&mask >= (j-i)&mask {
			x.slots[i] = x.slots[j]
			i = j
		}
	}
	x.slots[i] = indexSlot{}
}
