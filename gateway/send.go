package gateway

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	gatewayv1 "github.com/sluice-im/sluice/api/gateway/v1"
	"github.com/sluice-im/sluice/api/ident"
	"github.com/sluice-im/sluice/codec"
	"github.com/sluice-im/sluice/stateclient/routes"
)

// The way of a Send: recipients in chunks (here) → Find → connections of this gateway at once, those of every other
// gateway in one Push each (forward.go) → whoever was not reached is looked up once more → one result a device, in the
// order of the recipients.

const (
	// sendChunk is how many recipients are looked up in one round trip. With 16 devices each, one Push for all of them is
	// about 4 MiB beside the payload, half of what a gateway accepts.
	sendChunk = 512
	// sendChunksMax bounds the chunks in work, of all calls together: what they hold, and what they ask of Redis.
	sendChunksMax = 16
	// sendAtOnce is how many of them one call may have, so that a call for 100,000 leaves room for one to a single user.
	sendAtOnce = 4
	// sendAnswerMax bounds an answer. 4 MiB is what a gRPC client accepts unless told otherwise, and an answer that it
	// refuses would leave the caller without a word about what was sent.
	sendAnswerMax = 4<<20 - 64<<10
	// resultBytes is what one result takes beside its ids: tags, lengths and the result itself.
	resultBytes = 12
)

// sending is one call of Send.
type sending struct {
	g       *Gateway
	payload []byte
	local   encoded
	// localMu guards local: chunks are framed for this gateway's connections side by side.
	localMu sync.Mutex
	// room is what is left of sendAnswerMax.
	room atomic.Int64
	silence
}

