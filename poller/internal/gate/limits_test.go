package gate

import (
	"net/netip"
	"testing"
	"time"
)

var epoch = time.Unix(1000, 0)

// come asks for n connections from addr at once, and counts those that the rate and those that the address let in.
func come(l *Limits, addr string, n int, now time.Time) (rate, address int) {
	for range n {
		if !l.Rate(now) {
			continue
		}
		rate++
		if _, ok := l.Address(netip.MustParseAddr(addr), now); ok {
			address++
		}
	}
	return rate, address
}

func TestLimits(t *testing.T) {
	for _, c := range []struct {
		name          string
		rates         Rates
		rate, address int // of ten
	}{
		{"none", Rates{}, 10, 10},
		{"rate", Rates{PerSecond: 5, Burst: 7}, 7, 7},
		{"rate without burst", Rates{PerSecond: 5}, 1, 1},
		{"connections", Rates{PerAddrConnections: 3}, 10, 3},
		{"rate of an address", Rates{PerAddrPerSecond: 4}, 10, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			if rate, address := come(NewLimits(c.rates), "192.0.2.1", 10, epoch); rate != c.rate || address != c.address {
				t.Errorf("the rate let in %d, the address %d of them", rate, address)
			}
		})
	}
}

// TestSameAddress shows what counts as one address: an IPv4 address in either form, and an IPv6 network of 64 bits.
func TestSameAddress(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"192.0.2.1", "::ffff:192.0.2.1", true},
		{"192.0.2.1", "192.0.2.2", false},
		{"2001:db8::1", "2001:db8::ffff", true},
		{"2001:db8::1", "2001:db8:0:1::1", false},
		{"fe80::1%eth0", "fe80::2%eth1", true},
	} {
		l := NewLimits(Rates{PerAddrConnections: 1})
		q, ok := l.Address(netip.MustParseAddr(c.a), epoch)
		if !ok {
			t.Fatalf("%s: the first was refused", c.a)
		}
		if _, ok := l.Address(netip.MustParseAddr(c.b), epoch); ok == c.same {
			t.Errorf("%s after %s: %v", c.b, c.a, ok)
		}
		if l.Left(q); c.same && len(l.addrs) != 0 {
			t.Errorf("%s is remembered after its end", c.a)
		}
		if _, ok := l.Address(netip.MustParseAddr(c.a), epoch); !ok {
			t.Errorf("%s was refused after its end", c.a)
		}
	}
}

func TestTokensComeBack(t *testing.T) {
	l := NewLimits(Rates{PerSecond: 10, Burst: 5})
	come(l, "192.0.2.1", 5, epoch)
	if in, _ := come(l, "192.0.2.1", 10, epoch.Add(300*time.Millisecond)); in != 3 {
		t.Errorf("%d let in after 0.3 s at 10 a second", in)
	}
	if in, _ := come(l, "192.0.2.1", 10, epoch.Add(time.Hour)); in != 5 {
		t.Errorf("%d let in after an hour, the burst is 5", in)
	}
	l.Left(nil)
}

// TestAddressesBounded shows that addresses that come once do not fill the memory for good, and that those that find the
// table full are told so.
func TestAddressesBounded(t *testing.T) {
	l := NewLimits(Rates{PerAddrPerSecond: 1})
	addr, now := netip.MustParseAddr("10.0.0.0"), epoch
	next := func() bool {
		addr = addr.Next()
		q, ok := l.Address(addr, now)
		l.Left(q)
		return ok
	}
	for range addrsMax {
		if !next() {
			t.Fatalf("%v was refused", addr)
		}
	}
	if next() {
		t.Error("let in beyond the table")
	}
	now = now.Add(2 * time.Second)
	if !next() || len(l.addrs) != 1 {
		t.Errorf("after 2 s %d are remembered", len(l.addrs))
	}
}

// TestNoAddress shows that the limits per address do not count who has none, such as a proxy that speaks for many.
func TestNoAddress(t *testing.T) {
	l := NewLimits(Rates{PerAddrConnections: 1, PerAddrPerSecond: 1})
	for range 3 {
		if q, ok := l.Address(netip.Addr{}, epoch); q != nil || !ok {
			t.Errorf("nobody has quota %v, %v", q, ok)
		}
	}
}
