package stateclient

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the relay's series (design: operations). The label backend is an address out of the configuration or DNS;
// the series of a backend that is gone are removed.
type metrics struct {
	batchSize *prometheus.HistogramVec
	seconds   *prometheus.HistogramVec
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
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sluice_relay_seconds", Help: "From sending an uplink to its answer, or to its deadline.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .2, .3, .5},
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
	for _, c := range []prometheus.Collector{m.batchSize, m.seconds, m.late, m.stray, state} {
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

func (m *metrics) forget(addr string) {
	m.batchSize.DeleteLabelValues(addr)
	m.seconds.DeleteLabelValues(addr)
}

// gauges reads what stands in the relay at the time of a scrape.
type gauges struct {
	relay   *relay
	queue   *prometheus.Desc
	breaker *prometheus.Desc
}

func newGauges(r *relay) *gauges {
	return &gauges{
		relay:   r,
		queue:   prometheus.NewDesc("sluice_relay_queue", "Uplinks that wait to be sent.", []string{"backend"}, nil),
		breaker: prometheus.NewDesc("sluice_breaker_state", "0 closed, 1 half-open, 2 open.", []string{"backend"}, nil),
	}
}

func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	ch <- g.queue
	ch <- g.breaker
}

func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	for _, b := range g.relay.known() {
		queued := 0
		for _, l := range b.lanes {
			l.mu.Lock()
			queued += l.queued
			l.mu.Unlock()
		}
		ch <- prometheus.MustNewConstMetric(g.queue, prometheus.GaugeValue, float64(queued), b.addr)
		ch <- prometheus.MustNewConstMetric(g.breaker, prometheus.GaugeValue, float64(b.breaker.State()), b.addr)
	}
}
