// Package vtcodec is a gRPC codec that marshals with vtprotobuf into pooled buffers. It puts the same bytes on the wire
// as gRPC's own "proto" codec, so either side of a call may use it alone: clients with grpc.ForceCodecV2, servers with
// grpc.ForceServerCodecV2. Messages without generated vtprotobuf code go through gRPC's own codec.
package vtcodec

import (
	"errors"
	"fmt"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// Codec implements encoding.CodecV2. It has no state; its zero value is ready.
type Codec struct{}

// Name is gRPC's own: the content type stays application/grpc+proto, which every server knows.
func (Codec) Name() string { return proto.Name }

// marshaler and unmarshaler are what vtprotobuf generates for every message.
type marshaler interface {
	SizeVT() int
	MarshalToSizedBufferVT(b []byte) (int, error)
}

type unmarshaler interface {
	Reset()
	UnmarshalVT(b []byte) error
}

// Marshal encodes v, which may be an *Encoded, a vtprotobuf message or any other protobuf message.
func (Codec) Marshal(v any) (mem.BufferSlice, error) {
	switch m := v.(type) {
	case *Encoded:
		return m.take()
	case marshaler:
		return marshal(m, mem.DefaultBufferPool())
	}
	return encoding.GetCodecV2(proto.Name).Marshal(v)
}

// Unmarshal replaces what v holds. Only a *Borrowed keeps data after the call; everything else is copied out of it.
func (Codec) Unmarshal(data mem.BufferSlice, v any) error {
	switch m := v.(type) {
	case *Borrowed:
		return m.fill(data)
	case unmarshaler:
		buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
		defer buf.Free()
		m.Reset()
		return m.UnmarshalVT(buf.ReadOnlyData())
	}
	return encoding.GetCodecV2(proto.Name).Unmarshal(data, v)
}

// pooledMin is the smallest buffer that mem.NewBuffer returns to its pool: one of up to 1 KiB is left to the garbage
// collector, which for small messages would be an allocation each.
const pooledMin = 1<<10 + 1

func marshal(m marshaler, pool mem.BufferPool) (mem.BufferSlice, error) {
	size := m.SizeVT()
	buf := pool.Get(max(size, pooledMin))
	*buf = (*buf)[:size]
	if n, err := m.MarshalToSizedBufferVT(*buf); err != nil || n != size {
		pool.Put(buf)
		return nil, fmt.Errorf("vtcodec: marshal %T: wrote %d of %d bytes: %w", m, n, size, orChanged(err))
	}
	return mem.BufferSlice{mem.NewBuffer(buf, pool)}, nil
}

// errChanged means that somebody wrote to a message while it was being marshalled.
var errChanged = errors.New("the message changed meanwhile")

func orChanged(err error) error {
	if err == nil {
		return errChanged
	}
	return err
}
