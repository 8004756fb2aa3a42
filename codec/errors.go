package codec

import (
	"errors"

	"github.com/sluice-im/sluice/api/reason"
)

// Error is why bytes are refused. Its values are plain and comparable, and one fits into a byte of a Stream. Within the
// package, 0 is "no error"; outside of it, an Error is never 0.
type Error uint8

// The errors of decoders and encoders.
const (
	// ErrFraming: a rule of RFC 6455 that has no error of its own below.
	ErrFraming Error = iota + 1
	// ErrZeroLength: a TCP frame of length 0.
	ErrZeroLength
	// ErrFrameTooBig: more than Limits.FrameBytes, known from the header.
	ErrFrameTooBig
	// ErrTooManyFragments: more than Limits.Fragments.
	ErrTooManyFragments
	// ErrInvalidUTF8: text, or the text of a close frame, is not UTF-8.
	ErrInvalidUTF8
	// ErrUnsupportedData: a text message on sluice.v1.pb, or a binary one on sluice.v1.json.
	ErrUnsupportedData
	// ErrOpcode: an opcode that RFC 6455 reserves.
	ErrOpcode
	// ErrReservedBits: RSV bits that nothing negotiated gives a meaning.
	ErrReservedBits
	// ErrMask: an unmasked frame from a client, or a masked one from a server.
	ErrMask
	// ErrLength: a length that is not minimal, or has its highest bit set.
	ErrLength
	// ErrControl: a control frame that is fragmented or longer than 125 bytes.
	ErrControl
	// ErrContinuation: a continuation of nothing, or a new message inside of a fragmented one.
	ErrContinuation
	// ErrCloseFrame: a close frame of one byte, or with a code that must not be sent.
	ErrCloseFrame
	// ErrDeflate: compressed data that cannot be inflated, or that has a rest behind its last block.
	ErrDeflate
	// ErrBadCommand: the envelope cannot be decoded. The connection may go on.
	ErrBadCommand
	// ErrBadMessage: the envelope is well formed, the MessageUp inside it is not. The connection may go on.
	ErrBadMessage
	// ErrUnencodable: a Command that cannot be sent: empty or over 2^32-1 bytes on TCP, not a Command for JSON.
	ErrUnencodable
)

type errorEntry struct {
	text   string
	reason reason.Reason
}

func (e Error) entry() errorEntry {
	switch e {
	case ErrFraming:
		return errorEntry{"bad WebSocket framing", reason.ProtocolError}
	case ErrZeroLength:
		return errorEntry{"frame of length 0", reason.ProtocolError}
	case ErrFrameTooBig:
		return errorEntry{"frame over the limit", reason.FrameTooBig}
	case ErrTooManyFragments:
		return errorEntry{"message of too many fragments", reason.TooManyFragments}
	case ErrInvalidUTF8:
		return errorEntry{"text is not UTF-8", reason.InvalidUTF8}
	case ErrUnsupportedData:
		return errorEntry{"message type that the subprotocol does not have", reason.UnsupportedData}
	case ErrOpcode:
		return errorEntry{"reserved opcode", reason.ProtocolError}
	case ErrReservedBits:
		return errorEntry{"reserved bits set", reason.ProtocolError}
	case ErrMask:
		return errorEntry{"wrong masking", reason.ProtocolError}
	case ErrLength:
		return errorEntry{"length is not minimal or out of range", reason.ProtocolError}
	case ErrControl:
		return errorEntry{"control frame fragmented or too long", reason.ProtocolError}
	case ErrContinuation:
		return errorEntry{"continuation out of place", reason.ProtocolError}
	case ErrCloseFrame:
		return errorEntry{"bad close frame", reason.ProtocolError}
	case ErrDeflate:
		return errorEntry{"bad compressed data", reason.BadCompression}
	case ErrBadCommand:
		return errorEntry{"not a Command", reason.BadCommand}
	case ErrBadMessage:
		return errorEntry{"not a MessageUp", reason.BadMessage}
	case ErrUnencodable:
		return errorEntry{"command cannot be encoded", reason.Internal}
	}
	return errorEntry{"unknown", reason.Internal}
}

// Error is a fixed text; nothing that a peer sent is in it.
func (e Error) Error() string { return "codec: " + e.entry().text }

// Reason names the error in the closed list.
func (e Error) Reason() reason.Reason { return e.entry().reason }

// ReasonOf names an error of this package, wrapped or not, in the closed list: None for nil, Internal for an error that
// is not of this package.
func ReasonOf(err error) reason.Reason {
	if err == nil {
		return reason.None
	}
	var plain Error
	if errors.As(err, &plain) {
		return plain.Reason()
	}
	var refused *UpgradeError
	if errors.As(err, &refused) {
		return refused.Reason
	}
	return reason.Internal
}
