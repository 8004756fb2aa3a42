package codec

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestAppendRefuses(t *testing.T) {
	before := []byte("before")
	for _, c := range []struct {
		name     string
		protocol Protocol
		command  string
	}{
		{"empty on TCP", TCP, ""},
		{"no Command, in JSON", WebSocketJSON, "\x00"},
		{"a payload that is none, in JSON", WebSocketJSON, "\x08\x07\x1a\x01\x00"},
		{"a MessageAck that is not UTF-8, in JSON", WebSocketJSON, "\x08\x07\x1a\x03\x0a\x01\xff"},
	} {
		got, err := Append(c.protocol, before, []byte(c.command))
		if err != ErrUnencodable || string(got) != "before" {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
	}
}

func TestServerControlFrames(t *testing.T) {
	long := strings.Repeat("κ", 100)
	for _, c := range []struct {
		name string
		got  func(s *Stream) []byte
		want string
	}{
		{"pong", func(s *Stream) []byte { return s.AppendPong(nil, []byte("x")) }, `pong "x"`},
		{"pong that is too long", func(s *Stream) []byte { return s.AppendPong(nil, []byte(long)) }, describe(Frame{Kind: KindPong, Payload: []byte(long)[:125]})},
		{"close", func(s *Stream) []byte { return s.AppendClose(nil, 1000, "bye") }, `close 1000 "bye"`},
		{"close with our own code", func(s *Stream) []byte { return s.AppendClose(nil, 4499, "") }, `close 4499 ""`},
		{"close without a code", func(s *Stream) []byte { return s.AppendClose(nil, 1005, "bye") }, `close 1005 ""`},
		{"close with a code that must not be sent", func(s *Stream) []byte { return s.AppendClose(nil, 1006, "bye") }, `close 1005 ""`},
		{"close with a long text", func(s *Stream) []byte { return s.AppendClose(nil, 1001, long) }, describe(Frame{Kind: KindClose, Code: 1001, Payload: []byte(long)[:122]})},
		{"close with a text that is not UTF-8", func(s *Stream) []byte { return s.AppendClose(nil, 1001, "ok\xff") }, `close 1001 "ok"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			server, client := NewStream(WebSocket), NewClientStream(WebSocket)
			f, _, err := client.Next(c.got(&server), testLimits)
			if err != nil || describe(f) != c.want || !utf8.Valid(f.Payload) && f.Kind == KindClose {
				t.Errorf("%s, %v; want %s", describe(f), err, c.want)
			}
			tcp := NewStream(TCP)
			if b := c.got(&tcp); len(b) != 0 {
				t.Errorf("on TCP: %q", b)
			}
		})
	}
}

func TestClientControlFrames(t *testing.T) {
	mask := [4]byte{9, 8, 7, 6}
	for want, got := range map[string][]byte{
		`ping "x"`:         AppendClientPing(WebSocket, nil, []byte("x"), mask),
		`pong "x"`:         AppendClientPong(WebSocket, nil, []byte("x"), mask),
		`close 1000 "bye"`: AppendClientClose(WebSocket, nil, 1000, "bye", mask),
		`close 1005 ""`:    AppendClientClose(WebSocket, nil, 0, "", mask),
	} {
		server := NewStream(WebSocket)
		if f, _, err := server.Next(got, testLimits); err != nil || describe(f) != want {
			t.Errorf("%s, %v; want %s", describe(f), err, want)
		}
	}
	for _, got := range [][]byte{
		AppendClientPing(TCP, nil, nil, mask), AppendClientPong(TCP, nil, nil, mask), AppendClientClose(TCP, nil, 1000, "", mask),
	} {
		if len(got) != 0 {
			t.Errorf("a control frame on TCP: %q", got)
		}
	}
}

func TestEchoKeepsTheKind(t *testing.T) {
	for _, kind := range []Kind{KindText, KindBinary} {
		server, client := NewStream(WebSocketEcho), NewClientStream(WebSocketEcho)
		up, err := AppendClientEcho(WebSocketEcho, nil, kind, []byte("as it is"), [4]byte{1})
		if err != nil {
			t.Fatal(err)
		}
		f := next(t, &server, up, kind)
		down, err := server.AppendEcho(nil, f.Kind, f.Payload)
		if err != nil {
			t.Fatal(err)
		}
		if f = next(t, &client, down, kind); string(f.Payload) != "as it is" {
			t.Errorf("%q", f.Payload)
		}
	}
}

// The hot path: a frame is cut, scanned, and an answer appended, without the allocator.
func TestHotPathDoesNotAllocate(t *testing.T) {
	for _, p := range []Protocol{TCP, WebSocket} {
		command := messageUp("u1", 200)
		frame, err := AppendClientFrame(p, nil, command, [4]byte{1, 2, 3, 4})
		if err != nil {
			t.Fatal(err)
		}
		in, out, s := make([]byte, len(frame)), make([]byte, 0, 1024), NewStream(p)
		ack := ackOf("u1")
		n := testing.AllocsPerRun(1000, func() {
			copy(in, frame)
			f, _, err := s.Next(in[:len(in)-1], testLimits) // Not yet.
			if err == nil {
				f, _, err = s.Next(in, testLimits)
			}
			h, scanErr := Scan(f.Payload)
			if err != nil || scanErr != nil || string(h.UUID) != "u1" {
				t.Fatal(err, scanErr)
			}
			answer := AppendCommand(out[:0], h.Type+1, 0, ack)
			framed, err := s.Append(answer[len(answer):], answer)
			if err != nil || len(framed) == 0 {
				t.Fatal(err)
			}
			framed = s.AppendClose(s.AppendPong(framed, f.Payload[:4]), 1000, "bye")
			if len(framed) == 0 {
				t.Fatal("nothing")
			}
		})
		if n != 0 {
			t.Errorf("%s: %v allocations a message", p, n)
		}
	}
}

// Nor may a peer that misbehaves make the gateway allocate.
func TestErrorsDoNotAllocate(t *testing.T) {
	for name, c := range map[string]struct {
		protocol Protocol
		in       []byte
	}{
		"TCP length":    {TCP, tcpFrame(1<<32-1, "")},
		"frame length":  {WebSocket, wire(rawFrame{op: opBinary, claimed: 1<<63 - 1})},
		"unmasked":      {WebSocket, wire(rawFrame{op: opBinary, plain: true})},
		"text":          {WebSocket, wire(text("x"))},
		"unfinished":    {WebSocketJSON, wire(text(strings.Repeat("x", 1000)))[:900]},
		"close code":    {WebSocket, wire(closeWith(1006))},
		"pong flood":    {WebSocket, wire(pong("x"))},
		"half a header": {WebSocket, wire(binry(strings.Repeat("x", 1000)))[:5]},
	} {
		in := make([]byte, len(c.in))
		n := testing.AllocsPerRun(1000, func() {
			copy(in, c.in)
			s := NewStream(c.protocol)
			if f, _, _ := s.Next(in, testLimits); f.Kind == KindCommand {
				t.Fatal("a command")
			}
		})
		// CheckHeader boxes its error: 16 bytes, once a connection.
		if n > 1 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
