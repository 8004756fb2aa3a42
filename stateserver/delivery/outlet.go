package delivery

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/sluice-im/sluice/api/gateway/v1"
	"github.com/sluice-im/sluice/stateclient/routes"
)

const (
	// outletsMax bounds the gateways that are called at the same time, each with a goroutine and a connection; it is far
	// above any fleet that shares one Redis.
	outletsMax = 1024
	// outletIdle is how long an outlet without pushes keeps its goroutine and connection.
	outletIdle = time.Minute
	// outletParcelsMax and outletBytesMax bound what waits for one gateway. A gateway that hangs fills them and hurts
	// nobody else; what finds no room is resent in a second. A message to a large group takes a parcel a member.
	outletParcelsMax = 1 << 16
	outletBytesMax   = 32 << 20
	// pushTargetsMax and pushBytesMax bound one Push call; gateways accept 8 MiB.
	pushTargetsMax = 512
	pushBytesMax   = 1 << 20
	// parcelCost is what a parcel weighs beside its payload.
	parcelCost = 192
)

// kind says what becomes of a parcel that does not arrive.
type kind uint8

const (
	// kindTracked has an entry in the resend table.
	kindTracked kind = iota
	// kindOnce has none; it is looked up once more, that is all.
	kindOnce
	// kindNotice is tried again for a while.
	kindNotice
)

// parcel is one command for one device.
type parcel struct {
	payload []byte
	route   routes.Route
	msgID   int64
	kind    kind
	// first is the push that followed the enrolment: when it fails, the resend comes sooner.
	first bool
	// again is the push after a second lookup: there is no third.
	again bool
	// tries counts how often a notice was tried before.
	tries uint8
}

// outlets holds one outlet for every gateway that is being pushed to.
type outlets struct {
	d *Delivery
	// Fixed before start; see the constants.
	countMax, parcelsMax int
	idle                 time.Duration

	// fresh are outlets that nobody works for yet; each is in byAddr, so there is room for all.
	fresh chan *outlet

	mu sync.Mutex
	// Guarded by mu.
	byAddr map[string]*outlet
	closed bool
}

// outlet sends to one gateway, one call at a time, so that what goes to one device keeps its order.
type outlet struct {
	addr    string
	queue   *queue[parcel]
	gateway Gateway
}

func newOutlets(d *Delivery) *outlets {
	return &outlets{d: d, countMax: outletsMax, parcelsMax: outletParcelsMax, idle: outletIdle,
		fresh: make(chan *outlet, outletsMax), byAddr: make(map[string]*outlet)}
}

// run gives every outlet a goroutine, until close, and returns when the last has ended.
func (o *outlets) run(work context.Context) {
	var all sync.WaitGroup
	for out := range o.fresh {
		all.Go(func() {
			defer func() { _ = out.gateway.Close() }() // nothing is in flight any more
			o.serve(work, out)
		})
	}
	all.Wait()
}

// put queues parcels, in order for each gateway. Those that find no room are mended: nothing here waits for a gateway.
func (o *outlets) put(parcels []parcel) {
	if len(parcels) == 0 {
		return
	}
	byAddr := make(map[string][]costed[parcel])
	var order []string
	for _, p := range parcels {
		batch := byAddr[p.route.Addr]
		if batch == nil {
			order = append(order, p.route.Addr)
		}
		cost := parcelCost
		if len(batch) == 0 || !same(batch[len(batch)-1].item.payload, p.payload) {
			cost += len(p.payload)
		}
		byAddr[p.route.Addr] = append(batch, costed[parcel]{p, cost})
	}
	for _, addr := range order {
		batch := byAddr[addr]
		taken, outcome := o.offer(addr, batch)
		for _, p := range batch[taken:] {
			o.d.mend(mend{p.item, whyFailed, outcome})
		}
	}
}

// offer says how many it took, and what becomes of the others.
func (o *outlets) offer(addr string, batch []costed[parcel]) (taken int, outcome string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	out, err := o.outlet(addr)
	if err != nil {
		o.d.warnings.warn("no way to a gateway", "addr", addr, "error", err)
		return 0, pushUnreachable
	}
	return out.queue.offerAll(batch), pushQueueFull
}

var errTooManyGateways = errors.New("too many gateways")

