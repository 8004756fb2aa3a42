package codec

import "testing"

// bitReader reads deflate's bits (RFC 1951, 3.1.1).
type bitReader struct {
	t    *testing.T
	data []byte
	at   int // Bit.
}

func (r *bitReader) bits(n int) (v int) {
	for i := range n {
		if r.at>>3 >= len(r.data) {
			r.t.Fatal("deflate stream ends early")
		}
		v |= int(r.data[r.at>>3]>>(r.at&7)&1) << i
		r.at++
	}
	return v
}

// huffman is a canonical code: symbols by length, then value.
type huffman map[[2]int]int

func newHuffman(lengths []int) huffman {
	h, code := huffman{}, 0
	for n := 1; n <= 15; n++ {
		for symbol, length := range lengths {
			if length == n {
				h[[2]int{n, code}] = symbol
				code++
			}
		}
		code <<= 1
	}
	return h
}

func (r *bitReader) symbol(h huffman) int {
	code := 0
	for n := 1; n <= 15; n++ {
		code = code<<1 | r.bits(1)
		if symbol, ok := h[[2]int{n, code}]; ok {
			return symbol
		}
	}
	r.t.Fatal("no such code")
	return 0
}

// maxDistance walks through a deflate stream and returns the largest distance of a match. It keeps no output: it is
// here to see what a peer with a small window would have to hold.
func maxDistance(t *testing.T, data []byte) (farthest int) {
	r := &bitReader{t: t, data: data}
	for r.at>>3 < len(data) {
		final := r.bits(1)
		switch r.bits(2) {
		case 0:
			r.at = (r.at + 7) &^ 7
			r.at += 32 + 8*(int(data[r.at>>3])|int(data[r.at>>3+1])<<8)
		case 1:
			lengths := make([]int, 288)
			for i := range lengths {
				lengths[i] = [...]int{8, 9, 7, 8}[btoi(i > 143)+btoi(i > 255)+btoi(i > 279)]
			}
			distances := make([]int, 30)
			for i := range distances {
				distances[i] = 5
			}
			farthest = max(farthest, r.block(newHuffman(lengths), newHuffman(distances)))
		case 2:
			farthest = max(farthest, r.block(r.dynamic()))
		}
		if final == 1 {
			break
		}
	}
	return farthest
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (r *bitReader) dynamic() (literals, distances huffman) {
	nlit, ndist, ncode := r.bits(5)+257, r.bits(5)+1, r.bits(4)+4
	codeLengths := make([]int, 19)
	for _, i := range []int{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}[:ncode] {
		codeLengths[i] = r.bits(3)
	}
	code := newHuffman(codeLengths)
	var lengths []int
	for len(lengths) < nlit+ndist {
		n, repeat := r.symbol(code), 1
		switch n {
		case 16:
			n, repeat = lengths[len(lengths)-1], 3+r.bits(2)
		case 17:
			n, repeat = 0, 3+r.bits(3)
		case 18:
			n, repeat = 0, 11+r.bits(7)
		}
		for range repeat {
			lengths = append(lengths, n)
		}
	}
	return newHuffman(lengths[:nlit]), newHuffman(lengths[nlit:])
}

func (r *bitReader) block(literals, distances huffman) (farthest int) {
	for {
		symbol := r.symbol(literals)
		switch {
		case symbol == 256:
			return farthest
		case symbol > 284:
		case symbol > 264:
			r.bits((symbol - 261) / 4)
		}
		if symbol < 257 {
			continue
		}
		d := r.symbol(distances)
		distance := d + 1
		if d > 3 {
			extra := (d - 2) / 2
			distance = 1 + (2+d&1)<<extra + r.bits(extra)
		}
		farthest = max(farthest, distance)
	}
}
