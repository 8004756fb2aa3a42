package codec

import (
	"unicode/utf8"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of MessageUp that the scan looks at.
const (
	upUUID      protowire.Number = 1
	upType      protowire.Number = 2
	upContent   protowire.Number = 3
	upReceiver  protowire.Number = 4
	upBody      protowire.Number = 5
	upSession   protowire.Number = 6
	upSeq       protowire.Number = 7
	upLow       protowire.Number = 8
	upClientSeq protowire.Number = 9
	upSentAt    protowire.Number = 10
)

// Header is what the edge needs to know of a Command. Its slices alias the Command.
type Header struct {
	Type clientv1.CommandType
	Code int32
	// Data is Command.data, not checked but for MESSAGEUP.
	Data []byte

	// Of a MESSAGEUP only; neither is checked against its alphabet.
	UUID, ReceiverID []byte
	// ContentBytes is the size of a MESSAGEUP's content and body together.
	ContentBytes int
}

// Scan looks into a Command without allocating. It is stricter than a protobuf parser: what it accepts, every parser
// decodes, and to the same values; groups and wrong wire types it refuses.
//
// ErrBadCommand: the envelope is malformed; the header holds what stood before the bad byte. ErrBadMessage: the
// MessageUp inside is malformed (strings that are not UTF-8 included, which no receiver could decode); UUID is set if
// it was found.
func Scan(command []byte) (h Header, err error) {
	for rest := command; len(rest) > 0; {
		num, typ, n := consumeTag(rest)
		if n < 0 {
			return h, ErrBadCommand
		}
		rest = rest[n:]
		switch {
		case num == commandType && typ == protowire.VarintType:
			v, m := protowire.ConsumeVarint(rest)
			n, h.Type = m, clientv1.CommandType(int32(v)) // Cut to 32 bits, as protobuf does with an enum.
		case num == commandCode && typ == protowire.VarintType:
			v, m := protowire.ConsumeVarint(rest)
			n, h.Code = m, int32(v)
		case num == commandData && typ == protowire.BytesType:
			h.Data, n = protowire.ConsumeBytes(rest)
		case num <= commandData:
			return h, ErrBadCommand
		default:
			n = skip(typ, rest)
		}
		if n < 0 {
			return h, ErrBadCommand
		}
		rest = rest[n:]
	}
	if h.Type == clientv1.CommandType_MESSAGEUP {
		return h, h.scanMessageUp()
	}
	return h, nil
}

// scanMessageUp goes on behind a string that is not UTF-8, since the uuid may follow it.
func (h *Header) scanMessageUp() error {
	var (
		content, body int
		bad           error
	)
	for rest := h.Data; len(rest) > 0; {
		num, typ, n := consumeTag(rest)
		if n < 0 {
			return ErrBadMessage
		}
		rest = rest[n:]
		var value []byte
		switch num {
		case upUUID, upContent, upReceiver, upBody, upSession:
			if typ != protowire.BytesType {
				return ErrBadMessage
			}
			value, n = protowire.ConsumeBytes(rest)
		case upType, upSeq, upLow, upClientSeq, upSentAt:
			if typ != protowire.VarintType {
				return ErrBadMessage
			}
			_, n = protowire.ConsumeVarint(rest)
		default:
			n = skip(typ, rest)
		}
		if n < 0 {
			return ErrBadMessage
		}
		rest = rest[n:]
		if value != nil && num != upBody && !utf8.Valid(value) {
			bad = ErrBadMessage
			continue
		}
		switch num {
		case upUUID:
			h.UUID = value
		case upReceiver:
			h.ReceiverID = value
		case upContent:
			content = len(value)
		case upBody:
			body = len(value)
		}
	}
	h.ContentBytes = content + body
	return bad
}

// ConvID is the conv_id of a DELIVERED, READ or PULL, for an ERROR that names it; nil if there is none. It aliases the
// Command and is not checked.
func (h *Header) ConvID() []byte {
	switch h.Type {
	case clientv1.CommandType_DELIVERED, clientv1.CommandType_READ, clientv1.CommandType_PULL:
	default:
		return nil
	}
	const convID protowire.Number = 1 // In all three.
	var conv []byte
	for rest := h.Data; len(rest) > 0; {
		num, typ, n := consumeTag(rest)
		if n < 0 {
			return conv
		}
		rest = rest[n:]
		if num == convID && typ == protowire.BytesType {
			conv, n = protowire.ConsumeBytes(rest)
		} else {
			n = skip(typ, rest)
		}
		if n < 0 {
			return conv
		}
		rest = rest[n:]
	}
	return conv
}

// consumeTag is protowire's, but for field numbers that are too large for a parser though not for a varint.
func consumeTag(rest []byte) (protowire.Number, protowire.Type, int) {
	num, typ, n := protowire.ConsumeTag(rest)
	if num > protowire.MaxValidNumber {
		return 0, 0, -1
	}
	return num, typ, n
}

// skip is the length of a field that is not known here, negative if it is malformed. Groups are refused: nothing in the
// protocol has them, and they are the one wire type that nests.
func skip(typ protowire.Type, rest []byte) int {
	switch typ {
	case protowire.VarintType:
		_, n := protowire.ConsumeVarint(rest)
		return n
	case protowire.Fixed32Type:
		_, n := protowire.ConsumeFixed32(rest)
		return n
	case protowire.Fixed64Type:
		_, n := protowire.ConsumeFixed64(rest)
		return n
	case protowire.BytesType:
		_, n := protowire.ConsumeBytes(rest)
		return n
	}
	return -1
}
