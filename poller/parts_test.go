package poller

import (
	"net/netip"
	"strings"
	"testing"
	"time"
	"unsafe"
)

// TestConnSize keeps the struct that every idle connection pays for within its budget: 160 bytes of the gateway's 600.
func TestConnSize(t *testing.T) {
	if n := unsafe.Sizeof(conn{}); n > 120 {
		t.Errorf("a connection takes %d bytes", n)
	}
}

func TestConfig(t *testing.T) {
	for field, cfg := range map[string]Config{"Loops": {Loops: -1}, "OutboxBytes": {OutboxBytes: -5}, "Linger": {Linger: -1}, "Reserve": {Reserve: -1}} {
		if err := cfg.check(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := (Config{Reserve: 1 << 40}).clamp(); err == nil {
		t.Error("a reserve above the descriptor limit")
	}
}

func TestLimits(t *testing.T) {
	now := time.Unix(1000, 0)
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("::ffff:192.0.2.1")
	l := newLimits(Accept{PerAddrConnections: 1})
	q, ok := l.address(a, now)
	if !ok {
		t.Fatal("the first was refused")
	}
	if _, ok := l.address(b, now); ok {
		t.Error("the same address in another form was let in")
	}
	l.closed(q)
	if len(l.addrs) != 0 {
		t.Error("a gone address is remembered")
	}
	if _, ok := l.address(b, now); !ok {
		t.Error("refused after the first has gone")
	}
	six := newLimits(Accept{PerAddrConnections: 1})
	if _, ok := six.address(netip.MustParseAddr("2001:db8::1"), now); !ok {
		t.Fatal("the first was refused")
	}
	if _, ok := six.address(netip.MustParseAddr("2001:db8::ffff"), now); ok {
		t.Error("one /64 is one address")
	}
	if _, ok := six.address(netip.MustParseAddr("2001:db8:0:1::1"), now); !ok {
		t.Error("another /64 is another address")
	}
}

// TestLimitsBounded shows that addresses that come once do not fill the memory for good.
func TestLimitsBounded(t *testing.T) {
	now := time.Unix(1000, 0)
	l := newLimits(Accept{PerAddrPerSecond: 1})
	addr := netip.MustParseAddr("10.0.0.0")
	come := func() bool {
		addr = addr.Next()
		q, ok := l.address(addr, now)
		if ok {
			l.closed(q)
		}
		return ok
	}
	for range addrsMax {
		if !come() {
			t.Fatal("refused")
		}
	}
	if come() {
		t.Error("let in beyond the bound")
	}
	now = now.Add(2 * time.Second)
	if !come() || len(l.addrs) > 1 {
		t.Errorf("%d addresses after the sweep", len(l.addrs))
	}
}
