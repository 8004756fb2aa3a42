package stateclient

import (
	"errors"
	"math"
	"math/bits"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/sony/gobreaker/v2"
	"google.golang.org/grpc"
)

const (
	// never is a time that does not come.
	never = int64(math.MaxInt64)
	// sickMax is how long a backend may be unable to take uplinks before its users go elsewhere: longer than a restart
	// needs, so that it keeps what it knows of them.
	sickMax = int64(3 * time.Second)
	// quietMin is how long a half-open breaker waits for an uplink to try.
	quietMin = int64(time.Second)
	// examineEvery is how late sickMax and quietMin may be noticed.
	examineEvery = 250 * time.Millisecond
)

// backend is one address of the logic tier.
type backend struct {
	// Fixed after New.
	relay   *relay
	addr    string
	seed    uint64
	lanes   []*lane
	breaker *gobreaker.CircuitBreaker[struct{}]
	batch   prometheus.Observer

	// probing: the breaker is half-open, and the uplink that will close or open it is on its way.
	probing atomic.Bool
	// member says whether routing uses the backend.
	member atomic.Bool
	// halfOpenAt is when the breaker last became half-open, in relay time.
	halfOpenAt atomic.Int64

	// Guarded by relay.mu.
	draining  bool
	sickSince int64
	ended     int
	asked     *grpc.ClientConn // for Authenticate; nil until it is needed
}

func newBackend(r *relay, addr string) *backend {
	b := &backend{
		relay: r, addr: addr, seed: xxhash.Sum64String(addr), sickSince: r.now(),
		batch: r.metrics.batchSize.WithLabelValues(addr),
	}
	b.breaker = gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Name:        addr,
		Timeout:     r.cfg.Breaker.OpenFor,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= uint32(r.cfg.Breaker.Failures) },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			b.probing.Store(false)
			b.halfOpenAt.Store(r.now())
			signal(r.kick)
			r.log.Warn("breaker", "backend", addr, "from", from.String(), "to", to.String())
		},
	})
	for range r.cfg.StreamsPerBackend {
		l := newLane(r, b)
		if r.cfg.Mode == ModeStream {
			l.driver = newStream(l)
		} else {
			l.serial = true
			l.driver = newUnary(l)
		}
		b.lanes = append(b.lanes, l)
	}
	return b
}

var errFailed = errors.New("failed")

// failed tells the breaker of n failures, succeeded of a success. The breaker's own Execute is the report of something
// that is over: whether it may begin is asked by admits, once for a whole batch.
func (b *backend) failed(n int) {
	for range min(n, b.relay.cfg.Breaker.Failures) {
		_, _ = b.breaker.Execute(func() (struct{}, error) { return struct{}{}, errFailed })
	}
}

func (b *backend) succeeded() {
	_, _ = b.breaker.Execute(func() (struct{}, error) { return struct{}{}, nil })
}

// admits is how many uplinks may be sent now: all, none while the breaker is open, and a single one to find out while it
// is half-open. Whoever gets that one must send it.
func (b *backend) admits(n int) int {
	switch b.breaker.State() {
	case gobreaker.StateClosed:
		return n
	case gobreaker.StateHalfOpen:
		if n > 0 && b.probing.CompareAndSwap(false, true) {
			return 1
		}
	case gobreaker.StateOpen:
	}
	return 0
}

// pingCloses says whether the answer to a ping may close the breaker. An uplink says more about a backend, since one
// whose handlers hang may still answer pings; but a backend whose users are elsewhere, or who say nothing, gets none.
func (b *backend) pingCloses(now int64) bool {
	return b.breaker.State() == gobreaker.StateHalfOpen && !b.probing.Load() &&
		(!b.member.Load() || now-b.halfOpenAt.Load() >= quietMin)
}

// able says whether the backend takes uplinks now. relay.mu is held.
func (b *backend) able() bool {
	return !b.draining && b.breaker.State() == gobreaker.StateClosed &&
		slices.ContainsFunc(b.lanes, func(l *lane) bool { return l.up.Load() })
}

