package gate

import (
	"net/netip"
	"sync"
	"time"
)

const (
	// ipv6PrefixBits is what a limit per address looks at: one host commands a whole /64.
	ipv6PrefixBits = 64
	// addrsMax bounds the addresses that are remembered although nobody is connected from them; the table is swept when
	// it is reached, and an address that finds no place is refused.
	addrsMax = 1 << 17
	// sweepEvery bounds how often a full table is walked.
	sweepEvery = time.Second
)

// Rates limit new connections. 0 = no limit.
type Rates struct {
	PerSecond          int
	Burst              int
	PerAddrPerSecond   int
	PerAddrConnections int
}

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

// Quota is what one address has used of its limits.
type Quota struct {
	addr   netip.Addr
	conns  int
	bucket bucket
}

// Limits decides who is let in. Any goroutine may ask: for the rate as soon as a connection is accepted, and for the
// address once it is known whose it is.
type Limits struct {
	rates Rates

	mu sync.Mutex
	// Guarded by mu. An address is in the table while it is connected or its bucket is not full.
	rate  bucket
	addrs map[netip.Addr]*Quota
	swept time.Time
}

// NewLimits makes the limits of one engine.
func NewLimits(r Rates) *Limits { return &Limits{rates: r, addrs: map[netip.Addr]*Quota{}} }

// Rate reports whether one more connection may be accepted now.
func (l *Limits) Rate(now time.Time) bool {
	r := l.rates.PerSecond
	if r <= 0 {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rate.take(now, float64(r), float64(max(l.rates.Burst, 1)))
}

// Address reports whether addr may have one more connection. Its Quota goes to Left when that connection ends; it is nil
// without limits per address, and for an address that is not valid: that one is not limited.
func (l *Limits) Address(addr netip.Addr, now time.Time) (q *Quota, ok bool) {
	if l.rates.PerAddrPerSecond <= 0 && l.rates.PerAddrConnections <= 0 || !addr.IsValid() {
		return nil, true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if q = l.quota(addr, now); q == nil {
		return nil, false
	}
	if n := l.rates.PerAddrConnections; n > 0 && q.conns >= n {
		return nil, false
	}
	if r := float64(l.rates.PerAddrPerSecond); r > 0 && !q.bucket.take(now, r, r) {
		return nil, false
	}
	q.conns++
	return q, true
}

// quota finds or makes the entry of an address; nil when the table is full.
func (l *Limits) quota(addr netip.Addr, now time.Time) *Quota {
	addr = addr.Unmap()
	if addr.Is6() {
		p, _ := addr.WithZone("").Prefix(ipv6PrefixBits) // fails only beyond 128 bits
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
	q := &Quota{addr: addr}
	l.addrs[addr] = q
	return q
}

// sweep forgets the addresses whose memory decides nothing any more: nobody is connected and the bucket is full again,
// which takes at most a second.
func (l *Limits) sweep(now time.Time) {
	l.swept = now
	for a, q := range l.addrs {
		if q.conns == 0 && now.Sub(q.bucket.at) >= time.Second {
			delete(l.addrs, a)
		}
	}
}

// Left gives back what Address took; a nil Quota is nothing.
func (l *Limits) Left(q *Quota) {
	if q == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	q.conns--
	if q.conns == 0 && l.rates.PerAddrPerSecond <= 0 {
		delete(l.addrs, q.addr)
	}
}
