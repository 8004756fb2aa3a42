package gateway

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/poller"
)

// collector reads the counters when a scrape asks for them, so that the hot path knows nothing of prometheus.
type collector struct {
	g *Gateway

	connections, opened, closed, refused  *prometheus.Desc
	received, inflight, uplinks, ack      *prometheus.Desc
	dropped, unmatched, garbage, limited  *prometheus.Desc
	pushes, parked, outbox, pass, events  *prometheus.Desc
	routes, kicks, logDropped, panics     *prometheus.Desc
	releases, releasesDropped, disconnect *prometheus.Desc
	acceptPaused, descriptors, forwards   *prometheus.Desc
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("sluice_"+name, help, labels, nil)
}

func newCollector(g *Gateway) *collector {
	return &collector{g: g,
		connections:     desc("connections", "Open connections.", "listener", "state"),
		opened:          desc("connections_opened_total", "Connections accepted.", "listener"),
		closed:          desc("connections_closed_total", "Connections that ended.", "reason", "by"),
		refused:         desc("connections_refused_total", "Connections, upgrades and logins refused.", "reason"),
		received:        desc("uplinks_received_total", "MESSAGEUP received."),
		inflight:        desc("uplinks_inflight", "MESSAGEUP not answered yet."),
		uplinks:         desc("uplinks_total", "MESSAGEUP by how they ended.", "result"),
		ack:             desc("uplink_ack_seconds", "From receiving a MESSAGEUP to writing its answer."),
		dropped:         desc("delivered_dropped_total", "DELIVERED that the logic tier did not take: the next one covers it."),
		unmatched:       desc("answers_unmatched_total", "Answers to nothing that was in flight."),
		garbage:         desc("answers_garbage_total", "Answers that are no Command, or larger than a frame may be."),
		limited:         desc("limited_total", "Frames that met a limit.", "limit", "action"),
		pushes:          desc("pushes_total", "Pushes by result.", "result"),
		parked:          desc("parked_connections", "Connections that are not read.", "reason"),
		outbox:          desc("outbox_bytes", "Bytes that the kernel has not taken yet."),
		pass:            desc("loop_pass_seconds", "Time of loop passes, outside of epoll_wait."),
		events:          desc("loop_events", "Events of the loops."),
		routes:          desc("routes_total", "Routes written and released.", "op", "result"),
		kicks:           desc("kicks_total", "Kicks passed on to other gateways.", "result"),
		forwards:        desc("forwards_total", "Pushes to other gateways on behalf of a Send, by result.", "result"),
		logDropped:      desc("log_lines_dropped_total", "Log lines dropped because the log was too slow."),
		panics:          desc("panics_total", "Panics of the handler, each of which closed its connection."),
		releases:        desc("route_releases_waiting", "Releases of routes that wait to be answered."),
		releasesDropped: desc("route_releases_dropped_total", "Releases of routes that were given up."),
		disconnect:      desc("disconnects_dropped_total", "Ends of connections that the logic tier was not told of."),
		acceptPaused:    desc("accept_paused_total", "Pauses of accepting for want of descriptors."),
		descriptors:     desc("connections_max", "The limit on connections after clamping."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.connections, c.opened, c.closed, c.refused, c.received, c.inflight, c.uplinks, c.ack,
		c.dropped, c.unmatched, c.garbage, c.limited, c.pushes, c.parked, c.outbox, c.pass, c.events, c.routes, c.kicks,
		c.logDropped, c.panics, c.releases, c.releasesDropped, c.disconnect, c.acceptPaused, c.descriptors, c.forwards} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	c.books(ch, counter, gauge)
	c.ends(counter, gauge)
	c.engine(ch, counter, gauge)
	for i, name := range pushResultNames {
		if i > 0 {
			counter(c.pushes, float64(c.g.counters.pushes[i].Load()), name)
		}
	}
	for op := range routeOps {
		for r := range routeResults {
			counter(c.routes, float64(c.g.counters.routed[op][r].Load()), routeOpNames[op], routeResultNames[r])
		}
	}
	for r := range kickResults {
		counter(c.kicks, float64(c.g.counters.kicked[r].Load()), kickResultNames[r])
	}
	for r := range forwardResults {
		counter(c.forwards, float64(c.g.counters.passed[r].Load()), forwardResultNames[r])
	}
	counter(c.logDropped, float64(c.g.journal.dropped.Load()))
	waiting, lost := c.g.routes.releases.depth()
	gauge(c.releases, float64(waiting))
	counter(c.releasesDropped, float64(lost))
	counter(c.disconnect, float64(c.g.courier.droppedCount()))
}

type emit func(d *prometheus.Desc, v float64, labels ...string)

// books exports the conservation of MESSAGEUP, read as one whole.
func (c *collector) books(ch chan<- prometheus.Metric, counter, gauge emit) {
	sum := c.g.books()
	counter(c.received, float64(sum.received))
	gauge(c.inflight, float64(sum.inflight))
	for r := range results {
		counter(c.uplinks, float64(sum.results[r]), resultNames[r])
	}
	buckets, n := make(map[float64]uint64, len(latencyBounds)), uint64(0)
	for i, bound := range latencyBounds {
		n += sum.latency.counts[i]
		buckets[bound.Seconds()] = n
	}
	n += sum.latency.counts[len(latencyBounds)]
	ch <- prometheus.MustNewConstHistogram(c.ack, n, sum.latency.sum.Seconds(), buckets)
	counter(c.dropped, float64(sum.dropped))
	counter(c.unmatched, float64(sum.unmatched))
	counter(c.garbage, float64(sum.garbage))
	for kind := limitMessages; kind < limitKinds; kind++ {
		for action := range limitActions {
			counter(c.limited, float64(sum.limited[kind][action]), limitNames[kind], limitActionNames[action])
		}
	}
}

func (c *collector) ends(counter, gauge emit) {
	for i := range c.g.listeners {
		for s := range states {
			gauge(c.connections, float64(c.g.gauges.conns[i][s].Load()), c.g.listeners[i].Name, stateNames[s])
		}
	}
	for i, name := range holdNames {
		gauge(c.parked, float64(c.g.gauges.park[i].Load()), name)
	}
	for _, r := range reason.All() {
		if n := c.g.gauges.ended[r].Load(); n > 0 {
			counter(c.closed, float64(n), r.String(), string(endedBy(r)))
		}
	}
}

func (c *collector) engine(ch chan<- prometheus.Metric, counter, gauge emit) {
	stats := c.g.engine.Stats()
	for i, n := range stats.Opened {
		counter(c.opened, float64(n), c.g.listeners[i].Name)
	}
	refused := make(map[reason.Reason]uint64)
	for cause, n := range stats.Refused {
		if n > 0 {
			refused[causeReason(poller.Cause(cause))] += n
		}
	}
	for _, r := range reason.All() {
		if n := refused[r] + c.g.gauges.declined[r].Load(); n > 0 {
			counter(c.refused, float64(n), r.String())
		}
	}
	gauge(c.outbox, float64(stats.OutboxBytes))
	counter(c.events, float64(stats.Events))
	ch <- prometheus.MustNewConstSummary(c.pass, stats.Passes, time.Duration(stats.PassNanos).Seconds(), nil)
	counter(c.panics, float64(stats.Panics))
	counter(c.acceptPaused, float64(stats.AcceptPaused))
	gauge(c.descriptors, float64(stats.Descriptors))
}
