package gateway

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	statev1 "github.com/sluice-im/sluice/api/state/v1"
	"github.com/sluice-im/sluice/codec"
)

func TestMessagesOnBothTransports(t *testing.T) { everyWay(t, testMessages) }

func testMessages(t *testing.T, way way) {
	l := &logic{}
	r := way.run(t, startLogic(t, l), patient)
	for _, protocol := range []string{protocolTCP, protocolWS} {
		w := r.dial(t, protocol, "alice", "on-"+protocol)
		for i := range 100 {
			w.up(fmt.Sprint("u", i), "bob")
			w.want(fmt.Sprintf("MESSAGEACK u%d ACK_OK", i))
		}
		w.command(clientv1.CommandType_HEARTBEAT, nil)
		w.want("HEARTBEAT")
	}
	eventually(t, "both connections are announced", func() bool { return l.count(statev1.UplinkKind_UPLINK_KIND_CONNECT) == 2 })
	r.settled(t)
	if sum := r.g.books(); sum.received != 200 || sum.results[resultOK] != 200 || sum.inflight != 0 {
		t.Errorf("received %d, results %v, in flight %d", sum.received, sum.results, sum.inflight)
	}
}

// settled waits until nothing is in flight: a client may read its answer before the batch that it came with is counted.
func (r *running) settled(t testing.TB) {
	t.Helper()
	eventually(t, "nothing is in flight", func() bool { return r.g.books().inflight == 0 })
}

// TestLateAnswers: the logic tier answers only when the gateway has given up. Every uplink is answered once.
func TestLateAnswers(t *testing.T) {
	const clients, each = 4, 3
	l := troubled()
	honest := l.answer
	var mu sync.Mutex
	var held []*statev1.DownlinkItem
	l.answer = func(in *statev1.UplinkItem) ([]*statev1.DownlinkItem, error) {
		out, err := honest(in)
		mu.Lock()
		defer mu.Unlock()
		if h, _ := codec.Scan(in.GetPayload()); string(h.UUID) != "last" {
			held = append(held, out...)
			return nil, err
		}
		return append(held, out...), err
	}
	r := run(t, startLogic(t, l), func(c *Config, d *Deps) {
		patient(c, d)
		c.Relay.Timeout = 2 * time.Second // what is not even sent within it is told something else
	})
	wires := make([]*wire, clients)
	for i := range wires {
		wires[i] = r.dial(t, []string{protocolTCP, protocolWS}[i%2], fmt.Sprint("user", i), "phone")
	}
	for _, w := range wires {
		for n := range each {
			w.say(fmt.Sprint("u", n), "ok")
		}
	}
	for _, w := range wires {
		for n := range each {
			w.want(fmt.Sprintf("MESSAGEACK u%d ACK_RETRY timeout 250ms", n))
		}
	}
	// With the late answers comes that of the next message, which is answered with its own one.
	wires[0].say("last", "ok")
	wires[0].want("MESSAGEACK last ACK_OK")
	eventually(t, "the late answers are counted", func() bool { return r.metric(t, "sluice_answers_late_total", "") == clients*each })
	for _, w := range wires {
		w.command(clientv1.CommandType_HEARTBEAT, nil)
		w.want("HEARTBEAT")
	}
	r.settled(t)
	sum := r.g.books()
	if sum.received != clients*each+1 || sum.results[resultRetry] != clients*each || sum.results[resultOK] != 1 || sum.inflight != 0 {
		t.Errorf("received %d, results %v, in flight %d", sum.received, sum.results, sum.inflight)
	}
}

// TestPipelineKeepsOrder: one client sends 5,000 numbered messages without waiting, while the logic tier sleeps 0-20 ms
// for each batch.
func TestPipelineKeepsOrder(t *testing.T) { everyWay(t, testPipeline) }

func testPipeline(t *testing.T, way way) {
	if way.readsOn {
		t.Skip("this engine reads on, and closes a client that ignores the window (poller/netpoll)")
	}
	const messages = 5000
	l := &logic{delay: func() time.Duration { return rand.N(20 * time.Millisecond) }}
	r := way.run(t, startLogic(t, l), func(c *Config, d *Deps) {
		patient(c, d)
		c.Limits.Uplink.MessagesPerSecond, c.Limits.Uplink.MessagesBurst = 1<<20, 1<<20
		c.Limits.Uplink.BytesPerSecond, c.Limits.Uplink.BytesBurst = 1<<30, 1<<30
		c.Backpressure.InflightFrames, c.Backpressure.InflightBytes = 256, 1<<20
	})
	w := r.dial(t, protocolWS, "alice", "phone")
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		var all []byte
		for i := range messages {
			all = append(all, w.frame(clientv1.CommandType_MESSAGEUP, &clientv1.MessageUp{Uuid: fmt.Sprint(i), ReceiverId: "bob"})...)
		}
		w.send(all)
	}()
	for i := range messages {
		w.want(fmt.Sprintf("MESSAGEACK %d ACK_OK", i))
	}
	<-sent
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, uuids := range l.uuids {
		for i, uuid := range uuids {
			if uuid != fmt.Sprint(i) {
				t.Fatalf("message %s came at place %d", uuid, i)
			}
		}
	}
}

