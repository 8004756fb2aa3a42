package delivery

import (
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// books keep the conservation of deliveries, per pair of (message, device), over all StateServers together:
//
//	enrolled = acked + exhausted + overflowed + went_offline + lost_with_redis + pending
//
// A user found offline at once counts as one pair that was enrolled and went offline; one whose devices are not known
// counts as one pair until they are. Every number comes from what a script answered. Where an answer was lost the books
// are in doubt, and the audit sets them right.
type books struct {
	// pending is what this instance enrolled less what it saw end. One instance may enrol what another sees end, so only
	// the sum over all is a number of messages.
	pending atomic.Int64
	// awaited counts batches whose answers are not in pending yet.
	awaited atomic.Int64
	// doubt says that an answer was lost since it was last cleared.
	doubt atomic.Bool
	// unacked is the sum over all instances, known to whoever holds the first shard, else 0.
	unacked atomic.Int64

	pairs       map[string]prometheus.Counter
	overflow    prometheus.Counter
	exhausted   prometheus.Counter
	resends     []prometheus.Counter
	cleared     prometheus.Counter
	clientAcks  prometheus.Counter
	seconds     prometheus.Histogram
	pushes      map[string]prometheus.Counter
	notices     prometheus.Counter
	retries     prometheus.Counter
	resolveSkip prometheus.Counter
}

// Outcomes of a pair; the label of sluice_delivery_pairs_total.
const (
	pairEnrolled   = "enrolled"
	pairAcked      = "acked"
	pairExhausted  = "exhausted"
	pairOverflowed = "overflowed"
	pairOffline    = "went_offline"
	pairLost       = "lost_with_redis"
)

// Outcomes of a push to one device; the label of sluice_delivery_pushes_total.
const (
	pushWritten     = "written"
	pushQueued      = "queued"
	pushStale       = "stale_route"
	pushSlow        = "dropped_slow"
	pushDraining    = "draining"
	pushUnreachable = "unreachable"
	pushTimeout     = "timeout"
	pushRefused     = "refused"
	pushQueueFull   = "queue_full"
)

// secondsBuckets reach from an ack on the same host to the end of the schedule (41 s).
var secondsBuckets = [...]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 12, 16, 32, 45}

func newBooks(r prometheus.Registerer, lag func() float64, queued func() float64) (*books, error) {
	b := &books{pairs: make(map[string]prometheus.Counter), pushes: make(map[string]prometheus.Counter)}
	var errs []error
	add := func(c prometheus.Collector) {
		if r == nil {
			return
		}
		if err := r.Register(c); err != nil {
			errs = append(errs, fmt.Errorf("register delivery metrics: %w", err))
		}
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		add(c)
		return c
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
		add(c)
		return c
	}
	pairs := vec("sluice_delivery_pairs_total", "Pairs of (message, device) by what became of them.", "result")
	for _, l := range []string{pairEnrolled, pairAcked, pairExhausted, pairOverflowed, pairOffline, pairLost} {
		b.pairs[l] = pairs.WithLabelValues(l)
	}
	pushes := vec("sluice_delivery_pushes_total", "Pushes to devices by what the gateway said.", "result")
	for _, l := range []string{pushWritten, pushQueued, pushStale, pushSlow, pushDraining, pushUnreachable, pushTimeout, pushRefused, pushQueueFull} {
		b.pushes[l] = pushes.WithLabelValues(l)
	}
	resends := vec("sluice_resends_total", "Messages sent again to a device, by attempt.", "attempt")
	for n := 1; n <= resendsMax; n++ {
		b.resends = append(b.resends, resends.WithLabelValues(strconv.Itoa(n)))
	}
	b.overflow = counter("sluice_resend_overflow_total", "Messages dropped from a user's resend table because it was full; they remain pullable.")
	b.exhausted = counter("sluice_resend_exhausted_total", "Messages of a user given up after their last resend; they remain pullable.")
	b.cleared = counter("sluice_route_cleared_total", "Routes removed because their gateway said that they are stale.")
	b.clientAcks = counter("sluice_client_acks_total", "Cumulative acks of clients.")
	b.notices = counter("sluice_notices_dropped_total", "Best-effort notices dropped for a user or a device.")
	b.retries = counter("sluice_delivery_retries_total", "Messages put off because Redis did not answer.")
	b.resolveSkip = counter("sluice_delivery_mends_dropped_total", "Failed pushes that were left to their schedule because too many had gathered.")
	b.seconds = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "sluice_delivery_seconds",
		Help: "From the gateway's receipt of a message to a receiving client's ack.", Buckets: secondsBuckets[:]})
	add(b.seconds)
	gauge := func(name, help string, f func() float64) {
		add(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, f))
	}
	gauge("sluice_unacked", "Pairs of (message, device) in the resend table; told by the one StateServer that keeps the books.",
		func() float64 { return float64(b.unacked.Load()) })
	gauge("sluice_delivery_mark_lag_seconds", "Age of the oldest message that the delivery mark waits for.", lag)
	gauge("sluice_delivery_queue", "Messages waiting for their lookup and enrolment.", queued)
	return b, errors.Join(errs...)
}

// await is called before a batch is sent, and what it returns when its answers are noted.
func (b *books) await() (noted func()) {
	b.awaited.Add(1)
	return func() { b.awaited.Add(-1) }
}

func (b *books) note(outcome string, pairs int) {
	if pairs <= 0 {
		return
	}
	if outcome == pairEnrolled {
		b.pending.Add(int64(pairs))
	} else {
		b.pending.Add(int64(-pairs))
	}
	b.pairs[outcome].Add(float64(pairs))
}

// offlineAtOnce counts a user for whom nothing was enrolled because nobody is connected.
func (b *books) offlineAtOnce() {
	b.note(pairEnrolled, 1)
	b.note(pairOffline, 1)
}

func (b *books) acked(receivedAt []int64, now time.Time) {
	b.note(pairAcked, len(receivedAt))
	for _, at := range receivedAt {
		if at > 0 {
			b.seconds.Observe(max(now.Sub(time.UnixMilli(at)), 0).Seconds())
		}
	}
}

func (b *books) overflowed(messages, pairs int) {
	b.overflow.Add(float64(messages))
	b.note(pairOverflowed, pairs)
}

func (b *books) gaveUp(pairs int) {
	b.exhausted.Inc()
	b.note(pairExhausted, pairs)
}

func (b *books) resent(attempt, devices int) {
	if attempt >= 1 && attempt <= len(b.resends) {
		b.resends[attempt-1].Add(float64(devices))
	}
}

// trouble gathers the errors of one batch, so that a Redis that is away makes one line a batch and not one a user.
type trouble struct {
	users int
	first error
}

func (t *trouble) add(err error) {
	t.users++
	if t.first == nil {
		t.first = err
	}
}

// report says what went wrong with the resend table, and that the books do not know whether it happened.
func (d *Delivery) report(what string, t trouble) {
	if t.users > 0 {
		d.books.doubt.Store(true)
		d.warnings.warn(what, "users", t.users, "error", t.first)
	}
}
