package stateserver

import (
	"context"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	gatewayv1 "github.com/sluice-im/sluice/api/gateway/v1"
	statev1 "github.com/sluice-im/sluice/api/state/v1"
	"github.com/sluice-im/sluice/api/vtcodec"
	"github.com/sluice-im/sluice/internal/testenv"
	"github.com/sluice-im/sluice/stateclient/routes"
	"github.com/sluice-im/sluice/stateserver/delivery"
	"github.com/sluice-im/sluice/stateserver/store"
)

// realParts are the real delivery and route table over a real Redis; only gateways are played.
type realParts struct {
	rdb   redis.UniversalClient
	table *routes.Table
	// redelivered counts the delivery's calls for the rows above the mark.
	redelivered atomic.Int64
}

// connectReal makes them; close ends them.
func connectReal(addr string) (p *realParts, closeReal func(), err error) {
	// What a busy machine delays is no fault: nothing here is a test of these time-outs.
	rdb, err := routes.Connect(routes.RedisOptions{Addrs: []string{addr}, Timeout: waitMax})
	if err != nil {
		return nil, nil, err
	}
	live := routes.NewLive(rdb, routes.LiveOptions{Timeout: waitMax, Log: slog.New(slog.DiscardHandler)})
	p = &realParts{rdb: rdb, table: routes.New(rdb, routes.Options{Live: live, LookupTimeout: waitMax, Timeout: waitMax})}
	return p, func() { _ = rdb.Close() }, nil
}

type realDownlink struct{ *delivery.Delivery }

func (d realDownlink) Notify(n Notice) { d.Delivery.Notify(delivery.Notice(n)) }

func (d realDownlink) Enqueue(ctx context.Context, tasks []Task) error {
	out := make([]delivery.Task, len(tasks))
	for i, t := range tasks {
		out[i] = delivery.Task(t)
	}
	return d.Delivery.Enqueue(ctx, out)
}

type (
	realLoad func(context.Context, []int64) ([]store.Message, error)
	realMark func(context.Context, int64) error
)

func (f realLoad) Load(ctx context.Context, ids []int64) ([]store.Message, error) { return f(ctx, ids) }

func (f realMark) SaveMark(ctx context.Context, id int64) error { return f(ctx, id) }

// use makes a server work with them, on a schedule of resends at a tenth of the real one.
func (p *realParts) use(cfg *Config, deps *Deps) {
	cfg.Resend.AckTimeout = time.Second
	cfg.Resend.Backoff = []time.Duration{300 * time.Millisecond, time.Second, 4 * time.Second}
	cfg.Resend.Max = 10
	deps.Redis = p.rdb
	deps.Offline = func(ctx context.Context, uids []string) ([]string, error) {
		found, err := p.table.Find(ctx, uids)
		return slices.DeleteFunc(slices.Clone(uids), func(uid string) bool { return len(found[uid]) > 0 }), err
	}
	deps.Delivery = func(parts DeliveryParts) (Delivery, error) {
		c := delivery.Default()
		c.Resend, c.LookupTimeout, c.Push.Timeout = delivery.Resend(cfg.Resend), waitMax, waitMax
		d, err := delivery.New(c, delivery.Deps{
			Redis: p.rdb, Routes: p.table, Messages: realLoad(parts.Load), Marks: realMark(parts.SaveMark), Registerer: parts.Registerer,
			Log: parts.Log, Failpoint: parts.Failpoint, Offline: parts.Offline, Gone: parts.Gone,
			RedisLost: func(ctx context.Context) {
				p.redelivered.Add(1)
				parts.Redeliver(ctx)
			},
		})
		if err != nil {
			return nil, err
		}
		return realDownlink{d}, nil
	}
}

