package stateclient

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	statev1 "github.com/sluice-im/sluice/api/state/v1"
	"github.com/sluice-im/sluice/internal/testenv/certs"
)

func TestValidate(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Fatalf("Default: %v", err)
	}
	for key, spoil := range map[string]func(c *Config){
		"relay.mode":                func(c *Config) { c.Mode = "both" },
		"relay.unary_method":        func(c *Config) { c.UnaryMethod = "Receive" },
		"relay.targets":             func(c *Config) { c.Targets = "127.0.0.1:9200" },
		"relay.timeout":             func(c *Config) { c.Timeout = 0 },
		"relay.streams_per_backend": func(c *Config) { c.StreamsPerBackend = 0 },
		"relay.batch":               func(c *Config) { c.Batch = 1 },
		"relay.batch_bytes":         func(c *Config) { c.BatchBytes = 8 << 20 },
		"relay.breaker.failures":    func(c *Config) { c.Breaker.Failures = 0 },
		"relay.breaker.open_for":    func(c *Config) { c.Breaker.OpenFor = -1 },
		"relay.calls":               func(c *Config) { c.Calls = -1 },
		"backpressure.relay_queue":  func(c *Config) { c.Queue = 1 },
		"relay.tls":                 func(c *Config) { c.TLS = TLS{CA: "system", Cert: "x"} },
		"relay.tls.ca":              func(c *Config) { c.TLS.ServerName = "x" },
	} {
		c := Default()
		spoil(&c)
		err := c.Validate()
		var field *FieldError
		if !errors.As(err, &field) || field.Key != key || field.Allowed == "" {
			t.Errorf("%s: %v", key, err)
		}
		if _, err := New(c, nil, Deps{}); err == nil {
			t.Errorf("%s: New takes it", key)
		}
	}
}

func TestParseTargets(t *testing.T) {
	for s, ok := range map[string]bool{
		"static:///a:1": true, "static:///a:1,[::1]:2": true, "dns:///logic:9200": true,
		"": false, "static:///": false, "static:///a": false, "static:///a:1,": false, "dns:///logic": false,
		"dns:///:1": false, "http://a:1": false, "static:///" + strings.Repeat("a:1,", 300) + "a:1": false,
	} {
		if _, err := parseTargets(s); (err == nil) != ok {
			t.Errorf("%q: %v", s, err)
		}
	}
}

// The series that operators know are there under the backend's name, go with it, and a closed relay leaves none.
func TestMetrics(t *testing.T) {
	b := (&logicTier{relay: echo(nil)}).start(t, "")
	reg := prometheus.NewRegistry()
	w := newWatcher(t)
	r, err := New(quick(b.addr), w, Deps{Log: quiet(), Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := New(quick(b.addr), w, Deps{Log: quiet(), Registerer: reg}); err == nil {
		t.Error("a second relay with the same registry")
	}
	eventually(t, "ready", r.Ready)
	w.submit(r, pass(peers(5), 1))
	eventually(t, "answered", func() bool { return w.answered() == 5 })
	names := func() map[string]bool {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]bool{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					all[f.GetName()+"{"+l.GetName()+"="+l.GetValue()+"}"] = true
				}
			}
			all[f.GetName()] = true
		}
		return all
	}
	for _, n := range []string{"sluice_relay_batch_size", "sluice_relay_seconds", "sluice_relay_queue", "sluice_breaker_state"} {
		if label := "{backend=" + b.addr + "}"; !names()[n+label] {
			t.Errorf("no %s%s", n, label)
		}
	}
	if !names()["sluice_answers_late_total"] {
		t.Error("no sluice_answers_late_total")
	}
	r.(*relay).adopt([]string{"127.0.0.1:1"})
	eventually(t, "the removed backend's series gone", func() bool { return !names()["sluice_relay_batch_size{backend="+b.addr+"}"] })
	r.Close()
	if n := names(); len(n) != 0 {
		t.Errorf("left after Close: %v", n)
	}
}

// The number of goroutines depends on backends and streams, not on connections or uplinks.
func TestGoroutines(t *testing.T) {
	b := (&logicTier{relay: func(s batches) error {
		for {
			in, err := s.Recv()
			if err != nil {
				return ended(err)
			}
			if len(in.Items) == 0 {
				if err := s.Send(&statev1.DownlinkBatch{}); err != nil {
					return err
				}
			}
		}
	}}).start(t, "")
	w := newWatcher(t)
	cfg := quick(b.addr)
	cfg.Timeout = time.Minute
	r := open(t, cfg, w)
	eventually(t, "both streams", func() bool { return upLanes(r) == 2 })
	before := runtime.NumGoroutine()
	w.submit(r, pass(peers(20_000), 1))
	if n := runtime.NumGoroutine(); n > before+10 {
		t.Errorf("%d goroutines, %d before", n, before)
	}
	r.Close()
	if n := w.count(Broken) + w.count(NoBackend); n != 20_000 {
		t.Errorf("Close answered %d", n)
	}
	if taken := w.submit(r, pass(peers(3), 2)); taken[0] || taken[1] || taken[2] {
		t.Error("a closed relay took something")
	}
}

// A backend with a certificate of the configured authority is used, and sees the gateway's own certificate.
func TestTLS(t *testing.T) {
	ca := certs.New(t)
	own := ca.Issue(t, "client")
	pool := x509.NewCertPool()
	pool.AddCert(ca.Cert)
	seen := make(chan string, 1)
	b := &logicTier{relay: echo(func(*statev1.UplinkItem) {})}
	b.option = grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{ca.Issue(t, "server").Pair(t)}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		VerifyConnection: func(s tls.ConnectionState) error {
			select {
			case seen <- s.PeerCertificates[0].Subject.CommonName:
			default:
			}
			return nil
		},
	}))
	b.start(t, "")
	cfg := quick(b.addr)
	cfg.TLS = TLS{CA: own.CA, Cert: own.Cert, Key: own.Key}
	r := open(t, cfg, newWatcher(t))
	eventually(t, "ready", r.Ready)
	if name := <-seen; name != "client" {
		t.Errorf("the backend saw %q", name)
	}
	for _, bad := range []TLS{{CA: own.CA + ".none"}, {CA: own.Key}, {CA: own.CA, Cert: own.CA, Key: own.Key}} {
		cfg.TLS = bad
		if _, err := New(cfg, nil, Deps{Log: quiet()}); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	// Plain text to a port that speaks TLS never becomes ready, and does no harm.
	cfg.TLS = TLS{}
	cfg.Timeout = 50 * time.Millisecond
	w := newWatcher(t)
	plain := open(t, cfg, w)
	w.submit(plain, pass(peers(2), 1))
	eventually(t, "answered", func() bool { return w.count(NoBackend) == 2 })
}
