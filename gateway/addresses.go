package gateway

import (
	"net/netip"
	"sync"
	"time"
)

const (
	// ipv6PrefixBits of an address count for the limits per address: one host commands a whole /64.
	ipv6PrefixBits = 64
	// addressesMax bounds the addresses that are remembered; one that finds no place is refused.
	addressesMax = 1 << 17
	// addressSweepEvery bounds how often a full table is walked.
	addressSweepEvery = time.Second
)

// addresses holds the limits per address for those whose address is known only from X-Forwarded-For. The engine counts all
// others, and leaves the trusted proxies themselves out.
type addresses struct {
	// Fixed after newAddresses. 0 = no limit.
	connections int
	perSecond   rate

	mu sync.Mutex
	// Guarded by mu.
	used  map[netip.Addr]*addressUse
	swept time.Duration
}

type addressUse struct {
	open   int
	recent bucket
}

func newAddresses(a Accept) *addresses {
	s := &addresses{connections: a.PerIPConnections, used: make(map[netip.Addr]*addressUse)}
	if a.PerIPPerSecond > 0 {
		s.perSecond = newRate(a.PerIPPerSecond, a.PerIPPerSecond)
	}
	return s
}

// limited reports whether there is a limit at all.
func (s *addresses) limited() bool { return s.connections > 0 || s.perSecond.unit > 0 }

// enter reports whether addr may have one more connection, which leave ends. There is a limit.
func (s *addresses) enter(addr netip.Addr, now time.Duration) bool {
	addr = limitedAs(addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.used[addr]
	if u == nil {
		if len(s.used) >= addressesMax && !s.sweep(now) {
			return false
		}
		u = &addressUse{}
		s.used[addr] = u
	}
	if s.connections > 0 && u.open >= s.connections {
		return false
	}
	if s.perSecond.unit > 0 {
		if u.recent.wait(now, s.perSecond) > 0 {
			return false
		}
		u.recent.charge(now, s.perSecond, 1)
	}
	u.open++
	return true
}

// leave ends what enter has admitted; nothing, if addr is not valid.
func (s *addresses) leave(addr netip.Addr) {
	if !addr.IsValid() {
		return
	}
	addr = limitedAs(addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.used[addr]
	if u.open--; u.open == 0 && s.perSecond.unit == 0 {
		delete(s.used, addr)
	}
}

// sweep forgets whose memory decides nothing any more, and reports whether there is room now. s.mu is held.
func (s *addresses) sweep(now time.Duration) bool {
	if now-s.swept < addressSweepEvery {
		return false
	}
	s.swept = now
	for addr, u := range s.used {
		if u.open == 0 && time.Duration(u.recent) <= now {
			delete(s.used, addr)
		}
	}
	return len(s.used) < addressesMax
}

// limitedAs is what an address counts as.
func limitedAs(addr netip.Addr) netip.Addr {
	if addr.Is6() {
		p, err := addr.Prefix(ipv6PrefixBits)
		if err == nil {
			return p.Addr()
		}
	}
	return addr
}