// outlet finds or starts the one for addr. Called with mu held.
func (o *outlets) outlet(addr string) (*outlet, error) {
	if out := o.byAddr[addr]; out != nil {
		return out, nil
	}
	if o.closed {
		return nil, ErrStopped
	}
	if len(o.byAddr) >= o.countMax {
		return nil, errTooManyGateways
	}
	gateway, err := o.d.deps.Gateways.Dial(addr)
	if err != nil {
		return nil, err
	}
	out := &outlet{addr: addr, queue: newQueue[parcel](o.parcelsMax, outletBytesMax), gateway: gateway}
	o.byAddr[addr] = out
	o.fresh <- out
	return out, nil
}

// retire takes an idle outlet out, unless something came meanwhile.
func (o *outlets) retire(out *outlet) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if out.queue.len() > 0 {
		return false
	}
	delete(o.byAddr, out.addr)
	return true
}

// close lets the outlets end when they have sent what they have.
func (o *outlets) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	for _, out := range o.byAddr {
		out.queue.close()
	}
	close(o.fresh)
}

func (o *outlets) serve(work context.Context, out *outlet) {
	idle := time.NewTimer(o.idle)
	defer idle.Stop()
	var batch []parcel
	for work.Err() == nil {
		var open bool
		batch, open = out.queue.poll(batch[:0], pushTargetsMax, pushBytesMax)
		if len(batch) > 0 {
			o.d.push(work, out.gateway, batch)
			clear(batch)
			continue
		}
		if !open {
			return
		}
		idle.Reset(o.idle)
		select {
		case <-out.queue.ready:
		case <-work.Done():
		case <-idle.C:
			if o.retire(out) {
				return
			}
		}
	}
}

// same says that two parcels share one payload.
func same(a, b []byte) bool { return len(a) > 0 && len(a) == len(b) && &a[0] == &b[0] }

// push makes one call and sees to every result.
func (d *Delivery) push(ctx context.Context, g Gateway, batch []parcel) {
	req := &gatewayv1.PushRequest{}
	targets := make([]gatewayv1.Target, len(batch))
	var item *gatewayv1.PushItem
	for i, p := range batch {
		if item == nil || !same(item.Payload, p.payload) {
			item = &gatewayv1.PushItem{Payload: p.payload}
			req.Items = append(req.Items, item)
		}
		t := &targets[i]
		t.Incarnation, t.ConnId, t.Uid, t.DeviceId, t.Epoch = p.route.Incarnation, p.route.ConnID, p.route.UID, p.route.DeviceID, p.route.Epoch
		item.Targets = append(item.Targets, t)
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.Push.Timeout)
	resp, err := g.Push(ctx, req)
	cancel()
	d.deps.Failpoint(FailpointPushed)
	if err == nil && len(resp.GetResults()) != len(batch) {
		err = errors.New("results do not add up to the targets")
	}
	if err != nil {
		d.warnings.warn("push failed", "addr", batch[0].route.Addr, "targets", len(batch), "error", err)
		why, outcome := classify(err)
		for _, p := range batch {
			d.mend(mend{p, why, outcome})
		}
		return
	}
	for i, p := range batch {
		switch resp.Results[i] {
		case gatewayv1.Result_RESULT_WRITTEN:
			d.books.pushes[pushWritten].Inc()
		case gatewayv1.Result_RESULT_QUEUED:
			d.books.pushes[pushQueued].Inc()
		case gatewayv1.Result_RESULT_STALE_ROUTE:
			d.mend(mend{p, whyStale, pushStale})
		case gatewayv1.Result_RESULT_DROPPED_SLOW:
			d.mend(mend{p, whyFailed, pushSlow})
		case gatewayv1.Result_RESULT_DRAINING:
			d.mend(mend{p, whyFailed, pushDraining})
		default:
			d.mend(mend{p, whyFailed, pushRefused})
		}
	}
}

// classify says what an error of the whole call means. A gateway that cannot be reached may be dead, and its users
// elsewhere by now; after a time-out it may just be slow.
func classify(err error) (why, string) {
	switch status.Code(err) {
	case codes.Unavailable:
		return whyDead, pushUnreachable
	case codes.DeadlineExceeded, codes.Canceled:
		return whyFailed, pushTimeout
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return whyFailed, pushTimeout
	}
	return whyFailed, pushRefused
}
