package codec

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/gobwas/ws"
)

// deflated is what another implementation, the standard library's, sends for body.
func deflated(t testing.TB, body string) string {
	t.Helper()
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, body); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(b.String(), deflateTail)
}

func squeezed(op byte, body string) rawFrame { return rawFrame{op: op, rsv: rsv1, body: body} }

func TestInflate(t *testing.T) {
	lim := &Limits{FrameBytes: 64 << 10, Fragments: 20000}
	s := NewStream(WebSocketEcho.WithDeflate(15))
	repeated := strings.Repeat("abc", 5000)
	random := make([]byte, 50000)
	rand.NewChaCha8([32]byte{}).Read(random)

	pieces := deflated(t, repeated)
	fragments := rawFrame{op: opBinary, rsv: rsv1, more: true, body: pieces[:1]}.append(nil)
	for i := 1; i < len(pieces); i++ {
		fragments = then(pieces[i : i+1]).append(fragments)
	}
	fragments = ping("q").append(last("").append(fragments))

	binary := func(body string) string { return describe(Frame{Kind: KindBinary, Payload: []byte(body)}) }
	hello := deflated(t, "hello")
	runScripts(t, s, lim, []script{
		{"not compressed", wire(text("plain")), []string{`text "plain"`}, nil},
		{"empty", wire(squeezed(opText, deflated(t, ""))), []string{`text ""`}, nil},
		{"one byte", wire(squeezed(opText, deflated(t, "x"))), []string{`text "x"`}, nil},
		{"repeated", wire(squeezed(opBinary, deflated(t, repeated))), []string{binary(repeated)}, nil},
		{"random", wire(squeezed(opBinary, deflated(t, string(random)))), []string{binary(string(random))}, nil},
		{"three", wire(squeezed(opText, hello), squeezed(opText, hello), squeezed(opText, hello)), []string{`text "hello"`, `text "hello"`, `text "hello"`}, nil},
		{"fragments", fragments, []string{binary(repeated), `ping "q"`}, nil},
		{"control between fragments", wire(rawFrame{op: opText, rsv: rsv1, more: true, body: hello[:2]}, ping("p"), last(hello[2:])), []string{`ping "p"`, `text "hello"`}, nil},
		{"bit on a continuation", wire(rawFrame{op: opText, rsv: rsv1, more: true, body: hello[:2]}, rawFrame{rsv: rsv1, body: hello[2:]}), nil, ErrReservedBits},
		{"bit on a ping", wire(rawFrame{op: opPing, rsv: rsv1}), nil, ErrReservedBits},
		{"bit on a close", wire(rawFrame{op: opClose, rsv: rsv1}), nil, ErrReservedBits},
		{"second bit", wire(rawFrame{op: opText, rsv: 2, body: "x"}), nil, ErrReservedBits},
		{"first and second bit", wire(rawFrame{op: opText, rsv: 6, body: hello}), nil, ErrReservedBits},
		{"third bit", wire(rawFrame{op: opPing, rsv: 1}), nil, ErrReservedBits},
		{"corrupt", wire(squeezed(opBinary, "\xff\xff\xff\xff")), nil, ErrDeflate},
		{"cut short", wire(squeezed(opBinary, deflated(t, repeated)[:10])), nil, ErrDeflate},
		{"text that is not UTF-8", wire(squeezed(opText, deflated(t, "a\xff"))), nil, ErrInvalidUTF8},
		{"text of two bytes a character", wire(squeezed(opText, deflated(t, "κόσμε"))), []string{`text "κόσμε"`}, nil},
		// RFC 7692, 7.2.3: the examples, then what must not hide behind a final block.
		{"RFC: two blocks", wire(squeezed(opText, "\xf2\x48\x05\x00\x00\x00\xff\xff\xca\xc9\xc9\x07\x00")), []string{`text "Hello"`}, nil},
		{"RFC: no compression", wire(squeezed(opText, "\x00\x05\x00\xfa\xff\x48\x65\x6c\x6c\x6f\x00")), []string{`text "Hello"`}, nil},
		{"RFC: final block", wire(squeezed(opText, "\xf3\x48\xcd\xc9\xc9\x07\x00\x00")), []string{`text "Hello"`}, nil},
		{"final block without its pad", wire(squeezed(opText, "\xf3\x48\xcd\xc9\xc9\x07\x00")), []string{`text "Hello"`}, nil},
		{"hidden behind a final block", wire(squeezed(opText, "\xf3\x48\xcd\xc9\xc9\x07\x00HIDDEN")), nil, ErrDeflate},
		{"one byte behind a final block", wire(squeezed(opText, "\xf3\x48\xcd\xc9\xc9\x07\x00\x01")), nil, ErrDeflate},
		{"a message behind a final block", wire(squeezed(opText, "\xf3\x48\xcd\xc9\xc9\x07\x00"+hello)), nil, ErrDeflate},
	})
	runScripts(t, NewStream(WebSocket.WithDeflate(15)), lim, []script{
		{"text where it may not be", wire(squeezed(opText, hello)), nil, ErrUnsupportedData},
	})
	runScripts(t, NewStream(WebSocketEcho), lim, []script{
		{"not negotiated", wire(squeezed(opText, hello)), nil, ErrReservedBits},
	})
}

