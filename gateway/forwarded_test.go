package gateway

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-im/sluice/codec"
	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/stateclient"
)

// TestForwardedRule: the rightmost address that is no trusted proxy's own; garbage ends the search.
func TestForwardedRule(t *testing.T) {
	l := &listener{proxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}}
	for header, want := range map[string]string{
		"":                                "",
		"203.0.113.9":                     "203.0.113.9",
		"198.51.100.1, 203.0.113.9":       "203.0.113.9",
		"203.0.113.9, 10.1.2.3":           "203.0.113.9",
		"203.0.113.9,10.1.2.3 , fd00::1":  "203.0.113.9",
		"203.0.113.9:4711":                "203.0.113.9",
		"[2001:db8::1]:4711, 10.0.0.1":    "2001:db8::1",
		"[2001:db8::1]":                   "2001:db8::1",
		"2001:db8::1%eth0":                "2001:db8::1",
		"::ffff:203.0.113.9":              "203.0.113.9",
		"unknown, 10.0.0.1":               "10.0.0.1",
		"203.0.113.9, unknown":            "",
		"203.0.113.9, ":                   "",
		", ,":                             "",
		"10.0.0.2, 10.0.0.1":              "10.0.0.2",
		"<script>":                        "",
		strings.Repeat("10.0.0.1,", 1000): "",
		"203.0.113.9" + strings.Repeat(",10.0.0.1", 1000): "10.0.0.1",
	} {
		got := ""
		if addr := l.forwarded(header); addr.IsValid() {
			got = addr.String()
		}
		if got != want {
			t.Errorf("%.60q: %q, want %q", header, got, want)
		}
	}
}

// remote is the address of a user's connection, as the logic tier is told.
func (r *running) remote(t *testing.T, uid string) string {
	t.Helper()
	p := r.g.peers.locked(poller.ID(r.target(t, uid).ConnId))
	if p == nil {
		t.Fatalf("%s is gone", uid)
	}
	defer p.mu.Unlock()
	return p.who.RemoteAddr
}

// upgraded connects with an X-Forwarded-For and says how the upgrade was answered.
func (r *running) upgraded(t *testing.T, uid, forwarded string) (*wire, string) {
	t.Helper()
	w := r.connect(t, protocolWS)
	w.send(upgradeRequest(codec.WebSocket, []string{"bearer=" + uid, "device_id=phone", "forwarded=" + forwarded}))
	return w, w.http()
}

// TestForwardedFor: the address of the client reaches the logic tier and the limits, from a trusted proxy only.
func TestForwardedFor(t *testing.T) {
	heard := &overhearing{}
	r := run(t, startLogic(t, &logic{}), func(c *Config, d *Deps) {
		patient(c, d)
		c.Listeners[0].TrustedProxies = []string{"127.0.0.1"}
		c.Limits.Accept.PerIPConnections = 2
		d.Relay = func(sc stateclient.Config, s stateclient.Sink, sd stateclient.Deps) (stateclient.Relay, error) {
			var err error
			heard.Relay, err = stateclient.New(sc, s, sd)
			return heard, err
		}
	})
	first, status := r.upgraded(t, "u0", "6.6.6.6, 203.0.113.9")
	if got := r.remote(t, "u0"); status != "101" || got != "203.0.113.9" {
		t.Fatalf("status %s, remote %q", status, got)
	}
	if _, status := r.upgraded(t, "u1", "203.0.113.9"); status != "101" {
		t.Errorf("the second of an address is answered %s", status)
	}
	if _, status := r.upgraded(t, "u2", "203.0.113.9"); status != "503" {
		t.Errorf("the third of an address is answered %s", status)
	}
	eventually(t, "the refusal is counted", func() bool { return r.refusals(t, "address_limit") == 1 })
	for i := range 5 { // the proxy itself is not limited
		if _, status := r.upgraded(t, fmt.Sprint("v", i), fmt.Sprintf("203.0.113.%d", 100+i)); status != "101" {
			t.Errorf("another address is answered %s", status)
		}
	}
	_ = first.conn.Close()
	eventually(t, "there is a place again", func() bool {
		w, status := r.upgraded(t, "u3", "203.0.113.9")
		if status != "101" {
			_ = w.conn.Close()
		}
		return status == "101"
	})
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if len(heard.told) == 0 || heard.told[0] != "203.0.113.9" {
		t.Errorf("the logic tier is told %q", heard.told)
	}
	if n := len(r.g.addresses.used); n != 0 {
		t.Errorf("%d addresses are remembered", n)
	}
}

// overhearing notes the addresses of the connects that go to the logic tier.
type overhearing struct {
	stateclient.Relay
	mu   sync.Mutex
	told []string
}

func (o *overhearing) Submit(pass []stateclient.Uplink, taken []bool) {
	o.mu.Lock()
	for i := range pass {
		if pass[i].Kind == stateclient.KindConnect {
			o.told = append(o.told, pass[i].Peer.RemoteAddr)
		}
	}
	o.mu.Unlock()
	o.Relay.Submit(pass, taken)
}

// TestForwardedForDistrusted: anybody can send the header.
func TestForwardedForDistrusted(t *testing.T) {
	r := run(t, startLogic(t, &logic{}), func(c *Config, d *Deps) {
		patient(c, d)
		c.Listeners[0].TrustedProxies = []string{"192.0.2.0/24"}
	})
	if _, status := r.upgraded(t, "u0", "203.0.113.9"); status != "101" {
		t.Fatalf("answered %s", status)
	}
	if got := r.remote(t, "u0"); !strings.HasPrefix(got, "127.0.0.1:") {
		t.Errorf("remote %q", got)
	}
}

// TestProxyHeader: the address of the PROXY header is the client's, and that of X-Forwarded-For only when the header
// names a trusted proxy.
func TestProxyHeader(t *testing.T) {
	r := run(t, startLogic(t, &logic{}), func(c *Config, d *Deps) {
		patient(c, d)
		for i := range c.Listeners {
			c.Listeners[i].ProxyProtocol, c.Listeners[i].TrustedProxies = "optional", []string{"127.0.0.0/8", "192.0.2.7"}
		}
	})
	for i, c := range []struct{ header, forwarded, want string }{
		{"PROXY TCP4 198.51.100.3 192.0.2.99 4711 80\r\n", "203.0.113.9", "198.51.100.3:4711"},
		{"PROXY TCP4 192.0.2.7 192.0.2.99 4711 80\r\n", "203.0.113.9", "203.0.113.9"},
		{"", "203.0.113.9", "203.0.113.9"},
		{"PROXY UNKNOWN\r\n", "nobody", "127.0.0.1:"},
	} {
		r.way.open = said(c.header)
		uid := fmt.Sprint("u", i)
		if _, status := r.upgraded(t, uid, c.forwarded); status != "101" {
			t.Fatalf("answered %s", status)
		}
		if got := r.remote(t, uid); !strings.HasPrefix(got, c.want) {
			t.Errorf("%q: remote %q, want %q", c.header, got, c.want)
		}
	}
}
