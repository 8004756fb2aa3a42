package codec

import (
	"fmt"
	"testing"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
)

// benchContentBytes is the size of message that the design measures with (performance).
const benchContentBytes = 64

func BenchmarkNext(b *testing.B) {
	for _, p := range []Protocol{TCP, WebSocket, WebSocketJSON, WebSocket.WithDeflate(15)} {
		for _, size := range []int{benchContentBytes, 4 << 10} {
			b.Run(fmt.Sprintf("%s/deflate=%d/%d", p, p.windowBits(), size), func(b *testing.B) {
				frame, err := AppendClientFrame(p, nil, messageUp("u1", size), [4]byte{1, 2, 3, 4})
				if err != nil {
					b.Fatal(err)
				}
				in := make([]byte, len(frame))
				s := NewStream(p)
				b.SetBytes(int64(len(frame)))
				b.ReportAllocs()
				for b.Loop() {
					copy(in, frame) // Next unmasks in place.
					if f, _, err := s.Next(in, testLimits); err != nil || f.Kind != KindCommand {
						b.Fatal(f.Kind, err)
					}
				}
			})
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, p := range []Protocol{TCP, WebSocket, WebSocketJSON, WebSocket.WithDeflate(15)} {
		for _, size := range []int{benchContentBytes, 4 << 10} {
			b.Run(fmt.Sprintf("%s/deflate=%d/%d", p, p.windowBits(), size), func(b *testing.B) {
				command := messageUp("u1", size)
				out := make([]byte, 0, 2*len(command)+64)
				b.SetBytes(int64(len(command)))
				b.ReportAllocs()
				for b.Loop() {
					var err error
					if out, err = Append(p, out[:0], command); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkScan(b *testing.B) {
	command := messageUp("5e3b5a0e-6d1c-4c8e-9f7a-0a1b2c3d4e5f", benchContentBytes)
	b.ReportAllocs()
	for b.Loop() {
		if h, err := Scan(command); err != nil || len(h.UUID) == 0 {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendCommand(b *testing.B) {
	ack := &clientv1.MessageAck{Uuid: "5e3b5a0e-6d1c-4c8e-9f7a-0a1b2c3d4e5f", MsgId: "7301234567890123456", ConvId: "u:alice:bob", Seq: 7, ServerAtMs: 1700000000000}
	out := make([]byte, 0, 256)
	b.ReportAllocs()
	for b.Loop() {
		out = AppendCommand(out[:0], clientv1.CommandType_MESSAGEACK, 0, ack)
	}
}

func BenchmarkParseUpgrade(b *testing.B) {
	in := []byte(upgradeRequest("Authorization: Bearer abc.def.ghi"))
	o := &UpgradeOptions{Path: "/ws"}
	out := make([]byte, 0, 512)
	b.ReportAllocs()
	for b.Loop() {
		u, _, err := ParseUpgrade(in, o)
		if err != nil {
			b.Fatal(err)
		}
		out = AppendUpgradeResponse(out[:0], &u)
	}
}

func BenchmarkUTF8(b *testing.B) {
	text := make([]byte, 4<<10)
	for i := range text {
		text[i] = 'a'
	}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, ok := utf8Start.advance(text); !ok {
			b.Fatal("refused")
		}
	}
}
