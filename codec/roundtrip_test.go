package codec

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"google.golang.org/protobuf/proto"
)

var testLimits = &Limits{FrameBytes: 64 << 10, Fragments: 1024}

// protocols are all that carry Commands.
var protocols = []Protocol{
	TCP, WebSocket, WebSocketJSON,
	WebSocket.WithDeflate(15), WebSocket.WithDeflate(9), WebSocketJSON.WithDeflate(15),
}

func messageUp(uuid string, contentBytes int) []byte {
	return AppendCommand(nil, clientv1.CommandType_MESSAGEUP, 0, &clientv1.MessageUp{
		Uuid: uuid, ReceiverId: "bob", Content: strings.Repeat("z", contentBytes), SessionSeq: 1 << 60,
	})
}

// next is one step that must bring a frame of the given kind and consume everything.
func next(t *testing.T, s *Stream, in []byte, kind Kind) Frame {
	t.Helper()
	f, consumed, err := s.Next(in, testLimits)
	if err != nil || f.Kind != kind || consumed != len(in) {
		t.Fatalf("Next = kind %d, consumed %d of %d, %v; want kind %d and all of it", f.Kind, consumed, len(in), err, kind)
	}
	return f
}

func equalCommands(t *testing.T, got, want []byte) {
	t.Helper()
	var g, w clientv1.Command
	if err := proto.Unmarshal(got, &g); err != nil {
		t.Fatalf("not a Command: %v", err)
	}
	if err := proto.Unmarshal(want, &w); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(&g, &w) {
		t.Fatalf("Command differs: %v, want %v", &g, &w)
	}
}

func TestRoundTrip(t *testing.T) {
	for _, p := range protocols {
		for _, size := range []int{0, 1, 100, 125, 126, 1000, 60000} {
			t.Run(fmt.Sprintf("%s/%d/%d", p, p.windowBits(), size), func(t *testing.T) {
				command := messageUp("u1", size)
				up, err := AppendClientFrame(p, []byte("before"), command, [4]byte{1, 2, 3, 4})
				if err != nil || !bytes.HasPrefix(up, []byte("before")) {
					t.Fatalf("AppendClientFrame: %v", err)
				}
				server := NewStream(p)
				equalCommands(t, next(t, &server, up[len("before"):], KindCommand).Payload, command)

				down, err := server.Append(nil, command)
				if err != nil {
					t.Fatal(err)
				}
				client := NewClientStream(p)
				equalCommands(t, next(t, &client, down, KindCommand).Payload, command)
			})
		}
	}
}

func TestStreamIsSmall(t *testing.T) {
	if n := unsafe.Sizeof(Stream{}); n > 16 {
		t.Errorf("a Stream is %d bytes; every idle connection pays for it", n)
	}
}
