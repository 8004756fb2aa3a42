package stateclient

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the relay's series (design: operations). The label backend is an address out of the configuration or DNS;
// the series of a backend that is gone are removed.
type metrics struct {
	batchSize *prometheus.HistogramVec
	late      prometheus.Counter
	stray     *prometheus.CounterVec
	// Curried from stray: answers that no honest backend gives.
	foreign, twice, disorder, oversize, garbage prometheus.Counter

	registered []prometheus.Collector
	registerer prometheus.Registerer
}

func newMetrics(reg prometheus.Registerer, state prometheus.Collector) (*metrics, error) {
	m := &metrics{
		batchSize: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sluice_relay_batch_size", Help: "Uplinks in one batch, or 1 for one unary call.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 10),
		}, []string{"backend"}),
		late: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_answers_late_total", Help: "Answers dropped because their uplink had been answered already.",
		}),
		stray: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_answers_stray_total", Help: "Answers and streams that break the relay contract.",
		}, []string{"kind"}),
		registerer: reg,
	}
	m.foreign = m.stray.WithLabelValues("foreign")
	m.twice = m.stray.WithLabelValues("twice")
	m.disorder = m.stray.WithLabelValues("disorder")
	m.oversize = m.stray.WithLabelValues("oversize")
	m.garbage = m.stray.WithLabelValues("garbage")
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.batchSize, m.late, m.stray, state} {
		if err := reg.Register(c); err != nil {
			m.unregister()
			return nil, errors.Join(errors.New("stateclient: register metrics"), err)
		}
		m.registered = append(m.registered, c)
	}
	return m, nil
}

func (m *metrics) unregister() {
	for _, c := range m.registered {
		m.registerer.Unregister(c)
	}
}

func (m *metrics) forget(addr string) { m.batchSize.DeleteLabelValues(addr) }

// latency is one lane's share of sluice_relay_seconds. It is counted under the lane's mutex, which is held anyway: a
// histogram of the library's would cost every uplink several atomic operations more.
type latency struct {
	counts [len(latencyBounds) + 1]uint64
	sum    int64
}

// latencyBounds are upper bounds in nanoseconds: from a batch on the same machine to the deadline and beyond.
var latencyBounds = [...]int64{500e3, 1e6, 2500e3, 5e6, 10e6, 25e6, 50e6, 100e6, 200e6, 300e6, 500e6}

func (c *latency) observe(ns int64) {
	c.sum += ns
	for i, bound := range latencyBounds {
		if ns <= bound {
			c.counts[i]++
			return
		}
	}
	c.counts[len(latencyBounds)]++
}

func (c *latency) add(o *latency) {
	c.sum += o.sum
	for i, n := range o.counts {
		c.counts[i] += n
	}
}

func (c *latency) metric(desc *prometheus.Desc, label string) prometheus.Metric {
	below, total := make(map[float64]uint64, len(latencyBounds)), uint64(0)
	for i, bound := range latencyBounds {
		total += c.counts[i]
		below[float64(bound)/1e9] = total
	}
	total += c.counts[len(latencyBounds)]
	return prometheus.MustNewConstHistogram(desc, total, float64(c.sum)/1e9, below, label)
}

// scrape reads what stands in the relay at the time of a scrape.
type scrape struct {
	relay   *relay
	queue   *prometheus.Desc
	breaker *prometheus.Desc
	seconds *prometheus.Desc
}

func newScrape(r *relay) *scrape {
	return &scrape{
		relay:   r,
		queue:   prometheus.NewDesc("sluice_relay_queue", "Uplinks that wait to be sent.", []string{"backend"}, nil),
		seconds: prometheus.NewDesc("sluice_relay_seconds", "From sending an uplink to its answer, or to its deadline.", []string{"backend"}, nil),
		breaker: prometheus.NewDesc("sluice_breaker_state", "0 closed, 1 half-open, 2 open.", []string{"backend"}, nil),
	}
}

func (g *scrape) Describe(ch chan<- *prometheus.Desc) {
	ch <- g.queue
	ch <- g.breaker
	ch <- g.seconds
}

func (g *scrape) Collect(ch chan<- prometheus.Metric) {
	for _, b := range g.relay.known() {
		queued, all := 0, latency{}
		for _, l := range b.lanes {
			l.mu.Lock()
			queued += l.queued
			all.add(&l.latency)
			l.mu.Unlock()
		}
		ch <- prometheus.MustNewConstMetric(g.queue, prometheus.GaugeValue, float64(queued), b.addr)
		ch <- prometheus.MustNewConstMetric(g.breaker, prometheus.GaugeValue, float64(b.breaker.State()), b.addr)
		ch <- all.metric(g.seconds, b.addr)
	}
}
