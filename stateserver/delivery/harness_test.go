package delivery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"
	"google.golang.org/grpc"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	gatewayv1 "github.com/sluice-im/sluice/api/gateway/v1"
	"github.com/sluice-im/sluice/internal/testenv"
	"github.com/sluice-im/sluice/stateclient/routes"
	"github.com/sluice-im/sluice/stateserver/store"
)

func TestMain(m *testing.M) {
	logging.Disable() // killed servers are part of the tests
	goleak.VerifyTestMain(m)
}

// waitMax bounds every wait for a condition; it is only reached when a test fails.
const waitMax = 20 * time.Second

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(waitMax)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", waitMax, what)
		}
		time.Sleep(2 * time.Millisecond) // the pause between two looks at a condition with a deadline
	}
}

// fastConfig has the shape of the real schedule at about a hundredth of its length.
func fastConfig() Config {
	c := Default()
	c.Resend.AckTimeout = 100 * time.Millisecond
	c.Resend.Backoff = []time.Duration{20 * time.Millisecond, 60 * time.Millisecond, 160 * time.Millisecond}
	c.Resend.ScanEvery = 5 * time.Millisecond
	c.LookupTimeout = 2 * time.Second
	c.Push.Timeout = 2 * time.Second
	return c
}

// slowConfig never resends within a test.
func slowConfig() Config {
	c := fastConfig()
	c.Resend.AckTimeout = time.Hour
	return c
}

func redisClient(t testing.TB, addr string) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, MaxRetries: -1, DialTimeout: time.Second})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// world is what surrounds one or more Deliveries: Redis, the store, the route table, the gateways.
type world struct {
	t     testing.TB
	redis *testenv.Server
	rdb   *redis.Client
	*fakeRoutes
	*fakeStore
}

func newWorld(t testing.TB) *world {
	s := testenv.Redis(t)
	return &world{t: t, redis: s, rdb: redisClient(t, s.Addr), fakeRoutes: newFakeRoutes(), fakeStore: newFakeStore()}
}

// node is one running Delivery.
type node struct {
	*Delivery
	w        *world
	registry *prometheus.Registry
	marks    *fakeMarks
	stop     func()

	mu        sync.Mutex
	lostCalls int
}

func (w *world) node(c Config, change ...func(*Deps)) *node {
	w.t.Helper()
	n := &node{w: w, registry: prometheus.NewRegistry(), marks: &fakeMarks{}}
	deps := Deps{Redis: w.rdb, Routes: w.fakeRoutes, Messages: w.fakeStore, Marks: n.marks, Registerer: n.registry, Log: testLog(),
		RedisLost: func(context.Context) { n.mu.Lock(); n.lostCalls++; n.mu.Unlock() }}
	for _, f := range change {
		f(&deps)
	}
	d, err := New(c, deps)
	if err != nil {
		w.t.Fatal(err)
	}
	n.Delivery = d
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := d.Run(ctx); err != nil {
			w.t.Error(err)
		}
	}()
	n.stop = sync.OnceFunc(func() { cancel(); <-done })
	w.t.Cleanup(n.stop)
	return n
}

func testLog() *slog.Logger {
	if os.Getenv("SLUICE_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return slog.New(slog.NewTextHandler(io.Discard, nil))
}

func (n *node) lostCount() int { n.mu.Lock(); defer n.mu.Unlock(); return n.lostCalls }

// send stores messages and delivers them.
func (n *node) send(tasks ...Task) {
	n.w.t.Helper()
	for _, t := range tasks {
		n.w.add(t.Message)
		n.Begin([]int64{t.Message.MsgID})
	}
	if err := n.Enqueue(context.Background(), tasks); err != nil {
		n.w.t.Fatal(err)
	}
}

// metric reads one value; label is that of a metric with a label, or empty.
func (n *node) metric(name, label string) float64 {
	n.w.t.Helper()
	families, err := n.registry.Gather()
	if err != nil {
		n.w.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if label == "" || slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetValue() == label }) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	n.w.t.Fatalf("no metric %s %s", name, label)
	return 0
}

func (n *node) pairs(result string) int { return int(n.metric("sluice_delivery_pairs_total", result)) }

// pending counts what Redis holds, by itself.
func (w *world) pending() int {
	w.t.Helper()
	n := 0
	keys, err := w.rdb.Keys(context.Background(), "unack:meta:*").Result()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, key := range keys {
		all, err := w.rdb.HGetAll(context.Background(), key).Result()
		if err != nil {
			w.t.Fatal(err)
		}
		for id, value := range all {
			e, err := parseEntry(id, 0, value)
			if err != nil {
				w.t.Fatal(err)
			}
			n += e.pairs()
		}
	}
	return n
}

// conserved is the equation of the guarantees, over all nodes and what Redis really holds.
func (w *world) conserved(nodes ...*node) (string, bool) {
	sums := map[string]int{}
	for _, n := range nodes {
		for _, r := range []string{pairEnrolled, pairAcked, pairExhausted, pairOverflowed, pairOffline, pairLost} {
			sums[r] += n.pairs(r)
		}
	}
	pending := w.pending()
	ended := sums[pairAcked] + sums[pairExhausted] + sums[pairOverflowed] + sums[pairOffline] + sums[pairLost]
	return fmt.Sprintf("%v pending %d", sums, pending), sums[pairEnrolled] == ended+pending
}

func (w *world) checkConserved(nodes ...*node) {
	w.t.Helper()
	var last string
	defer func() {
		if w.t.Failed() {
			w.t.Logf("books: %s", last)
		}
	}()
	eventually(w.t, "conservation", func() (ok bool) {
		last, ok = w.conserved(nodes...)
		return ok
	})
}

func message(id int64, from, to string, seq int64) store.Message {
	conv := "u:" + min(from, to) + ":" + max(from, to)
	return store.Message{MsgID: id, ConvID: conv, Seq: seq, FromUID: from, UUID: "uuid-" + strconv.FormatInt(id, 10), ReceiverID: to,
		Type: 1, Content: "hello", Body: []byte{0, 1, 2}, ServerAt: 1700000000000, ReceivedAt: time.Now().UnixMilli()}
}

func to(id int64, receiver string, seq int64) Task {
	return Task{Message: message(id, "alice", receiver, seq), Receivers: []string{receiver}}
}

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
	g.addr = l.Addr().String()
	g.server = grpc.NewServer()
	gatewayv1.RegisterGatewayServer(g.server, g)
	go func() { _ = g.server.Serve(l) }() // ends with Stop
	g.t.Cleanup(g.server.Stop)
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

func scores(t testing.TB, rdb *redis.Client, uid string) map[string]float64 {
	t.Helper()
	z, err := rdb.ZRangeWithScores(context.Background(), userKeys(uid)[0], 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, m := range z {
		out[m.Member.(string)] = m.Score
	}
	return out
}

func uids(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = "u" + strconv.Itoa(i)
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
