package stateserver

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/sluice-im/sluice/api/reason"
)

// sweepEvery is how exact the waits of the store and of the reorder buffer are: a fifth of the shortest one.
const sweepEvery = 10 * time.Millisecond

// waits are the messages that wait for the store, oldest first: all wait equally long, so their order is that of their
// ends. What a committer answers in time is dropped when it comes to the front.
type waits struct {
	mu sync.Mutex
	// Guarded by mu. The bound is that of all committers' queues and transactions together.
	queue []*uplink
}

func (w *waits) add(u *uplink) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = append(w.queue, u)
}

// over takes out those whose time is up, and those at the front that are answered.
func (w *waits) over(now time.Time) []*uplink {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for n < len(w.queue) && (w.queue[n].done.Load() || now.After(w.queue[n].waitUntil)) {
		n++
	}
	ended := append([]*uplink(nil), w.queue[:n]...)
	rest := copy(w.queue, w.queue[n:])
	clear(w.queue[rest:])
	w.queue = w.queue[:rest]
	return ended
}

// sweep answers RETRY to whoever has waited long enough. What becomes of the message is found out by its resend: the
// unique key knows.
func (s *Server) sweep(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		for _, u := range s.waits.over(now) {
			if u.done.Load() {
				continue
			}
			s.metrics.timeouts.Inc()
			u.retry(reason.Timeout)
		}
		s.order.Sweep(now, s.release, func(item any, expected uint64) {
			item.(*uplink).gap(expected)
		})
	}
}

// ratesMax bounds the users whose rate is remembered; beyond it all start anew, which lets each burst once.
const ratesMax = 1 << 16

// rates limits messages per user; nil = no limit.
type rates struct {
	perSecond int

	mu sync.Mutex
	// Guarded by mu.
	users map[string]*rate.Limiter
}

func newRates(perSecond int) *rates {
	if perSecond == 0 {
		return nil
	}
	return &rates{perSecond: perSecond, users: make(map[string]*rate.Limiter)}
}

func (r *rates) allow(uid string) bool {
	if r == nil {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.users[uid]
	if l == nil {
		if len(r.users) >= ratesMax {
			clear(r.users)
		}
		l = rate.NewLimiter(rate.Limit(r.perSecond), 2*r.perSecond)
		r.users[uid] = l
	}
	return l.Allow()
}
