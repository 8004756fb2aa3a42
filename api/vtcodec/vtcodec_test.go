package vtcodec

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	statev1 "github.com/sluice-im/sluice/api/state/v1"
)

func batch(n, size int) *statev1.UplinkBatch {
	b := &statev1.UplinkBatch{Incarnation: "gw-1"}
	for i := range n {
		b.Items = append(b.Items, &statev1.UplinkItem{
			ConnId: uint64(i + 1), ConnSeq: 7, Uid: "alice", Payload: bytes.Repeat([]byte{byte(i)}, size),
		})
	}
	return b
}

// Both sides of a call may use this codec alone: the bytes are those of gRPC's own.
func TestSameBytesAsGRPC(t *testing.T) {
	std := encoding.GetCodecV2(grpcproto.Name)
	for _, m := range []proto.Message{
		&statev1.UplinkBatch{}, batch(1, 10), batch(100, 500),
		&grpc_health_v1.HealthCheckRequest{Service: "s"}, // Without vtprotobuf code.
	} {
		for name, pair := range map[string][2]encoding.CodecV2{"ours to theirs": {Codec{}, std}, "theirs to ours": {std, Codec{}}} {
			data, err := pair[0].Marshal(m)
			if err != nil {
				t.Fatalf("%s: %T: %v", name, m, err)
			}
			got := m.ProtoReflect().New().Interface()
			if err := pair[1].Unmarshal(data, got); err != nil {
				t.Fatalf("%s: %T: %v", name, m, err)
			}
			if !proto.Equal(m, got) {
				t.Errorf("%s: %T came out as another message", name, m)
			}
			data.Free()
		}
	}
}

// Unmarshal replaces what was there, as gRPC's own codec does.
func TestUnmarshalReplaces(t *testing.T) {
	data, err := Codec{}.Marshal(batch(2, 10))
	if err != nil {
		t.Fatal(err)
	}
	got := batch(5, 10)
	if err := (Codec{}).Unmarshal(data, got); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got, batch(2, 10)) {
		t.Errorf("%d items", len(got.Items))
	}
}

func TestBorrowed(t *testing.T) {
	in := &statev1.UplinkBatch{}
	b := Borrowed{Message: in}
	for _, n := range []int{3, 1, 40, 0, 2} {
		data, err := Codec{}.Marshal(batch(n, 300))
		if err != nil {
			t.Fatal(err)
		}
		if err := (Codec{}).Unmarshal(data, &b); err != nil {
			t.Fatal(err)
		}
		data.Free() // As gRPC does: what was borrowed must hold its own reference.
		if !proto.Equal(in, batch(n, 300)) {
			t.Errorf("%d items came out as %d", n, len(in.Items))
		}
	}
	b.Release()
	if len(in.Items) != 0 || in.Incarnation != "" {
		t.Error("Release left something behind")
	}
	bad := mem.BufferSlice{mem.SliceBuffer("\xff\xff\xff\xff")}
	if err := (Codec{}).Unmarshal(bad, &b); err == nil || !errors.Is(err, b.Err()) {
		t.Errorf("garbage: %v, Err %v", err, b.Err())
	}
	b.Release()
}

// An Encoded no longer refers to what it was made of, and is sent once.
func TestEncoded(t *testing.T) {
	var e Encoded
	if _, err := (Codec{}).Marshal(&e); !errors.Is(err, errSpent) {
		t.Errorf("an empty one: %v", err)
	}
	m := batch(1, 8)
	if err := e.Encode(m); err != nil {
		t.Fatal(err)
	}
	copy(m.Items[0].Payload, "xxxxxxxx")
	data, err := Codec{}.Marshal(&e)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data.Materialize()), "xxxx") {
		t.Error("it holds the caller's bytes")
	}
	data.Free()
	if _, err := (Codec{}).Marshal(&e); !errors.Is(err, errSpent) {
		t.Errorf("sent twice: %v", err)
	}
	if err := e.Encode("no message"); err == nil {
		t.Error("a string was encoded")
	}
	if err := e.Encode(m); err != nil {
		t.Fatal(err)
	}
	e.Discard()
}

func BenchmarkMarshal(b *testing.B) {
	m := batch(32, 64)
	for name, c := range map[string]encoding.CodecV2{"ours": Codec{}, "grpc": encoding.GetCodecV2(grpcproto.Name)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				data, err := c.Marshal(m)
				if err != nil {
					b.Fatal(err)
				}
				data.Free()
			}
		})
	}
}

func BenchmarkUnmarshal(b *testing.B) {
	data, err := Codec{}.Marshal(batch(32, 64))
	if err != nil {
		b.Fatal(err)
	}
	in := &statev1.UplinkBatch{}
	for name, into := range map[string]struct {
		codec encoding.CodecV2
		v     any
	}{
		"borrowed": {Codec{}, &Borrowed{Message: in}},
		"copied":   {Codec{}, &statev1.UplinkBatch{}},
		"grpc":     {encoding.GetCodecV2(grpcproto.Name), &statev1.UplinkBatch{}},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				if err := into.codec.Unmarshal(data, into.v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
