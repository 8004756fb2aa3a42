package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/codec"
	"github.com/sluice-im/sluice/stateclient"
)

// TestTalks plays the conversations in testdata/talks. Each section of an archive is one conversation on a fresh gateway
// with a fake engine, relay and route table, in a bubble of fake time; README in that directory lists the words.
func TestTalks(t *testing.T) {
	files, err := filepath.Glob("testdata/talks/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no conversations: %v", err)
	}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, section := range archive.Files {
			name := strings.TrimSuffix(filepath.Base(file), ".txtar") + "/" + section.Name
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { play(t, string(section.Data)) })
			})
		}
	}
}

// talk is one conversation in progress.
type talk struct {
	t       *testing.T
	cfg     Config
	g       *Gateway
	engine  *fakeEngine
	relay   *fakeRelay
	table   *fakeRoutes
	log     *logged
	clients map[string]*talker
	stop    func()
}

// talker is one client of a conversation.
type talker struct {
	c      *fakeConn
	proto  codec.Protocol
	stream codec.Stream
	http   bool // the response to the upgrade has not come yet
	buf    []byte
	items  []string
}

// logged keeps the reason of every connection that ended.
type logged struct {
	slog.Handler
	mu      sync.Mutex
	reasons map[uint64]string
}

func (l *logged) Enabled(context.Context, slog.Level) bool { return true }
func (l *logged) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logged) WithGroup(string) slog.Handler            { return l }

func (l *logged) Handle(_ context.Context, r slog.Record) error {
	var id uint64
	reason := ""
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "conn_id":
			id = a.Value.Uint64()
		case "reason":
			reason = a.Value.String()
		}
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	if id != 0 {
		l.reasons[id] = reason
	}
	return nil
}

func (l *logged) reason(id uint64) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reasons[id]
}

// core starts a gateway on fakes, without ports.
func core(t testing.TB, cfg Config, log slog.Handler) (g *Gateway, engine *fakeEngine, relay *fakeRelay, table *fakeRoutes, stop func()) {
	t.Helper()
	relay, table = newFakeRelay(), newFakeRoutes()
	g, err := New(cfg, Deps{Log: slog.New(log), Engine: newFakeEngine, Relay: relay.start, Routes: table.open})
	if err != nil {
		t.Fatal(err)
	}
	ctx, ended := context.Background(), make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() { g.journal.run(ctx, ended) })
	g.onStop(func() { close(ended); writing.Wait() })
	for _, start := range []func() error{
		func() error { return g.startRoutes(ctx) }, g.startRelay, g.startEngine, func() error { return g.startWorkers(ctx) },
	} {
		if err := start(); err != nil {
			t.Fatal(err)
		}
	}
	return g, g.engine.(*fakeEngine), relay, table, func() {
		for i := len(g.closers) - 1; i >= 0; i-- {
			g.closers[i]()
		}
	}
}

func talkConfig() Config {
	cfg := Default()
	cfg.Gateway.ID = "gw"
	cfg.Engine.Loops = 1
	cfg.Auth = Auth{Mode: authInsecure}
	cfg.Listeners[0].Addr, cfg.Listeners[1].Addr = "127.0.0.1:0", "127.0.0.1:0"
	return cfg
}

func play(t *testing.T, script string) {
	k := &talk{t: t, cfg: talkConfig(), clients: make(map[string]*talker)}
	for n, text := range strings.Split(script, "\n") {
		text, _, _ = strings.Cut(text, "#")
		words := strings.Fields(text)
		if len(words) == 0 {
			continue
		}
		if words[0] == "set" {
			k.set(words[1], words[2])
			continue
		}
		if k.g == nil {
			k.log = &logged{reasons: make(map[uint64]string)}
			k.g, k.engine, k.relay, k.table, k.stop = core(t, k.cfg, k.log)
		}
		name := "a"
		if who, ok := strings.CutSuffix(words[0], ":"); ok {
			name, words = who, words[1:]
		}
		if err := k.say(name, words[0], words[1:]); err != nil {
			t.Errorf("line %d: %s: %v", n+1, strings.TrimSpace(text), err)
			break
		}
		synctest.Wait()
		k.balanced(n + 1)
	}
	k.stop()
	k.settled()
}

