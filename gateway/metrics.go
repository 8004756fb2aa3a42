package gateway

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-im/sluice/api/reason"
)

// result is how a MESSAGEUP ended; the label of sluice_uplinks_total.
type result uint8

const (
	resultOK result = iota
	resultRetry
	resultFail
	resultNone
	resultLost
	results
)

var resultNames = [results]string{"ok", "retry", "fail", "none", "lost"}

// limitAction is the label "action" of sluice_limited_total.
type limitAction uint8

const (
	limitPaused limitAction = iota
	limitRejected
	limitDryRun
	limitActions
)

var limitActionNames = [limitActions]string{"paused", "rejected", "dry_run"}

// latencyBounds are the upper bounds of sluice_uplink_ack_seconds.
var latencyBounds = [...]time.Duration{
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2500 * time.Microsecond,
	5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond,
	250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond,
}

type latencies struct {
	counts [len(latencyBounds) + 1]uint64
	sum    time.Duration
}

func (h *latencies) observe(d time.Duration) {
	i := 0
	for i < len(latencyBounds) && d > latencyBounds[i] {
		i++
	}
	h.counts[i]++
	h.sum += d
}

func (h *latencies) add(o *latencies) {
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.sum += o.sum
}

// tally is what a pass or a batch counts for itself, to be added to the counters at its end. Each tally adds up: what it
// received is what it answered plus what it has put in flight, which is negative when it answered more.
type tally struct {
	received uint64
	inflight int64
	results  [results]uint64
	latency  latencies
	// dropped counts DELIVERED that were not passed on, unmatched answers to nothing in flight, garbage answers that no
	// client could read.
	dropped, unmatched, garbage uint64
	limited                     [limitKinds][limitActions]uint64
}

func (t *tally) add(o *tally) {
	t.received += o.received
	t.inflight += o.inflight
	for i, n := range o.results {
		t.results[i] += n
	}
	t.latency.add(&o.latency)
	t.dropped += o.dropped
	t.unmatched += o.unmatched
	t.garbage += o.garbage
	for i := range o.limited {
		for j, n := range o.limited[i] {
			t.limited[i][j] += n
		}
	}
}

// routeOp and routeResult are the labels of sluice_routes_total.
type (
	routeOp     uint8
	routeResult uint8
)

const (
	opClaim routeOp = iota
	opRelease
	opAudit
	routeOps
)

const (
	routeOK routeResult = iota
	routeRestored
	routeLost
	routeUnknown
	routeResults
)

var (
	routeOpNames     = [routeOps]string{"claim", "release", "audit"}
	routeResultNames = [routeResults]string{"ok", "restored", "lost", "unknown"}
)

// kickResult is the label of sluice_kicks_total: kicks passed on to other gateways.
type kickResult uint8

const (
	kickSent kickResult = iota
	kickFailed
	kickResults
)

var kickResultNames = [kickResults]string{"sent", "failed"}

// forwardResult is the label of sluice_forwards_total: Pushes to other gateways, on behalf of a Send.
type forwardResult uint8

const (
	forwardAnswered forwardResult = iota
	forwardFailed
	// forwardSkipped: the gateway had not answered this Send before.
	forwardSkipped
	forwardResults
)

var forwardResultNames = [forwardResults]string{"answered", "failed", "skipped"}

// tallyShards spreads the answers of several streams; a power of two.
const tallyShards = 8

// counters are the sums of what happens outside of the lanes. A tally is added under one lock, and each adds up by
// itself, so that the books balance at any moment, however many shards are read one after another.
type counters struct {
	shards [tallyShards]struct {
		mu  sync.Mutex
		sum tally // Guarded by mu.
		_   [64]byte
	}

	pushes [pushResults]atomic.Uint64
	routed [routeOps][routeResults]atomic.Uint64
	kicked [kickResults]atomic.Uint64
	passed [forwardResults]atomic.Uint64
}

// add takes over a tally and empties it. shard is any number that spreads well.
func (c *counters) add(shard uint32, t *tally) {
	s := &c.shards[shard%tallyShards]
	s.mu.Lock()
	s.sum.add(t)
	s.mu.Unlock()
	*t = tally{}
}

// books sums up everything counted so far.
func (g *Gateway) books() tally {
	var sum tally
	for i := range g.lanes {
		l := &g.lanes[i]
		l.mu.Lock()
		sum.add(&l.tally)
		l.mu.Unlock()
	}
	for i := range g.counters.shards {
		s := &g.counters.shards[i]
		s.mu.Lock()
		sum.add(&s.sum)
		s.mu.Unlock()
	}
	return sum
}

func (c *counters) route(op routeOp, result routeResult) { c.routed[op][result].Add(1) }

func (c *counters) routes(op routeOp, result routeResult, n int) {
	c.routed[op][result].Add(uint64(n))
}

func (c *counters) forward(result forwardResult) { c.passed[result].Add(1) }

func (c *counters) kick(result kickResult) { c.kicked[result].Add(1) }

// gauges are what is there now, and what has ended, by reason.
type gauges struct {
	// conns counts connections by listener and state.
	conns [][states]atomic.Int64
	park  [holds]atomic.Int64
	// ended and declined count by reason.
	ended    [math.MaxUint8 + 1]atomic.Uint64
	declined [math.MaxUint8 + 1]atomic.Uint64
}

func newGauges(listeners int) *gauges { return &gauges{conns: make([][states]atomic.Int64, listeners)} }

// moved counts a connection's change of state; states stands for "not there".
func (g *gauges) moved(listener int, from, to state) {
	if from < states {
		g.conns[listener][from].Add(-1)
	}
	if to < states {
		g.conns[listener][to].Add(1)
	}
}

// parked counts a connection under the first of the reasons that hold it; counted remembers which, plus one.
func (g *gauges) parked(counted *uint8, held hold) {
	now := uint8(0)
	for i := range uint8(holds) {
		if held&(1<<i) != 0 {
			now = i + 1
			break
		}
	}
	if now == *counted {
		return
	}
	if *counted != 0 {
		g.park[*counted-1].Add(-1)
	}
	if now != 0 {
		g.park[now-1].Add(1)
	}
	*counted = now
}

func (g *gauges) closed(why reason.Reason)  { g.ended[why].Add(1) }
func (g *gauges) refused(why reason.Reason) { g.declined[why].Add(1) }

// live is the number of connections that are logged in.
func (g *gauges) live() int64 {
	n := int64(0)
	for i := range g.conns {
		n += g.conns[i][live].Load() + g.conns[i][refreshing].Load()
	}
	return n
}

// open is the number of connections.
func (g *gauges) open() int64 {
	n := int64(0)
	for i := range g.conns {
		for s := range g.conns[i] {
			n += g.conns[i][s].Load()
		}
	}
	return n
}
