package main

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	statev1 "github.com/sluice-im/sluice/api/state/v1"
)

// trouble is what a logic tier does with a frame instead of answering it at once.
type trouble struct {
	wait  time.Duration // before it does anything
	retry bool          // answers ACK_RETRY, as when its Redis is away
	code  codes.Code    // answers with this status
	mute  bool          // never answers
}

// tier is a logic tier as the second source document has it: a known uuid is answered OK, a new one is stored and answered
// OK. It knows both ways of the relay.
type tier struct {
	statev1.UnimplementedStateServerServer

	mu sync.Mutex
	// Guarded by mu.
	troubles map[string]trouble  // by uid; only the first frame of a uuid gets into it
	frames   map[string]int      // by uuid
	known    map[string]bool     // by uuid
	stored   map[string][]string // contents by uid
}

func startTier(t *testing.T) (*tier, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	tr := &tier{troubles: map[string]trouble{}, frames: map[string]int{}, known: map[string]bool{}, stored: map[string][]string{}}
	statev1.RegisterStateServerServer(s, tr)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return tr, l.Addr().String()
}

// meet decides what happens to a user's new messages from now on.
func (t *tier) meet(uid string, tb trouble) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.troubles[uid] = tb
}

// seen is how often the frames of a uuid came.
func (t *tier) seen(uuid string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.frames[uuid]
}

func (t *tier) storedOf(uid string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.stored[uid]...)
}

func (t *tier) ReceiveMessage(ctx context.Context, r *statev1.ReceiveMessageRequest) (*statev1.ReceiveMessageResponse, error) {
	b, err := t.handle(ctx, r.GetUid(), r.GetPayload())
	return &statev1.ReceiveMessageResponse{ResponsePayload: b}, err
}

func (t *tier) Relay(stream grpc.BidiStreamingServer[statev1.UplinkBatch, statev1.DownlinkBatch]) error {
	var sending sync.Mutex
	var working sync.WaitGroup
	defer working.Wait()
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	for {
		up, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		send := func(items ...*statev1.DownlinkItem) {
			sending.Lock()
			defer sending.Unlock()
			_ = stream.Send(&statev1.DownlinkBatch{Items: items}) // a stream that breaks is found by Recv
		}
		if len(up.GetItems()) == 0 {
			send()
		}
		for _, it := range up.GetItems() {
			working.Go(func() {
				down := &statev1.DownlinkItem{ConnId: it.GetConnId(), ConnSeq: it.GetConnSeq()}
				if it.GetKind() == statev1.UplinkKind_UPLINK_KIND_FRAME {
					b, err := t.handle(ctx, it.GetUid(), it.GetPayload())
					down.Payload, down.Status = b, uint32(status.Code(err))
				}
				if ctx.Err() == nil {
					send(down)
				}
			})
		}
	}
}

// handle is the document's handleMessageUp.
func (t *tier) handle(ctx context.Context, uid string, payload []byte) ([]byte, error) {
	var cmd clientv1.Command
	var up clientv1.MessageUp
	if err := errors.Join(proto.Unmarshal(payload, &cmd), proto.Unmarshal(cmd.GetData(), &up)); err != nil || cmd.GetType() != clientv1.CommandType_MESSAGEUP {
		return nil, status.Error(codes.InvalidArgument, "not a MESSAGEUP")
	}
	ack := &clientv1.MessageAck{Uuid: up.GetUuid()}
	if tb := t.count(uid, up.GetUuid()); tb != (trouble{}) {
		switch {
		case tb.mute:
			<-ctx.Done()
			return nil, ctx.Err()
		case tb.wait > 0:
			<-time.After(tb.wait) // its own work, which nothing interrupts
		case tb.code != codes.OK:
			return nil, status.Error(tb.code, "as told")
		case tb.retry:
			ack.Status = clientv1.MessageAckStatus_ACK_RETRY
		}
	}
	if ack.GetStatus() == clientv1.MessageAckStatus_ACK_OK {
		t.store(uid, &up)
	}
	data, err := proto.Marshal(ack)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(&clientv1.Command{Type: clientv1.CommandType_MESSAGEACK, Data: data})
}

func (t *tier) count(uid, uuid string) trouble {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.frames[uuid]++
	if t.frames[uuid] > 1 {
		return trouble{}
	}
	return t.troubles[uid]
}

func (t *tier) store(uid string, up *clientv1.MessageUp) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.known[up.GetUuid()] {
		t.known[up.GetUuid()] = true
		t.stored[uid] = append(t.stored[uid], up.GetContent())
	}
}