// TestChurn connects and loses a thousand clients in every way, and then nothing is left of them.
func TestChurn(t *testing.T) {
	l := &logic{}
	r := run(t, startLogic(t, l), func(c *Config, d *Deps) {
		c.Limits.Accept.PerSecond, c.Limits.Accept.Burst = 0, 0
		patient(c, d)
	})
	const rounds, together = 20, 50
	before, fds := 0, 0
	for round := range rounds {
		churn(t, r, round, together)
		if round == 0 { // the relay has opened its streams by now
			eventually(t, "the first ones have ended", func() bool { return r.g.gauges.open() == 0 })
			before, fds = runtime.NumGoroutine(), descriptors(t)
		}
	}
	eventually(t, "every connection has ended", func() bool { return r.g.gauges.open() == 0 })
	eventually(t, "every route is released", func() bool { return r.table.size() == 0 })
	eventually(t, "every end is told", func() bool {
		return l.count(statev1.UplinkKind_UPLINK_KIND_DISCONNECT) == l.count(statev1.UplinkKind_UPLINK_KIND_CONNECT)
	})
	r.settled(t)
	eventually(t, "the descriptors are given back", func() bool { return descriptors(t) <= fds })
	eventually(t, "the goroutines have ended", func() bool { return runtime.NumGoroutine() <= before })
	sum := r.g.books()
	out := uint64(0)
	for _, n := range sum.results {
		out += n
	}
	if sum.received != out || sum.received == 0 {
		t.Errorf("received %d, results %v", sum.received, sum.results)
	}
}

func churn(t *testing.T, r *running, round, together int) {
	wires := make([]*wire, together)
	for i := range wires {
		wires[i] = r.connect(t, []string{protocolTCP, protocolWS}[i%2])
		switch i % 5 {
		case 0, 1, 2:
			_ = wires[i].conn.Close()
			wires[i] = r.dial(t, []string{protocolTCP, protocolWS}[i%2], fmt.Sprintf("user%d", i), fmt.Sprint("device", round))
			wires[i].up("u", "bob")
		case 3:
			wires[i].send([]byte("GET"))
		}
	}
	for i, w := range wires {
		if i%3 == 0 {
			_ = w.raw.SetLinger(0)
		}
		_ = w.conn.Close()
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestSlowConsumer: who does not read is closed, and what he got is a prefix without holes; his neighbour is not
// affected.
func TestSlowConsumer(t *testing.T) { everyWay(t, testSlowConsumer) }

func testSlowConsumer(t *testing.T, way way) {
	l := &logic{}
	r := way.run(t, startLogic(t, l), func(c *Config, d *Deps) {
		patient(c, d)
		c.Backpressure.OutboxBytes, c.Backpressure.SendBuffer = 65536, 4096
	})
	slow, quick := r.dial(t, protocolTCP, "slow", "phone"), r.dial(t, protocolTCP, "quick", "phone")
	_ = slow.raw.SetReadBuffer(4096)
	target := r.target(t, "slow")
	dropped := false
	for i := 0; i < 100000 && !dropped; i++ {
		for _, result := range r.push(t, message(i, 1000), target) {
			dropped = dropped || result == "RESULT_DROPPED_SLOW"
		}
	}
	if !dropped {
		t.Fatal("the outbox never was full")
	}
	quick.up("u1", "bob")
	quick.want("MESSAGEACK u1 ACK_OK")
	eventually(t, "the slow one is closed", func() bool { return r.g.gauges.ended[reasonSlow].Load() == 1 })
	for i := 0; ; i++ {
		got := slow.next()
		if got == "RST" || got == "EOF" {
			break
		}
		if want := fmt.Sprintf("MESSAGEDOWN %d", i); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	if got := r.push(t, message(0, 10), target)[0]; got != "RESULT_STALE_ROUTE" {
		t.Errorf("a push to the closed connection is %s", got)
	}
}

// TestEndOfTheGateway is what SIGTERM does: in-flight messages are answered, closes have their code, routes are gone.
func TestEndOfTheGateway(t *testing.T) { everyWay(t, testEnd) }

func testEnd(t *testing.T, way way) {
	l := &logic{delay: func() time.Duration { return 100 * time.Millisecond }}
	r := way.run(t, startLogic(t, l), patient)
	ws, tcp := r.dial(t, protocolWS, "alice", "phone"), r.dial(t, protocolTCP, "bob", "phone")
	silent := r.connect(t, protocolWS)
	eventually(t, "all three are open", func() bool { return r.g.gauges.open() == 3 })
	ws.up("u1", "bob")
	eventually(t, "the message is in flight", func() bool { return r.g.books().received == 1 })
	ended := make(chan error, 1)
	go func() { ended <- r.stop() }()
	ws.want("MESSAGEACK u1 ACK_OK", "CLOSE 1012 draining", "EOF")
	tcp.want("ERROR draining 1012", "EOF")
	if status := silent.http(); status != "503" {
		t.Errorf("who had not asked yet is told %s", status)
	}
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
	if n := r.table.size(); n != 0 {
		t.Errorf("%d routes are left", n)
	}
	if c, d := l.count(statev1.UplinkKind_UPLINK_KIND_CONNECT), l.count(statev1.UplinkKind_UPLINK_KIND_DISCONNECT); c != 2 || d != 2 {
		t.Errorf("%d connects and %d disconnects were told", c, d)
	}
}

func TestPortTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	for _, key := range []string{"listeners[1]", "internal.addr", "admin.addr"} {
		cfg := talkConfig()
		cfg.Internal.Addr, cfg.Admin.Addr = "127.0.0.1:0", "127.0.0.1:0"
		switch key {
		case "internal.addr":
			cfg.Internal.Addr = taken.Addr().String()
		case "admin.addr":
			cfg.Admin.Addr = taken.Addr().String()
		default:
			cfg.Listeners[1].Addr = taken.Addr().String()
		}
		g, err := New(cfg, Deps{Routes: newFakeRoutes().open})
		if err != nil {
			t.Fatal(err)
		}
		err = g.Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), taken.Addr().String()) {
			t.Errorf("%s: %v", key, err)
		}
	}
}

