package buffer

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// TestBufferIsQueue compares a buffer that grows through the classes with a plain slice.
func TestBufferIsQueue(t *testing.T) {
	var pools Pools
	rapid.Check(t, func(t *rapid.T) {
		var b *Buffer
		var want []byte
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			p := bytes.Repeat([]byte{rapid.Byte().Draw(t, "byte")}, rapid.IntRange(0, 5000).Draw(t, "n"))
			b = pools.Grown(b, len(p))
			if len(p) > b.Room() {
				t.Fatalf("room %d for %d", b.Room(), len(p))
			}
			if rapid.Bool().Draw(t, "behind") {
				b.Extend(copy(b.Free(len(p)), p))
			} else {
				b.Add(p)
			}
			want = append(want, p...)
			n := rapid.IntRange(0, len(want)).Draw(t, "skip")
			b.Skip(n)
			want = want[n:]
			if !bytes.Equal(b.Bytes(), want) || b.Len() != len(want) {
				t.Fatal("content differs")
			}
		}
		pools.Give(b)
	})
}

func TestTakeHasRoom(t *testing.T) {
	var pools Pools
	for n := 0; n < 5<<20; n = n*2 + 1 {
		for _, n := range []int{n, n + 1, n + 2} {
			b := pools.Take(n)
			if b.Len() != 0 || b.Room() < n || n >= 256 && n <= 2<<20 && b.Room() >= 2*n {
				t.Errorf("took %d for %d, with %d in it", b.Room(), n, b.Len())
			}
			b.Add(make([]byte, n))
			pools.Give(b)
		}
	}
}
