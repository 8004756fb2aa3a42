package gate

import "net/netip"

// Proxies are the addresses from which one listener believes a PROXY header.
type Proxies []netip.Prefix

// Trusts reports whether addr is a proxy's.
func (p Proxies) Trusts(addr netip.Addr) bool {
	for _, prefix := range p {
		if prefix.Contains(addr) {
			return true
		}
	}
	return false
}

// Counted is the address that Limits.Address counts for a connection from addr: not a valid one for a proxy, which speaks
// for many.
func (p Proxies) Counted(addr netip.Addr) netip.Addr {
	if p.Trusts(addr) {
		return netip.Addr{}
	}
	return addr
}
