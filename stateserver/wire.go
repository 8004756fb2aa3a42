package stateserver

import (
	"fmt"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/stateserver/store"
)

// Field numbers of Command.
const (
	commandType = 1
	commandData = 3
)

// message is what vtprotobuf generates.
type message interface {
	SizeVT() int
	MarshalToSizedBufferVT([]byte) (int, error)
}

// command is the bytes of a Command with m inside, in one allocation.
func command(t clientv1.CommandType, m message) []byte {
	n := m.SizeVT()
	b := make([]byte, 0, n+2+protowire.SizeVarint(uint64(t))+protowire.SizeVarint(uint64(n)))
	b = protowire.AppendTag(b, commandType, protowire.VarintType)
	b = protowire.AppendVarint(b, uint64(t))
	b = protowire.AppendTag(b, commandData, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(n))
	start := len(b)
	b = b[:start+n]
	if _, err := m.MarshalToSizedBufferVT(b[start:]); err != nil {
		// Generated code fails only on buffers that are too small, and this one has SizeVT bytes.
		panic(fmt.Sprintf("marshal %T: %v", m, err))
	}
	return b
}

// ackOK is the answer to a message that is stored.
func ackOK(uuid string, r *store.Result, order order) []byte {
	return command(clientv1.CommandType_MESSAGEACK, &clientv1.MessageAck{
		Uuid: uuid, MsgId: strconv.FormatInt(r.MsgID, 10), ConvId: r.ConvID, Seq: r.Seq, ServerAtMs: r.ServerAt, OutOfOrder: order == outOfOrder,
	})
}

// order says where in its session a message was stored.
type order uint8

const (
	inOrder order = iota
	outOfOrder
)

func ackFail(uuid string, why reason.Reason) []byte {
	return command(clientv1.CommandType_MESSAGEACK, &clientv1.MessageAck{Uuid: uuid, Status: clientv1.MessageAckStatus_ACK_FAIL, Reason: why.String()})
}

// retryAfterMS is what a RETRY asks the client to wait: longer than a hiccup of the store, shorter than a user notices.
const retryAfterMS = 200

func ackRetry(uuid string, why reason.Reason) []byte {
	return command(clientv1.CommandType_MESSAGEACK, &clientv1.MessageAck{
		Uuid: uuid, Status: clientv1.MessageAckStatus_ACK_RETRY, Reason: why.String(), RetryAfterMs: retryAfterMS})
}

// ackGap refuses a message behind a missing one. It may be sent again at once, behind the one that is expected.
func ackGap(uuid string, expected uint64) []byte {
	return command(clientv1.CommandType_MESSAGEACK, &clientv1.MessageAck{
		Uuid: uuid, Status: clientv1.MessageAckStatus_ACK_RETRY, Reason: reason.Gap.String(), ExpectedSessionSeq: expected})
}

func errorTo(cmd clientv1.CommandType, conv string, why reason.Reason, detail string) []byte {
	return command(clientv1.CommandType_ERROR, &clientv1.Error{Command: cmd, ConvId: conv, Reason: why.String(), Detail: detail})
}

// down is a stored message as its receivers get it.
func down(m *store.Message) *clientv1.MessageDown {
	return &clientv1.MessageDown{
		MsgId: strconv.FormatInt(m.MsgID, 10), ConvId: m.ConvID, Seq: m.Seq, Type: m.Type, FromUid: m.FromUID,
		Content: m.Content, Body: m.Body, ServerAtMs: m.ServerAt, Uuid: m.UUID,
	}
}
