package stateclient

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// The index is a map, whatever the order of puts and removes.
func TestIndexIsAMap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		x, want := newIndex(), map[uint64]*Peer{}
		ids := rapid.Custom(func(t *rapid.T) uint64 {
			// Few slots and many generations: ids that collide are what goes wrong.
			return rapid.Uint64Range(1, 40).Draw(t, "slot") | rapid.Uint64Range(0, 3).Draw(t, "generation")<<32
		})
		rt.Repeat(map[string]func(*rapid.T){
			"put": func(rt *rapid.T) {
				p := &Peer{ConnID: ids.Draw(rt, "id")}
				x.put(p)
				want[p.ConnID] = p
			},
			"remove": func(rt *rapid.T) {
				id := ids.Draw(rt, "id")
				if p := want[id]; p != nil {
					x.remove(p)
					delete(want, id)
				}
				x.remove(&Peer{ConnID: id}) // Not the one that is there, if any.
			},
			"": func(rt *rapid.T) {
				if x.count != len(want) {
					rt.Fatalf("%d entries, want %d", x.count, len(want))
				}
				for slot := uint64(1); slot <= 40; slot++ {
					for gen := uint64(0); gen < 4; gen++ {
						if id := slot | gen<<32; x.find(id) != want[id] {
							rt.Fatalf("%d: %p, want %p", id, x.find(id), want[id])
						}
					}
				}
			},
		})
	})
}

func BenchmarkIndex(b *testing.B) {
	for _, n := range []int{16, 512, 16384} {
		ps := peers(n)
		b.Run(fmt.Sprintf("index/held=%d", n), func(b *testing.B) {
			x := newIndex()
			for _, p := range ps {
				x.put(p)
			}
			b.ResetTimer()
			for i := range b.N {
				p := ps[i%n]
				x.remove(p)
				x.put(p)
				if x.find(p.ConnID) != p {
					b.Fatal("lost")
				}
			}
		})
		b.Run(fmt.Sprintf("map/held=%d", n), func(b *testing.B) {
			x := map[uint64]*Peer{}
			for _, p := range ps {
				x[p.ConnID] = p
			}
			b.ResetTimer()
			for i := range b.N {
				p := ps[i%n]
				delete(x, p.ConnID)
				x[p.ConnID] = p
				if x[p.ConnID] != p {
					b.Fatal("lost")
				}
			}
		})
	}
}
