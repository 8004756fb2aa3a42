package stateserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	statev1 "github.com/sluice-im/sluice/api/state/v1"
	"github.com/sluice-im/sluice/stateserver/store"
)

func TestFramesAreTakenOnceAndInOrder(t *testing.T) {
	b := start(t, nil)
	g := b.gateway("gw-1")
	g.send(&statev1.UplinkItem{ConnId: 1, ConnSeq: 1, Kind: statev1.UplinkKind_UPLINK_KIND_CONNECT, Uid: "alice"})
	g.seq[1] = 1
	second, third := g.frame(1, "alice", up("2", "bob", "x")), g.frame(1, "alice", up("3", "bob", "x"))
	// Another stream, as after a break: what it brings late is dropped.
	other := b.gateway("gw-1")
	g.send(third)
	g.answers(2)
	if a := other.ask(second); len(a.Payload) > 0 || a.Status != 0 || a.ConnSeq != 2 {
		t.Errorf("overtaken frame: %s", describe(a.Payload))
	}
	if a := other.ask(third); len(a.Payload) > 0 {
		t.Errorf("copy: %s", describe(a.Payload))
	}
	stranger := b.gateway("gw-2")
	if ack := ackOf(t, stranger.ask(second)); ack.Status != clientv1.MessageAckStatus_ACK_OK {
		t.Errorf("another gateway's connection of the same number: %v", ack)
	}
	g.send(&statev1.UplinkItem{ConnId: 1, ConnSeq: 4, Kind: statev1.UplinkKind_UPLINK_KIND_DISCONNECT, Uid: "alice"})
	g.answers(3)
	if ack := ackOf(t, g.ask(third)); ack.Status != clientv1.MessageAckStatus_ACK_OK {
		t.Errorf("after disconnect the connection is forgotten, and the uuid is known: %v", ack)
	}
}

func TestExpiredFramesAreNotExecuted(t *testing.T) {
	b, s := startTrouble(t, nil)
	g := b.gateway("gw-1")
	old := func(it *statev1.UplinkItem) *statev1.UplinkItem {
		it.ReceivedAtMs = time.Now().Add(-frameAgeMax - time.Second).UnixMilli()
		return it
	}
	if ack := ackOf(t, g.ask(old(g.frame(1, "alice", up("1", "bob", "x"))))); ack.Status != clientv1.MessageAckStatus_ACK_RETRY || ack.Reason != "expired" || ack.Uuid != "1" {
		t.Errorf("%v", ack)
	}
	if e := dataOf(t, g.ask(old(g.frame(1, "alice", pull("u:a:b", 0, 1)))), clientv1.CommandType_ERROR, &clientv1.Error{}); e.Reason != "expired" || e.Command != clientv1.CommandType_PULL {
		t.Errorf("%v", e)
	}
	// A budget that ends while the message waits for the store.
	hold := make(chan struct{})
	s.set(func() { s.hold = hold })
	first := g.frame(1, "alice", up("2", "bob", "x"))
	g.send(first)
	eventually(t, "the first message is on its way", func() bool { return b.commits.Waiting() == 0 && testingHeld(s) })
	short := g.frame(1, "alice", up("3", "bob", "x"))
	short.BudgetMs = 1
	g.send(short)
	deadline := time.Now().Add(2 * time.Millisecond)
	eventually(t, "the budget is over", func() bool { return b.commits.Waiting() == 1 && time.Now().After(deadline) })
	close(hold)
	answers := g.answers(4)
	if ack := ackOf(t, answers[3]); ack.Status != clientv1.MessageAckStatus_ACK_RETRY || ack.Reason != "expired" {
		t.Errorf("%v", ack)
	}
	if rows := b.conversation("u:alice:bob"); len(rows) != 1 || rows[0].UUID != "2" {
		t.Errorf("%+v", rows)
	}
}

// testingHeld says whether an Append is waiting.
func testingHeld(s *trouble) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held > 0
}

