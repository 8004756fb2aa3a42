// Package codec turns bytes into commands and back: TCP framing, WebSocket framing and upgrade, the JSON mapping, and the
// quick scan that finds a command's type and uuid. It does no I/O and knows no clock and no randomness.
//
// Everything here is resumable: a decoder looks at the bytes that are there, says how many it has consumed, and
// "nothing, no error" means "not yet". What was not consumed is left as it was and must be given again, with more behind it.
//
// The way of a frame: Next dispatches on the protocol (this file), cuts a TCP frame (tcp.go) or a WebSocket frame
// (websocket.go), checks text (utf8.go), gathers fragments and inflates (message.go, deflate.go), and turns JSON into
// protobuf (json.go). Scan (scan.go) looks into the Command. Back out, Append (append.go) frames a Command.
package codec

import "math"

// Protocol is how commands are framed and encoded on a connection: one of the constants, or one of the WebSocket
// constants with WithDeflate. It is comparable, so that what goes to many connections is encoded once per value.
type Protocol uint8

const (
	// TCP is a 4-byte big-endian length, then one protobuf Command.
	TCP Protocol = iota
	// WebSocket is one binary message per protobuf Command (subprotocol sluice.v1.pb, or none).
	WebSocket
	// WebSocketJSON is one text message per Command in JSON (subprotocol sluice.v1.json).
	WebSocketJSON
	// WebSocketEcho takes text and binary messages as they are; no Command is in them. It is for pointing a conformance
	// suite at the framing, never for a gateway with a relay.
	WebSocketEcho
)

const (
	// The low four bits are the constant, the high four bits the window of permessage-deflate, 0 = not negotiated.
	protocolBits           = 4
	protocolMask  Protocol = 1<<protocolBits - 1
	windowBitsMin          = 9 // zlib itself has no raw window of 8 bits, so an offer of 8 is declined.
	windowBitsMax          = 15
)

// Base is the constant that p is made from.
func (p Protocol) Base() Protocol { return p & protocolMask }

// WithDeflate is p with permessage-deflate negotiated (RFC 7692), no context takeover in either direction. windowBits
// bounds the window of what the server sends; what is outside of 9-15 is taken as 15.
func (p Protocol) WithDeflate(windowBits int) Protocol {
	if windowBits < windowBitsMin || windowBits > windowBitsMax {
		windowBits = windowBitsMax
	}
	return p.Base() | Protocol(windowBits)<<protocolBits
}

// windowBits is 0 when permessage-deflate is not negotiated.
func (p Protocol) windowBits() int { return int(p >> protocolBits) }

// String is a name for logs and labels: tcp, ws, ws+json, ws+echo. Whether deflate is on does not show.
func (p Protocol) String() string {
	switch p.Base() {
	case TCP:
		return "tcp"
	case WebSocket:
		return "ws"
	case WebSocketJSON:
		return "ws+json"
	case WebSocketEcho:
		return "ws+echo"
	}
	return "unknown"
}

// Limits bounds what a Stream accepts.
type Limits struct {
	// FrameBytes bounds one command: a TCP frame, or a WebSocket message over all its fragments, inflated. More than
	// 2^31-1 counts as 2^31-1.
	FrameBytes int
	// Fragments bounds the frames of one WebSocket message.
	Fragments int
}

func (l *Limits) frameBytes() int { return min(l.FrameBytes, math.MaxInt32) }

// Kind says what a Frame is.
type Kind uint8

const (
	// KindNone: not yet, more bytes are needed. Bytes may have been consumed all the same (fragments are gathered).
	KindNone Kind = iota
	// KindCommand: Payload is one Command, protobuf-encoded whatever the protocol. Only Scan says whether it is well
	// formed; JSON that is not a Command comes as a Command that Scan refuses.
	KindCommand
	// KindPing: Payload is to be sent back with AppendPong.
	KindPing
	// KindPong is to be ignored.
	KindPong
	// KindClose: the peer closes; Code is its code (1005 when it gave none), Payload its text, which is UTF-8. Every
	// later byte is discarded.
	KindClose
	// KindText: one text message as it is, UTF-8; only with WebSocketEcho.
	KindText
	// KindBinary: one binary message as it is; only with WebSocketEcho.
	KindBinary
)

// Frame is one step of a Stream. Payload aliases the input, or memory that the Stream no longer touches; it may be
// changed, and holds until the input is reused.
type Frame struct {
	Kind    Kind
	Payload []byte
	Code    uint16
}

// Stream decodes one connection, or encodes for it. It is a value of 16 bytes; what is needed only while a fragmented
// message is incomplete stands behind a pointer. Not safe for concurrent use: it belongs to whoever holds the lease.
type Stream struct {
	gather *gather
	// checked counts the bytes of the unfinished text frame at the start of the input that the UTF-8 check has seen.
	checked  uint32
	protocol Protocol
	text     utf8State
	role     role
	// failed is the error that ended the stream; 0 = none.
	failed Error
}

// role is the side of the connection that the Stream is on, and whether the peer has finished.
type role uint8

const (
	roleServer role = iota
	roleClient
	// roleClosed: a close frame came, the rest is discarded (RFC 6455, 5.5.1).
	roleClosed
)

// NewStream is the server's side of a new connection.
func NewStream(p Protocol) Stream { return Stream{protocol: p} }

// NewClientStream is the client's side of a new connection: it expects unmasked frames, as a server sends them. Its
// frames are made with AppendClientFrame and its kin, since they need a mask.
func NewClientStream(p Protocol) Stream { return Stream{protocol: p, role: roleClient} }

// Protocol is how the connection is framed and encoded.
func (s *Stream) Protocol() Protocol { return s.protocol }

// Unfinished reports whether a fragmented message has begun and not ended, so that a message timeout must run although
// no byte is left over.
func (s *Stream) Unfinished() bool { return s.gather != nil }

// Next takes one step through buf, the bytes not yet consumed. It stops at the first complete frame that concerns the
// caller; call it again with the rest until Kind is KindNone, which means that more bytes are needed.
//
// An error is one of this package's Error values (ReasonOf names it); it ends the connection, and every later call
// returns it again. Next changes consumed bytes in place, and no others.
func (s *Stream) Next(buf []byte, lim *Limits) (f Frame, consumed int, err error) {
	var bad Error
	switch {
	case s.failed != 0:
		return Frame{}, 0, s.failed
	case s.role == roleClosed:
		return Frame{}, len(buf), nil
	case s.protocol.Base() == TCP:
		f, consumed, bad = nextTCP(buf, lim)
	default:
		f, consumed, bad = s.nextWebSocket(buf, lim)
	}
	if bad != 0 {
		s.failed, s.gather = bad, nil
		return Frame{}, consumed, bad
	}
	return f, consumed, nil
}
