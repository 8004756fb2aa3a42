package poller

import (
	"net/netip"
	"sync"
	"time"
)

const (
	// ipv6PrefixBits of an address count for the limits per address: one host commands a whole /64.
	ipv6PrefixBits = 64
	// addrsMax bounds the addresses that are remembered although nobody is connected from them; the table is swept
	// when it is reached, and an address that finds no place is refused.
	addrsMax = 1 << 17
	// sweepEvery bounds how often a full table is walked.
	sweepEvery = time.Second
)

// bucket is a token bucket.
type bucket struct {
	tokens float64
	at     time.Time
}

// take takes a token if there is one; rate is per second.
func (b *bucket) take(now time.Time, rate, burst float64) bool {
	if b.at.IsZero() {
		b.tokens = burst
	} else {
		b.tokens = min(burst, b.tokens+now.Sub(b.at).Seconds()*rate)
	}
	b.at = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// addrQuota is what one address has used of its limits.
type addrQuota struct {
	addr   netip.Addr
	conns  int
	bucket bucket
}

// limits decides who is let in. It is asked once a connection, by the acceptors.
type limits struct {
	cfg Accept

	mu sync.Mutex
	// Guarded by mu. An address is in the table while it is connected or its bucket is not full.
	accepts bucket
	addrs   map[netip.Addr]*addrQuota
	swept   time.Time
}

func newLimits(cfg Accept) *limits { return &limits{cfg: cfg, addrs: map[netip.Addr]*addrQuota{}} }

// rate reports whether one more connection may be accepted now.
func (l *limits) rate(now time.Time) bool {
	r := l.cfg.PerSecond
	if r <= 0 {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.accepts.take(now, float64(r), float64(max(l.cfg.Burst, 1)))
}

// address reports whether addr may have one more connection. Its quota goes to closed when that connection ends; it is
// nil without limits per address, and for an address that is not valid: that one is not limited.
func (l *limits) address(addr netip.Addr, now time.Time) (q *addrQuota, ok bool) {
	if l.cfg.PerAddrPerSecond <= 0 && l.cfg.PerAddrConnections <= 0 || !addr.IsValid() {
		return nil, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if q = l.quota(addr, now); q == nil {
		return nil, false
	}
	if n := l.cfg.PerAddrConnections; n > 0 && q.conns >= n {
		return nil, false
	}
	if r := float64(l.cfg.PerAddrPerSecond); r > 0 && !q.bucket.take(now, r, r) {
		return nil, false
	}
	q.conns++
	return q, true
}

// quota finds or makes the entry of an address; nil when the table is full.
func (l *limits) quota(addr netip.Addr, now time.Time) *addrQuota {
	addr = addr.Unmap()
	if addr.Is6() {
		p, _ := addr.WithZone("").Prefix(ipv6PrefixBits)
		addr = p.Addr()
	}
	if q := l.addrs[addr]; q != nil {
		return q
	}
	if len(l.addrs) >= addrsMax {
		if now.Sub(l.swept) < sweepEvery {
			return nil
		}
		l.sweep(now)
		if len(l.addrs) >= addrsMax {
			return nil
		}
	}
	q := &addrQuota{addr: addr}
	l.addrs[addr] = q
	return q
}

// sweep forgets the addresses whose memory decides nothing any more: nobody is connected and the bucket is full again,
// which takes at most a second.
func (l *limits) sweep(now time.Time) {
	l.swept = now
	for a, q := range l.addrs {
		if q.conns == 0 && now.Sub(q.bucket.at) >= time.Second {
			delete(l.addrs, a)
		}
	}
}

// closed gives back what address took.
func (l *limits) closed(q *addrQuota) {
	if q == nil {
		return
	}
	l.mu.Lock()
	q.conns--
	if q.conns == 0 && l.cfg.PerAddrPerSecond <= 0 {
		delete(l.addrs, q.addr)
	}
	l.mu.Unlock()
}
