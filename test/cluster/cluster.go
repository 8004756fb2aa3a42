package cluster

import (
	"context"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-im/sluice/internal/testenv"
)

// Secret signs the tokens of the tests.
const Secret = "end-to-end-secret-of-32-bytes-ok!"

// Gateway is a running cmd/gateway.
type Gateway struct {
	*Process
	// WS and TCP are the client addresses, Internal and Admin the others.
	WS, TCP, Internal, Admin string
}

// StateServer is a running cmd/stateserver.
type StateServer struct {
	*Process
	GRPC, Admin string
	// DB is the path of the SQLite file; empty with another store.
	DB string
}

// StartStateServer starts one on SQLite in a directory of its own and waits until it is ready; sets are --set values
// that come after the harness's own.
func StartStateServer(t testing.TB, redis string, env []string, sets ...string) *StateServer {
	t.Helper()
	s := &StateServer{GRPC: testenv.FreeAddr(t), Admin: testenv.FreeAddr(t), DB: filepath.Join(t.TempDir(), "messages.db")}
	own := []string{"grpc.addr=" + s.GRPC, "admin.addr=" + s.Admin, "store.dsn=sqlite://" + s.DB, "redis.addrs=[" + strconv.Quote(redis) + "]"}
	s.Process = Start(t, "stateserver", Binary(t, "stateserver"), env, flags(own, sets)...)
	s.WaitReady()
	return s
}

// WaitReady waits until /readyz says yes.
func (s *StateServer) WaitReady() { s.t.Helper(); waitReady(s.Process, s.Admin) }

// StartGateway starts one with a ws and a tcp listener and waits until it is ready.
func StartGateway(t testing.TB, redis, backend string, sets ...string) *Gateway {
	t.Helper()
	g := NewGateway(t, redis, backend, sets...)
	g.WaitReady()
	return g
}

// NewGateway starts one and does not wait.
func NewGateway(t testing.TB, redis, backend string, sets ...string) *Gateway {
	t.Helper()
	g := &Gateway{WS: testenv.FreeAddr(t), TCP: testenv.FreeAddr(t), Internal: testenv.FreeAddr(t), Admin: testenv.FreeAddr(t)}
	own := []string{
		"listeners=[{name: ws, protocol: ws, addr: " + strconv.Quote(g.WS) + ", path: /ws}, {name: tcp, protocol: tcp, addr: " + strconv.Quote(g.TCP) + "}]",
		"internal.addr=" + g.Internal, "gateway.advertise=" + g.Internal, "admin.addr=" + g.Admin,
		"auth.jwt.secret=" + Secret, "routes.redis.addrs=[" + strconv.Quote(redis) + "]", "relay.targets=static:///" + backend,
	}
	g.Process = Start(t, "gateway", Binary(t, "gateway"), nil, flags(own, sets)...)
	return g
}

// WaitReady waits until /readyz says yes.
func (g *Gateway) WaitReady() { g.t.Helper(); waitReady(g.Process, g.Admin) }

// URL is the client address for a transport, ws or tcp.
func (g *Gateway) URL(transport string) string {
	if transport == "tcp" {
		return "tcp://" + g.TCP
	}
	return "ws://" + g.WS + "/ws"
}

// Metric adds up all series of a metric whose labels contain every one of want (as name="value").
func Metric(t testing.TB, admin, name string, want ...string) float64 {
	t.Helper()
	status, body, err := Fetch(context.Background(), "http://"+admin+"/metrics")
	if err != nil || status != 200 {
		t.Fatalf("metrics of %s: %d %v", admin, status, err)
	}
	var sum float64
lines:
	for line := range strings.Lines(body) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		metric, labels, _ := strings.Cut(series, "{")
		if !ok || metric != name {
			continue
		}
		for _, w := range want {
			if !strings.Contains(labels, w) {
				continue lines
			}
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("metric line %q: %v", line, err)
		}
		sum += v
	}
	return sum
}

func waitReady(p *Process, admin string) {
	p.t.Helper()
	var last string
	defer func() {
		if p.t.Failed() {
			p.t.Logf("%s: last /readyz: %s", p.Name, last)
		}
	}()
	Eventually(p.t, startMax, p.Name+" ready", func() bool {
		select {
		case <-p.Ended():
			p.t.Fatalf("%s ended\n%s", p.Name, tail(p.log, 20))
		default:
		}
		status, body, err := Fetch(context.Background(), "http://"+admin+"/readyz")
		last = body
		return err == nil && status == 200
	})
}

func flags(lists ...[]string) []string {
	var out []string
	for _, l := range lists {
		for _, s := range l {
			out = append(out, "--set", s)
		}
	}
	return out
}
