package gateway

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/sluice-im/sluice/codec"
	"github.com/sluice-im/sluice/internal/testenv/certs"
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
	files := issue(t, certs.New(t), "gateway")
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

// issue is a certificate for a listener, and who may be a client there.
func issue(t testing.TB, by *certs.Authority, name string) TLS {
	f := by.Issue(t, name)
	return TLS{Cert: f.Cert, Key: f.Key, ClientCA: f.CA}
}

// protocol is how a WebSocket is framed in this way.
func (w way) protocol() codec.Protocol {
	if w.windowBits == 0 {
		return codec.WebSocket
	}
	return codec.WebSocket.WithDeflate(w.windowBits)
}
