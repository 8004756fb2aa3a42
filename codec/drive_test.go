package codec

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// rawFrame is a frame with every right to be wrong.
type rawFrame struct {
	op      byte
	more    bool // FIN is not set.
	rsv     byte
	body    string
	plain   bool   // Not masked.
	form    int    // 7, 16 or 64 bits of length; 0 = minimal.
	claimed uint64 // The length in the header, if it is not that of body.
}

const (
	opContinuation, opText, opBinary = 0, 1, 2
	opClose, opPing, opPong          = 8, 9, 10
)

var rawMask = [4]byte{0x37, 0xfa, 0x21, 0x3d} // RFC 6455, 5.7.

func (f rawFrame) append(b []byte) []byte {
	first, masked := f.rsv<<4|f.op, byte(0x80)
	if !f.more {
		first |= 0x80
	}
	if f.plain {
		masked = 0
	}
	length := uint64(len(f.body))
	if f.claimed != 0 {
		length = f.claimed
	}
	form := f.form
	if form == 0 {
		switch form = 7; {
		case length > 0xffff:
			form = 64
		case length > 125:
			form = 16
		}
	}
	switch b = append(b, first); form {
	case 7:
		b = append(b, masked|byte(length))
	case 16:
		b = binary.BigEndian.AppendUint16(append(b, masked|126), uint16(length))
	default:
		b = binary.BigEndian.AppendUint64(append(b, masked|127), length)
	}
	if f.plain {
		return append(b, f.body...)
	}
	b = append(b, rawMask[:]...)
	for i := range len(f.body) {
		b = append(b, f.body[i]^rawMask[i&3])
	}
	return b
}

func wire(frames ...rawFrame) []byte {
	var b []byte
	for _, f := range frames {
		b = f.append(b)
	}
	return b
}

func text(body string) rawFrame    { return rawFrame{op: opText, body: body} }
func binry(body string) rawFrame   { return rawFrame{op: opBinary, body: body} }
func ping(body string) rawFrame    { return rawFrame{op: opPing, body: body} }
func pong(body string) rawFrame    { return rawFrame{op: opPong, body: body} }
func closing(body string) rawFrame { return rawFrame{op: opClose, body: body} }

// first and then are the fragments of a message; last ends it.
func first(op byte, body string) rawFrame { return rawFrame{op: op, more: true, body: body} }
func then(body string) rawFrame           { return rawFrame{op: opContinuation, more: true, body: body} }
func last(body string) rawFrame           { return rawFrame{op: opContinuation, body: body} }

// transcript is what a stream made of its input: one line a frame, and the error that ended it.
type transcript struct {
	frames []string
	err    error
}

func (tr transcript) String() string {
	return fmt.Sprintf("%s; error: %v", strings.Join(tr.frames, ", "), tr.err)
}

func equalTranscripts(a, b transcript) bool {
	return slices.Equal(a.frames, b.frames) && a.err == b.err
}

func describe(f Frame) string {
	names := [...]string{"none", "command", "ping", "pong", "close", "text", "binary"}
	name := names[f.Kind]
	if f.Kind == KindClose {
		name = fmt.Sprint(name, " ", f.Code)
	}
	if len(f.Payload) > 40 {
		return fmt.Sprintf("%s %q...(%d)", name, f.Payload[:40], len(f.Payload))
	}
	return fmt.Sprintf("%s %q", name, f.Payload)
}

// drive feeds input to s in pieces that end at cuts, the way a poller does: what a piece leaves unconsumed comes again in
// front of the next one.
func drive(t testing.TB, s Stream, input []byte, lim *Limits, cuts []int) (tr transcript) {
	t.Helper()
	var leftover []byte
	given := 0
	for _, cut := range append(cuts, len(input)) {
		buf := append(slices.Clone(leftover), input[given:cut]...)
		given = cut
		for {
			before := slices.Clone(buf)
			f, consumed, err := s.Next(buf, lim)
			if consumed < 0 || consumed > len(buf) {
				t.Fatalf("consumed %d of %d", consumed, len(buf))
			}
			if err != nil {
				if _, n, again := s.Next(buf, lim); again != err || n != 0 {
					t.Fatalf("after %v a call returned %d, %v", err, n, again)
				}
				tr.err = err
				return tr
			}
			if !bytes.Equal(buf[consumed:], before[consumed:]) {
				t.Fatal("bytes that were not consumed have changed")
			}
			buf = buf[consumed:]
			if f.Kind == KindNone {
				break
			}
			if len(f.Payload) > lim.FrameBytes && f.Kind != KindClose {
				t.Fatalf("payload of %d bytes, the limit is %d", len(f.Payload), lim.FrameBytes)
			}
			tr.frames = append(tr.frames, describe(f))
		}
		leftover = buf
	}
	return tr
}

// everyWay drives input whole, byte by byte and cut at random, and demands the same every time.
func everyWay(t testing.TB, s Stream, input []byte, lim *Limits, seed uint64) transcript {
	t.Helper()
	whole := drive(t, s, input, lim, nil)
	var bytewise []int
	for i := range input {
		// The middle of a long payload is cut now and then only: every cut copies what is left over.
		if i < 1000 || i > len(input)-100 || i%997 == 0 {
			bytewise = append(bytewise, i)
		}
	}
	if got := drive(t, s, input, lim, bytewise); !equalTranscripts(got, whole) {
		t.Fatalf("byte by byte:\n%v\nwhole:\n%v", got, whole)
	}
	if len(input) == 0 {
		return whole
	}
	r := rand.New(rand.NewPCG(seed, 0))
	cuts := make([]int, 1+r.IntN(8))
	for i := range cuts {
		cuts[i] = r.IntN(len(input))
	}
	slices.Sort(cuts)
	if got := drive(t, s, input, lim, cuts); !equalTranscripts(got, whole) {
		t.Fatalf("cut at %v:\n%v\nwhole:\n%v", cuts, got, whole)
	}
	return whole
}
