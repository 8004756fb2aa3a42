package main

import (
	"context"
	"log"
	"time"

	"google.golang.org/grpc/metadata"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	gatewayv1 "github.com/sluice-im/sluice/api/gateway/v1"
)

const (
	// queueMax bounds what waits for the gateway; at a millisecond a call it is a second's worth.
	queueMax = 1000
	// sendMax bounds one call.
	sendMax = 5 * time.Second
)

type push struct {
	to      string
	message *clientv1.MessageDown
}

// pusher sends messages to users, one after another, so that they leave in order.
type pusher struct {
	gateway gatewayv1.GatewayClient
	token   string
	queue   chan push
}

func newPusher(g gatewayv1.GatewayClient, token string) *pusher {
	return &pusher{gateway: g, token: token, queue: make(chan push, queueMax)}
}

// push does not wait: who holds a gateway's call longer than its 300 ms only makes the client send again.
func (p *pusher) push(to string, m *clientv1.MessageDown) {
	select {
	case p.queue <- push{to, m}:
	default:
		log.Printf("to %s: message %s is not sent, the queue is full", to, m.GetMsgId())
	}
}

func (p *pusher) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case it := <-p.queue:
			p.send(ctx, it)
		}
	}
}

// send calls Send. It answers for each device what became of the payload; of the call's own error it is not known.
func (p *pusher) send(ctx context.Context, it push) {
	payload, err := command(clientv1.CommandType_MESSAGEDOWN, it.message)
	if err != nil {
		log.Printf("to %s: %v", it.to, err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sendMax)
	defer cancel()
	if p.token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+p.token)
	}
	reply, err := p.gateway.Send(ctx, &gatewayv1.SendRequest{Payload: payload, Recipients: []*gatewayv1.Recipient{{Uid: it.to}}})
	if err != nil {
		log.Printf("to %s: message %s: not known whether it was sent: %v", it.to, it.message.GetMsgId(), err)
		return
	}
	for _, r := range reply.GetResults() {
		log.Printf("to %s, device %q: message %s: %v", r.GetUid(), r.GetDeviceId(), it.message.GetMsgId(), r.GetResult())
	}
}