func TestAgeAllowsForClocksThatDiffer(t *testing.T) {
	const hour = 3_600_000
	for name, off := range map[string]int64{"behind": -hour, "the same": 0, "ahead": hour} {
		var k skew
		at := func(now, received int64, budget uint32) time.Duration {
			return k.age(now, &statev1.UplinkItem{ReceivedAtMs: received + off, BudgetMs: budget})
		}
		now := time.Now().UnixMilli()
		if d := at(now, now-20, 280); d > 20*time.Millisecond {
			t.Errorf("%s: a fresh frame is %v old", name, d)
		}
		if d := at(now+1, now, 300); d > 20*time.Millisecond {
			t.Errorf("%s: the next one is %v old", name, d)
		}
		for i := range int64(3) {
			if d := at(now+20_000+i, now+i, 300); d < 19*time.Second {
				t.Errorf("%s: one that lay for 20 s is %v old", name, d)
			}
		}
		// The gateway's clock is set back: refused for a while, then believed.
		now += 30_000
		for i := range int64(40) {
			at(now+i*1000, now-hour+i*1000, 300)
		}
		if d := at(now+40_000, now-hour+40_000, 300); d > time.Second {
			t.Errorf("%s: long after the clock was set, a frame is %v old", name, d)
		}
	}
}

func TestCustomCommands(t *testing.T) {
	b := start(t, func(_ *Config, d *Deps) {
		d.Custom = func(_ context.Context, f Frame) ([]byte, error) {
			if f.Type == 1001 {
				return nil, status.Error(codes.PermissionDenied, "not you")
			}
			return command(2000, &clientv1.Error{Detail: f.UID + f.DeviceID + string(f.Data)}), nil
		}
	})
	g := b.gateway("gw-1")
	a := g.ask(g.frame(1, "alice", command(1000, &clientv1.Logout{})))
	if e := dataOf(t, a, 2000, &clientv1.Error{}); e.Detail != "alicephone" {
		t.Errorf("%v", e)
	}
	if a := g.ask(g.frame(1, "alice", command(1001, &clientv1.Logout{}))); codes.Code(a.Status) != codes.PermissionDenied || a.Detail != "not you" {
		t.Errorf("%v", a)
	}
}

func TestQueriesWaitForTheirTurn(t *testing.T) {
	b, s := startTrouble(t, nil)
	g := b.gateway("gw-1")
	hold := make(chan struct{})
	s.set(func() { s.hold = hold })
	g.send(g.frame(1, "alice", up("1", "bob", "x")), g.frame(1, "alice", pull("u:alice:bob", 0, 10)), g.frame(2, "carol", pull("u:carol:bob", 0, 10)))
	g.await("another connection is not held up", func() bool { return len(g.got) == 1 && g.got[0].ConnId == 2 })
	close(hold)
	answers := g.answers(3)
	r := dataOf(t, answers[2], clientv1.CommandType_PULL_REPLY, &clientv1.PullReply{})
	if len(r.Messages) != 1 {
		t.Errorf("the pull behind the message does not see it: %v", r)
	}
}

func TestDrain(t *testing.T) {
	b, s := startTrouble(t, nil)
	g := b.gateway("gw-1")
	hold := make(chan struct{})
	s.set(func() { s.hold = hold })
	g.send(g.frame(1, "alice", up("1", "bob", "x")))
	eventually(t, "the message is on its way", func() bool { return testingHeld(s) })
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		b.stopServer()
	}()
	g.await("draining", func() bool { return g.draining })
	close(hold)
	if ack := ackOf(t, g.answers(1)[0]); ack.Status != clientv1.MessageAckStatus_ACK_OK {
		t.Errorf("in flight while draining: %v", ack)
	}
	if err := g.rpc.CloseSend(); err != nil {
		t.Error(err)
	}
	g.await("the end of the stream", func() bool { return g.ended != nil })
	if !errors.Is(g.ended, io.EOF) {
		t.Errorf("stream ended with %v", g.ended)
	}
	<-stopped
}

