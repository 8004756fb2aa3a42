// Package fault counts and logs what must not happen and does not end the engine: panics of its handler.
package fault

import (
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// logEvery bounds what a panic that clients can provoke writes into the log.
const logEvery = time.Second

// Panics are those of one engine's handler.
type Panics struct {
	log   *slog.Logger
	count atomic.Uint64
	now   rate.Sometimes
}

// NewPanics logs to log.
func NewPanics(log *slog.Logger) *Panics {
	return &Panics{log: log, now: rate.Sometimes{Interval: logEvery}}
}

// Count is how many there were.
func (p *Panics) Count() uint64 { return p.count.Load() }

// Note counts v, which a call of the handler panicked with, and logs it with the stack, at most one a second. It is called
// by the deferred function that has recovered v.
func (p *Panics) Note(call string, v any) {
	n := p.count.Add(1)
	p.now.Do(func() {
		p.log.Error("poller: panic in the handler", "call", call, "panic", v, "panics", n, "stack", string(debug.Stack()))
	})
}
