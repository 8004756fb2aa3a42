package gate

import (
	"net/netip"
	"testing"
	"time"
)

var epoch = time.Unix(1000, 0)

// decide asks for n connections from addr at once and counts those that are let in.
func decide(l *Limits, addr string, n int, now time.Time) (in int, last Decision) {
	for range n {
		var d Decision
		if _, d = l.Admit(netip.MustParseAddr(addr), now); d == Admitted {
			in++
		}
		last = d
	}
	return in, last
}

func TestLimits(t *testing.T) {
	for _, c := range []struct {
		name  string
		rates Rates
		addr  string
		ask   int
		in    int
		last  Decision
	}{
		{"none", Rates{}, "192.0.2.1", 1000, 1000, Admitted},
		{"rate", Rates{PerSecond: 5, Burst: 7}, "192.0.2.1", 10, 7, OverRate},
		{"rate without burst", Rates{PerSecond: 5}, "192.0.2.1", 10, 1, OverRate},
		{"connections", Rates{PerAddrConnections: 3}, "192.0.2.1", 10, 3, OverAddress},
		{"rate of an address", Rates{PerAddrPerSecond: 4}, "192.0.2.1", 10, 4, OverAddress},
	} {
		t.Run(c.name, func(t *testing.T) {
			if in, last := decide(NewLimits(c.rates), c.addr, c.ask, epoch); in != c.in || last != c.last {
				t.Errorf("%d let in, the last was told %d", in, last)
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
		q, d := l.Admit(netip.MustParseAddr(c.a), epoch)
		if d != Admitted {
			t.Fatalf("%s: the first was told %d", c.a, d)
		}
		if _, d := l.Admit(netip.MustParseAddr(c.b), epoch); (d == OverAddress) != c.same {
			t.Errorf("%s after %s was told %d", c.b, c.a, d)
		}
		l.Left(q)
		if _, d := l.Admit(netip.MustParseAddr(c.a), epoch); d != Admitted {
			t.Errorf("%s after its end was told %d", c.a, d)
		}
	}
}

func TestTokensComeBack(t *testing.T) {
	l := NewLimits(Rates{PerSecond: 10, Burst: 5})
	decide(l, "192.0.2.1", 5, epoch)
	if in, _ := decide(l, "192.0.2.1", 10, epoch.Add(300*time.Millisecond)); in != 3 {
		t.Errorf("%d let in after 0.3 s at 10 a second", in)
	}
	if in, _ := decide(l, "192.0.2.1", 10, epoch.Add(time.Hour)); in != 5 {
		t.Errorf("%d let in after an hour, the burst is 5", in)
	}
	l.Left(nil)
}

// TestAddressesBounded shows that addresses that come once do not fill the memory for good, and that those that find the
// table full are told so.
func TestAddressesBounded(t *testing.T) {
	l := NewLimits(Rates{PerAddrPerSecond: 1})
	addr, now := netip.MustParseAddr("10.0.0.0"), epoch
	come := func() Decision {
		addr = addr.Next()
		q, d := l.Admit(addr, now)
		l.Left(q)
		return d
	}
	for range addrsMax {
		if d := come(); d != Admitted {
			t.Fatalf("%v was told %d", addr, d)
		}
	}
	if d := come(); d != OverAddress {
		t.Errorf("beyond the table: %d", d)
	}
	now = now.Add(2 * time.Second)
	if d := come(); d != Admitted || len(l.addrs) != 1 {
		t.Errorf("after 2 s: told %d, %d remembered", d, len(l.addrs))
	}
}
