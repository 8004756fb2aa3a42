package proxy

import (
	"errors"
	"net/netip"
	"testing"
)

func TestPolicy(t *testing.T) {
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")}
	for _, c := range []struct {
		mode           Mode
		addr           string
		header, served bool
	}{
		{Off, "10.1.2.3", false, true},
		{Off, "192.0.2.1", false, true},
		{Optional, "10.1.2.3", true, true},
		{Optional, "2001:db8::1", true, true},
		{Optional, "192.0.2.1", false, true},
		{Strict, "10.1.2.3", true, true},
		{Strict, "192.0.2.1", false, false},
	} {
		p := Policy{Mode: c.mode, Trusted: trusted}
		if header, served := p.Expects(netip.MustParseAddr(c.addr)); header != c.header || served != c.served {
			t.Errorf("mode %d, %s: header %v, served %v", c.mode, c.addr, header, served)
		}
	}
	p := Policy{Trusted: trusted}
	if a := p.Counted(netip.MustParseAddr("10.1.2.3")); a.IsValid() {
		t.Errorf("a proxy is counted as %v", a)
	}
	if a := netip.MustParseAddr("192.0.2.1"); p.Counted(a) != a {
		t.Errorf("%v is counted as %v", a, p.Counted(a))
	}
}

// TestPolicyRead shows what a missing header means in either mode, and that a part of one decides nothing.
func TestPolicyRead(t *testing.T) {
	const line = "PROXY TCP4 192.0.2.1 192.0.2.2 8080 80\r\n"
	for _, mode := range []Mode{Optional, Strict} {
		p := Policy{Mode: mode}
		if source, n, whole, err := p.Read([]byte(line + "more")); n != len(line) || !whole || err != nil || !source.IsValid() {
			t.Errorf("mode %d: %v, %d, %v, %v", mode, source, n, whole, err)
		}
		if _, n, whole, err := p.Read([]byte(line[:7])); n != 0 || whole || err != nil {
			t.Errorf("mode %d, a part: %d, %v, %v", mode, n, whole, err)
		}
		if _, _, whole, err := p.Read([]byte("PROXY TCP4\r\n")); whole || !errors.Is(err, ErrBad) {
			t.Errorf("mode %d, a bad one: %v, %v", mode, whole, err)
		}
		_, n, whole, err := p.Read([]byte("GET /"))
		if optional := mode == Optional; n != 0 || whole != optional || errors.Is(err, ErrMissing) == optional {
			t.Errorf("mode %d, none: %d, %v, %v", mode, n, whole, err)
		}
	}
}