// balanced asserts conservation after every line.
func (k *talk) balanced(line int) {
	sum := k.g.books()
	out := uint64(0)
	for _, n := range sum.results {
		out += n
	}
	if int64(sum.received) != int64(out)+sum.inflight || sum.inflight < 0 {
		k.t.Errorf("line %d: received %d is not %v and %d in flight", line, sum.received, sum.results, sum.inflight)
	}
}

// settled asserts that nothing is left behind at the end.
func (k *talk) settled() {
	sum := k.g.books()
	if sum.inflight != 0 {
		k.t.Errorf("%d uplinks are still in flight at the end", sum.inflight)
	}
	if n := k.g.gauges.open(); n != 0 {
		k.t.Errorf("the gauges know %d connections at the end", n)
	}
	for i := range k.g.gauges.park {
		if n := k.g.gauges.park[i].Load(); n != 0 {
			k.t.Errorf("%d connections are parked for %s at the end", n, holdNames[i])
		}
	}
	if !k.table.down && k.table.size() != 0 {
		k.t.Errorf("%d routes are left at the end", k.table.size())
	}
}

func (k *talk) set(key, value string) {
	n, _ := strconv.Atoi(value)
	d, _ := time.ParseDuration(value)
	switch key {
	case "uplink.mode":
		k.cfg.Limits.Uplink.Mode = value
	case "uplink.messages":
		k.cfg.Limits.Uplink.MessagesPerSecond = n
	case "uplink.burst":
		k.cfg.Limits.Uplink.MessagesBurst = n
	case "uplink.bytes_burst":
		k.cfg.Limits.Uplink.BytesBurst = n
	case "uplink.dry_run":
		k.cfg.Limits.Uplink.DryRun = value == "true"
	case "errors.count":
		k.cfg.Limits.Errors.Count = n
	case "inflight.frames":
		k.cfg.Backpressure.InflightFrames = n
	case "inflight.bytes":
		k.cfg.Backpressure.InflightBytes = n
	case "frame.bytes":
		k.cfg.Limits.Frame.Bytes = n
	case "frame.timeout":
		k.cfg.Limits.Frame.Timeout = d
	case "outbox":
		k.cfg.Backpressure.OutboxBytes = n
	case "redis_down":
		k.cfg.Routes.OnRedisDown = value
	case "token_in_query":
		k.cfg.Listeners[0].TokenInQuery = value == "true"
	case "secret":
		k.cfg.Auth = Auth{Mode: authJWT, JWT: JWT{Secret: value, UIDClaim: "sub"}}
	default:
		k.t.Fatalf("no key %s", key)
	}
}

// say does or checks one line.
func (k *talk) say(name, word string, args []string) error {
	if word == "open" {
		listener, proto := 1, codec.TCP
		if args[0] != "tcp" {
			listener, proto = 0, codec.WebSocket
		}
		if args[0] == "json" {
			proto = codec.WebSocketJSON
		}
		var ago time.Duration
		if len(args) > 1 {
			var err error
			if ago, err = time.ParseDuration(args[1]); err != nil {
				return err
			}
		}
		k.clients[name] = &talker{c: k.engine.dial(listener, ago), proto: proto, stream: codec.NewClientStream(proto), http: listener == 0}
		return nil
	}
	if done, err := k.world(word, args); done {
		return err
	}
	c := k.clients[name]
	if c == nil {
		return fmt.Errorf("nobody is called %s, and no such word", name)
	}
	if sent, err := k.sends(c, word, args); sent {
		return err
	}
	return k.checks(c, word, args)
}

