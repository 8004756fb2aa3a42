package stateclient

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
)

// Deps are the parts of the process that a relay uses.
type Deps struct {
	// Registerer takes the relay's metrics; nil = none are exported.
	Registerer prometheus.Registerer
	// Log must not be nil.
	Log *slog.Logger
	// Lookup resolves the host of dns:/// targets; nil = the system's resolver.
	Lookup func(ctx context.Context, host string) ([]string, error)
}

// relay is both modes: they differ in the driver of their lanes.
type relay struct {
	// Fixed after New.
	cfg     Config
	sink    Sink
	log     *slog.Logger
	lookup  func(ctx context.Context, host string) ([]string, error)
	metrics *metrics
	dial    []grpc.DialOption
	started time.Time
	limbo   *lane
	ctx     context.Context
	cancel  context.CancelFunc
	kick    chan struct{}
	wg      sync.WaitGroup

	view    atomic.Pointer[view]
	lanes   atomic.Uint32
	submits atomic.Uint32
	// generations numbers everything that a Connect is announced on: streams, or backends in mode unary.
	generations atomic.Uint32

	mu sync.Mutex
	// Guarded by mu. living are the lanes whose drivers run, those of retired backends too.
	backends []*backend
	living   map[*lane]struct{}
	closed   bool
}

// New starts a relay: it connects to the backends by itself and goes on trying for as long as it lives, so a backend
// that is away is no error. An error is a bad Config, a TLS file that cannot be read, or metrics that are registered
// already.
func New(cfg Config, sink Sink, deps Deps) (Relay, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	t, err := parseTargets(cfg.Targets)
	if err != nil {
		return nil, err
	}
	dial, err := dialOptions(&cfg, t)
	if err != nil {
		return nil, err
	}
	r := &relay{
		cfg: cfg, sink: sink, log: deps.Log, lookup: deps.Lookup, dial: dial,
		started: time.Now(), kick: make(chan struct{}, 1), living: make(map[*lane]struct{}),
	}
	if r.lookup == nil {
		r.lookup = net.DefaultResolver.LookupHost
	}
	r.limbo = newLane(r, &backend{relay: r})
	r.limbo.driver = limbo{r.limbo}
	r.publish()
	if r.metrics, err = newMetrics(deps.Registerer, newScrape(r)); err != nil {
		return nil, err
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.start(r.limbo)
	if len(t.addrs) > 0 {
		r.adopt(t.addrs)
	} else {
		r.wg.Go(func() { r.discover(t) })
	}
	r.wg.Go(r.keep)
	return r, nil
}

// start runs the two goroutines of a lane; they end after lane.stop was closed or the lane was retired. mu is held, except
// in New.
func (r *relay) start(l *lane) {
	r.living[l] = struct{}{}
	r.wg.Go(l.live)
	r.wg.Go(func() { l.mind(newTimer()) })
}

// now is relay time: nanoseconds of the monotonic clock since New.
func (r *relay) now() int64 { return int64(time.Since(r.started)) }

func (r *relay) at(t time.Time) int64 { return int64(t.Sub(r.started)) }

// Ready implements Relay.
func (r *relay) Ready() bool { return r.view.Load().ready }

// Close implements Relay.
func (r *relay) Close() {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		r.wg.Wait()
		return
	}
	r.closed = true
	r.publish()
	for l := range r.living {
		close(l.stop)
	}
	r.mu.Unlock()
	r.cancel()
	r.wg.Wait()
	r.metrics.unregister()
}

// Submit implements Relay.
func (r *relay) Submit(pass []Uplink, taken []bool) {
	s := placing{relay: r, now: r.now(), submit: r.submits.Add(1)}
	for i := range pass {
		taken[i] = s.place(&pass[i])
	}
	s.end()
}

// placing is one Submit. It keeps a lane locked while its uplinks come one after another, and wakes the drivers last, so
// that all uplinks of one pass can leave in one batch.
type placing struct {
	relay   *relay
	now     int64
	submit  uint32
	locked  *lane
	touched [8]*lane
	n       int
}

func (s *placing) place(u *Uplink) bool {
	l := s.lane(u.Peer)
	if l == nil {
		return false
	}
	if l.closed || u.Peer.flight.refusedIn == s.submit || !l.hasRoom(u) {
		l.refuse(u.Peer, s.submit)
		return false
	}
	l.add(u, s.now)
	s.touch(l)
	return true
}

// lane returns the lane that the connection's next uplink belongs to, locked; nil when the relay is closed. The lane
// changes only while nothing of the connection is pending: then no answer of the old lane can come after one of the new.
func (s *placing) lane(p *Peer) *lane {
	f := &p.flight
	for {
		l := f.lane.Load()
		if l == nil {
			f.arrived(p)
			f.lane.Store(s.relay.limbo)
			continue
		}
		s.lock(l)
		if f.lane.Load() != l {
			continue // Moved to another lane by rehome before the lock was ours.
		}
		if f.pending > 0 {
			return l
		}
		v := s.relay.view.Load()
		if v.closed {
			return nil
		}
		if f.version == v.version {
			return l
		}
		f.version = v.version
		if to := v.route(p); to != l {
			f.waiting = false
			f.lane.Store(to)
		}
	}
}

func (s *placing) lock(l *lane) {
	if s.locked == l {
		return
	}
	if s.locked != nil {
		s.locked.mu.Unlock()
	}
	s.locked = l
	l.mu.Lock()
}

func (s *placing) touch(l *lane) {
	for _, t := range s.touched[:s.n] {
		if t == l {
			return
		}
	}
	if s.n == len(s.touched) {
		signal(l.wake)
		return
	}
	s.touched[s.n] = l
	s.n++
}

func (s *placing) end() {
	if s.locked != nil {
		s.locked.mu.Unlock()
	}
	for _, l := range s.touched[:s.n] {
		signal(l.wake)
	}
}

// live runs the lane's driver, and answers what is left when it ends.
func (l *lane) live() {
	l.driver.run()
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.settleSent("the relay was closed")
	l.settleQueue("the relay was closed")
	l.mu.Lock()
	l.ended = true
	l.mu.Unlock()
	signal(l.kick)
	l.relay.laneEnded(l)
}

// limbo is the driver of the lane for connections that have no backend to go to.
type limbo struct{ lane *lane }

func (d limbo) run() {
	for {
		select {
		case <-d.lane.stop:
			return
		case <-d.lane.wake:
			d.lane.settleQueue("no backend is known")
		}
	}
}

func (d limbo) tick(int64) int64 { return never }