// startReal runs a server with the real parts.
func startReal(t *testing.T, change func(*Config, *Deps)) (*bench, *realParts) {
	t.Helper()
	var p *realParts
	var closeReal func()
	b := &bench{t: t, redis: testenv.Redis(t), cfg: testConfig("", "sqlite://"+t.TempDir()+"/sluice.db")}
	var err error
	if p, closeReal, err = connectReal(b.redis.Addr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeReal)
	b.cfg.Redis.Addrs = []string{b.redis.Addr}
	b.run(func(c *Config, d *Deps) {
		d.Log = quiet(t)
		p.use(c, d)
		if change != nil {
			change(c, d)
		}
	})
	t.Cleanup(func() { b.stop() })
	return b, p
}

// quiet is for tests that break things on purpose: a failed test shows what was said.
func quiet(t *testing.T) *slog.Logger {
	if !testing.Verbose() {
		return slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

// push is one command at one device.
type push struct {
	uid, device string
	cmd         *clientv1.Command
	down        *clientv1.MessageDown
}

// edge is a gateway as the logic tier sees it: a lease, routes, and Push.
type edge struct {
	gatewayv1.UnimplementedGatewayServer
	t           *testing.T
	p           *realParts
	incarnation string
	addr        string
	server      *grpc.Server
	// ack is told of every message that arrives, without mu; nil = nobody acks.
	ack func(push)

	mu sync.Mutex
	// Guarded by mu.
	routes []routes.Route
	pushes []push
	calls  int
	// deaf says that nothing pushed arrives, though it was written.
	deaf     bool
	restored int
}

func newEdge(t *testing.T, p *realParts, name string) *edge {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &edge{t: t, p: p, incarnation: name, addr: l.Addr().String(), server: grpc.NewServer(grpc.ForceServerCodecV2(vtcodec.Codec{}))}
	gatewayv1.RegisterGatewayServer(e.server, e)
	go func() { _ = e.server.Serve(l) }() // ends with Stop
	lease := routes.NewLease(p.rdb, routes.LeaseOptions{Incarnation: name, Addr: e.addr, Every: 100 * time.Millisecond, Timeout: waitMax,
		Table: p.table, OnLost: func(routes.Loss) { go e.restore() }, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = lease.Run(ctx) // returns only when its context ends
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		e.server.Stop()
	})
	eventually(t, "lease of "+name, lease.Healthy)
	return e
}

// connect claims routes for devices of users, given as uid/device.
func (e *edge) connect(devices ...string) {
	e.t.Helper()
	claims := make([]routes.Claim, len(devices))
	for i, d := range devices {
		uid, device, _ := strings.Cut(d, "/")
		e.mu.Lock()
		conn := uint64(len(e.routes) + i + 1)
		e.mu.Unlock()
		claims[i] = routes.Claim{DevicesMax: 16, Route: routes.Route{UID: uid, DeviceID: device, Incarnation: e.incarnation, Addr: e.addr, ConnID: conn, Since: time.Now()}}
	}
	for i, r := range e.p.table.Claim(context.Background(), claims) {
		if r.Err != nil || r.Lost {
			e.t.Fatalf("claim of %s: %+v", devices[i], r)
		}
		route := claims[i].Route
		route.Epoch = r.Epoch
		e.mu.Lock()
		e.routes = append(e.routes, route)
		e.mu.Unlock()
	}
}

// restore is what a gateway does when its lease was gone.
func (e *edge) restore() {
	e.mu.Lock()
	mine := slices.Clone(e.routes)
	e.mu.Unlock()
	for _, r := range e.p.table.Restore(context.Background(), mine) {
		if r == routes.Restored {
			e.mu.Lock()
			e.restored++
			e.mu.Unlock()
		}
	}
}

func (e *edge) disconnect(device string) {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.routes = slices.DeleteFunc(e.routes, func(r routes.Route) bool {
		if r.UID+"/"+r.DeviceID != device {
			return false
		}
		if err := e.p.table.Release(context.Background(), []routes.Route{r}); err != nil {
			e.t.Errorf("release of %s: %v", device, err)
		}
		return true
	})
}

func (e *edge) Push(_ context.Context, req *gatewayv1.PushRequest) (*gatewayv1.PushResponse, error) {
	resp := &gatewayv1.PushResponse{}
	var arrived []push
	e.mu.Lock()
	e.calls++
	for _, item := range req.GetItems() {
		cmd, down := &clientv1.Command{}, &clientv1.MessageDown{}
		if err := cmd.UnmarshalVT(item.GetPayload()); err != nil {
			e.t.Errorf("pushed: %v", err)
		}
		if cmd.Type == clientv1.CommandType_MESSAGEDOWN {
			if err := down.UnmarshalVT(cmd.Data); err != nil {
				e.t.Errorf("pushed: %v", err)
			}
		}
		for _, to := range item.GetTargets() {
			result := gatewayv1.Result_RESULT_STALE_ROUTE
			if slices.ContainsFunc(e.routes, func(r routes.Route) bool {
				return r.UID == to.Uid && r.DeviceID == to.DeviceId && r.ConnID == to.ConnId && r.Epoch == to.Epoch && r.Incarnation == to.Incarnation
			}) {
				result = gatewayv1.Result_RESULT_WRITTEN
				if !e.deaf {
					arrived = append(arrived, push{to.Uid, to.DeviceId, cmd, down})
				}
			}
			resp.Results = append(resp.Results, result)
		}
	}
	e.pushes = append(e.pushes, arrived...)
	e.mu.Unlock()
	for _, a := range arrived {
		if e.ack != nil && a.down.Seq > 0 {
			e.ack(a)
		}
	}
	return resp, nil
}

func (e *edge) look(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
}

// texts are the contents of the messages that arrived at a device, in their order, resends left out.
func (e *edge) texts(device string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []string
	seen := map[string]bool{}
	for _, p := range e.pushes {
		if p.uid+"/"+p.device == device && p.down.Seq > 0 && !seen[p.down.MsgId] {
			seen[p.down.MsgId] = true
			out = append(out, p.down.Content)
		}
	}
	return out
}

// notices are the other commands that arrived at a device.
func (e *edge) notices(device string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []string
	for _, p := range e.pushes {
		if p.uid+"/"+p.device == device && p.down.Seq == 0 {
			out = append(out, normal(describe(command(p.cmd.Type, raw(p.cmd.Data)))))
		}
	}
	return out
}

// raw is a message that is marshalled already.
type raw []byte

func (r raw) SizeVT() int { return len(r) }

func (r raw) MarshalToSizedBufferVT(b []byte) (int, error) { return copy(b, r), nil }

// from is the next frame of a device's connection.
func (g *gateway) from(device string, payload []byte) *statev1.UplinkItem {
	uid, dev, _ := strings.Cut(device, "/")
	conn := uint64(0)
	for _, c := range device {
		conn = conn*131 + uint64(c)
	}
	it := g.frame(conn, uid, payload)
	it.DeviceId = dev
	return it
}

// say sends a message until it is stored.
func (g *gateway) say(device, uuid, to, text string) *clientv1.MessageAck {
	g.t.Helper()
	deadline := time.Now().Add(waitMax)
	for {
		ack := ackOf(g.t, g.ask(g.from(device, up(uuid, to, text))))
		if ack.Status == clientv1.MessageAckStatus_ACK_OK || time.Now().After(deadline) {
			return ack
		}
		if ack.Status == clientv1.MessageAckStatus_ACK_FAIL {
			g.t.Fatalf("message %s: %v", uuid, ack)
		}
		time.Sleep(time.Duration(ack.RetryAfterMs) * time.Millisecond) // the pause that the server asks for
	}
}

// unacked counts the entries in the resend table.
func (p *realParts) unacked(t *testing.T) (entries int) {
	t.Helper()
	keys, err := p.rdb.Keys(context.Background(), "unack:meta:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		n, err := p.rdb.HLen(context.Background(), k).Result()
		if err != nil {
			t.Fatal(err)
		}
		entries += int(n)
	}
	return entries
}

func names(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = prefix + strconv.Itoa(i)
	}
	return out
}
