package gateway

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"

	gatewayv1 "github.com/sluice-im/sluice/api/gateway/v1"
	"github.com/sluice-im/sluice/stateclient/routes"
)

const (
	// forwardsAtOnce is how many gateways one chunk of a Send is forwarded to at the same time.
	forwardsAtOnce = 16
	// silentMax is after how many unanswered Pushes in a row the rest of a Send does not ask a gateway any more: one that
	// hangs would cost 100,000 recipients forty seconds.
	silentMax = 3
)

// silence counts the unanswered Pushes of one Send, by gateway.
type silence struct {
	mu sync.Mutex
	// Guarded by mu.
	silent map[string]int
}

func (s *silence) given(addr string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.silent[addr] >= silentMax
}

func (s *silence) note(addr string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		delete(s.silent, addr)
		return
	}
	if s.silent == nil {
		s.silent = make(map[string]int)
	}
	s.silent[addr]++
}

func targetOf(r *routes.Route) *gatewayv1.Target {
	return &gatewayv1.Target{Incarnation: r.Incarnation, ConnId: r.ConnID, Uid: r.UID, DeviceId: r.DeviceID, Epoch: r.Epoch}
}

// push makes attempts: those of this gateway's own connections here, those of every other gateway in one Push.
func (c *sending) push(ctx context.Context, due []*attempt) {
	var own []*attempt
	others := make(map[string][]*attempt)
	for _, d := range due {
		// Whoever advertised this address before this gateway is gone.
		if d.route.Incarnation == c.g.incarnation || d.route.Addr == c.g.advertise {
			own = append(own, d)
		} else {
			others[d.route.Addr] = append(others[d.route.Addr], d)
		}
	}
	var work errgroup.Group
	work.SetLimit(forwardsAtOnce)
	for addr, part := range others {
		work.Go(func() error {
			c.forward(ctx, addr, part)
			return nil
		})
	}
	c.pushOwn(ctx, own)
	_ = work.Wait() // none of them returns an error
}

// pushOwn pushes to connections of this gateway.
func (c *sending) pushOwn(ctx context.Context, own []*attempt) {
	if len(own) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, pushWait)
	defer cancel()
	targets, out := make([]*gatewayv1.Target, len(own)), make([]gatewayv1.Result, len(own))
	for i, d := range own {
		targets[i] = targetOf(&d.route)
		out[i] = c.g.push(ctx, targets[i], c)
	}
	c.g.flushAll(targets, out)
	for i, d := range own {
		d.result = out[i]
	}
}

// forward pushes to connections of another gateway, which does not forward any further. What it does not answer is
// unknown: it may have happened.
func (c *sending) forward(ctx context.Context, addr string, part []*attempt) {
	item := &gatewayv1.PushItem{Payload: c.payload, Targets: make([]*gatewayv1.Target, len(part))}
	for i, d := range part {
		d.result = gatewayv1.Result_RESULT_UNKNOWN
		item.Targets[i] = targetOf(&d.route)
	}
	if c.given(addr) {
		c.g.counters.forward(forwardSkipped)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.g.cfg.Internal.PushTimeout)
	defer cancel()
	reply, err := c.g.neighbours.push(ctx, addr, &gatewayv1.PushRequest{Items: []*gatewayv1.PushItem{item}})
	c.note(addr, err)
	if err != nil || len(reply.GetResults()) != len(part) {
		c.g.counters.forward(forwardFailed)
		return
	}
	c.g.counters.forward(forwardAnswered)
	for i, d := range part {
		if r := reply.GetResults()[i]; r != gatewayv1.Result_RESULT_UNSPECIFIED {
			d.result = r
		}
	}
}
