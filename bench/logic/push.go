package logic

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	gatewayv1 "github.com/sluice-im/sluice/api/gateway/v1"
	statev1 "github.com/sluice-im/sluice/api/state/v1"
	"github.com/sluice-im/sluice/codec"
)

// Book is what a logic tier knows of the connections of one gateway: enough to push to them without a look into the
// route table.
type Book struct {
	mu sync.Mutex
	// Guarded by mu.
	gateway string
	targets []*gatewayv1.Target
}

func (b *Book) enter(up *statev1.UplinkBatch, it *statev1.UplinkItem) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gateway = up.GatewayAddr
	b.targets = append(b.targets, &gatewayv1.Target{Incarnation: up.Incarnation, ConnId: it.ConnId, Uid: it.Uid,
		DeviceId: it.DeviceId, Epoch: it.Epoch})
}

// Plan says what is pushed.
type Plan struct {
	// Targets of one payload; 0 = all connections.
	Targets int
	// Items is how many payloads go with one call.
	Items int
	// Rate is messages a second, all targets counted.
	Rate int
	// Size is the content of a message in bytes.
	Size int
}

// Pushed is what became of the messages of one run.
type Pushed struct {
	Messages uint64        `json:"messages"`
	Calls    uint64        `json:"calls"`
	Failed   uint64        `json:"failed"`
	Elapsed  time.Duration `json:"elapsed"`
}

// pushers is how many calls are under way at most: a logic tier that delivers has a few workers a gateway.
const pushers = 4

// Payload is the Command that is pushed: a MESSAGEDOWN.
func Payload(size int) []byte {
	down := clientv1.MessageDown{MsgId: "1152921504606846976", FromUid: "bench", ConvId: "u:bench:bench", Seq: 1 << 20,
		Content: strings.Repeat("x", size), Type: 1}
	return codec.AppendCommand(nil, clientv1.CommandType_MESSAGEDOWN, 0, &down)
}

// Push pushes for d at the plan's rate. Every target in turn gets one message.
func (b *Book) Push(ctx context.Context, plan Plan, d time.Duration) (Pushed, error) {
	b.mu.Lock()
	gateway, targets := b.gateway, b.targets
	b.mu.Unlock()
	if len(targets) == 0 {
		return Pushed{}, errors.New("no connection was announced")
	}
	cc, err := grpc.NewClient(gateway, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return Pushed{}, err
	}
	defer func() { _ = cc.Close() }()
	p := &pusher{plan: plan, targets: targets, client: gatewayv1.NewGatewayClient(cc), payload: Payload(plan.Size), start: time.Now()}
	p.until = p.start.Add(d)
	all, ctx := errgroup.WithContext(ctx)
	for range pushers {
		all.Go(func() error { return p.run(ctx) })
	}
	err = all.Wait()
	return Pushed{Messages: p.messages.Load(), Calls: p.calls.Load(), Failed: p.failed.Load(), Elapsed: time.Since(p.start)}, err
}

// pusher is one run of Push.
type pusher struct {
	plan         Plan
	targets      []*gatewayv1.Target
	client       gatewayv1.GatewayClient
	payload      []byte
	start, until time.Time

	next, messages, calls, failed atomic.Uint64
}

// run makes calls, each when its first message is due.
func (p *pusher) run(ctx context.Context) error {
	per := p.plan.Targets
	if per == 0 {
		per = len(p.targets)
	}
	n := uint64(per * p.plan.Items)
	for ctx.Err() == nil {
		at := p.next.Add(n) - n
		due := p.start.Add(time.Duration(float64(at) / float64(p.plan.Rate) * float64(time.Second)))
		if due.After(p.until) {
			return nil
		}
		time.Sleep(time.Until(due))
		req := &gatewayv1.PushRequest{}
		for i := range p.plan.Items {
			item := &gatewayv1.PushItem{Payload: p.payload}
			for k := range per {
				item.Targets = append(item.Targets, p.targets[(int(at)+i*per+k)%len(p.targets)])
			}
			req.Items = append(req.Items, item)
		}
		resp, err := p.client.Push(ctx, req)
		if err != nil {
			return fmt.Errorf("push: %w", err)
		}
		p.calls.Add(1)
		for _, r := range resp.Results {
			if r == gatewayv1.Result_RESULT_WRITTEN || r == gatewayv1.Result_RESULT_QUEUED {
				p.messages.Add(1)
			} else {
				p.failed.Add(1)
			}
		}
	}
	return ctx.Err()
}
