// Package codec turns bytes into commands and back: TCP framing, WebSocket framing and upgrade, the JSON mapping, and the
// quick scan that finds a command's type and uuid. It does no I/O and knows no clock.
//
// Everything here is resumable: a decoder looks at the bytes that are there, says how many it has consumed, and
// "nothing, no error" means "not yet".
package codec

// Protocol is how commands are framed and encoded on a connection.
type Protocol uint8

const (
	// TCP is a 4-byte big-endian length, then one protobuf Command.
	TCP Protocol = iota
	// WebSocket is one binary message per protobuf Command (subprotocol sluice.v1.pb, or none).
	WebSocket
	// WebSocketJSON is one text message per Command in JSON (subprotocol sluice.v1.json).
	WebSocketJSON
)

// Limits bounds what a Stream accepts.
type Limits struct {
	// FrameBytes bounds one command: a TCP frame, or a WebSocket message over all its fragments, inflated.
	FrameBytes int
	// Fragments bounds the frames of one WebSocket message.
	Fragments int
}

// Kind says what a Frame is.
type Kind uint8

const (
	// KindNone: not yet, more bytes are needed. Bytes may have been consumed all the same (fragments are gathered).
	KindNone Kind = iota
	// KindCommand: Payload is one Command, protobuf-encoded whatever the protocol.
	KindCommand
	// KindPing: Payload is to be sent back with AppendPong.
	KindPing
	// KindPong is to be ignored.
	KindPong
	// KindClose: the peer closes; Code is its code (1005 when it gave none).
	KindClose
)

// Frame is one step of a Stream. Payload aliases the input, or a buffer of the Stream that lives until the next call.
type Frame struct {
	Kind    Kind
	Payload []byte
	Code    uint16
}
