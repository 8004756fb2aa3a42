package codec

import (
	"encoding/binary"
	"math"

	"github.com/gobwas/ws"
)

const (
	rsv1 = 0b100 // "compressed", on the first frame of a message (RFC 7692, 6).

	length16 = 126 // The 7-bit length that announces 16 bits of length.
	length64 = 127

	// peekBytes is how much of an unfinished text frame is unmasked at a time, on the stack, for the UTF-8 check.
	peekBytes = 512
)

// nextWebSocket goes through frames until one concerns the caller; fragments do not, until the last of them.
func (s *Stream) nextWebSocket(buf []byte, lim *Limits) (f Frame, consumed int, bad Error) {
	for {
		rest := buf[consumed:]
		h, size, bad := s.header(rest, lim)
		if bad != 0 || size == 0 {
			return Frame{}, consumed, bad
		}
		if h.Length > int64(len(rest)-size) {
			return Frame{}, consumed, s.peek(h, rest[size:])
		}
		end := size + int(h.Length) // Fits: it is no more than len(rest).
		payload := rest[size:end:end]
		if h.Masked {
			ws.Cipher(payload, h.Mask, 0)
		}
		consumed += end
		if h.OpCode.IsControl() {
			f, bad = s.control(h.OpCode, payload)
		} else {
			f, bad = s.data(h, payload, lim)
		}
		if bad != 0 || f.Kind != KindNone {
			return f, consumed, bad
		}
	}
}

// header reads and judges a frame header as far as it is there; size 0 means that it is not all there. Every rule is
// applied as soon as its byte has come, so that a bad frame is refused before its payload, and the same way however
// the input is cut.
func (s *Stream) header(buf []byte, lim *Limits) (h ws.Header, size int, bad Error) {
	if len(buf) < 2 {
		return h, 0, 0
	}
	h = ws.Header{
		Fin:    buf[0]&0x80 != 0,
		Rsv:    buf[0] >> 4 & 7,
		OpCode: ws.OpCode(buf[0] & 0x0f),
		Masked: buf[1]&0x80 != 0,
		Length: int64(buf[1] & 0x7f), // Good enough for CheckHeader: an extended length is over 125 in any case.
	}
	if bad := s.checkHeader(h, lim); bad != 0 {
		return h, 0, bad
	}
	size = 2
	switch h.Length {
	case length16:
		if size += 2; len(buf) < size {
			return h, 0, 0
		}
		length := binary.BigEndian.Uint16(buf[2:])
		if length < length16 {
			return h, 0, ErrLength
		}
		h.Length = int64(length)
	case length64:
		if size += 8; len(buf) < size {
			return h, 0, 0
		}
		length := binary.BigEndian.Uint64(buf[2:])
		if length <= math.MaxUint16 || length > math.MaxInt64 {
			return h, 0, ErrLength
		}
		h.Length = int64(length)
	}
	if !h.OpCode.IsControl() && h.Length > s.room(h, lim) {
		return h, 0, ErrFrameTooBig
	}
	if h.Masked {
		if size += len(h.Mask); len(buf) < size {
			return h, 0, 0
		}
		h.Mask = [4]byte(buf[size-len(h.Mask):])
	}
	return h, size, 0
}

// checkHeader applies every rule that needs no more than the first two bytes of a frame.
func (s *Stream) checkHeader(h ws.Header, lim *Limits) Error {
	state := ws.StateServerSide
	if s.role == roleClient {
		state = ws.StateClientSide
	}
	if s.protocol.windowBits() != 0 {
		state = state.Set(ws.StateExtended)
	}
	if s.gather != nil {
		state = state.Set(ws.StateFragmented)
	}
	if err := ws.CheckHeader(h, state); err != nil {
		return headerError(err)
	}
	if h.Rsv != 0 && (h.Rsv != rsv1 || !h.OpCode.IsData() || h.OpCode == ws.OpContinuation) {
		return ErrReservedBits // CheckHeader lets any bit pass once an extension is negotiated.
	}
	switch base := s.protocol.Base(); {
	case h.OpCode == ws.OpText && base == WebSocket, h.OpCode == ws.OpBinary && base == WebSocketJSON:
		return ErrUnsupportedData
	case h.OpCode.IsControl():
		return 0
	case s.frames() >= lim.Fragments:
		return ErrTooManyFragments
	}
	return 0
}

func headerError(err error) Error {
	switch err { // CheckHeader returns plain values, to be compared.
	case ws.ErrProtocolOpCodeReserved:
		return ErrOpcode
	case ws.ErrProtocolControlPayloadOverflow, ws.ErrProtocolControlNotFinal:
		return ErrControl
	case ws.ErrProtocolNonZeroRsv:
		return ErrReservedBits
	case ws.ErrProtocolMaskRequired, ws.ErrProtocolMaskUnexpected:
		return ErrMask
	case ws.ErrProtocolContinuationExpected, ws.ErrProtocolContinuationUnexpected:
		return ErrContinuation
	}
	return ErrFraming
}

// peek checks the part of a text frame that has come, so that text fails at its first impossible byte and not when the
// frame is complete. The input stays as it is: the frame will be looked at again, from its header on.
func (s *Stream) peek(h ws.Header, part []byte) Error {
	if !s.isText(h) {
		return 0
	}
	var plain [peekBytes]byte
	for int(s.checked) < len(part) {
		n := copy(plain[:], part[s.checked:])
		if h.Masked {
			ws.Cipher(plain[:n], h.Mask, int(s.checked&3))
		}
		next, ok := s.text.advance(plain[:n])
		if !ok {
			return ErrInvalidUTF8
		}
		s.text = next
		s.checked += uint32(n) // Fits: a frame is bounded by Limits.frameBytes, 2^31-1.
	}
	return 0
}

// isText reports whether h's payload is text as it stands, not compressed.
func (s *Stream) isText(h ws.Header) bool {
	switch h.OpCode {
	case ws.OpText:
		return h.Rsv&rsv1 == 0
	case ws.OpContinuation:
		return s.gather != nil && s.gather.op == ws.OpText && !s.gather.compressed
	}
	return false
}

// control handles a ping, pong or close, which may stand between the fragments of a message.
func (s *Stream) control(op ws.OpCode, payload []byte) (Frame, Error) {
	switch op {
	case ws.OpPing:
		return Frame{Kind: KindPing, Payload: payload}, 0
	case ws.OpPong:
		return Frame{Kind: KindPong, Payload: payload}, 0
	}
	f := Frame{Kind: KindClose, Code: uint16(ws.StatusNoStatusRcvd)}
	if len(payload) > 0 {
		if len(payload) < 2 {
			return Frame{}, ErrCloseFrame
		}
		f.Code, f.Payload = binary.BigEndian.Uint16(payload), payload[2:]
		if !validCloseCode(f.Code) {
			return Frame{}, ErrCloseFrame
		}
		if end, ok := utf8Start.advance(f.Payload); !ok || end != utf8Start {
			return Frame{}, ErrInvalidUTF8
		}
	}
	s.gather, s.role = nil, roleClosed
	return f, 0
}

// validCloseCode knows the codes that may stand in a close frame (RFC 6455, 7.4, and the IANA registry: 1012-1014).
// The library's own check refuses the latter and takes everything above 4999.
func validCloseCode(code uint16) bool {
	return code >= 1000 && code <= 1003 || code >= 1007 && code <= 1014 || code >= 3000 && code <= 4999
}