func TestNextRunDeliversWhatTheLastOneLeft(t *testing.T) {
	b := start(t, nil)
	b.delivery.look(func() { b.delivery.refuse = errors.New("redis is away") })
	g := b.gateway("gw-1")
	const messages = 600
	for i := range messages {
		g.send(g.frame(1, "alice", up(fmt.Sprint(i), "bob", "x")))
	}
	g.answers(messages)
	b.stop()
	b.delivery = &fakeDelivery{open: make(map[int64]bool)}
	b.run(nil)
	b.delivers(b.conversation("u:alice:bob"))
	b.delivery.look(func() {
		last := int64(0)
		for _, k := range b.delivery.tasks {
			if k.Message.Seq <= last {
				t.Fatalf("number %d after %d", k.Message.Seq, last)
			}
			last = k.Message.Seq
		}
	})
	eventually(t, "the mark is behind them", func() bool {
		_, ok, err := b.store.TakeOver(context.Background(), "test", time.Minute)
		return !ok && err == nil
	})
}

func TestRedeliver(t *testing.T) {
	b := start(t, nil)
	g := b.gateway("gw-1")
	for i := range 3 {
		g.ask(g.frame(1, "alice", up(fmt.Sprint(i), "bob", "x")))
	}
	rows := b.conversation("u:alice:bob")
	if err := b.delivery.parts.SaveMark(t.Context(), rows[0].MsgID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all are enqueued", func() (ok bool) {
		b.delivery.look(func() { ok = len(b.delivery.tasks) == 3 })
		return ok
	})
	b.delivery.parts.Redeliver(t.Context())
	b.delivery.look(func() {
		if n := len(b.delivery.tasks); n != 5 || b.delivery.tasks[3].Message.MsgID != rows[1].MsgID {
			t.Errorf("%d tasks, want the two above the mark once more", n)
		}
	})
	if ms, err := b.delivery.parts.Load(t.Context(), []int64{rows[2].MsgID}); err != nil || len(ms) != 1 || ms[0].Seq != 3 {
		t.Errorf("load: %+v, %v", ms, err)
	}
}

func (b *bench) get(path, token string) (int, string) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+b.AdminAddr()+path, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	req.Header.Set("Authorization", token)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	r, err := client.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return r.StatusCode, string(body)
}

func TestAdmin(t *testing.T) {
	b := start(t, func(c *Config, _ *Deps) { c.Admin.Token = "secret" })
	g := b.gateway("gw-1")
	g.ask(g.frame(1, "alice", up("1", "bob", "x")))
	g.ask(g.frame(1, "alice", up("1", "bob", "x")))
	g.ask(g.frame(1, "alice", up("1", "bob c", "x")))
	for path, want := range map[string]int{"/livez": 200, "/readyz": 200, "/metrics": 401, "/debug/pprof/": 401, "/none": 404} {
		if code, _ := b.get(path, ""); code != want {
			t.Errorf("%s: %d, want %d", path, code, want)
		}
	}
	if code, _ := b.get("/debug/pprof/goroutine?debug=1", "Bearer secret"); code != 200 {
		t.Errorf("pprof: %d", code)
	}
	for _, line := range []string{
		`sluice_messages_total 3`, `sluice_message_answers_total{result="ok"} 2`, `sluice_message_answers_total{result="fail"} 1`,
		`sluice_dedup_total{result="new"} 1`, `sluice_store_waiting 0`,
	} {
		eventually(t, "the line "+line, func() bool { // an answer may be here before it is counted
			_, text := b.get("/metrics", "Bearer secret")
			return strings.Contains(text, line+"\n")
		})
	}
	if _, text := b.get("/metrics", "Bearer secret"); !strings.Contains(text, "sluice_store_seconds_count ") {
		t.Error("the times of the store are missing")
	}
	b.redis.Kill()
	if code, body := b.get("/readyz", ""); code != 503 || !strings.Contains(body, "redis") {
		t.Errorf("readyz without Redis: %d %s", code, body)
	}
}

