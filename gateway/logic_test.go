package gateway

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	statev1 "github.com/sluice-im/sluice/api/state/v1"
	"github.com/sluice-im/sluice/codec"
)

// logic is a logic tier that acks every message, after a while.
type logic struct {
	statev1.UnimplementedStateServerServer
	// delay is asked for each batch; nil = none.
	delay func() time.Duration
	// connect decides about logins; nil = there is no such method.
	connect func(ctx context.Context, req *statev1.ConnectRequest) (*statev1.ConnectResponse, error)
	// receive answers calls of mode unary; nil = there is no such method.
	receive func(ctx context.Context, req *statev1.ReceiveMessageRequest) (*statev1.ReceiveMessageResponse, error)
	// answer, when set, makes the items that answer a frame of mode stream; an error ends the stream.
	answer func(item *statev1.UplinkItem) ([]*statev1.DownlinkItem, error)
	server *grpc.Server

	mu sync.Mutex
	// Guarded by mu.
	uuids map[uint64][]string
	// conns are the connections that each kind of item came from; a relay may announce one again on another stream.
	conns map[statev1.UplinkKind]map[uint64]bool
}

// startLogic serves a logic tier on a free port and returns its address.
func startLogic(t testing.TB, l *logic) string {
	t.Helper()
	at, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.uuids, l.conns = make(map[uint64][]string), make(map[statev1.UplinkKind]map[uint64]bool)
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	l.server = server
	statev1.RegisterStateServerServer(server, l)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(at) })
	t.Cleanup(func() { server.Stop(); serving.Wait() })
	return at.Addr().String()
}

// Connect implements statev1.StateServerServer.
func (l *logic) Connect(ctx context.Context, req *statev1.ConnectRequest) (*statev1.ConnectResponse, error) {
	if l.connect == nil {
		return l.UnimplementedStateServerServer.Connect(ctx, req)
	}
	return l.connect(ctx, req)
}

// ReceiveMessage implements statev1.StateServerServer.
func (l *logic) ReceiveMessage(ctx context.Context, req *statev1.ReceiveMessageRequest) (*statev1.ReceiveMessageResponse, error) {
	if l.receive == nil {
		return l.UnimplementedStateServerServer.ReceiveMessage(ctx, req)
	}
	return l.receive(ctx, req)
}

// think waits until delay has said for how long, and then so long; false when the stream ended first. A delay that never
// says anything must not keep the server from stopping.
func think(ctx context.Context, delay func() time.Duration) bool {
	said := make(chan time.Duration, 1)
	go func() { said <- delay() }() // ended by the test that gave the delay
	var d time.Duration
	select {
	case d = <-said:
	case <-ctx.Done():
		return false
	}
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// Relay implements statev1.StateServerServer.
func (l *logic) Relay(stream grpc.BidiStreamingServer[statev1.UplinkBatch, statev1.DownlinkBatch]) error {
	for {
		batch, err := stream.Recv()
		if err != nil {
			return err
		}
		if l.delay != nil && len(batch.GetItems()) > 0 && !think(stream.Context(), l.delay) {
			return stream.Context().Err()
		}
		out := &statev1.DownlinkBatch{}
		for _, item := range batch.GetItems() {
			if l.answer != nil && item.GetKind() == statev1.UplinkKind_UPLINK_KIND_FRAME {
				some, err := l.answer(item)
				if err != nil {
					return err
				}
				out.Items = append(out.Items, some...)
				continue
			}
			out.Items = append(out.Items, l.handle(item))
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}

func (l *logic) handle(item *statev1.UplinkItem) *statev1.DownlinkItem {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns[item.GetKind()] == nil {
		l.conns[item.GetKind()] = make(map[uint64]bool)
	}
	l.conns[item.GetKind()][item.GetConnId()] = true
	down := &statev1.DownlinkItem{ConnId: item.GetConnId(), ConnSeq: item.GetConnSeq()}
	h, _ := codec.Scan(item.GetPayload())
	if h.Type == clientv1.CommandType_MESSAGEUP {
		l.uuids[item.GetConnId()] = append(l.uuids[item.GetConnId()], string(h.UUID))
		down.Payload = codec.AppendCommand(nil, clientv1.CommandType_MESSAGEACK, 0, &clientv1.MessageAck{Uuid: string(h.UUID), MsgId: "1"})
	}
	return down
}

// count is the number of connections that an item of kind k came from.
func (l *logic) count(k statev1.UplinkKind) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns[k])
}

// serveRaw serves one handler for every method, with messages as bytes, and returns its address.
func serveRaw(t testing.TB, handle grpc.StreamHandler) string {
	t.Helper()
	at, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnknownServiceHandler(handle), grpc.ForceServerCodecV2(rawCodec{}))
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(at) })
	t.Cleanup(func() { server.Stop(); serving.Wait() })
	return at.Addr().String()
}
