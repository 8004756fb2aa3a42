package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/codec"
)

// deadline bounds every wait of a test for something that must come; only a test that fails waits for so long.
const deadline = 60 * time.Second

// running is a gateway on real sockets.
type running struct {
	g     *Gateway
	way   way
	table *fakeRoutes
	log   *logged
	stop  func() error
}

// run starts a gateway on free ports; change adapts its configuration, and may be nil.
func run(t testing.TB, backend string, change func(c *Config, d *Deps)) *running {
	t.Helper()
	return plain.run(t, backend, change)
}

func (w way) run(t testing.TB, backend string, change func(c *Config, d *Deps)) *running {
	t.Helper()
	cfg := talkConfig()
	cfg.Engine.Loops = 2
	cfg.Limits.Connections = 4096
	cfg.Internal.Addr, cfg.Admin.Addr = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Drain.PreDelay = 0
	cfg.Relay.Targets = "static:///" + backend
	if w.config != nil {
		w.config(t, &cfg)
	}
	r := &running{way: w, table: newFakeRoutes(), log: &logged{reasons: make(map[uint64]string)}}
	deps := Deps{Log: slog.New(r.log), Routes: r.table.open}
	if change != nil {
		change(&cfg, &deps)
	}
	g, err := New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	r.g = g
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	stopped := false
	r.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(deadline):
			return errors.New("Run does not end")
		}
	}
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	select {
	case <-g.Started():
	case err := <-ended:
		ended <- err
		t.Fatalf("Run: %v", err)
	case <-time.After(deadline):
		t.Fatal("the gateway does not start")
	}
	eventually(t, "the relay is ready", func() bool { return g.relay.Ready() })
	return r
}

// patient is for tests in which nothing may run out of time, however slow the machine is.
func patient(c *Config, _ *Deps) {
	c.Relay.Timeout, c.Limits.Handshake.Timeout = deadline, deadline
	c.Internal.PushTimeout, c.Routes.LookupTimeout = deadline, deadline
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !cond(); {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
		<-time.After(time.Millisecond)
	}
}

// wire is one client on a real socket.
type wire struct {
	t      testing.TB
	raw    *net.TCPConn
	conn   net.Conn
	proto  codec.Protocol
	stream codec.Stream
	buf    []byte
}

// dial connects and logs in; protocol is tcp or ws.
func (r *running) dial(t testing.TB, protocol, token, device string) *wire {
	t.Helper()
	w := r.connect(t, protocol)
	if protocol == protocolWS {
		words := []string{"bearer=" + token, "device_id=" + device}
		if r.way.windowBits != 0 {
			words = append(words, fmt.Sprint("deflate=", r.way.windowBits))
		}
		w.send(upgradeRequest(codec.WebSocket, words))
		if status := w.http(); status != "101" {
			t.Fatalf("the upgrade was answered %s", status)
		}
		return w
	}
	w.command(clientv1.CommandType_LOGIN, &clientv1.Login{Token: token, DeviceId: device})
	if got, want := w.next(), "LOGIN_REPLY "+token+" "+device; !strings.HasPrefix(got, want) {
		t.Fatalf("the login was answered %q", got)
	}
	return w
}

func (r *running) connect(t testing.TB, protocol string) *wire {
	t.Helper()
	conn, err := net.Dial("tcp", r.g.Addr(protocol))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	w := &wire{t: t, raw: conn.(*net.TCPConn), conn: conn, proto: codec.TCP}
	if r.way.open != nil {
		if w.conn, err = r.way.open(conn); err != nil {
			t.Fatal(err)
		}
	}
	if protocol == protocolWS {
		w.proto = r.way.protocol()
	}
	w.stream = codec.NewClientStream(w.proto)
	return w
}

func (w *wire) send(b []byte) {
	w.t.Helper()
	_ = w.conn.SetWriteDeadline(time.Now().Add(deadline))
	if _, err := w.conn.Write(b); err != nil {
		w.t.Fatalf("write: %v", err)
	}
}

func (w *wire) command(t clientv1.CommandType, m codec.Message) {
	w.t.Helper()
	w.send(w.frame(t, m))
}

func (w *wire) frame(t clientv1.CommandType, m codec.Message) []byte {
	framed, err := codec.AppendClientFrame(w.proto, nil, codec.AppendCommand(nil, t, 0, m), [4]byte{9, 8, 7, 6})
	if err != nil {
		w.t.Fatal(err)
	}
	return framed
}

func (w *wire) up(uuid, to string) {
	w.t.Helper()
	w.command(clientv1.CommandType_MESSAGEUP, &clientv1.MessageUp{Uuid: uuid, ReceiverId: to, Content: "hello"})
}

// more reads once.
func (w *wire) more() error {
	_ = w.conn.SetReadDeadline(time.Now().Add(deadline))
	b := make([]byte, 64<<10)
	n, err := w.conn.Read(b)
	w.buf = append(w.buf, b[:n]...)
	if n > 0 {
		return nil // TLS tells of the end together with the last bytes
	}
	return err
}

// http reads the response to the upgrade.
func (w *wire) http() string {
	w.t.Helper()
	for {
		if head, rest, ok := bytes.Cut(w.buf, []byte("\r\n\r\n")); ok {
			w.buf = rest
			return strings.Fields(string(head))[1]
		}
		if err := w.more(); err != nil {
			w.t.Fatalf("read: %v", err)
		}
	}
}

func loginAs(uid string) *clientv1.Login { return &clientv1.Login{Token: uid, DeviceId: "phone"} }

// next is the next thing that the gateway says, in the words of the conversations; "EOF" or "RST" at the end.
func (w *wire) next() string {
	w.t.Helper()
	for {
		f, n, err := w.stream.Next(w.buf, &codec.Limits{FrameBytes: 1 << 20, Fragments: 16})
		w.buf = w.buf[n:]
		switch {
		case err != nil:
			w.t.Fatal(err)
		case f.Kind == codec.KindCommand:
			return describe(f.Payload)
		case f.Kind == codec.KindClose:
			return fmt.Sprintf("CLOSE %d %s", f.Code, f.Payload)
		case f.Kind == codec.KindNone:
			switch err := w.more(); {
			case errors.Is(err, io.EOF):
				return "EOF"
			case err != nil:
				return "RST"
			}
		}
	}
}

// want reads what must come next.
func (w *wire) want(items ...string) {
	w.t.Helper()
	for _, item := range items {
		if got := w.next(); got != item {
			w.t.Fatalf("got %q, want %q", got, item)
		}
	}
}

// refusals is how many connections were refused for a reason, as the metrics have it.
func (r *running) refusals(t testing.TB, reason string) int {
	t.Helper()
	n, families := 0.0, gathered(t, r.g.registry)
	for _, m := range families["sluice_connections_refused_total"] {
		if m.GetLabel()[0].GetValue() == reason {
			n += m.GetCounter().GetValue()
		}
	}
	return int(n)
}

// gathered are all metrics by name.
func gathered(t testing.TB, registry *prometheus.Registry) map[string][]*dto.Metric {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string][]*dto.Metric, len(families))
	for _, f := range families {
		all[f.GetName()] = f.GetMetric()
	}
	return all
}
