package codec

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
)

// script is a conversation: what the client sends, and what the stream must make of it.
type script struct {
	name string
	in   []byte
	want []string
	err  error
}

func runScripts(t *testing.T, s Stream, lim *Limits, scripts []script) {
	t.Helper()
	for i, c := range scripts {
		t.Run(c.name, func(t *testing.T) {
			got := everyWay(t, s, c.in, lim, uint64(i))
			if want := (transcript{c.want, c.err}); !equalTranscripts(got, want) {
				t.Errorf("got  %v\nwant %v", got, want)
			}
		})
	}
}

func TestFrames(t *testing.T) {
	long := strings.Repeat("*", 300)
	for _, size := range []int{0, 1, 125, 126, 127, 65535, 65536} {
		body := strings.Repeat("*", size)
		for _, f := range []rawFrame{text(body), binry(body)} {
			runScripts(t, NewStream(WebSocketEcho), &Limits{FrameBytes: 65536, Fragments: 1}, []script{{
				name: fmt.Sprintf("op %d of %d", f.op, size), in: f.append(nil), want: []string{described(f)},
			}})
		}
	}
	runScripts(t, NewStream(WebSocketEcho), testLimits, []script{
		{"nothing", nil, nil, nil},
		{"many", wire(text("1"), ping("2"), binry("3"), pong("4")), []string{`text "1"`, `ping "2"`, `binary "3"`, `pong "4"`}, nil},
		{"mask of zeros", []byte{0x81, 0x82, 0, 0, 0, 0, 'h', 'i'}, []string{`text "hi"`}, nil},
		{"unmasked", wire(rawFrame{op: opText, body: "x", plain: true}), nil, ErrMask},
		{"16 bits where 7 do", wire(rawFrame{op: opText, body: "hello", form: 16}), nil, ErrLength},
		{"64 bits where 7 do", wire(rawFrame{op: opText, body: "hello", form: 64}), nil, ErrLength},
		{"64 bits where 16 do", wire(rawFrame{op: opText, body: long, form: 64}), nil, ErrLength},
		{"highest bit of the length", wire(rawFrame{op: opBinary, claimed: 1 << 63, form: 64}), nil, ErrLength},
		{"2^63-1", wire(rawFrame{op: opBinary, claimed: 1<<63 - 1}), nil, ErrFrameTooBig},
		{"2^62", wire(rawFrame{op: opBinary, claimed: 1 << 62}), nil, ErrFrameTooBig},
		{"2^40", wire(rawFrame{op: opBinary, claimed: 1 << 40}), nil, ErrFrameTooBig},
		{"2^63-1 behind a fragment", wire(first(opBinary, "x"), rawFrame{claimed: 1<<63 - 1}), nil, ErrFrameTooBig},
		{"ping of 125", wire(ping(long[:125])), []string{described(ping(long[:125]))}, nil},
		{"ping of 126", wire(ping(long[:126])), nil, ErrControl},
		{"ping with 16 bits of length", wire(rawFrame{op: opPing, body: "hello", form: 16}), nil, ErrControl},
		{"pong of 126", wire(pong(long[:126])), nil, ErrControl},
		{"fragmented ping", wire(rawFrame{op: opPing, more: true}), nil, ErrControl},
		{"fragmented close", wire(rawFrame{op: opClose, more: true, body: "\x03\xe8"}), nil, ErrControl},
	})
	for rsv := byte(1); rsv < 8; rsv++ {
		for _, op := range []byte{opText, opPing} {
			runScripts(t, NewStream(WebSocketEcho), testLimits, []script{{
				name: fmt.Sprintf("rsv %d op %d", rsv, op), in: wire(rawFrame{op: op, rsv: rsv}), err: ErrReservedBits,
			}})
		}
	}
	for _, op := range []byte{3, 4, 5, 6, 7, 11, 12, 13, 14, 15} {
		runScripts(t, NewStream(WebSocketEcho), testLimits, []script{{
			name: fmt.Sprint("opcode ", op), in: wire(text("first"), rawFrame{op: op}, ping("")), want: []string{`text "first"`}, err: ErrOpcode,
		}})
	}
}

func described(f rawFrame) string {
	kinds := map[byte]Kind{opText: KindText, opBinary: KindBinary, opPing: KindPing}
	return describe(Frame{Kind: kinds[f.op], Payload: []byte(f.body)})
}