func TestInflateLimit(t *testing.T) {
	lim := &Limits{FrameBytes: 64 << 10, Fragments: 8}
	random := make([]byte, lim.FrameBytes)
	rand.NewChaCha8([32]byte{}).Read(random)
	binary := func(body []byte) []string { return []string{describe(Frame{Kind: KindBinary, Payload: body})} }
	zeros := make([]byte, lim.FrameBytes+1)
	runScripts(t, NewStream(WebSocketEcho.WithDeflate(15)), lim, []script{
		{"at the limit", wire(squeezed(opBinary, deflated(t, string(zeros[1:])))), binary(zeros[1:]), nil},
		{"one over the limit", wire(squeezed(opBinary, deflated(t, string(zeros)))), nil, ErrFrameTooBig},
		{"at the limit, not compressible", wire(squeezed(opBinary, deflated(t, string(random)))), binary(random), nil},
		{"bomb", wire(squeezed(opBinary, deflated(t, strings.Repeat("\x00", 60<<20)))), nil, ErrFrameTooBig},
		{"bomb in fragments", wire(rawFrame{op: opBinary, rsv: rsv1, more: true, body: deflated(t, string(zeros))}, last("")), nil, ErrFrameTooBig},
		{"compressed bytes over the limit", wire(rawFrame{op: opBinary, rsv: rsv1, claimed: uint64(compressedLimit(64<<10) + 1)}), nil, ErrFrameTooBig},
		{"compressed fragments over the limit", wire(rawFrame{op: opBinary, rsv: rsv1, more: true, body: "x"}, rawFrame{claimed: uint64(compressedLimit(64 << 10))}), nil, ErrFrameTooBig},
	})
}

// A bomb must not cost more than its limit, whatever it would have become.
func TestBombIsCheap(t *testing.T) {
	bomb := []byte(deflated(t, strings.Repeat("\x00", 16<<20)))
	z := newInflater()
	if _, err := z.inflate(bomb, 4<<10); err != ErrFrameTooBig {
		t.Fatal(err)
	}
	if len(z.out) > 16<<10 {
		t.Errorf("%d bytes were inflated for a limit of 4 KiB", len(z.out))
	}
}

// What is sent must be readable with the window that was agreed, and no match may reach back farther than that.
func TestDeflateRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	words := []string{"sluice ", "gateway ", "lease ", "park ", "wake ", "\u03ba\u03cc\u03c3\u03bc\u03b5 "}
	for bits := windowBitsMin; bits <= windowBitsMax; bits++ {
		for _, size := range []int{0, 1, deflateBytesMin, 1000, 9000, 60000} {
			t.Run(fmt.Sprintf("%d/%d", bits, size), func(t *testing.T) {
				var b strings.Builder
				for b.Len() < size {
					b.WriteString(words[r.IntN(len(words))])
				}
				s := NewStream(WebSocketEcho.WithDeflate(bits))
				framed, err := s.AppendEcho(nil, KindText, []byte(b.String()))
				if err != nil {
					t.Fatal(err)
				}
				if b.Len() >= 1000 && len(framed) >= b.Len() {
					t.Errorf("%d bytes became %d", b.Len(), len(framed))
				}
				client := NewClientStream(s.Protocol())
				if f := next(t, &client, framed, KindText); string(f.Payload) != b.String() {
					t.Error("the message came back different")
				}
				d := farthest(t, framed)
				if d > 1<<bits {
					t.Errorf("a match reaches back %d bytes, the window is %d", d, 1<<bits)
				}
				if b.Len() >= 9000 && d == 0 {
					t.Error("no match at all: the measure is broken")
				}
			})
		}
	}
}

