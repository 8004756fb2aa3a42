package vtcodec

import (
	"errors"

	"google.golang.org/grpc/mem"
)

// Encoded is a message that was marshalled ahead of SendMsg, so that what it was made of can be reused or given back
// before the call, which may block for as long as the stream's flow control likes. It is not safe for concurrent use.
type Encoded struct {
	data mem.BufferSlice
	// pool gets its buffers back from gRPC once they are written, on another goroutine.
	pool buffers
}

// errSpent: an Encoded is sent once for every Encode.
var errSpent = errors.New("vtcodec: Encoded was sent before, or never filled")

// Encode marshals m and replaces what e holds. m may be changed as soon as it returns.
func (e *Encoded) Encode(m any) error {
	e.Discard()
	var err error
	if vt, ok := m.(marshaler); ok {
		e.data, err = marshal(vt, &e.pool)
	} else {
		e.data, err = Codec{}.Marshal(m)
	}
	return err
}

// Discard gives the buffers of an Encoded that will not be sent back to their pool.
func (e *Encoded) Discard() {
	e.data.Free()
	e.data = nil
}

func (e *Encoded) take() (mem.BufferSlice, error) {
	if e.data == nil {
		return nil, errSpent
	}
	data := e.data
	e.data = nil
	return data, nil
}

// Borrowable is a message with vtprotobuf's pool and unmarshal_unsafe code.
type Borrowable interface {
	ResetVT()
	UnmarshalVTUnsafe(b []byte) error
}

// Borrowed is passed to RecvMsg in place of Message: Message's strings and bytes then point into the receive buffer
// instead of being copied, and the item structs of the previous message are used again. All of it is valid until
// Release, the next RecvMsg, or nothing longer: what outlives that must be cloned. Bytes must not be written to or
// appended to. Message must never be filled in another way (plain Unmarshal, a vtprotobuf pool), since it may keep
// slices of buffers that are gone. It is not safe for concurrent use.
type Borrowed struct {
	Message Borrowable
	buf     mem.Buffer
	err     error
}

// Err is why the last message could not be decoded; gRPC passes it on as one of many causes of status Internal.
func (b *Borrowed) Err() error { return b.err }

// Release empties Message and gives the receive buffer back.
func (b *Borrowed) Release() {
	if b.buf == nil {
		return
	}
	b.Message.ResetVT()
	b.buf.Free()
	b.buf = nil
}

func (b *Borrowed) fill(data mem.BufferSlice) error {
	b.Release()
	b.buf = data.MaterializeToBuffer(mem.DefaultBufferPool())
	b.err = b.Message.UnmarshalVTUnsafe(b.buf.ReadOnlyData())
	return b.err
}
