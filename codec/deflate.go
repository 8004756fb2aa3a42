package codec

import (
	"bytes"
	"errors"
	"io"
	"sync"

	"github.com/gobwas/ws"
	"github.com/klauspost/compress/flate"
)

// permessage-deflate (RFC 7692), without context takeover in either direction: a message is compressed by itself, so
// that an idle connection holds no window, and a push is compressed once for all who get it.

const (
	// deflateBytesMin is the smallest message worth compressing: below it, acks and heartbeats, deflate wins a few bytes
	// at best.
	deflateBytesMin = 128

	// A sender leaves out the end of its last block; behind it, an empty final block lets the reader come to an end.
	deflateTail  = "\x00\x00\xff\xff"
	deflateFinal = "\x01\x00\x00\xff\xff"

	// inflateBytesFirst is where the scratch buffer starts; most commands fit.
	inflateBytesFirst = 4 << 10
)

// compressedLimit is how long a compressed message may be whose inflated form is bounded by limit: data that does not
// compress grows by 5 bytes a stored block, and no encoder in use has blocks under 4 KiB.
func compressedLimit(limit int64) int64 { return limit + limit>>8 + 64 }

// The pools hold what compression needs, between messages, for all connections: a writer is about 1 MiB, a reader
// 40 KiB. They are caches without visible state, and the collector may empty them at any time.
var (
	inflaters sync.Pool
	deflaters [windowBitsMax + 1]sync.Pool // By window bits.
)

type inflater struct {
	reader  io.ReadCloser
	source  bytes.Reader
	in, out []byte
}

// inflate returns the inflated payload in memory of its own. It stops with ErrFrameTooBig as soon as more than limit
// bytes have come out, so that a bomb costs no more than a frame.
func inflate(payload []byte, limit int) ([]byte, Error) {
	z, ok := inflaters.Get().(*inflater)
	if !ok {
		z = newInflater()
	}
	defer inflaters.Put(z)
	return z.inflate(payload, limit)
}

func newInflater() *inflater {
	return &inflater{reader: flate.NewReader(nil), out: make([]byte, inflateBytesFirst)}
}

func (z *inflater) inflate(payload []byte, limit int) ([]byte, Error) {
	z.in = append(append(append(z.in[:0], payload...), deflateTail...), deflateFinal...)
	z.source.Reset(z.in)
	if err := z.reader.(flate.Resetter).Reset(&z.source, nil); err != nil {
		return nil, ErrDeflate
	}
	n := 0
	for {
		if n == len(z.out) {
			z.out = append(z.out, make([]byte, len(z.out))...)
		}
		m, err := z.reader.Read(z.out[n:])
		if n += m; n > limit {
			return nil, ErrFrameTooBig
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, ErrDeflate
		}
	}
	if !z.ended(len(payload)) {
		return nil, ErrDeflate
	}
	return append([]byte(nil), z.out[:n]...), 0
}

// ended reports whether nothing of the message is left behind its last block. A message may end with a final block of
// its own, then one byte of zero for the block that the sender's cut removed (RFC 7692, 7.2.3.4); anything more would
// be data that one reader drops and another one reads.
func (z *inflater) ended(payload int) bool {
	left := z.source.Len() - len(deflateTail) - len(deflateFinal)
	return left <= 0 || left == 1 && z.in[payload-1] == 0
}

type deflater struct {
	writer *flate.Writer
	out    []byte
}

// Write takes the compressed bytes.
func (d *deflater) Write(b []byte) (int, error) {
	d.out = append(d.out, b...)
	return len(b), nil
}

// appendDeflated appends one compressed message; ok is false, and dst unchanged, if that would not be smaller.
func appendDeflated(bits int, dst []byte, op ws.OpCode, message []byte, m masking) (framed []byte, ok bool) {
	d, pooled := deflaters[bits].Get().(*deflater)
	if !pooled {
		d = &deflater{}
		w, err := newWriter(bits, d)
		if err != nil {
			return dst, false
		}
		d.writer = w
	}
	defer deflaters[bits].Put(d)
	d.out = d.out[:0]
	d.writer.Reset(d)
	if _, err := d.writer.Write(message); err != nil {
		return dst, false
	}
	if err := d.writer.Flush(); err != nil {
		return dst, false
	}
	payload, cut := bytes.CutSuffix(d.out, []byte(deflateTail))
	if !cut || len(payload) >= len(message) {
		return dst, false
	}
	dst = appendHeader(dst, finBit|rsv1<<4|byte(op), len(payload), m)
	return appendPayload(dst, payload, m), true
}

func newWriter(bits int, d *deflater) (*flate.Writer, error) {
	if bits == windowBitsMax {
		return flate.NewWriter(d, flate.BestSpeed)
	}
	return flate.NewWriterWindow(d, 1<<bits)
}
