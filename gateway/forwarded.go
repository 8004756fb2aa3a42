package gateway

import (
	"net/netip"
	"strings"
)

// forwardedHopsMax bounds how many addresses of X-Forwarded-For are looked at: nobody has more proxies in a row, and the
// rest is what the client has made up.
const forwardedHopsMax = 16

// trusts reports whether addr is one of the listener's trusted proxies.
func (l *listener) trusts(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	for _, p := range l.proxies {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

// forwarded finds for whom a trusted proxy speaks: the rightmost address of X-Forwarded-For that is not a trusted proxy's
// itself, since every proxy appends whom it has seen, and what is left of that was sent by the client. It is not valid
// when the header says nothing that can be believed: from there on left, what is no address ends the search.
func (l *listener) forwarded(header string) (client netip.Addr) {
	for range forwardedHopsMax {
		if header == "" {
			break
		}
		cut := strings.LastIndexByte(header, ',')
		addr, ok := parseHop(strings.TrimSpace(header[cut+1:]))
		if !ok {
			break
		}
		if client = addr; !l.trusts(addr) {
			break
		}
		header = header[:max(cut, 0)]
	}
	return client
}

// parseHop reads an address as proxies write it: bare, in brackets, or with a port.
func parseHop(s string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(s, "["), "]"))
	if err != nil {
		at, err := netip.ParseAddrPort(s)
		if err != nil {
			return netip.Addr{}, false
		}
		addr = at.Addr()
	}
	return addr.Unmap().WithZone(""), true
}

// forwardedFor takes over the address of X-Forwarded-For, when the request came from a trusted proxy. It reports false
// when that address has too many connections. p.mu is held.
func (t *turn) forwardedFor(header string) bool {
	l := &t.g.listeners[t.p.listener]
	if header == "" || len(l.proxies) == 0 {
		return true
	}
	via, err := netip.ParseAddrPort(t.p.remote())
	if err != nil || !l.trusts(via.Addr()) {
		return true
	}
	client := l.forwarded(header)
	if !client.IsValid() {
		return true
	}
	rare := t.p.rarely()
	rare.remote = client.String()
	if !t.g.addresses.limited() {
		return true
	}
	if !t.g.addresses.enter(client, t.now) {
		return false
	}
	rare.admitted = client
	return true
}
