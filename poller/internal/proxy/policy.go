package proxy

import (
	"errors"
	"net/netip"
)

// Mode says what a listener expects.
type Mode uint8

const (
	// Off: headers are not looked for.
	Off Mode = iota
	// Optional: a trusted peer may begin with a header.
	Optional
	// Strict: a trusted peer must begin with a header, and nobody else is served.
	Strict
)

// Policy is what one listener expects of whom. It does not change once connections come.
type Policy struct {
	Mode Mode
	// Trusted peers speak for many: their headers are believed, and the limits per address do not count them.
	Trusted []netip.Prefix
}

// Trusts reports whether addr is a trusted proxy's.
func (p *Policy) Trusts(addr netip.Addr) bool {
	for _, t := range p.Trusted {
		if t.Contains(addr) {
			return true
		}
	}
	return false
}

// Counted is the address that the limits count; not valid for a trusted proxy, which speaks for many.
func (p *Policy) Counted(addr netip.Addr) netip.Addr {
	if p.Trusts(addr) {
		return netip.Addr{}
	}
	return addr
}

// Expects says of a new connection whether a header may come, and whether it is served at all.
func (p *Policy) Expects(addr netip.Addr) (header, served bool) {
	header = p.Mode != Off && p.Trusts(addr)
	return header, header || p.Mode != Strict
}

// Read looks at b, all that has come on a connection where a header may come. whole means that the header is behind: n is
// its length, 0 where an optional one is missing, and source is valid if it names one.
func (p *Policy) Read(b []byte) (source netip.AddrPort, n int, whole bool, err error) {
	source, n, err = Parse(b)
	if errors.Is(err, ErrMissing) && p.Mode == Optional {
		return source, 0, true, nil
	}
	return source, n, n > 0, err
}
