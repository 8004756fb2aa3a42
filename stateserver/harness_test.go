package stateserver

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	statev1 "github.com/sluice-im/sluice/api/state/v1"
	"github.com/sluice-im/sluice/internal/testenv"
	"github.com/sluice-im/sluice/stateserver/store"
)

// waitMax bounds every wait of a test for a condition; a noisy machine gets all of it.
const waitMax = 60 * time.Second

// fakeDelivery notes what it is told. It settles a message when it is enqueued.
type fakeDelivery struct {
	parts DeliveryParts

	mu sync.Mutex
	// Guarded by mu.
	open    map[int64]bool
	tasks   []Task
	acks    []string
	notices []string
	refuse  error
	// forget says that tasks need not be kept.
	forget bool
}

func (d *fakeDelivery) Begin(ids []int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range ids {
		d.open[id] = true
	}
}

func (d *fakeDelivery) Abandon(ids []int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, id := range ids {
		delete(d.open, id)
	}
}

func (d *fakeDelivery) Enqueue(_ context.Context, tasks []Task) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refuse != nil {
		return d.refuse
	}
	for _, t := range tasks {
		delete(d.open, t.Message.MsgID)
		if t.Settled != nil {
			t.Settled()
		}
	}
	if !d.forget {
		d.tasks = append(d.tasks, tasks...)
	}
	return nil
}

func (d *fakeDelivery) Acked(_ context.Context, uid, device, conv string, seq int64) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.acks = append(d.acks, fmt.Sprintf("%s/%s %s %d", uid, device, conv, seq))
	return true, nil
}

func (d *fakeDelivery) Notify(n Notice) {
	d.mu.Lock()
	defer d.mu.Unlock()
	to := fmt.Sprint(n.UIDs)
	if n.NotDevice != "" {
		to += " but " + n.NotUID + "/" + n.NotDevice
	}
	d.notices = append(d.notices, to+" "+describe(n.Command))
}

func (d *fakeDelivery) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (d *fakeDelivery) look(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// bench is one running server and what it runs on.
type bench struct {
	*Server
	t        testing.TB
	cfg      Config
	redis    *testenv.Server
	delivery *fakeDelivery
	conn     *grpc.ClientConn
	// stopServer ends the server alone, stop the connection to it before.
	stopServer, stop func()
}

// start runs a server on a new SQLite file and a new Redis, unless change says otherwise.
func start(t testing.TB, change func(*Config, *Deps)) *bench {
	t.Helper()
	b := &bench{t: t, redis: testenv.Redis(t), delivery: &fakeDelivery{open: make(map[int64]bool)}}
	b.cfg = testConfig(b.redis.Addr, "sqlite://"+filepath.Join(t.TempDir(), "sluice.db"))
	b.run(change)
	t.Cleanup(func() { b.stop() })
	return b
}

func testConfig(redis, dsn string) Config {
	cfg := Default()
	cfg.GRPC.Addr, cfg.Admin.Addr = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Redis.Addrs = []string{redis}
	cfg.Store.DSN = dsn
	// What a test says holds on a noisy machine too: only tests of time-outs shorten these.
	cfg.Store.Wait, cfg.Dedup.Timeout = waitMax, time.Second
	return cfg
}

func (b *bench) run(change func(*Config, *Deps)) {
	b.t.Helper()
	cfg := b.cfg
	deps := Deps{Log: slog.New(slog.NewTextHandler(b.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})), Delivery: func(p DeliveryParts) (Delivery, error) {
		b.delivery.parts = p
		return b.delivery, nil
	}}
	if change != nil {
		change(&cfg, &deps)
	}
	rdb := patientRedis(cfg, &deps)
	s, err := New(context.Background(), cfg, deps)
	if err != nil {
		b.t.Fatal(err)
	}
	b.Server = s
	s.patient()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	if b.conn, err = grpc.NewClient("passthrough:///"+s.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		b.t.Fatal(err)
	}
	var once sync.Once
	b.stop = func() {
		_ = b.conn.Close()
		b.stopServer()
		_ = rdb.Close()
	}
	b.stopServer = func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-ended:
				if err != nil {
					b.t.Errorf("Run: %v", err)
				}
			case <-time.After(waitMax):
				b.t.Error("Run does not return")
			}
		})
	}
}

// gateway is one gateway's stream.
type gateway struct {
	t    testing.TB
	rpc  grpc.BidiStreamingClient[statev1.UplinkBatch, statev1.DownlinkBatch]
	name string
	// cancel breaks the stream.
	cancel context.CancelFunc

	mu sync.Mutex
	// Guarded by mu.
	seq      map[uint64]uint64
	got      []*statev1.DownlinkItem
	empties  int
	draining bool
	ended    error
	changed  chan struct{}
}

