package codec

import (
	"unicode/utf8"

	"github.com/gobwas/ws"
)

// gather holds a fragmented message while it is incomplete.
type gather struct {
	bytes      []byte
	frames     int
	op         ws.OpCode
	compressed bool
}

// frames counts the frames of the unfinished message that have come.
func (s *Stream) frames() int {
	if s.gather == nil {
		return 0
	}
	return s.gather.frames
}

// room is how long the frame h may be: what the message has left of the limit. Only its difference to what is there
// is formed, so that no sum can overflow.
func (s *Stream) room(h ws.Header, lim *Limits) int64 {
	limit := int64(lim.frameBytes())
	if s.gather == nil {
		if h.Rsv&rsv1 != 0 {
			return compressedLimit(limit)
		}
		return limit
	}
	if s.gather.compressed {
		limit = compressedLimit(limit)
	}
	return limit - int64(len(s.gather.bytes))
}

// data takes one whole data frame. The Frame is KindNone while its message is incomplete.
func (s *Stream) data(h ws.Header, payload []byte, lim *Limits) (Frame, Error) {
	if s.isText(h) {
		if bad := s.checkText(h, payload); bad != 0 {
			return Frame{}, bad
		}
	}
	if s.gather == nil {
		if h.Fin {
			return s.message(h.OpCode, h.Rsv&rsv1 != 0, payload, lim)
		}
		s.gather = &gather{op: h.OpCode, compressed: h.Rsv&rsv1 != 0}
	}
	g := s.gather
	g.bytes = append(g.bytes, payload...)
	g.frames++
	if !h.Fin {
		return Frame{}, 0
	}
	s.gather = nil // The buffer is the caller's now, and the collector's once the caller is done with it.
	return s.message(g.op, g.compressed, g.bytes, lim)
}

// checkText finishes the UTF-8 check of one frame; what peek has seen of it is not looked at again.
func (s *Stream) checkText(h ws.Header, payload []byte) Error {
	if s.gather == nil && s.checked == 0 && h.Fin { // The usual case, for which the standard library is faster.
		if !utf8.Valid(payload) {
			return ErrInvalidUTF8
		}
		return 0
	}
	next, ok := s.text.advance(payload[min(int(s.checked), len(payload)):])
	if !ok || h.Fin && next != utf8Start {
		return ErrInvalidUTF8
	}
	s.text, s.checked = next, 0
	return 0
}

// message turns a complete message into a Frame.
func (s *Stream) message(op ws.OpCode, compressed bool, payload []byte, lim *Limits) (Frame, Error) {
	if compressed {
		plain, bad := inflate(payload, lim.frameBytes())
		if bad != 0 {
			return Frame{}, bad
		}
		if op == ws.OpText && !utf8.Valid(plain) {
			return Frame{}, ErrInvalidUTF8
		}
		payload = plain
	}
	switch s.protocol.Base() {
	case WebSocketJSON:
		return Frame{Kind: KindCommand, Payload: fromJSON(payload, s.role)}, 0
	case WebSocketEcho:
		if op == ws.OpText {
			return Frame{Kind: KindText, Payload: payload}, 0
		}
		return Frame{Kind: KindBinary, Payload: payload}, 0
	}
	return Frame{Kind: KindCommand, Payload: payload}, 0
}
