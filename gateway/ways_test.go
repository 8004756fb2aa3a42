package gateway

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-im/sluice/codec"
)

// way is a way in which clients reach a gateway: what is true on a plain connection is true on every other one.
type way struct {
	name string
	// config sets the gateway up for it.
	config func(t testing.TB, c *Config)
	// open is what a client does before its first byte.
	open func(conn net.Conn) (net.Conn, error)
	// readsOn: the engine cannot stop reading, and closes a client that ignores the window.
	readsOn bool
	// windowBits is what the client offers of permessage-deflate; 0 = nothing.
	windowBits int
}

var plain = way{name: "plain"}

// ways are all of them.
var ways = []way{
	plain,
	{name: "netpoll", config: onNetpoll, readsOn: true},
	{name: "tls", config: encrypted, open: encrypt(&tls.Config{InsecureSkipVerify: true})},
	{name: "tls 1.2", config: encrypted, open: encrypt(&tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})},
	{name: "netpoll tls", readsOn: true, open: encrypt(&tls.Config{InsecureSkipVerify: true}),
		config: func(t testing.TB, c *Config) { onNetpoll(t, c); encrypted(t, c) }},
	{name: "compressed", config: compressed, windowBits: 15},
	{name: "compressed tls", windowBits: 9, open: encrypt(&tls.Config{InsecureSkipVerify: true}),
		config: func(t testing.TB, c *Config) { encrypted(t, c); compressed(t, c) }},
	{name: "proxied", open: said("PROXY TCP4 192.0.2.7 192.0.2.99 4711 80\r\n"), config: proxied},
	{name: "netpoll proxied", readsOn: true, open: said("PROXY TCP4 192.0.2.7 192.0.2.99 4711 80\r\n"),
		config: func(t testing.TB, c *Config) { onNetpoll(t, c); proxied(t, c) }},
}

func onNetpoll(_ testing.TB, c *Config) { c.Engine.Name = engineNetpoll }

// proxied makes every listener expect a PROXY header.
func proxied(_ testing.TB, c *Config) {
	for i := range c.Listeners {
		c.Listeners[i].ProxyProtocol, c.Listeners[i].TrustedProxies = "strict", []string{"127.0.0.1"}
	}
}

func compressed(_ testing.TB, c *Config) { c.Listeners[0].Compression = compressionOn }

// encrypted gives every listener a certificate.
func encrypted(t testing.TB, c *Config) {
	files := certify(t, t.TempDir(), nil, "gateway")
	for i := range c.Listeners {
		c.Listeners[i].TLS = TLS{Cert: files.Cert, Key: files.Key}
	}
}

func encrypt(config *tls.Config) func(net.Conn) (net.Conn, error) {
	return func(conn net.Conn) (net.Conn, error) {
		c := tls.Client(conn, config)
		_ = c.SetDeadline(time.Now().Add(deadline))
		return c, c.Handshake()
	}
}

// said makes a client speak before it begins.
func said(words string) func(conn net.Conn) (net.Conn, error) {
	return func(conn net.Conn) (net.Conn, error) {
		_, err := conn.Write([]byte(words))
		return conn, err
	}
}

// everyWay runs a test in each of the ways.
func everyWay(t *testing.T, test func(t *testing.T, w way)) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) { test(t, w) })
	}
}

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// certify writes a certificate for 127.0.0.1, its key and the authority's own certificate into dir; a nil authority means
// that it signs itself.
func certify(t testing.TB, dir string, by *authority, name string) TLS {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if by == nil {
		by = &authority{cert: template, key: key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by.cert, &key.PublicKey, by.key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	files := TLS{Cert: filepath.Join(dir, name+".pem"), Key: filepath.Join(dir, name+".key"), ClientCA: filepath.Join(dir, "ca.pem")}
	for file, block := range map[string]*pem.Block{
		files.Cert:     {Type: "CERTIFICATE", Bytes: der},
		files.Key:      {Type: "PRIVATE KEY", Bytes: secret},
		files.ClientCA: {Type: "CERTIFICATE", Bytes: by.cert.Raw},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// newAuthority is one that signs for a test.
func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true,
		BasicConstraintsValid: true, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key}
}

// protocol is how a WebSocket is framed in this way.
func (w way) protocol() codec.Protocol {
	if w.windowBits == 0 {
		return codec.WebSocket
	}
	return codec.WebSocket.WithDeflate(w.windowBits)
}
