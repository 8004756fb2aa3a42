package delivery

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	gatewayv1 "github.com/sluice-im/sluice/api/gateway/v1"
	"github.com/sluice-im/sluice/api/vtcodec"
	"github.com/sluice-im/sluice/stateclient/routes"
	"github.com/sluice-im/sluice/stateserver/store"
)

// fakeRoutes is the route table.
type fakeRoutes struct {
	mu      sync.Mutex
	byUID   map[string][]routes.Route
	findErr error
	finds   int
	// found is called at the end of a lookup, with mu held.
	found   func()
	removed []routes.Route
}

func newFakeRoutes() *fakeRoutes { return &fakeRoutes{byUID: map[string][]routes.Route{}} }

func (f *fakeRoutes) Find(ctx context.Context, uids []string) (map[string][]routes.Route, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.finds++
	if f.found != nil {
		// Runs before the lock is given back: the next lookup sees what it did.
		defer f.found()
	}
	if f.findErr != nil {
		return nil, f.findErr
	}
	out := map[string][]routes.Route{}
	for _, uid := range uids {
		if r := f.byUID[uid]; len(r) > 0 {
			out[uid] = slices.Clone(r)
		}
	}
	return out, ctx.Err()
}

func (f *fakeRoutes) Remove(_ context.Context, stale []routes.Route) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range stale {
		before := len(f.byUID[s.UID])
		f.byUID[s.UID] = slices.DeleteFunc(f.byUID[s.UID], func(r routes.Route) bool { return r == s })
		if len(f.byUID[s.UID]) != before {
			f.removed = append(f.removed, s)
		}
	}
	return nil
}

func (f *fakeRoutes) failFind(err error) { f.mu.Lock(); defer f.mu.Unlock(); f.findErr = err }

func (f *fakeRoutes) connect(r routes.Route) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.byUID[r.UID] = append(slices.DeleteFunc(f.byUID[r.UID], func(o routes.Route) bool { return o.DeviceID == r.DeviceID }), r)
}

func (f *fakeRoutes) disconnect(uid, device string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.byUID[uid] = slices.DeleteFunc(f.byUID[uid], func(o routes.Route) bool { return o.DeviceID == device })
}

// fakeStore holds the messages.
type fakeStore struct {
	mu   sync.Mutex
	rows map[int64]store.Message
	err  error
}

func newFakeStore() *fakeStore { return &fakeStore{rows: map[int64]store.Message{}} }

func (f *fakeStore) add(m store.Message) { f.mu.Lock(); defer f.mu.Unlock(); f.rows[m.MsgID] = m }

func (f *fakeStore) failLoad(err error) { f.mu.Lock(); defer f.mu.Unlock(); f.err = err }

func (f *fakeStore) Load(_ context.Context, ids []int64) ([]store.Message, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	var out []store.Message
	for _, id := range ids {
		if m, ok := f.rows[id]; ok {
			out = append(out, m)
		}
	}
	return out, nil
}

// fakeMarks remembers the saved mark.
type fakeMarks struct {
	mu    sync.Mutex
	saved []int64
	err   error
}

func (f *fakeMarks) SaveMark(_ context.Context, id int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	f.saved = append(f.saved, id)
	return nil
}

func (f *fakeMarks) last() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.saved) == 0 {
		return 0
	}
	return f.saved[len(f.saved)-1]
}

// arrival is one message at one device.
type arrival struct {
	target  *gatewayv1.Target
	command *clientv1.Command
	down    *clientv1.MessageDown
}

// gateway is a real gRPC server with the service of a gateway.
type gateway struct {
	gatewayv1.UnimplementedGatewayServer
	t    testing.TB
	addr string

	mu       sync.Mutex
	server   *grpc.Server
	arrivals []arrival
	calls    int
	// result says what becomes of a target; nil = written. It is called with mu held.
	result func(*gatewayv1.Target) gatewayv1.Result
	// arrived is called for what was written, without mu.
	arrived func(arrival)
	// stall holds calls back until it is closed.
	stall chan struct{}
}

func newGateway(t testing.TB) *gateway {
	g := &gateway{t: t}
	g.start("127.0.0.1:0")
	return g
}

func (g *gateway) start(addr string) {
	g.t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		g.t.Fatal(err)
	}
	if g.addr == "" {
		g.addr = l.Addr().String()
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(vtcodec.Codec{}))
	gatewayv1.RegisterGatewayServer(server, g)
	go func() { _ = server.Serve(l) }() // ends with Stop
	g.t.Cleanup(server.Stop)
	g.server = server
}

func (g *gateway) Push(ctx context.Context, req *gatewayv1.PushRequest) (*gatewayv1.PushResponse, error) {
	g.mu.Lock()
	stall := g.stall
	g.calls++
	g.mu.Unlock()
	if stall != nil {
		select {
		case <-stall:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	resp := &gatewayv1.PushResponse{}
	var written []arrival
	g.mu.Lock()
	for _, item := range req.GetItems() {
		a, err := decode(item.GetPayload())
		if err != nil {
			g.mu.Unlock()
			return nil, err
		}
		for _, target := range item.GetTargets() {
			result := gatewayv1.Result_RESULT_WRITTEN
			if g.result != nil {
				result = g.result(target)
			}
			resp.Results = append(resp.Results, result)
			if result == gatewayv1.Result_RESULT_WRITTEN || result == gatewayv1.Result_RESULT_QUEUED {
				a.target = target
				written = append(written, a)
			}
		}
	}
	g.arrivals = append(g.arrivals, written...)
	arrived := g.arrived
	g.mu.Unlock()
	if arrived != nil {
		for _, a := range written {
			arrived(a)
		}
	}
	return resp, nil
}

func decode(payload []byte) (arrival, error) {
	a := arrival{command: &clientv1.Command{}, down: &clientv1.MessageDown{}}
	if err := a.command.UnmarshalVT(payload); err != nil {
		return a, err
	}
	if a.command.GetType() != clientv1.CommandType_MESSAGEDOWN {
		return a, nil
	}
	return a, a.down.UnmarshalVT(a.command.GetData())
}

func (g *gateway) answer(f func(*gatewayv1.Target) gatewayv1.Result) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.result = f
}

// seqs are the numbers that arrived at a device, in their order.
func (g *gateway) seqs(uid, device string) []int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []int64
	for _, a := range g.arrivals {
		if a.target.GetUid() == uid && a.target.GetDeviceId() == device {
			out = append(out, a.down.GetSeq())
		}
	}
	return out
}

func (g *gateway) count() int { g.mu.Lock(); defer g.mu.Unlock(); return len(g.arrivals) }

func (g *gateway) route(uid, device string, conn uint64) routes.Route {
	return routes.Route{UID: uid, DeviceID: device, Incarnation: "gw@" + g.addr, Addr: g.addr, ConnID: conn, Epoch: int64(conn)}
}

// ackAll makes every device ack what it gets, at the node that is told.
func (g *gateway) ackAll(n *node) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.arrived = func(a arrival) {
		_, err := n.Acked(context.Background(), a.target.GetUid(), a.target.GetDeviceId(), a.down.GetConvId(), a.down.GetSeq())
		if err != nil && !errors.Is(err, ErrStopped) {
			g.t.Errorf("ack: %v", err)
		}
	}
}
