package gateway

import (
	"context"
	"time"

	"google.golang.org/grpc/status"

	gatewayv1 "github.com/sluice-im/sluice/api/gateway/v1"
	"github.com/sluice-im/sluice/codec"
	"github.com/sluice-im/sluice/poller"
)

const (
	// broadcastPace is how many connections a second get a Broadcast that names no pace: it takes two minutes for a
	// million, and leaves the loops most of their time.
	broadcastPace = 8192
	// broadcastSlice is the grain of the pace.
	broadcastSlice = 10 * time.Millisecond
)

// Broadcast implements gatewayv1.GatewayServer: one payload for every connection of this gateway that is logged in. One
// is in work at a time; the next waits. What was written before ctx ended stays written.
func (s *internal) Broadcast(ctx context.Context, req *gatewayv1.BroadcastRequest) (*gatewayv1.BroadcastResponse, error) {
	g := s.g
	if err := g.checkCommand(req.GetPayload()); err != nil {
		return nil, err
	}
	select {
	case g.broadcasts <- struct{}{}:
		defer func() { <-g.broadcasts }()
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	pace := int(req.GetConnectionsPerSecond())
	if pace == 0 {
		pace = broadcastPace
	}
	out, e := &gatewayv1.BroadcastResponse{}, encoded{payload: req.GetPayload()}
	begun, n := g.clock(), 0
	g.peers.each(func(_ uint32, p *peer) bool {
		id, protocol, ok := p.broadcastable()
		if !ok {
			return true
		}
		g.broadcast(out, id, e.frame(protocol))
		n++
		ahead := time.Duration(n)*time.Second/time.Duration(pace) - (g.clock() - begun)
		return ahead < broadcastSlice || wait(ctx, ahead)
	})
	if ctx.Err() != nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return out, nil
}

// broadcastable says how to frame for a connection that is logged in.
func (p *peer) broadcastable() (poller.ID, codec.Protocol, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	live := p.id != 0 && (p.session.state == live || p.session.state == refreshing)
	return p.id, p.stream.Protocol(), live
}

// broadcast writes to one connection.
func (g *Gateway) broadcast(out *gatewayv1.BroadcastResponse, id poller.ID, framed []byte) {
	result := gatewayv1.Result_RESULT_INVALID
	if framed != nil {
		if result = pushed(g.conns.Queue(id, framed)); result == gatewayv1.Result_RESULT_QUEUED {
			result = pushed(g.conns.Flush(id))
		}
	}
	g.counters.pushes[result].Add(1)
	switch result {
	case gatewayv1.Result_RESULT_WRITTEN:
		out.Written++
	case gatewayv1.Result_RESULT_QUEUED:
		out.Queued++
	case gatewayv1.Result_RESULT_DROPPED_SLOW, gatewayv1.Result_RESULT_INVALID:
		out.Dropped++
	}
}
