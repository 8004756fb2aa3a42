package codec

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/gobwas/ws"
)

const (
	// closeTextMax is what a control frame has left beside the close code (RFC 6455, 5.5).
	closeTextMax = ws.MaxControlFramePayloadSize - 2

	finBit  = 0x80
	maskBit = 0x80
)

// masking is what a side does with its payload: a server sends it plain.
type masking struct {
	on  bool
	key [4]byte
}

// Append frames one Command (protobuf bytes) for this connection and appends it to dst. It fails with ErrUnencodable,
// and returns dst as it was.
func (s *Stream) Append(dst, command []byte) ([]byte, error) { return Append(s.protocol, dst, command) }

// Append frames one Command (protobuf bytes) as a server sends it on every connection of protocol p, so that a push is
// encoded once per payload and protocol. It fails with ErrUnencodable, and returns dst as it was. Nothing is allocated
// if dst has room, unless p is WebSocketJSON.
func Append(p Protocol, dst, command []byte) ([]byte, error) {
	return appendCommandFrame(p, dst, command, masking{})
}

// AppendEcho frames one message on WebSocketEcho as a server sends it; kind is KindText or KindBinary.
func (s *Stream) AppendEcho(dst []byte, kind Kind, message []byte) ([]byte, error) {
	return appendMessage(s.protocol, dst, messageOp(kind), message, masking{})
}

func messageOp(kind Kind) ws.OpCode {
	if kind == KindText {
		return ws.OpText
	}
	return ws.OpBinary
}

// AppendPong answers a ping of this connection with its payload. TCP has no pings, so nothing is appended there.
func (s *Stream) AppendPong(dst, payload []byte) []byte {
	if s.protocol.Base() == TCP {
		return dst
	}
	return appendControl(dst, ws.OpPong, payload, masking{})
}

// AppendClose appends a close frame as a server sends it: with code, unless it is one that must not be sent (0, 1005,
// 1006, 1015, ...), and as much of text as fits, cut between characters. TCP has no close frame: nothing is appended.
func (s *Stream) AppendClose(dst []byte, code uint16, text string) []byte {
	if s.protocol.Base() == TCP {
		return dst
	}
	return appendClose(dst, code, text, masking{})
}

func appendCommandFrame(p Protocol, dst, command []byte, m masking) ([]byte, error) {
	switch p.Base() {
	case TCP:
		if len(command) == 0 || int64(len(command)) > math.MaxUint32 {
			return dst, ErrUnencodable
		}
		dst = binary.BigEndian.AppendUint32(slices.Grow(dst, tcpHeaderBytes+len(command)), uint32(len(command)))
		return append(dst, command...), nil
	case WebSocketJSON:
		text, err := appendJSON(nil, command)
		if err != nil {
			return dst, err
		}
		return appendMessage(p, dst, ws.OpText, text, m)
	}
	return appendMessage(p, dst, ws.OpBinary, command, m)
}

// appendMessage appends one unfragmented message, compressed if that was negotiated and makes it smaller.
func appendMessage(p Protocol, dst []byte, op ws.OpCode, message []byte, m masking) ([]byte, error) {
	if bits := p.windowBits(); bits != 0 && len(message) >= deflateBytesMin {
		if framed, ok := appendDeflated(bits, dst, op, message, m); ok {
			return framed, nil
		}
	}
	dst = appendHeader(dst, finBit|byte(op), len(message), m)
	return appendPayload(dst, message, m), nil
}

// appendHeader appends a frame header; first is its first byte. The payload's room is made along with it.
func appendHeader(dst []byte, first byte, length int, m masking) []byte {
	dst = append(slices.Grow(dst, ws.MaxHeaderSize+length), first)
	var masked byte
	if m.on {
		masked = maskBit
	}
	switch {
	case length < length16:
		dst = append(dst, masked|byte(length))
	case length <= math.MaxUint16:
		dst = binary.BigEndian.AppendUint16(append(dst, masked|length16), uint16(length))
	default:
		dst = binary.BigEndian.AppendUint64(append(dst, masked|length64), uint64(length))
	}
	if m.on {
		dst = append(dst, m.key[:]...)
	}
	return dst
}

func appendPayload(dst, payload []byte, m masking) []byte {
	start := len(dst)
	dst = append(dst, payload...)
	if m.on {
		ws.Cipher(dst[start:], m.key, 0)
	}
	return dst
}

// appendControl appends a control frame with as much of payload as one may hold.
func appendControl(dst []byte, op ws.OpCode, payload []byte, m masking) []byte {
	payload = payload[:min(len(payload), ws.MaxControlFramePayloadSize)]
	return appendPayload(appendHeader(dst, finBit|byte(op), len(payload), m), payload, m)
}

func appendClose(dst []byte, code uint16, text string, m masking) []byte {
	if !validCloseCode(code) {
		return appendControl(dst, ws.OpClose, nil, m)
	}
	var body [ws.MaxControlFramePayloadSize]byte
	binary.BigEndian.PutUint16(body[:], code)
	n := 2 + copy(body[2:], cutText(text))
	return appendControl(dst, ws.OpClose, body[:n], m)
}

// cutText is the longest beginning of text that fits into a close frame and is UTF-8: a peer must not be able to call
// our own close frame a violation.
func cutText(text string) string {
	end, state := 0, utf8Start
	for i := range min(len(text), closeTextMax) {
		next, ok := state.step(text[i])
		if !ok {
			break
		}
		if state = next; state == utf8Start {
			end = i + 1
		}
	}
	return text[:end]
}