func (b *bench) gateway(name string) *gateway {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	rpc, err := statev1.NewStateServerClient(b.conn).Relay(ctx)
	if err != nil {
		b.t.Fatal(err)
	}
	g := &gateway{t: b.t, rpc: rpc, name: name, cancel: cancel, seq: make(map[uint64]uint64), changed: make(chan struct{}, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.read()
	}()
	b.t.Cleanup(func() {
		cancel()
		<-done
	})
	return g
}

func (g *gateway) read() {
	for {
		in, err := g.rpc.Recv()
		g.mu.Lock()
		if err != nil {
			g.ended = err
		} else {
			g.got = append(g.got, in.Items...)
			g.draining = g.draining || in.Draining
			if len(in.Items) == 0 && !in.Draining {
				g.empties++
			}
		}
		g.mu.Unlock()
		select {
		case g.changed <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// frame is the next frame of a connection. It does not say when it was received, and so never grows too old on a busy
// machine.
func (g *gateway) frame(conn uint64, uid string, payload []byte) *statev1.UplinkItem {
	g.seq[conn]++
	return &statev1.UplinkItem{ConnId: conn, ConnSeq: g.seq[conn], Uid: uid, DeviceId: "phone", Payload: payload}
}

func (g *gateway) send(items ...*statev1.UplinkItem) {
	g.t.Helper()
	if err := g.trySend(items...); err != nil {
		g.t.Fatal(err)
	}
}

func (g *gateway) trySend(items ...*statev1.UplinkItem) error {
	return g.rpc.Send(&statev1.UplinkBatch{Incarnation: g.name, Items: items})
}

// await waits until cond holds.
func (g *gateway) await(what string, cond func() bool) {
	g.t.Helper()
	deadline := time.NewTimer(waitMax)
	defer deadline.Stop()
	for {
		g.mu.Lock()
		ok := cond()
		g.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-g.changed:
		case <-deadline.C:
			g.t.Fatalf("waited in vain: %s (%d answers, stream %v)", what, len(g.got), g.ended)
		}
	}
}

// answers waits for n answers in all and returns them.
func (g *gateway) answers(n int) []*statev1.DownlinkItem {
	g.t.Helper()
	g.await(fmt.Sprintf("%d answers", n), func() bool { return len(g.got) >= n || g.ended != nil })
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.got) != n {
		g.t.Fatalf("%d answers, want %d; stream %v", len(g.got), n, g.ended)
	}
	return g.got
}

func (g *gateway) ask(it *statev1.UplinkItem) *statev1.DownlinkItem {
	g.t.Helper()
	g.mu.Lock()
	n := len(g.got)
	g.mu.Unlock()
	g.send(it)
	return g.answers(n + 1)[n]
}

// eventually waits until cond holds, for conditions that nobody signals.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(waitMax)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
		time.Sleep(2 * time.Millisecond) // the pause between two looks at a condition with a deadline
	}
}

func up(uuid, to, text string) []byte {
	return command(clientv1.CommandType_MESSAGEUP, &clientv1.MessageUp{Uuid: uuid, Type: 1, Content: text, ReceiverId: to})
}

func ackOf(t testing.TB, it *statev1.DownlinkItem) *clientv1.MessageAck {
	t.Helper()
	var cmd clientv1.Command
	var ack clientv1.MessageAck
	if err := cmd.UnmarshalVT(it.Payload); err != nil || it.Status != 0 || cmd.Type != clientv1.CommandType_MESSAGEACK {
		t.Fatalf("not a MESSAGEACK: status %d %s, %s, %v", it.Status, it.Detail, describe(it.Payload), err)
	}
	if err := ack.UnmarshalVT(cmd.Data); err != nil {
		t.Fatal(err)
	}
	return &ack
}

// describe is a command in words.
func describe(payload []byte) string {
	if len(payload) == 0 {
		return "nothing"
	}
	var cmd clientv1.Command
	if err := cmd.UnmarshalVT(payload); err != nil {
		return "garbage"
	}
	var m interface {
		UnmarshalVT([]byte) error
		String() string
	}
	switch cmd.Type {
	case clientv1.CommandType_MESSAGEACK:
		m = &clientv1.MessageAck{}
	case clientv1.CommandType_ERROR:
		m = &clientv1.Error{}
	case clientv1.CommandType_DELIVERED_NOTICE:
		m = &clientv1.DeliveredNotice{}
	case clientv1.CommandType_READ_NOTICE:
		m = &clientv1.ReadNotice{}
	case clientv1.CommandType_PULL_REPLY:
		m = &clientv1.PullReply{}
	case clientv1.CommandType_SYNC_REPLY:
		m = &clientv1.SyncReply{}
	default:
		return cmd.Type.String()
	}
	if err := m.UnmarshalVT(cmd.Data); err != nil {
		return cmd.Type.String() + " garbage"
	}
	return cmd.Type.String() + " " + m.String()
}

func (b *bench) conversation(conv string) []store.Message {
	b.t.Helper()
	var out []store.Message
	err := b.store.Scan(context.Background(), conv, 0, 1<<30, func(m *store.Message) bool {
		out = append(out, *m)
		if m.Seq != int64(len(out)) {
			b.t.Fatalf("%s: message %d has number %d", conv, len(out), m.Seq)
		}
		return true
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// normal takes out the double spaces that protobuf's text form has at random.
func normal(s string) string { return strings.Join(strings.Fields(s), " ") }
