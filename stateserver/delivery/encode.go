package delivery

import (
	"fmt"
	"strconv"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/stateserver/store"
)

// encodeDown is the MESSAGEDOWN command of a message, encoded once for all its receivers.
func encodeDown(m *store.Message) ([]byte, error) {
	down := clientv1.MessageDown{
		MsgId: strconv.FormatInt(m.MsgID, 10), ConvId: m.ConvID, Seq: m.Seq, Type: m.Type, FromUid: m.FromUID,
		Content: m.Content, Body: m.Body, ServerAtMs: m.ServerAt, Uuid: m.UUID,
	}
	data, err := down.MarshalVT()
	if err != nil {
		return nil, fmt.Errorf("encode MESSAGEDOWN: %w", err)
	}
	command := clientv1.Command{Type: clientv1.CommandType_MESSAGEDOWN, Data: data}
	payload, err := command.MarshalVT()
	if err != nil {
		return nil, fmt.Errorf("encode command: %w", err)
	}
	return payload, nil
}