func TestToken(t *testing.T) {
	b := start(t, func(c *Config, _ *Deps) { c.GRPC.Token = "secret" })
	api := statev1.NewStateServerClient(b.conn)
	for token, want := range map[string]codes.Code{"": codes.Unauthenticated, "Bearer wrong": codes.Unauthenticated, "Bearer secret": codes.OK} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", token)
		if _, err := api.Connect(ctx, &statev1.ConnectRequest{Uid: "a"}); status.Code(err) != want {
			t.Errorf("token %q: %v", token, err)
		}
		rpc, err := api.Relay(ctx)
		if err == nil {
			if err = rpc.CloseSend(); err == nil {
				_, err = rpc.Recv()
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if status.Code(err) != want {
			t.Errorf("stream with token %q: %v", token, err)
		}
	}
}

func TestRateLimit(t *testing.T) {
	b := start(t, func(c *Config, _ *Deps) { c.Limits.UIDMessagesPerSecond = 1 })
	g := b.gateway("gw-1")
	limited := 0
	for i := range 5 {
		ack := ackOf(t, g.ask(g.frame(1, "alice", up(fmt.Sprint(i), "bob", "x"))))
		if ack.Status == clientv1.MessageAckStatus_ACK_RETRY && ack.Reason == "rate_limited" && ack.RetryAfterMs > 0 {
			limited++
		}
	}
	if limited == 0 {
		t.Error("five messages at once passed a limit of one a second")
	}
}

func TestSecondProcessIsRefused(t *testing.T) {
	b := start(t, nil)
	cfg := b.cfg
	_, err := New(t.Context(), cfg, Deps{Delivery: func(DeliveryParts) (Delivery, error) { return b.delivery, nil }})
	if !errors.Is(err, store.ErrInUse) || !strings.Contains(err.Error(), filepath.Base(cfg.Store.DSN)) {
		t.Errorf("a second server on one file: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	cfg.GRPC.Addr = l.Addr().String()
	if _, err := New(t.Context(), cfg, Deps{Delivery: func(DeliveryParts) (Delivery, error) { return b.delivery, nil }}); err == nil || !strings.Contains(err.Error(), cfg.GRPC.Addr) {
		t.Errorf("a port that is taken: %v", err)
	}
}

func TestValidate(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Config){
		"grpc.addr is \"x\"":                  func(c *Config) { c.GRPC.Addr = "x" },
		"grpc.addr is \":99999\"":             func(c *Config) { c.GRPC.Addr = ":99999" },
		"admin.addr is \":http\"":             func(c *Config) { c.Admin.Addr = ":http" },
		"redis.addrs is [a:1 b:2]":            func(c *Config) { c.Redis.Addrs = []string{"a:1", "b:2"} },
		"redis.addrs has \":1\"":              func(c *Config) { c.Redis.Addrs = []string{":1"} },
		"admin.addr":                          func(c *Config) { c.Admin.Addr = "x" },
		"grpc.tls has":                        func(c *Config) { c.GRPC.TLS.Cert = "x" },
		"grpc.tls.ca":                         func(c *Config) { c.GRPC.TLS.CA = "x" },
		"grpc.drain is 2m0s":                  func(c *Config) { c.GRPC.Drain = 2 * time.Minute },
		"store.dsn must be":                   func(c *Config) { c.Store.DSN = "postgres://x" },
		"store.dsn mysql":                     func(c *Config) { c.Store.DSN = "mysql://root@tcp(x" },
		"store.wait is 0s":                    func(c *Config) { c.Store.Wait = 0 },
		"redis.mode is \"x\"":                 func(c *Config) { c.Redis.Mode = "x" },
		"redis.master is empty":               func(c *Config) { c.Redis.Mode = "sentinel" },
		"redis.addrs is empty":                func(c *Config) { c.Redis.Addrs = nil },
		"redis.addrs has \"x\"":               func(c *Config) { c.Redis.Addrs = []string{"x"} },
		"dedup.ttl is 1m0s":                   func(c *Config) { c.Dedup.TTL = time.Minute },
		"reorder.policy is \"x\"":             func(c *Config) { c.Reorder.Policy = "x" },
		"reorder.window is 0, allowed is 1":   func(c *Config) { c.Reorder.Window = 0 },
		"limits.frame_bytes is 1":             func(c *Config) { c.Limits.FrameBytes = 1 },
		"limits.uid_messages_per_second is -": func(c *Config) { c.Limits.UIDMessagesPerSecond = -1 },
		"receipts.group_max":                  func(c *Config) { c.Receipts.GroupMax = -1 },
		"resend.ack_timeout":                  func(c *Config) { c.Resend.AckTimeout = 0 },
		"push.timeout":                        func(c *Config) { c.Push.Timeout = 0 },
		"routes.lookup_timeout":               func(c *Config) { c.Routes.LookupTimeout = 0 },
	} {
		c := Default()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}
