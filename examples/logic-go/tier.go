package main

import (
	"context"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/ident"
	statev1 "github.com/sluice-im/sluice/api/state/v1"
)

// knownMax bounds the messages that are remembered; resends of older ones would be new messages. A client gives up after a
// minute, so this is enough for 1,500 messages a second.
const knownMax = 100_000

// conversationsMax bounds the numbers that are kept; a message of one more conversation is told to come again later.
const conversationsMax = 100_000

// key is what makes a message one message, however often it is sent.
type key struct{ from, uuid string }

// tier numbers messages and remembers what it has answered.
type tier struct {
	// The other methods answer Unimplemented: the gateway remembers that and goes on without them.
	statev1.UnimplementedStateServerServer
	pusher *pusher

	mu sync.Mutex
	// Guarded by mu.
	known map[key]*clientv1.MessageAck
	order []key // of known, the oldest first
	seqs  map[string]int64
	last  int64 // the last message id
}

func newTier(p *pusher) *tier {
	return &tier{pusher: p, known: map[key]*clientv1.MessageAck{}, seqs: map[string]int64{}}
}

// ReceiveMessage takes one frame of one user. req.Uid is who the gateway has let in; nothing in the frame says that. The
// status codes are those of the truth table in docs/drop-in.md: InvalidArgument and Unimplemented mean "no effect, do not
// try again".
func (t *tier) ReceiveMessage(_ context.Context, req *statev1.ReceiveMessageRequest) (*statev1.ReceiveMessageResponse, error) {
	var cmd clientv1.Command
	if err := proto.Unmarshal(req.GetPayload(), &cmd); err != nil {
		return nil, status.Error(codes.InvalidArgument, "not a Command")
	}
	if cmd.GetType() != clientv1.CommandType_MESSAGEUP {
		return nil, status.Errorf(codes.Unimplemented, "no %v here", cmd.GetType())
	}
	var up clientv1.MessageUp
	if err := proto.Unmarshal(cmd.GetData(), &up); err != nil || !ident.ValidUID(up.GetReceiverId()) {
		return nil, status.Error(codes.InvalidArgument, "not a MessageUp to a user")
	}
	ack := t.accept(req.GetUid(), &up)
	if ack == nil {
		return nil, status.Error(codes.ResourceExhausted, "too many conversations")
	}
	payload, err := command(clientv1.CommandType_MESSAGEACK, ack)
	if err != nil {
		return nil, err
	}
	return &statev1.ReceiveMessageResponse{ResponsePayload: payload}, nil
}

// accept answers a known message as the first time, and numbers and sends a new one. It returns nil when it has no room.
func (t *tier) accept(from string, up *clientv1.MessageUp) *clientv1.MessageAck {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := key{from, up.GetUuid()}
	if ack := t.known[k]; ack != nil {
		return ack
	}
	now := time.Now()
	conv := ident.Conversation(from, up.GetReceiverId())
	if t.seqs[conv] == 0 && len(t.seqs) == conversationsMax {
		return nil
	}
	t.seqs[conv]++
	t.last = max(t.last+1, now.UnixMicro())
	ack := &clientv1.MessageAck{Uuid: up.GetUuid(), Status: clientv1.MessageAckStatus_ACK_OK, MsgId: strconv.FormatInt(t.last, 10),
		ConvId: conv, Seq: t.seqs[conv], ServerAtMs: now.UnixMilli()}
	if len(t.order) == knownMax {
		delete(t.known, t.order[0])
		t.order = t.order[1:]
	}
	t.known[k], t.order = ack, append(t.order, k)
	// Under the lock: messages of one conversation must be sent in the order of their numbers.
	t.pusher.push(up.GetReceiverId(), &clientv1.MessageDown{MsgId: ack.GetMsgId(), ConvId: conv, Seq: ack.GetSeq(), Type: up.GetType(),
		FromUid: from, Content: up.GetContent(), Body: up.GetBody(), ServerAtMs: ack.GetServerAtMs(), Uuid: up.GetUuid()})
	return ack
}

// command wraps a payload in its envelope.
func command(kind clientv1.CommandType, m proto.Message) ([]byte, error) {
	data, err := proto.Marshal(m)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(&clientv1.Command{Type: kind, Data: data})
}