// farthest is the largest distance of a match in a frame that a server sent; 0 if it is not compressed. It is a small
// inflater that keeps no output.
func farthest(t *testing.T, framed []byte) int {
	t.Helper()
	s := NewClientStream(WebSocketEcho.WithDeflate(15))
	h, size, bad := s.header(framed, testLimits)
	if bad != 0 {
		t.Fatal(bad)
	}
	if h.Rsv&rsv1 == 0 {
		return 0
	}
	return maxDistance(t, append(bytes.Clone(framed[size:]), deflateTail...))
}

func TestIncompressibleIsSentPlain(t *testing.T) {
	random := make([]byte, 4096)
	rand.NewChaCha8([32]byte{}).Read(random)
	framed, err := Append(WebSocket.WithDeflate(15), nil, random)
	if err != nil || ws.OpCode(framed[0]&0x0f) != ws.OpBinary || framed[0]&(rsv1<<4) != 0 {
		t.Errorf("first byte %x, %v", framed[0], err)
	}
}

func TestAcceptDeflate(t *testing.T) {
	for _, c := range []struct {
		offer string
		bits  int // 0 = declined.
	}{
		{"permessage-deflate", 15},
		{"Permessage-Deflate", 15},
		{"permessage-deflate; client_max_window_bits", 15},
		{"permessage-deflate; server_no_context_takeover; client_no_context_takeover", 15},
		{"permessage-deflate; server_max_window_bits=9", 9},
		{`permessage-deflate; server_max_window_bits="10"`, 10},
		{"permessage-deflate;server_max_window_bits = 12 ;client_max_window_bits=8", 12},
		{"permessage-deflate; server_max_window_bits=15; client_max_window_bits=15", 15},
		{"permessage-deflate; server_max_window_bits=10, permessage-deflate", 10},
		{"permessage-deflate; server_max_window_bits=8, permessage-deflate", 15},
		{"permessage-deflate; foo, permessage-deflate; server_max_window_bits=11", 11},
		{"x-unknown; a=b; c=\"d\", permessage-deflate", 15},
		{", ,permessage-deflate", 15},
		{"permessage-deflate; server_max_window_bits=7", 0},
		{"permessage-deflate; server_max_window_bits=8", 0},
		{"permessage-deflate; server_max_window_bits=16", 0},
		{"permessage-deflate; server_max_window_bits=010", 0},
		{"permessage-deflate; server_max_window_bits=+9", 0},
		{"permessage-deflate; server_max_window_bits", 0},
		{"permessage-deflate; client_max_window_bits=7", 0},
		{"permessage-deflate; foo", 0},
		{"permessage-deflate; foo; server_no_context_takeover", 0},
		{"permessage-deflate; client_no_context_takeover=1", 0},
		{"permessage-deflate; client_no_context_takeover=", 0},
		{"permessage-deflate; server_no_context_takeover; server_no_context_takeover", 0},
		{"permessage-deflate; client_max_window_bits; client_max_window_bits=9", 0},
		{`permessage-deflate; server_max_window_bits="0x9"`, 0},
		{`permessage-deflate; server_max_window_bits="9`, 0},
		{"permessage-deflate;", 0},
		{"permessage-deflate; ;", 0},
		{"permessage-deflate foo", 0},
		{"; permessage-deflate", 0},
		{"x-unknown", 0},
		{"", 0},
	} {
		bits, ok := acceptDeflate([]string{c.offer})
		if !ok {
			bits = 0
		}
		if bits != c.bits {
			t.Errorf("%s: window bits %d, want %d", c.offer, bits, c.bits)
		}
	}
	if bits, ok := acceptDeflate([]string{"x-unknown", "permessage-deflate; server_max_window_bits=9"}); !ok || bits != 9 {
		t.Errorf("offer in a second field: %d, %v", bits, ok)
	}
}