// world is what happens around the clients.
func (k *talk) world(word string, args []string) (bool, error) {
	switch word {
	case "wait":
		d, err := time.ParseDuration(args[0])
		time.Sleep(d)
		return true, err
	case "relay":
		return true, k.relayed(args)
	case "answer":
		return true, k.answers(args)
	case "room":
		n, err := strconv.Atoi(args[0])
		k.relay.open(n)
		return true, err
	case "redis":
		k.table.mu.Lock()
		k.table.down = args[0] == "down"
		k.table.mu.Unlock()
		return true, nil
	case "lose":
		k.table.mu.Lock()
		clear(k.table.held)
		k.table.mu.Unlock()
		k.table.onLost()
		return true, nil
	case "steal":
		k.table.mu.Lock()
		for key, r := range k.table.held {
			r.Epoch, r.Incarnation = r.Epoch+1000, "gw-other"
			k.table.held[key] = r
		}
		k.table.mu.Unlock()
		k.table.onLost()
		return true, nil
	case "routes":
		if got := fmt.Sprint(k.table.size()); got != args[0] {
			return true, fmt.Errorf("the table has %s routes", got)
		}
		return true, nil
	}
	return false, nil
}

func (k *talk) relayed(args []string) error {
	var got []string
	for _, up := range k.relay.took() {
		switch up.Kind {
		case stateclient.KindConnect:
			got = append(got, "CONNECT")
		case stateclient.KindDisconnect:
			got = append(got, "DISCONNECT", up.Reason)
		default:
			h, _ := codec.Scan(up.Payload)
			got = append(got, h.Type.String())
			if len(h.UUID) > 0 {
				got = append(got, string(h.UUID))
			}
		}
	}
	if len(got) == 0 {
		got = []string{"nothing"}
	}
	if g, w := strings.Join(got, " "), strings.Join(args, " "); g != w {
		return fmt.Errorf("the relay got %s", g)
	}
	return nil
}

var outcomes = map[string]stateclient.Outcome{"refused": stateclient.Refused, "exhausted": stateclient.Exhausted,
	"failed": stateclient.Failed, "unknown": stateclient.FailedUnknown, "timeout": stateclient.TimedOut,
	"nobackend": stateclient.NoBackend, "broken": stateclient.Broken}

func (k *talk) answers(args []string) error {
	outcome, payload, after := stateclient.Answered, []byte(nil), time.Duration(0)
	ack := func(status clientv1.MessageAckStatus, reason string) []byte {
		return codec.AppendCommand(nil, clientv1.CommandType_MESSAGEACK, 0, &clientv1.MessageAck{Uuid: args[1], Status: status, Reason: reason})
	}
	switch args[0] {
	case "ok":
		payload = ack(clientv1.MessageAckStatus_ACK_OK, "")
	case "retry":
		payload = ack(clientv1.MessageAckStatus_ACK_RETRY, "gap")
	case "fail":
		payload = ack(clientv1.MessageAckStatus_ACK_FAIL, "uuid_reused")
	case "sync":
		payload = codec.AppendCommand(nil, clientv1.CommandType_SYNC_REPLY, 0, &clientv1.SyncReply{Cursor: "c"})
	case "empty":
	case "garbage":
		payload = []byte{0xff, 0xff, 0xff}
	case "blob":
		n, _ := strconv.Atoi(args[1])
		payload = codec.AppendCommandData(nil, 1000, 0, make([]byte, n))
	case "huge":
		payload = codec.AppendCommandData(nil, 1000, 0, make([]byte, k.cfg.Limits.Frame.Bytes))
	default:
		var ok bool
		if outcome, ok = outcomes[args[0]]; !ok {
			return fmt.Errorf("no outcome %s", args[0])
		}
		if len(args) > 1 {
			after, _ = time.ParseDuration(args[1])
		}
	}
	if !k.relay.answer(outcome, payload, after) {
		return fmt.Errorf("the relay holds nothing")
	}
	return nil
}
