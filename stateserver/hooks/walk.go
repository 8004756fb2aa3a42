// Package hooks tells others what happens: of stored messages, and of receivers found offline (design: operations,
// hooks.stored and hooks.offline). A hook is driven by the store, not by a queue: for each node there is a cursor in the
// database, the message id up to which everything was told, and it follows the delivery mark. So a crash loses nothing, a
// hook that is slow or away costs no memory and never holds up a message, and each event is told at least once, those of a
// node in the order of their ids.
//
//	walk.go      the cursors: of this process's node, and of nodes that nobody holds
//	events.go    from messages to events, and to batches
//	findings.go  who was found offline
//	target.go    HTTP or gRPC
package hooks

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-im/sluice/stateserver/store"
)

// Names of the hooks, as in the configuration, the database and the metrics.
const (
	Stored  = "stored"
	Offline = "offline"
)

const (
	// pageMax is how many messages are read at once.
	pageMax = 256
	// lookEvery is the pause between two looks whether the mark has moved; it is saved every 200 ms itself.
	lookEvery = 100 * time.Millisecond
	// othersEvery is the pause between two looks for what nobody tells.
	othersEvery = 2 * time.Second
	// claimLife is how long another node's cursor is this process's: longer than a page's calls usually take. After it two
	// may tell the same.
	claimLife = 30 * time.Second
	// readTimeout bounds one query of the store.
	readTimeout = 5 * time.Second
	// retryFirst and retryMax bound the pause after a failure: a hook that is back is told within half a minute.
	retryFirst = 100 * time.Millisecond
	retryMax   = 30 * time.Second
)

// Messages is the part of the store that is read.
type Messages interface {
	Above(ctx context.Context, node int, after int64, limit int) ([]store.Message, error)
}

// Node is this process's node.
type Node interface {
	Lease() store.NodeLease
	// Mark: everything of the node up to it is settled.
	Mark() int64
	Owner() string
}

// Deps are what a Walk works with.
type Deps struct {
	Cursors  store.Hooks
	Messages Messages
	Node     Node
	// Tell tells the events of messages, in this order; an error means that all of them have to be told again.
	Tell    func(ctx context.Context, page []store.Message) error
	Metrics *Metrics
	Log     *slog.Logger
}

// Walk drives one hook.
type Walk struct {
	hook string
	deps Deps
}

// NewWalk makes the walk of the hook that is named.
func NewWalk(hook string, deps Deps) *Walk { return &Walk{hook: hook, deps: deps} }

// Run tells until ctx ends.
func (w *Walk) Run(ctx context.Context) {
	var both sync.WaitGroup
	both.Go(func() { w.repeat(ctx, lookEvery, w.own()) })
	both.Go(func() { w.repeat(ctx, othersEvery, w.others) })
	both.Wait()
}

// repeat calls step again at once as long as it has done something, after idle when there was nothing to do, and less and
// less often while it fails.
func (w *Walk) repeat(ctx context.Context, idle time.Duration, step func(context.Context) (worked bool, err error)) {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = retryFirst, retryMax
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		switch worked, err := step(ctx); {
		case err != nil:
			if ctx.Err() != nil {
				return
			}
			pause := pauses.NextBackOff()
			w.deps.Metrics.failures.WithLabelValues(w.hook).Inc()
			w.deps.Log.Warn("hook could not be told, it will be told again", "hook", w.hook, "again_in", pause, "err", err)
			timer.Reset(pause)
		case worked:
			pauses.Reset()
			timer.Reset(0)
		default:
			pauses.Reset()
			timer.Reset(idle)
		}
	}
}

// own is the step for this process's node. When the node is lost and another one leased, the rest of the old one's is
// found among the others.
func (w *Walk) own() func(context.Context) (bool, error) {
	node, told := -1, int64(0)
	return func(ctx context.Context) (bool, error) {
		l, mark := w.deps.Node.Lease(), w.deps.Node.Mark()
		if l.Node != node {
			at, err := w.start(ctx, l)
			if err != nil {
				return false, err
			}
			node, told = l.Node, at
		}
		if mark <= told {
			w.deps.Metrics.caughtUp(w.hook)
			return false, nil
		}
		next, err := w.page(ctx, store.HookCursor{Node: node, Told: told, Mark: mark})
		if err != nil {
			return false, err
		}
		told = next
		return true, nil
	}
}

func (w *Walk) start(ctx context.Context, l store.NodeLease) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return w.deps.Cursors.StartHook(ctx, w.hook, l)
}

// others is the step for nodes that nobody holds: what their processes left is told by whoever finds it first.
func (w *Walk) others(ctx context.Context) (bool, error) {
	look, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	c, ok, err := w.deps.Cursors.ClaimHook(look, w.hook, w.deps.Node.Owner(), claimLife)
	if err != nil || !ok {
		return false, err
	}
	_, err = w.page(ctx, c)
	return err == nil, err
}

// page tells the next messages of a node and moves its cursor behind them.
func (w *Walk) page(ctx context.Context, c store.HookCursor) (told int64, err error) {
	read, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	rows, err := w.deps.Messages.Above(read, c.Node, c.Told, pageMax)
	if err != nil {
		return 0, err
	}
	told = c.Mark
	if len(rows) == pageMax {
		told = min(told, rows[len(rows)-1].MsgID)
	}
	// Above the mark a message with a lower id may still be on its way into the store.
	for len(rows) > 0 && rows[len(rows)-1].MsgID > told {
		rows = rows[:len(rows)-1]
	}
	if len(rows) > 0 {
		w.deps.Metrics.behind(w.hook, rows[0].ServerAt)
		if err := w.deps.Tell(ctx, rows); err != nil {
			return 0, err
		}
	}
	save, cancelSave := context.WithTimeout(ctx, readTimeout)
	defer cancelSave()
	return told, w.deps.Cursors.SaveHook(save, w.hook, c.Node, told)
}

// Metrics are those of all hooks of a process.
type Metrics struct {
	events, failures *prometheus.CounterVec
	dropped          prometheus.Counter
	lags             map[string]*lag
}

// lag is when the oldest message that was not told yet was stored, ms since 1970; 0 = none waits.
type lag struct {
	mu sync.Mutex
	// Guarded by mu.
	since int64
}

// NewMetrics registers them.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	vec := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"hook"})
	}
	m := &Metrics{
		events:   vec("sluice_hook_events_total", "Events that a hook has taken."),
		failures: vec("sluice_hook_failures_total", "Attempts to tell a hook that failed; what they carried is told again."),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_hook_late_dropped_total",
			Help: "Receivers who were found offline only at a resend, of whom hooks.offline was not told."}),
		lags: map[string]*lag{Stored: {}, Offline: {}},
	}
	errs := []error{r.Register(m.events), r.Register(m.failures), r.Register(m.dropped)}
	for hook, l := range m.lags {
		errs = append(errs, r.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sluice_hook_lag_seconds",
			Help: "Age of the oldest message that a hook was not told of.", ConstLabels: prometheus.Labels{"hook": hook}}, l.seconds)))
	}
	return m, errors.Join(errs...)
}

func (l *lag) seconds() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since == 0 {
		return 0
	}
	return max(0, time.Since(time.UnixMilli(l.since)).Seconds())
}

func (l *lag) set(since int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.since = since
}

func (m *Metrics) behind(hook string, since int64) { m.lags[hook].set(since) }

func (m *Metrics) caughtUp(hook string) { m.lags[hook].set(0) }
