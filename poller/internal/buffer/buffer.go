// Package buffer lends byte buffers of size classes to connections that have something to keep for a while.
package buffer

import (
	"math/bits"
	"sync"
)

const (
	// shiftMin makes 256 bytes the smallest class: below, the header and the pool cost more than the bytes.
	shiftMin = 8
	// classes ends the pooled classes at 2 MiB: no bound of an engine asks for more by default, and what is larger is
	// left to the garbage collector.
	classes = 14
)

// Buffer is a queue of bytes in one piece of memory.
type Buffer struct {
	data  []byte // data[off:] is what is in it
	off   int
	class int
}

// New is a buffer of its own with room for n bytes; it never goes to a pool.
func New(n int) *Buffer { return &Buffer{data: make([]byte, 0, n), class: classes} }

// Bytes is what is in the buffer, until it is changed.
func (b *Buffer) Bytes() []byte { return b.data[b.off:] }

// Len is the number of bytes in the buffer.
func (b *Buffer) Len() int { return len(b.data) - b.off }

// Room is what can be added without moving to a larger class.
func (b *Buffer) Room() int { return cap(b.data) - b.Len() }

// Add appends p, which fits into Room.
func (b *Buffer) Add(p []byte) {
	if len(p) > cap(b.data)-len(b.data) {
		b.compact()
	}
	b.data = append(b.data, p...)
}

func (b *Buffer) compact() {
	n := copy(b.data, b.data[b.off:])
	b.data, b.off = b.data[:n], 0
}

// Free is the memory behind the content, at least n bytes of it, which is no more than Room. What is written there is in
// the buffer after Extend.
func (b *Buffer) Free(n int) []byte {
	if n > cap(b.data)-len(b.data) {
		b.compact()
	}
	return b.data[len(b.data):cap(b.data)]
}

// Extend adds n bytes that were written to the beginning of what Free returned.
func (b *Buffer) Extend(n int) { b.data = b.data[:len(b.data)+n] }

// Skip takes n bytes from the front.
func (b *Buffer) Skip(n int) { b.off += n }

// Clear empties the buffer.
func (b *Buffer) Clear() { b.data, b.off = b.data[:0], 0 }

// Pools lend buffers of size classes that double. What comes back waits in pools that the garbage collector empties, so
// a burst does not hold memory for good. The zero value is ready.
type Pools struct {
	pools [classes]sync.Pool
}

// Take lends an empty buffer with room for at least n bytes.
func (p *Pools) Take(n int) *Buffer {
	class := bits.Len(uint(max(n, 1)-1) >> shiftMin)
	if class >= classes {
		return New(n)
	}
	if b, ok := p.pools[class].Get().(*Buffer); ok {
		return b
	}
	return &Buffer{data: make([]byte, 0, 1<<(class+shiftMin)), class: class}
}

// Give takes b back; nobody may use it any more.
func (p *Pools) Give(b *Buffer) {
	if b.class >= classes {
		return
	}
	b.Clear()
	p.pools[b.class].Put(b)
}

// Grown is b if it has room for n more bytes, else a larger buffer with b's content; b is then given back. A nil b is
// empty.
func (p *Pools) Grown(b *Buffer, n int) *Buffer {
	if b == nil {
		return p.Take(n)
	}
	if n <= b.Room() {
		return b
	}
	g := p.Take(b.Len() + n)
	g.Add(b.Bytes())
	p.Give(b)
	return g
}

// thin is how much larger than its content a kept buffer may be, and roomy the size up to which nobody cares.
const (
	thin  = 8
	roomy = 1 << 10
)

// Fitted is b, or a smaller buffer with b's content when b would hold much memory for little; b is then given back.
func (p *Pools) Fitted(b *Buffer) *Buffer {
	if cap(b.data) <= roomy || b.Len()*thin > cap(b.data) {
		return b
	}
	f := p.Take(b.Len())
	f.Add(b.Bytes())
	p.Give(b)
	return f
}
