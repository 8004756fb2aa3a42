package stateserver

import (
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/sluice-im/sluice/stateserver/commit"
	"github.com/sluice-im/sluice/stateserver/dedup"
	"github.com/sluice-im/sluice/stateserver/node"
	"github.com/sluice-im/sluice/stateserver/store"
)

// metrics are the StateServer's own; the delivery has its own (design: operations, "Metrics"). Labels are closed lists.
type metrics struct {
	storeSeconds prometheus.Histogram
	storeBatch   prometheus.Histogram
	storeErrors  *prometheus.CounterVec
	verdicts     *prometheus.CounterVec
	forgotten    prometheus.Counter
	timeouts     prometheus.Counter
	expired      prometheus.Counter
	stale        prometheus.Counter
	ackDrops     *prometheus.CounterVec

	// Conservation, at any moment: messages = ok + retry + gap + fail + in flight.
	messages             prometheus.Counter
	ok, retry, gap, fail prometheus.Counter
}

func newMetrics(s *Server) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	vec := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	m := &metrics{
		storeSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "sluice_store_seconds", Help: "One transaction that numbers and stores messages.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14)}),
		storeBatch: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "sluice_store_batch_size", Help: "Messages in one transaction.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 10)}),
		storeErrors: vec("sluice_store_errors_total", "Failures of the store.", "kind"),
		verdicts:    vec("sluice_dedup_total", "What the gate knew of a message.", "result"),
		forgotten:   counter("sluice_dedup_forgotten_total", "First results that could not be remembered in Redis."),
		timeouts:    counter("sluice_store_waits_over_total", "Messages answered RETRY since the store took too long."),
		expired:     counter("sluice_uplinks_expired_total", "Frames that came too late to be handled."),
		stale:       counter("sluice_uplinks_stale_total", "Frames at or below the highest number taken of their connection."),
		messages:    counter("sluice_messages_total", "MESSAGEUPs whose uuid could be read: each gets one MESSAGEACK."),
		ackDrops:    vec("sluice_client_acks_dropped_total", "DELIVERED and READ without effect.", "reason"),
	}
	answers := vec("sluice_message_answers_total", "MESSAGEACKs by result; gap is a RETRY behind a missing message.", "result")
	m.ok, m.retry, m.gap, m.fail = answers.WithLabelValues("ok"), answers.WithLabelValues("retry"), answers.WithLabelValues("gap"), answers.WithLabelValues("fail")
	s.deps.Registry.MustRegister(answers, m.messages, m.storeSeconds, m.storeBatch, m.storeErrors, m.verdicts, m.forgotten, m.timeouts, m.expired, m.stale, m.ackDrops,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sluice_store_waiting", Help: "Messages that wait for a transaction."},
			func() float64 { return float64(s.commits.Waiting()) }))
	return m
}

func (m *metrics) observer(log *slog.Logger) commit.Observer {
	// A database that is away fails every transaction: one line a second says it.
	sometimes := rate.Sometimes{Interval: time.Second}
	return commit.Observer{
		Transaction: func(items int, took time.Duration, err error) {
			m.storeSeconds.Observe(took.Seconds())
			m.storeBatch.Observe(float64(items))
			if err != nil {
				m.storeErrors.WithLabelValues(kindOf(err)).Inc()
				sometimes.Do(func() { log.Warn("messages could not be stored", "messages", items, "err", err) })
			}
		},
		Collision: func() { m.storeErrors.WithLabelValues("id_collision").Inc() },
	}
}

func kindOf(err error) string {
	switch {
	case errors.Is(err, store.ErrUnknown):
		return "unknown"
	case errors.Is(err, store.ErrLeaseLost), errors.Is(err, node.ErrNoLease):
		return "lease"
	}
	return "failed"
}

func (m *metrics) dedup(v dedup.Verdict) {
	name := [...]string{dedup.Fresh: "new", dedup.InWork: "in_work", dedup.Known: "known", dedup.Reused: "reused", dedup.Unavailable: "unavailable"}[v]
	m.verdicts.WithLabelValues(name).Inc()
}

func (m *metrics) acksDropped(why string) { m.ackDrops.WithLabelValues(why).Inc() }

func (m *metrics) acksDroppedN(why string, n int) { m.ackDrops.WithLabelValues(why).Add(float64(n)) }