// Send implements gatewayv1.GatewayServer: one payload for every device of each recipient, or for the one that it names.
// Only a request that could reach nobody fails as a whole; everything else is a result.
func (s *internal) Send(ctx context.Context, req *gatewayv1.SendRequest) (*gatewayv1.SendResponse, error) {
	g, recipients := s.g, req.GetRecipients()
	if err := g.checkCommand(req.GetPayload()); err != nil {
		return nil, err
	}
	call := &sending{g: g, payload: req.GetPayload(), local: encoded{payload: req.GetPayload()}}
	least := 0
	for _, r := range recipients {
		least += resultBytes + len(r.GetUid()) + len(r.GetDeviceId())
	}
	if least > sendAnswerMax {
		return nil, status.Errorf(codes.InvalidArgument, "%d recipients: the answer would not fit %d bytes, divide the call", len(recipients), sendAnswerMax)
	}
	call.room.Store(int64(sendAnswerMax - least))
	chunks := make([][]*gatewayv1.DeviceResult, (len(recipients)+sendChunk-1)/sendChunk)
	var work errgroup.Group
	work.SetLimit(sendAtOnce)
	for i := range chunks {
		part := recipients[i*sendChunk : min((i+1)*sendChunk, len(recipients))]
		work.Go(func() error {
			select {
			case g.sends <- struct{}{}:
				defer func() { <-g.sends }()
			case <-ctx.Done(): // nobody reads the answer any more
				return ctx.Err()
			}
			chunks[i] = call.chunk(ctx, part)
			return nil
		})
	}
	if err := work.Wait(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	out := &gatewayv1.SendResponse{}
	for _, c := range chunks {
		out.Results = append(out.Results, c...)
	}
	return out, nil
}

// frame implements framer: the chunks of one call share what is framed once.
func (c *sending) frame(p codec.Protocol) []byte {
	c.localMu.Lock()
	defer c.localMu.Unlock()
	return c.local.frame(p)
}

// checkCommand refuses what no client could read.
func (g *Gateway) checkCommand(payload []byte) error {
	if len(payload) > g.frameLimits.FrameBytes {
		return status.Errorf(codes.InvalidArgument, "a payload of %d bytes: at most %d", len(payload), g.frameLimits.FrameBytes)
	}
	if _, err := codec.Scan(payload); err != nil || len(payload) == 0 {
		return status.Error(codes.InvalidArgument, "the payload is not a Command")
	}
	return nil
}

// addressed is one recipient while its chunk is in work.
type addressed struct {
	*gatewayv1.Recipient
	// invalid, and unknown: the last lookup failed.
	invalid, unknown bool
	devices          []*attempt
}

// attempt is the push to one device of one recipient.
type attempt struct {
	route  routes.Route
	result gatewayv1.Result
}

// reached reports whether there is nothing to be gained from looking again.
func (a *attempt) reached() bool {
	return a.result != gatewayv1.Result_RESULT_STALE_ROUTE && a.result != gatewayv1.Result_RESULT_UNKNOWN
}

// chunk sends to some recipients, at most sendChunk.
func (c *sending) chunk(ctx context.Context, recipients []*gatewayv1.Recipient) []*gatewayv1.DeviceResult {
	list := make([]addressed, len(recipients))
	for i, r := range recipients {
		list[i].Recipient = r
		list[i].invalid = !ident.ValidUID(r.GetUid()) || r.GetDeviceId() != "" && !ident.ValidUID(r.GetDeviceId())
	}
	all := func(a *addressed) bool { return !a.invalid }
	c.push(ctx, c.lookUp(ctx, list, all))
	missed := func(a *addressed) bool {
		again := a.unknown
		for _, d := range a.devices {
			again = again || !d.reached()
		}
		return again && !a.invalid
	}
	c.removeStale(ctx, list)
	// Once more: a device may have come back elsewhere, and an unanswered lookup has done nothing.
	c.push(ctx, c.lookUp(ctx, list, missed))
	return c.results(list)
}

// lookUp finds the routes of those that want says, and returns the pushes that have to be made for them: for routes that
// were not tried before.
func (c *sending) lookUp(ctx context.Context, list []addressed, want func(*addressed) bool) (due []*attempt) {
	uids, wanted := make([]string, 0, len(list)), make([]*addressed, 0, len(list))
	for i := range list {
		if want(&list[i]) {
			uids, wanted = append(uids, list[i].GetUid()), append(wanted, &list[i])
		}
	}
	if len(uids) == 0 {
		return nil
	}
	found, err := c.g.routes.table.Find(ctx, uids)
	var some *routes.UnknownError
	failed := make(map[string]bool)
	if errors.As(err, &some) {
		for _, uid := range some.UIDs {
			failed[uid] = true
		}
	}
	for _, a := range wanted {
		if a.unknown = err != nil && (some == nil || failed[a.GetUid()]); a.unknown {
			continue
		}
		var fresh []*attempt
		for _, r := range found[a.GetUid()] {
			if a.GetDeviceId() == "" || a.GetDeviceId() == r.DeviceID {
				fresh = append(fresh, a.attempt(r)...)
			}
		}
		due = append(due, c.fitting(fresh)...)
	}
	return due
}

// attempt is the push to r, unless it was tried already. A device that is found at another place takes its old one's.
func (a *addressed) attempt(r routes.Route) []*attempt {
	for _, d := range a.devices {
		if d.route.DeviceID != r.DeviceID {
			continue
		}
		if d.reached() || d.route.Incarnation == r.Incarnation && d.route.ConnID == r.ConnID && d.route.Epoch == r.Epoch {
			return nil
		}
		d.route = r
		return []*attempt{d}
	}
	d := &attempt{route: r, result: gatewayv1.Result_RESULT_UNKNOWN}
	a.devices = append(a.devices, d)
	return []*attempt{d}
}

// fitting are those attempts whose results have room in the answer; the others stay unknown and are not made.
func (c *sending) fitting(fresh []*attempt) []*attempt {
	n := 0
	for _, d := range fresh {
		n += resultBytes + len(d.route.UID) + len(d.route.DeviceID)
	}
	if c.room.Add(int64(-n)) >= 0 {
		return fresh
	}
	c.room.Add(int64(n))
	for _, d := range fresh {
		d.route.DeviceID = "" // no room for it
	}
	return nil
}

// removeStale takes out routes that their own gateway did not know. An error only leaves them for the next who meets
// them.
func (c *sending) removeStale(ctx context.Context, list []addressed) {
	var stale []routes.Route
	for i := range list {
		for _, d := range list[i].devices {
			if d.result == gatewayv1.Result_RESULT_STALE_ROUTE {
				stale = append(stale, d.route)
			}
		}
	}
	if len(stale) > 0 {
		_ = c.g.routes.table.Remove(ctx, stale)
	}
}

// results is one result a device, and one for a recipient without any.
func (c *sending) results(list []addressed) []*gatewayv1.DeviceResult {
	out := make([]*gatewayv1.DeviceResult, 0, len(list))
	for i := range list {
		a := &list[i]
		sent := 0
		for _, d := range a.devices {
			if d.route.DeviceID != "" {
				sent++
				out = append(out, &gatewayv1.DeviceResult{Uid: a.GetUid(), DeviceId: d.route.DeviceID, Result: d.result})
			}
		}
		if sent > 0 && sent == len(a.devices) {
			continue
		}
		r := &gatewayv1.DeviceResult{Uid: a.GetUid(), DeviceId: a.GetDeviceId(), Result: gatewayv1.Result_RESULT_OFFLINE}
		switch {
		case a.invalid:
			r.Result = gatewayv1.Result_RESULT_INVALID
		case a.unknown || len(a.devices) > 0:
			r.Result = gatewayv1.Result_RESULT_UNKNOWN
		}
		c.g.counters.pushes[r.Result].Add(1) // the others are counted where they were pushed
		out = append(out, r)
	}
	return out
}
