package poller

import (
	"log/slog"
	"net"
	"sync"
	"sync/atomic"

	"github.com/sluice-im/sluice/poller/internal/buffer"
	"github.com/sluice-im/sluice/poller/internal/fault"
	"github.com/sluice-im/sluice/poller/internal/gate"
	"github.com/sluice-im/sluice/poller/internal/proxy"
	"github.com/sluice-im/sluice/poller/internal/secure"
	"github.com/sluice-im/sluice/poller/internal/slab"
	"github.com/sluice-im/sluice/poller/internal/wheel"
)

// ErrShutdown is returned by Listen after StopAccepting or Shutdown.
var ErrShutdown = gate.ErrClosed

// engine is the oneshot engine: own loops on epoll, one goroutine each, and one gate a listener.
type engine struct {
	// Fixed after New.
	cfg     Config
	handler Handler
	log     *slog.Logger
	slab    *slab.Slab[conn]
	bufs    *buffer.Pools
	limits  *gate.Limits
	shakers *secure.Shakers
	all     []*loop
	clock   wheel.Clock
	quarter int // of OutboxBytes: above it a connection is not read

	// Any goroutine.
	gates        gate.Gates
	refused      [Causes]atomic.Uint64
	acceptPaused atomic.Uint64
	outboxBytes  atomic.Int64
	panics       *fault.Panics
	loops        sync.WaitGroup
}

var (
	_ Engine = (*engine)(nil)
	_ Conns  = (*engine)(nil)
	_ Conn   = (*conn)(nil)

	_ gate.Host = (*acceptor)(nil)
)

// New starts the oneshot engine: its loops run until Shutdown. It fails when a field of cfg is negative, when the
// descriptor limit leaves nothing after cfg.Reserve, or when the kernel gives no epoll instance.
func New(cfg Config, h Handler, log *slog.Logger) (Engine, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	asked := cfg.Connections
	cfg, err := cfg.clamp()
	if err != nil {
		return nil, err
	}
	if cfg.Connections < asked {
		log.Info("poller: connections clamped to the descriptor limit", "asked", asked, "connections", cfg.Connections, "reserve", cfg.Reserve)
	}
	e := &engine{cfg: cfg, handler: h, log: log, bufs: new(buffer.Pools), limits: gate.NewLimits(gate.Rates(cfg.Accept)),
		shakers: secure.NewShakers(), panics: fault.NewPanics(log), clock: wheel.NewClock(cfg.Tick), quarter: cfg.OutboxBytes / 4}
	e.slab = slab.New(cfg.Connections, func(c *conn, slot uint32) { c.slot, c.gen = slot, 1 })
	for i := range cfg.Loops {
		l, err := newLoop(e, i)
		if err != nil {
			e.halt()
			return nil, err
		}
		e.all = append(e.all, l)
		e.loops.Add(1)
		go l.run() // ended by Shutdown
	}
	return e, nil
}

// Conns implements Engine.
func (e *engine) Conns() Conns { return e }

// Listen implements Engine.
func (e *engine) Listen(l Listener) (net.Addr, error) {
	a := &acceptor{engine: e, index: uint8(l.Index), tls: l.TLS, policy: proxy.Policy{Mode: proxy.Mode(l.Proxy), Trusted: l.TrustedProxies}}
	return e.gates.Open(l.Index, l.Addr, e.cfg.SendBuffer, a, e.log)
}

// StopAccepting implements Engine.
func (e *engine) StopAccepting() { e.gates.Close() }

// Shutdown implements Engine. Connections are hung up on, and those that are still there after Linger are cut.
func (e *engine) Shutdown() {
	e.StopAccepting()
	e.halt()
}

func (e *engine) halt() {
	for _, l := range e.all {
		l.stop()
	}
	e.loops.Wait()
	e.shakers.Wait()
}

// Stats implements Engine.
func (e *engine) Stats() Stats {
	s := Stats{AcceptPaused: e.acceptPaused.Load(), OutboxBytes: e.outboxBytes.Load(), Panics: e.panics.Count(),
		Descriptors: e.cfg.Connections}
	s.Open, s.Opened = e.gates.Counts()
	for i := range s.Refused {
		s.Refused[i] = e.refused[i].Load()
	}
	for _, l := range e.all {
		s.Parked += l.parked.Load()
		s.Passes += l.passes.Load()
		s.Events += l.events.Load()
		s.PassNanos += l.nanos.Load()
	}
	return s
}