func TestAdmin(t *testing.T) {
	l := &logic{}
	r := run(t, startLogic(t, l), func(c *Config, d *Deps) {
		patient(c, d)
		c.Admin.Token = "s3cret"
	})
	w := r.dial(t, protocolWS, "alice", "phone")
	w.up("u1", "bob")
	w.want("MESSAGEACK u1 ACK_OK")
	r.settled(t)
	get := func(method, path, body, token string) (int, string) {
		req, err := http.NewRequest(method, "http://"+r.g.Addr("admin")+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		text, _ := io.ReadAll(res.Body)
		return res.StatusCode, string(text)
	}
	defer http.DefaultClient.CloseIdleConnections()
	for _, c := range []struct {
		method, path, body, token string
		code                      int
		holds                     string
	}{
		{"GET", "/livez", "", "", 200, "ok"},
		{"GET", "/readyz", "", "", 200, `"ready":true`},
		{"GET", "/metrics", "", "", 401, "admin.token"},
		{"GET", "/metrics", "", "wrong", 401, "admin.token"},
		{"GET", "/metrics", "", "s3cret", 200, `sluice_uplinks_total{result="ok"} 1`},
		{"GET", "/metrics", "", "s3cret", 200, `sluice_connections{listener="ws",state="live"} 1`},
		{"GET", "/debug/pprof/cmdline", "", "", 401, ""},
		{"GET", "/api/v1/status", "", "s3cret", 200, `"open":1`},
		{"GET", "/api/v1/connections", "", "s3cret", 200, `"uid":"alice"`},
		{"GET", "/api/v1/connections?uid=bob", "", "s3cret", 200, `"connections":[]`},
		{"GET", "/api/v1/connections/12345", "", "s3cret", 404, "no such"},
		{"GET", "/api/v1/online/alice", "", "s3cret", 200, `"online":true`},
		{"GET", "/api/v1/online/bob", "", "s3cret", 200, `"online":false`},
		{"GET", "/api/v1/online/b%20b", "", "s3cret", 400, "not a user id"},
		{"POST", "/api/v1/drain", "", "s3cret", 200, "true"},
		{"GET", "/readyz", "", "", 503, "draining"},
		{"POST", "/api/v1/undrain", "", "s3cret", 200, "false"},
		{"GET", "/readyz", "", "", 200, `"ready":true`},
		{"POST", "/api/v1/kick", `{}`, "s3cret", 400, "want"},
		{"POST", "/api/v1/kick", `{"uid":"bob"}`, "s3cret", 200, `"kicked":0`},
		{"POST", "/api/v1/kick", `{"uid":"alice","device_id":"phone"}`, "s3cret", 200, `"kicked":1`},
	} {
		code, text := get(c.method, c.path, c.body, c.token)
		if code != c.code || !strings.Contains(text, c.holds) {
			t.Errorf("%s %s %s: %d %s", c.method, c.path, c.body, code, text)
		}
	}
	w.want("KICK kicked 4500", "CLOSE 4500 kicked", "EOF")
	r.table.mu.Lock()
	r.table.down = true
	r.table.mu.Unlock()
	if code, text := get("GET", "/readyz", "", ""); code != 503 || !strings.Contains(text, "redis") {
		t.Errorf("readyz without redis: %d %s", code, text)
	}
	r.table.mu.Lock()
	r.table.down = false
	r.table.mu.Unlock()
}