// view is what routing sees. It never changes; another one takes its place.
type view struct {
	version uint32
	ready   bool
	closed  bool
	limbo   *lane
	// all are the known backends; among are those that routing chooses from: the healthy ones, or all when none is.
	all, among []*backend
}

// route chooses a lane by rendezvous hashing: when a backend comes or goes, only its own share of the users moves.
func (v *view) route(p *Peer) *lane {
	if len(v.among) == 0 {
		return v.limbo
	}
	h := xxhash.Sum64String(p.UID)
	best, most := v.among[0], uint64(0)
	for _, b := range v.among {
		if score := mix(h ^ b.seed); score >= most {
			best, most = b, score
		}
	}
	n := uint64(len(best.lanes))
	first, _ := bits.Mul64(mix(h), n) // Evenly spread over 0 to n-1.
	for i := range n {
		if l := best.lanes[(first+i)%n]; l.up.Load() {
			return l
		}
	}
	return best.lanes[first]
}

// mix spreads a hash over all its bits (the finalizer of splitmix64).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// publish puts a new view in place. mu is held, except in New.
func (r *relay) publish() {
	v := &view{version: 1, closed: r.closed, limbo: r.limbo, all: slices.Clone(r.backends)}
	if old := r.view.Load(); old != nil {
		v.version = old.version + 1
	}
	for _, b := range v.all {
		if b.member.Load() {
			v.among = append(v.among, b)
		}
		v.ready = v.ready || b.able()
	}
	if len(v.among) == 0 {
		v.among = v.all
	}
	if v.closed {
		v.among, v.ready = nil, false
	}
	r.view.Store(v)
}

// examine looks at the health of every backend and says whether a new view is due. mu is held.
func (r *relay) examine(now int64) (changed bool) {
	ready := false
	for _, b := range r.backends {
		if b.breaker.State() == gobreaker.StateHalfOpen {
			for _, l := range b.lanes {
				signal(l.kick)
			}
		}
		was, is := b.member.Load(), false
		switch {
		case b.able():
			b.sickSince, is, ready = 0, true, true
		case b.draining:
		case b.sickSince == 0:
			b.sickSince, is = max(now, 1), was
		default:
			is = was && now-b.sickSince < sickMax
		}
		b.member.Store(is)
		changed = changed || is != was
	}
	return changed || ready != r.view.Load().ready
}

// keep notices what happens by time alone. It ends with the relay.
func (r *relay) keep() {
	t := time.NewTicker(examineEvery)
	defer t.Stop()
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-t.C:
		case <-r.kick:
		}
		r.mu.Lock()
		if !r.closed && r.examine(r.now()) {
			r.publish()
		}
		r.mu.Unlock()
	}
}

// laneUp says that a lane can send: its backend is not draining, whatever it said on an earlier stream.
func (r *relay) laneUp(l *lane) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.up.Store(true)
	l.backend.draining = false
	r.examine(r.now())
	r.publish()
}

// laneDown says that a lane cannot send.
func (r *relay) laneDown(l *lane) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.up.Swap(false) {
		r.examine(r.now())
		r.publish()
	}
}

// laneDraining says that a lane's backend asked for no new uplinks: its users go elsewhere at once.
func (r *relay) laneDraining(l *lane) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.up.Store(false)
	l.backend.draining = true
	r.examine(r.now())
	r.publish()
}

// laneEnded forgets a lane, and a backend with its last lane, unless its address has come back meanwhile.
func (r *relay) laneEnded(l *lane) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.living, l)
	b := l.backend
	b.ended++
	if b.ended == len(b.lanes) && b.asked != nil {
		_ = b.asked.Close()
		b.asked = nil
	}
	if b.ended == len(b.lanes) && !slices.ContainsFunc(r.backends, func(o *backend) bool { return o.addr == b.addr }) {
		r.metrics.forget(b.addr)
	}
}

// known are the backends at this moment.
func (r *relay) known() []*backend { return r.view.Load().all }