func TestFragments(t *testing.T) {
	thousand := first(opBinary, "x").append(nil)
	for range 998 {
		thousand = then("x").append(thousand)
	}
	thousand = last("x").append(thousand)
	runScripts(t, NewStream(WebSocketEcho), testLimits, []script{
		{"two", wire(first(opText, "a"), last("b")), []string{`text "ab"`}, nil},
		{"empty", wire(first(opText, ""), then(""), last("")), []string{`text ""`}, nil},
		{"empty around", wire(first(opBinary, ""), then("mid"), last("")), []string{`binary "mid"`}, nil},
		{"a thousand", thousand, []string{describe(Frame{Kind: KindBinary, Payload: []byte(strings.Repeat("x", 1000))})}, nil},
		{"ping inside", wire(first(opText, "a"), ping("in"), last("b")), []string{`ping "in"`, `text "ab"`}, nil},
		{"pong inside", wire(first(opText, "a"), pong("in"), last("b")), []string{`pong "in"`, `text "ab"`}, nil},
		{"close inside", wire(first(opText, "a"), closing("\x03\xe8"), last("b")), []string{`close 1000 ""`}, nil},
		{"orphan", wire(last("x"), text("y")), nil, ErrContinuation},
		{"orphan that goes on", wire(then("x"), text("y")), nil, ErrContinuation},
		{"empty orphan", wire(last("")), nil, ErrContinuation},
		{"text inside", wire(first(opText, "a"), text("b")), nil, ErrContinuation},
		{"binary begins inside", wire(first(opText, "a"), first(opBinary, "b")), nil, ErrContinuation},
		{"after the end", wire(first(opText, "a"), last("b"), last("c")), []string{`text "ab"`}, ErrContinuation},
		{"two messages", wire(first(opText, "a"), last("b"), first(opBinary, "c"), last("d")), []string{`text "ab"`, `binary "cd"`}, nil},
	})
	runScripts(t, NewStream(WebSocketEcho), &Limits{FrameBytes: 10, Fragments: 3}, []script{
		{"three", wire(first(opText, "a"), then("b"), last("c")), []string{`text "abc"`}, nil},
		{"four", wire(first(opText, "a"), then("b"), then("c"), last("d")), nil, ErrTooManyFragments},
		{"endless and empty", wire(first(opText, ""), then(""), then(""), then("")), nil, ErrTooManyFragments},
		{"at the limit", wire(first(opText, "12345"), last("67890")), []string{`text "1234567890"`}, nil},
		{"over the limit", wire(first(opText, "12345"), last("678901")), nil, ErrFrameTooBig},
		{"over the limit by its header", wire(first(opText, "12345"), rawFrame{claimed: 6}), nil, ErrFrameTooBig},
		{"over the limit at once", wire(rawFrame{op: opBinary, claimed: 11}), nil, ErrFrameTooBig},
	})
}

// The buffer for fragments must not outlive its message: it would stay with every connection that ever used it.
func TestFragmentBufferGoes(t *testing.T) {
	s := NewStream(WebSocketEcho)
	next(t, &s, wire(first(opText, "a")), KindNone)
	if !s.Unfinished() {
		t.Error("a fragmented message has begun, and Unfinished is false")
	}
	next(t, &s, wire(last("b")), KindText)
	if s.Unfinished() || s.gather != nil {
		t.Error("the message is complete, and its buffer is still there")
	}
}

func TestMessageTypes(t *testing.T) {
	command := string(messageUp("u1", 3))
	runScripts(t, NewStream(WebSocket), testLimits, []script{
		{"binary", wire(binry(command)), []string{describe(Frame{Kind: KindCommand, Payload: []byte(command)})}, nil},
		{"text", wire(text("{}")), nil, ErrUnsupportedData},
		{"fragmented text", wire(first(opText, "{")), nil, ErrUnsupportedData},
		{"binary that is not text", wire(binry("\xff\xfe\x80")), []string{`command "\xff\xfe\x80"`}, nil},
	})
	runScripts(t, NewStream(WebSocketJSON), testLimits, []script{
		{"text", wire(text(`{"type":"HEARTBEAT"}`)), []string{`command "\b\x05"`}, nil},
		{"fragmented text", wire(first(opText, `{"type":"HEA`), ping("x"), last(`RTBEAT"}`)), []string{`ping "x"`, `command "\b\x05"`}, nil},
		{"binary", wire(binry("x")), nil, ErrUnsupportedData},
	})
}

