package gateway

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/sluice-im/sluice/api/gateway/v1"
	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/codec"
	"github.com/sluice-im/sluice/poller"
)

// pushResults is the number of results of gateway.v1.
const pushResults = 9

var pushResultNames = [pushResults]string{"unspecified", "written", "queued", "stale_route", "dropped_slow", "draining",
	"offline", "unknown", "invalid"}

// protocolsMax is the number of protocols a payload can be encoded for: TCP, and WebSocket with protobuf and with JSON, each
// without compression and with each of the seven windows of permessage-deflate (codec.Protocol).
const protocolsMax = 1 + 2*(1+7)

// internal serves gateway.v1 to the logic tier and to other gateways.
type internal struct {
	gatewayv1.UnimplementedGatewayServer
	g *Gateway
}

// encoded is one payload, framed at most once for each protocol.
type encoded struct {
	protocols [protocolsMax]codec.Protocol
	frames    [protocolsMax][]byte
	n         int
	payload   []byte
}

// framer is one payload in the form that each protocol wants.
type framer interface {
	// frame is the payload framed for p; nil when it cannot be.
	frame(p codec.Protocol) []byte
}

// frame implements framer, for one goroutine.
func (e *encoded) frame(p codec.Protocol) []byte {
	for i := range e.n {
		if e.protocols[i] == p {
			return e.frames[i]
		}
	}
	framed, err := codec.Append(p, nil, e.payload)
	if err != nil {
		framed = nil
	}
	if e.n < protocolsMax {
		e.protocols[e.n], e.frames[e.n] = p, framed
		e.n++
	}
	return framed
}

// pushWait bounds how long a push waits for a connection whose route is written and whose login is not answered yet. That
// takes a fraction of a millisecond, and the caller gives up after 200 ms.
const pushWait = 100 * time.Millisecond

// Push implements gatewayv1.GatewayServer: every payload goes to its targets in order, with one write a connection at
// the end, and the results stand in the order of the targets.
func (s *internal) Push(ctx context.Context, req *gatewayv1.PushRequest) (*gatewayv1.PushResponse, error) {
	n := 0
	for _, item := range req.GetItems() {
		n += len(item.GetTargets())
		if len(item.GetPayload()) > s.g.frameLimits.FrameBytes {
			return nil, status.Errorf(codes.InvalidArgument, "a payload of %d bytes: at most %d", len(item.GetPayload()), s.g.frameLimits.FrameBytes)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, pushWait)
	defer cancel()
	out := make([]gatewayv1.Result, 0, n)
	for _, item := range req.GetItems() {
		e := encoded{payload: item.GetPayload()}
		for _, t := range item.GetTargets() {
			out = append(out, s.g.push(ctx, t, &e))
		}
	}
	at := 0
	for _, item := range req.GetItems() {
		s.g.flushAll(item.GetTargets(), out[at:])
		at += len(item.GetTargets())
	}
	return &gatewayv1.PushResponse{Results: out}, nil
}

// flushAll writes what was queued, and counts the results: out begins with those of targets.
func (g *Gateway) flushAll(targets []*gatewayv1.Target, out []gatewayv1.Result) {
	for i, t := range targets {
		if out[i] == gatewayv1.Result_RESULT_QUEUED {
			out[i] = pushed(g.conns.Flush(poller.ID(t.GetConnId())))
		}
		g.counters.pushes[out[i]].Add(1)
	}
}

// push queues one payload for one target. A target of another incarnation is stale without a look.
func (g *Gateway) push(ctx context.Context, t *gatewayv1.Target, e framer) gatewayv1.Result {
	if t.GetIncarnation() != g.incarnation {
		return gatewayv1.Result_RESULT_STALE_ROUTE
	}
	for {
		result, protocol, soon := g.pushable(t)
		switch {
		case soon != nil:
			select {
			case <-soon:
			case <-ctx.Done():
				return gatewayv1.Result_RESULT_UNKNOWN // not "stale": its route must stay
			}
		case result != gatewayv1.Result_RESULT_UNSPECIFIED:
			return result
		default:
			framed := e.frame(protocol)
			if framed == nil {
				return gatewayv1.Result_RESULT_INVALID
			}
			return pushed(g.conns.Queue(poller.ID(t.GetConnId()), framed))
		}
	}
}

// pushable says how to frame for a target, why nothing can be pushed to it, or what to wait for: before the answer to its
// login, nothing else may be written.
func (g *Gateway) pushable(t *gatewayv1.Target) (why gatewayv1.Result, protocol codec.Protocol, soon <-chan struct{}) {
	p := g.peers.locked(poller.ID(t.GetConnId()))
	if p == nil {
		return gatewayv1.Result_RESULT_STALE_ROUTE, 0, nil
	}
	defer p.mu.Unlock()
	switch {
	case p.session.state < leaving && p.pending(t):
		return 0, 0, p.rare.login.settled
	case !p.named(t):
		return gatewayv1.Result_RESULT_STALE_ROUTE, 0, nil
	case p.session.state == live || p.session.state == refreshing:
		return gatewayv1.Result_RESULT_UNSPECIFIED, p.stream.Protocol(), nil
	case p.session.ending == reason.Draining:
		return gatewayv1.Result_RESULT_DRAINING, 0, nil
	}
	return gatewayv1.Result_RESULT_STALE_ROUTE, 0, nil
}

// pushed says what a status of the engine means to whoever pushes.
func pushed(s poller.Status) gatewayv1.Result {
	switch s {
	case poller.StatusWritten:
		return gatewayv1.Result_RESULT_WRITTEN
	case poller.StatusQueued:
		return gatewayv1.Result_RESULT_QUEUED
	case poller.StatusOverflow:
		return gatewayv1.Result_RESULT_DROPPED_SLOW
	}
	return gatewayv1.Result_RESULT_STALE_ROUTE
}

// Kick implements gatewayv1.GatewayServer: it closes the connections that are still the ones that the targets name.
func (s *internal) Kick(_ context.Context, req *gatewayv1.KickRequest) (*gatewayv1.KickResponse, error) {
	why := reason.Kicked
	if req.GetReason() != "" {
		parsed, ok := reason.Parse(req.GetReason())
		if !ok || parsed.Code() == 0 {
			return nil, status.Errorf(codes.InvalidArgument, "reason %.64q does not close connections", req.GetReason())
		}
		why = parsed
	}
	out := make([]gatewayv1.Result, len(req.GetTargets()))
	for i, t := range req.GetTargets() {
		out[i] = gatewayv1.Result_RESULT_STALE_ROUTE
		if t.GetIncarnation() == s.g.incarnation && s.g.displace(t, why, req.GetByDevice(), req.GetBySessionId()) {
			out[i] = gatewayv1.Result_RESULT_WRITTEN
		}
	}
	return &gatewayv1.KickResponse{Results: out}, nil
}
