package poller

import (
	"math/bits"
	"sync"
)

const (
	// bufferShiftMin makes 256 bytes the smallest class: below, the header and the pool cost more than the bytes.
	bufferShiftMin = 8
	// bufferClasses ends the pooled classes at 512 KiB; only a configured bound above that allocates larger ones.
	bufferClasses = 12
)

// buffer is a queue of bytes in one piece of memory: data[off:] is what is in it.
type buffer struct {
	data  []byte
	off   int
	class int
}

func (b *buffer) bytes() []byte { return b.data[b.off:] }

func (b *buffer) len() int { return len(b.data) - b.off }

// room is what can be added without moving to a larger class.
func (b *buffer) room() int { return cap(b.data) - b.len() }

// add appends p, which fits into room.
func (b *buffer) add(p []byte) {
	if len(p) > cap(b.data)-len(b.data) {
		b.compact()
	}
	b.data = append(b.data, p...)
}

func (b *buffer) compact() {
	n := copy(b.data, b.data[b.off:])
	b.data, b.off = b.data[:n], 0
}

// buffers lends buffers of size classes that double. What comes back waits in pools that the garbage collector empties,
// so a burst does not hold memory for good.
type buffers struct {
	pools [bufferClasses]sync.Pool
}

// take lends an empty buffer with room for at least n bytes.
func (p *buffers) take(n int) *buffer {
	class := max(bits.Len(uint(n-1)), bufferShiftMin) - bufferShiftMin
	if class >= bufferClasses {
		return &buffer{data: make([]byte, 0, n), class: class}
	}
	if b, ok := p.pools[class].Get().(*buffer); ok {
		return b
	}
	return &buffer{data: make([]byte, 0, 1<<(class+bufferShiftMin)), class: class}
}

// give takes b back.
func (p *buffers) give(b *buffer) {
	if b.class >= bufferClasses {
		return
	}
	b.data, b.off = b.data[:0], 0
	p.pools[b.class].Put(b)
}

// grown is b if it has room for n more bytes, else a larger buffer with b's content; b is then given back.
func (p *buffers) grown(b *buffer, n int) *buffer {
	if n <= b.room() {
		return b
	}
	g := p.take(b.len() + n)
	g.data = append(g.data, b.bytes()...)
	p.give(b)
	return g
}