func TestText(t *testing.T) {
	for i, s := range []string{
		"\u00e9", "\u20ac", "\U00024B62", "\u0000", "\u007f", "\u0080", "\u07ff", "\u0800", "\ud7ff", "\ue000", "\ufffd", "\uffff",
		"\U00010000", "\U0010ffff", "κόσμε", strings.Repeat("a", 600) + "κόσμε",
	} {
		split := first(opText, "").append(nil)
		for j := range len(s) {
			split = then(s[j : j+1]).append(split)
		}
		split = last("").append(split)
		want := []string{describe(Frame{Kind: KindText, Payload: []byte(s)})}
		runScripts(t, NewStream(WebSocketEcho), testLimits, []script{
			{fmt.Sprint("good ", i), wire(text(s)), want, nil},
			{fmt.Sprint("good, split ", i), split, want, nil},
		})
	}
	for i, s := range badUTF8 {
		split := first(opText, "κ").append(nil)
		for j := range len(s) {
			split = then(s[j : j+1]).append(split)
		}
		split = last("z").append(split)
		runScripts(t, NewStream(WebSocketEcho), testLimits, []script{
			{fmt.Sprint("bad ", i), wire(text(s)), nil, ErrInvalidUTF8},
			{fmt.Sprint("bad, split ", i), split, nil, ErrInvalidUTF8},
		})
	}
	for i, s := range []string{"\xc3", "\xe2\x82", "\xf0\x9f\x98"} {
		runScripts(t, NewStream(WebSocketEcho), testLimits, []script{
			{fmt.Sprint("cut ", i), wire(text("a" + s)), nil, ErrInvalidUTF8},
			{fmt.Sprint("cut in a fragment ", i), wire(first(opText, "a"+s), last("")), nil, ErrInvalidUTF8},
		})
	}
}

// The rest of the message never comes; the text cannot become right any more.
func TestTextFailsFast(t *testing.T) {
	runScripts(t, NewStream(WebSocketEcho), testLimits, []script{
		{"between fragments", wire(first(opText, "abc\xff")), nil, ErrInvalidUTF8},
		{"within a frame", wire(text("abc\xff" + strings.Repeat("z", 1000)))[:20], nil, ErrInvalidUTF8},
		{"within a long frame", wire(text(strings.Repeat("z", 2000) + "\xff" + strings.Repeat("z", 1000)))[:2100], nil, ErrInvalidUTF8},
		{"within a fragment", wire(first(opText, "\xe2\x82"), last("\x28"+strings.Repeat("z", 1000)))[:20], nil, ErrInvalidUTF8},
		{"a fine beginning", wire(text("abcκ" + strings.Repeat("z", 1000)))[:20], nil, nil},
	})
	server := wire(rawFrame{op: opText, plain: true, body: "abc\xff" + strings.Repeat("z", 1000)})[:20]
	runScripts(t, NewClientStream(WebSocketEcho), testLimits, []script{{"from a server", server, nil, ErrInvalidUTF8}})
}

func TestClose(t *testing.T) {
	long := strings.Repeat("x", 124)
	runScripts(t, NewStream(WebSocketEcho), testLimits, []script{
		{"empty", wire(closing("")), []string{`close 1005 ""`}, nil},
		{"one byte", wire(closing("\x03")), nil, ErrCloseFrame},
		{"with a text", wire(closing("\x03\xe8bye κ")), []string{`close 1000 "bye κ"`}, nil},
		{"text of 123", wire(closing("\x03\xe8" + long[:123])), []string{describe(Frame{Kind: KindClose, Code: 1000, Payload: []byte(long[:123])})}, nil},
		{"text of 124", wire(closing("\x03\xe8" + long)), nil, ErrControl},
		{"text that is not UTF-8", wire(closing("\x03\xe8\xff")), nil, ErrInvalidUTF8},
		{"text that ends in a character", wire(closing("\x03\xe8\xce")), nil, ErrInvalidUTF8},
		{"data after it", wire(closing("\x03\xe8"), text("late"), ping("")), []string{`close 1000 ""`}, nil},
		{"garbage after it", append(wire(closing("\x03\xe8")), 0xff, 0xff, 0xff), []string{`close 1000 ""`}, nil},
		{"twice", wire(closing("\x03\xe8"), closing("\x03\xe9")), []string{`close 1000 ""`}, nil},
		{"after data", wire(text("last"), closing("\x03\xe8")), []string{`text "last"`, `close 1000 ""`}, nil},
	})
	good := []int{1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4499, 4500, 4999}
	bad := []int{0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535}
	for _, code := range good {
		runScripts(t, NewStream(WebSocketEcho), testLimits, []script{{fmt.Sprint("code ", code), wire(closeWith(code)), []string{fmt.Sprintf(`close %d ""`, code)}, nil}})
	}
	for _, code := range bad {
		runScripts(t, NewStream(WebSocketEcho), testLimits, []script{{fmt.Sprint("code ", code), wire(closeWith(code)), nil, ErrCloseFrame}})
	}
}

func closeWith(code int) rawFrame {
	return closing(string(binary.BigEndian.AppendUint16(nil, uint16(code))))
}

func TestClientRefusesMaskedFrames(t *testing.T) {
	runScripts(t, NewClientStream(WebSocketEcho), testLimits, []script{
		{"plain", wire(rawFrame{op: opText, body: "x", plain: true}), []string{`text "x"`}, nil},
		{"masked", wire(text("x")), nil, ErrMask},
	})
}
