package codec

import (
	"fmt"
	"slices"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"google.golang.org/protobuf/encoding/protowire"
)

// Field numbers of Command.
const (
	commandType protowire.Number = 1
	commandCode protowire.Number = 2
	commandData protowire.Number = 3
)

// Message is a payload of a Command, as vtprotobuf generates it.
type Message interface {
	SizeVT() int
	MarshalToSizedBufferVT(b []byte) (int, error)
}

// AppendCommand appends Command{t, code, marshal(m)} to dst; m may be nil. Nothing is allocated if dst has room. It
// panics if m cannot be marshalled, which happens only to a message that is changed at the same time.
func AppendCommand(dst []byte, t clientv1.CommandType, code int32, m Message) []byte {
	dst = appendEnvelope(dst, t, code)
	if m == nil {
		return dst
	}
	size := m.SizeVT()
	if size == 0 {
		return dst
	}
	dst = protowire.AppendTag(dst, commandData, protowire.BytesType)
	dst = protowire.AppendVarint(dst, uint64(size))
	start := len(dst)
	dst = slices.Grow(dst, size)[:start+size]
	if n, err := m.MarshalToSizedBufferVT(dst[start:]); err != nil || n != size {
		panic(fmt.Sprintf("codec: %T of %d bytes marshalled to %d: %v", m, size, n, err))
	}
	return dst
}

// AppendCommandData appends Command{t, code, data} to dst, for payloads that are bytes already.
func AppendCommandData(dst []byte, t clientv1.CommandType, code int32, data []byte) []byte {
	dst = appendEnvelope(dst, t, code)
	if len(data) == 0 {
		return dst
	}
	dst = protowire.AppendTag(dst, commandData, protowire.BytesType)
	return protowire.AppendBytes(dst, data)
}

func appendEnvelope(dst []byte, t clientv1.CommandType, code int32) []byte {
	if t != 0 {
		dst = protowire.AppendTag(dst, commandType, protowire.VarintType)
		dst = protowire.AppendVarint(dst, uint64(int64(t)))
	}
	if code != 0 {
		dst = protowire.AppendTag(dst, commandCode, protowire.VarintType)
		dst = protowire.AppendVarint(dst, uint64(int64(code)))
	}
	return dst
}
