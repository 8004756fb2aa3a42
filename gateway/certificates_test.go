package gateway

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	gatewayv1 "github.com/sluice-im/sluice/api/gateway/v1"
	"github.com/sluice-im/sluice/internal/testenv/certs"
)

// handshake does one with a listener and returns its state; tickets are read with the first bytes of a response.
func (r *running) handshake(t *testing.T, config *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	raw, err := net.Dial("tcp", r.g.Addr(protocolWS))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	_ = raw.SetDeadline(time.Now().Add(deadline))
	c := tls.Client(raw, config)
	if err := c.Handshake(); err != nil {
		return tls.ConnectionState{}, err
	}
	if _, err := c.Write([]byte("GET /nowhere HTTP/1.1\r\nHost: gw\r\n\r\n")); err != nil {
		return tls.ConnectionState{}, err
	}
	answer, err := io.ReadAll(c)
	if err == nil && !strings.HasPrefix(string(answer), "HTTP/1.1 404 ") {
		t.Errorf("the answer is %.100q", answer)
	}
	return c.ConnectionState(), err
}

// replace puts another certificate in the place of one, as a renewal does.
func replace(t *testing.T, files TLS, by *certs.Authority) {
	t.Helper()
	next := issue(t, by, "next")
	for from, to := range map[string]string{next.Cert: files.Cert, next.Key: files.Key} {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCertificateRenewal: whoever is connected stays, tickets go on to be good, and a broken pair changes nothing.
func TestCertificateRenewal(t *testing.T) {
	by := certs.New(t)
	files := issue(t, by, "gateway")
	begun := time.Now()
	var ahead atomic.Int64 // of begun, where the clock stands still otherwise
	r := run(t, startLogic(t, &logic{}), func(c *Config, d *Deps) {
		patient(c, d)
		for i := range c.Listeners {
			c.Listeners[i].TLS = TLS{Cert: files.Cert, Key: files.Key}
		}
		c.Internal.TLS = files
		d.Now = func() time.Time { return begun.Add(time.Duration(ahead.Load())) }
	})
	r.way.open = encrypt(&tls.Config{InsecureSkipVerify: true})
	w := r.dial(t, protocolWS, "alice", "phone")
	roots := x509.NewCertPool()
	roots.AddCert(by.Cert)
	client := &tls.Config{RootCAs: roots, ServerName: "127.0.0.1", NextProtos: []string{"h2", "http/1.1"}, ClientSessionCache: tls.NewLRUClientSessionCache(4)}
	serial := func(config *tls.Config) string {
		t.Helper()
		s, err := r.handshake(t, config)
		if err != nil {
			t.Fatal(err)
		}
		return s.PeerCertificates[0].SerialNumber.String()
	}
	first, err := r.handshake(t, client)
	if err != nil || first.NegotiatedProtocol != "http/1.1" || first.Version != tls.VersionTLS13 {
		t.Fatalf("%v, protocol %q, version %x", err, first.NegotiatedProtocol, first.Version)
	}
	fresh := &tls.Config{RootCAs: roots, ServerName: "127.0.0.1"}
	was := serial(fresh)

	replace(t, files, by)
	if got := serial(fresh); got != was {
		t.Error("the files were looked at less than a second after the last look")
	}
	if err := r.g.Reload(); err != nil {
		t.Fatal(err)
	}
	now := serial(fresh)
	if now == was {
		t.Error("Reload has changed nothing")
	}
	if s, err := r.handshake(t, client); err != nil || !s.DidResume {
		t.Errorf("a ticket from before is not good any more: %v", err)
	}

	replace(t, files, by)
	ahead.Add(int64(2 * time.Second))
	if got := serial(fresh); got == now {
		t.Error("a changed file was not noticed")
	}
	now = serial(fresh)
	if err := os.WriteFile(files.Key, []byte("half a"), 0o600); err != nil {
		t.Fatal(err)
	}
	ahead.Add(int64(2 * time.Second))
	if got := serial(fresh); got != now {
		t.Error("a broken pair is in use")
	}
	if err := r.g.Reload(); err == nil || !strings.Contains(err.Error(), "listeners[0].tls: ") || !strings.Contains(err.Error(), "internal.tls: ") {
		t.Errorf("Reload: %v", err)
	}

	w.up("u1", "bob")
	w.want("MESSAGEACK u1 ACK_OK")
}

// TestClientCertificates: with client_ca, who has no certificate of that authority is not let in, on the internal port too.
func TestClientCertificates(t *testing.T) {
	by := certs.New(t)
	files := issue(t, by, "gateway")
	r := run(t, startLogic(t, &logic{}), func(c *Config, d *Deps) {
		patient(c, d)
		c.Listeners[0].TLS, c.Internal.TLS = files, files
	})
	roots := x509.NewCertPool()
	roots.AddCert(by.Cert)
	pair := func(by *certs.Authority) []tls.Certificate {
		return []tls.Certificate{by.Issue(t, "client").Pair(t)}
	}
	for _, c := range []struct {
		name string
		has  []tls.Certificate
		good bool
	}{{"none", nil, false}, {"another authority's", pair(certs.New(t)), false}, {"right", pair(by), true}} {
		if _, err := r.handshake(t, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1", Certificates: c.has}); (err == nil) != c.good {
			t.Errorf("certificate %s: %v", c.name, err)
		}
	}
	eventually(t, "the refusals are counted", func() bool { return r.refusals(t, "tls_failed") == 2 })

	conn, err := grpc.NewClient(r.g.Addr("internal"), grpc.WithTransportCredentials(credentials.NewTLS(
		&tls.Config{RootCAs: roots, ServerName: "127.0.0.1", Certificates: pair(by)})))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := gatewayv1.NewGatewayClient(conn).Kick(t.Context(), &gatewayv1.KickRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Errorf("internal port: %v", err)
	}
}

// TestTLSVersions: 1.0 and 1.1 are refused.
func TestTLSVersions(t *testing.T) {
	r := way{config: encrypted}.run(t, startLogic(t, &logic{}), nil)
	for _, version := range []uint16{tls.VersionTLS10, tls.VersionTLS11} {
		if _, err := r.handshake(t, &tls.Config{InsecureSkipVerify: true, MinVersion: version, MaxVersion: version}); err == nil {
			t.Errorf("version %x is accepted", version)
		}
	}
	eventually(t, "the refusals are counted", func() bool { return r.refusals(t, "tls_failed") == 2 })
}

// TestUnusableCertificate: New says which file, before anything is opened.
func TestUnusableCertificate(t *testing.T) {
	cfg := talkConfig()
	file := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.Listeners[1].TLS = TLS{Cert: file, Key: file}
	if _, err := New(cfg, Deps{}); err == nil || !strings.Contains(err.Error(), "listeners[1].tls: ") {
		t.Errorf("New: %v", err)
	}
}
