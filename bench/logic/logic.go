// Package logic is a logic tier that does nothing: it acknowledges every MESSAGEUP at once. Behind it, what is measured is
// the gateway alone.
package logic

import (
	"context"
	"errors"
	"io"
	"net"

	"google.golang.org/grpc"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	statev1 "github.com/sluice-im/sluice/api/state/v1"
	"github.com/sluice-im/sluice/codec"
)

// messageBytesMax is what both sides of the relay accept (protocol 2).
const messageBytesMax = 8 << 20

// Serve answers on addr until ctx ends; ready is called with the address once it listens. What book is given is where
// connections are announced; nil = nobody wants to know.
func Serve(ctx context.Context, addr string, book *Book, ready func(net.Addr)) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(messageBytesMax), grpc.MaxSendMsgSize(messageBytesMax))
	statev1.RegisterStateServerServer(s, &server{book: book})
	stop := context.AfterFunc(ctx, s.Stop)
	defer stop()
	ready(l.Addr())
	return s.Serve(l)
}

type server struct {
	statev1.UnimplementedStateServerServer
	book *Book
}

func (s *server) Relay(stream grpc.BidiStreamingServer[statev1.UplinkBatch, statev1.DownlinkBatch]) error {
	var down statev1.DownlinkBatch
	var items []statev1.DownlinkItem
	for {
		up, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		down.Items = down.Items[:0]
		if len(up.Items) > len(items) {
			items = make([]statev1.DownlinkItem, len(up.Items))
		}
		for i, it := range up.Items {
			if s.book != nil && it.Kind == statev1.UplinkKind_UPLINK_KIND_CONNECT {
				s.book.enter(up, it)
			}
			d := &items[i]
			d.ConnId, d.ConnSeq = it.ConnId, it.ConnSeq
			d.Payload = answer(d.Payload[:0], it.Payload)
			down.Items = append(down.Items, d)
		}
		if err := stream.Send(&down); err != nil {
			return err
		}
	}
}

func (*server) ReceiveMessage(_ context.Context, req *statev1.ReceiveMessageRequest) (*statev1.ReceiveMessageResponse, error) {
	return &statev1.ReceiveMessageResponse{ResponsePayload: answer(nil, req.Payload)}, nil
}

// answer appends the ack of a MESSAGEUP, nothing for anything else.
func answer(dst, command []byte) []byte {
	h, err := codec.Scan(command)
	if err != nil || h.Type != clientv1.CommandType_MESSAGEUP {
		return dst
	}
	ack := clientv1.MessageAck{Uuid: string(h.UUID), Status: clientv1.MessageAckStatus_ACK_OK}
	return codec.AppendCommand(dst, clientv1.CommandType_MESSAGEACK, 0, &ack)
}
