// Package netpoll is the engine of package poller on cloudwego/netpoll: netpoll's pollers read, this package's lanes run
// the handler. It passes the same conformance suite as the oneshot engine; where netpoll does not allow the same, the
// suite's Traits say so, and here is why.
//
// The way of a byte: a poller of netpoll reads, and its OnRequest, run in place, moves the bytes to the connection's
// input and tells the lane that owns the connection. The lane leases it, Handler.Data consumes what it can, and its
// Verdict ends the lease. No goroutine waits for a parked connection: it is only not leased, and a Wake tells its lane.
//
// What is different from the oneshot engine:
//
//   - netpoll reads on whatever the handler says: it has no way to stop. Neither Park nor a client that does not read its
//     replies makes TCP push back. What comes meanwhile is kept up to Config.LeftoverBytes; beyond that the connection
//     ends with CauseInputOverflow. Detaching the descriptor and giving it back to netpoll later would stop the reading,
//     but netpoll may read between the last look into its buffer and the end of the detaching, and those bytes are lost.
//     A connection whose handler is not parked may have burstBytesMax more, since its lane may be busy.
//   - netpoll's Flush waits until the kernel has taken everything, with one goroutine a connection, and lets nobody know
//     that there is room again. So the outbox is written by raw non-blocking writes, and a small epoll instance of the
//     engine (watch) reports room for writing.
//   - netpoll gives a connection up as soon as the peer has finished sending. The engine keeps the descriptor, which the
//     watch looks after from then on: answers can still be written, and a reset is seen.
//   - The pollers belong to the process, not to the engine: they are never stopped, and their settings are made by the
//     first New. OnRequest runs in place instead of in a goroutine a request, so nothing in this process may use netpoll
//     with handlers that wait.
//   - netpoll's poller blocks in epoll_wait and keeps its P until the runtime notices, up to 10 ms: with GOMAXPROCS=1 what
//     other goroutines have to do may wait for that long.
//   - Under TLS the input bound counts what is encrypted and what is left over; what the TLS layer holds in between, one
//     read and one record at most, comes on top.
//   - An idle connection costs netpoll's own struct, its closures, two channels, an output barrier of 1.3 KiB that nobody
//     uses here, and an input buffer (inputBytes).
package netpoll

import (
	"crypto/tls"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/poller/internal/buffer"
	"github.com/sluice-im/sluice/poller/internal/fault"
	"github.com/sluice-im/sluice/poller/internal/gate"
	"github.com/sluice-im/sluice/poller/internal/proxy"
	"github.com/sluice-im/sluice/poller/internal/secure"
	"github.com/sluice-im/sluice/poller/internal/slab"
	"github.com/sluice-im/sluice/poller/internal/wheel"
)

// engine runs connections on netpoll's pollers and its own lanes.
type engine struct {
	// Fixed after New.
	cfg     poller.Config
	handler poller.Handler
	log     *slog.Logger
	slab    *slab.Slab[conn]
	bufs    *buffer.Pools
	limits  *gate.Limits
	shakers *secure.Shakers
	lanes   []*lane
	watch   *watch
	clock   wheel.Clock
	quarter int // of OutboxBytes: above it a connection's handler is not run

	// Any goroutine.
	gates        gate.Gates
	refused      [poller.Causes]atomic.Uint64
	acceptPaused atomic.Uint64
	outboxBytes  atomic.Int64
	panics       *fault.Panics
	running      sync.WaitGroup
}

var (
	_ poller.Engine = (*engine)(nil)
	_ poller.Conns  = (*engine)(nil)
	_ poller.Conn   = (*conn)(nil)
	_ gate.Host     = (*host)(nil)
)

// New starts the engine: its lanes run until Shutdown. It fails as poller.Config.Resolved does, or when the kernel gives no
// epoll instance.
func New(cfg poller.Config, h poller.Handler, log *slog.Logger) (poller.Engine, error) {
	asked := cfg.Connections
	cfg, err := cfg.Resolved()
	if err != nil {
		return nil, err
	}
	if cfg.Connections < asked {
		log.Info("netpoll: connections clamped to the descriptor limit", "asked", asked, "connections", cfg.Connections, "reserve", cfg.Reserve)
	}
	if err := configure(log); err != nil {
		return nil, err
	}
	e := &engine{cfg: cfg, handler: h, log: log, bufs: new(buffer.Pools), limits: gate.NewLimits(gate.Rates(cfg.Accept)),
		shakers: secure.NewShakers(), panics: fault.NewPanics(log), clock: wheel.NewClock(cfg.Tick), quarter: cfg.OutboxBytes / 4}
	e.slab = slab.New(cfg.Connections, func(c *conn, slot uint32) { c.slot, c.gen, c.fd = slot, 1, -1 })
	if e.watch, err = newWatch(e); err != nil {
		return nil, err
	}
	e.running.Add(cfg.Loops)
	for i := range cfg.Loops {
		l := newLane(e, i)
		e.lanes = append(e.lanes, l)
		go l.run() // ended by Shutdown
	}
	return e, nil
}

// Conns implements poller.Engine.
func (e *engine) Conns() poller.Conns { return e }

// Listen implements poller.Engine.
func (e *engine) Listen(l poller.Listener) (net.Addr, error) {
	h := &host{engine: e, listener: uint8(l.Index), tls: l.TLS, policy: proxy.Policy{Mode: proxy.Mode(l.Proxy), Trusted: l.TrustedProxies}}
	return e.gates.Open(l.Index, l.Addr, e.cfg.SendBuffer, h, e.log)
}

// StopAccepting implements poller.Engine.
func (e *engine) StopAccepting() { e.gates.Close() }

// Shutdown implements poller.Engine. Connections are hung up on, and those that are still there after Linger are cut.
// netpoll's pollers go on: they are the process's.
func (e *engine) Shutdown() {
	e.StopAccepting()
	for _, l := range e.lanes {
		l.stop()
	}
	e.running.Wait()
	e.shakers.Wait()
	e.watch.stop()
}

// Stats implements poller.Engine. A pass is one round of a lane, an event what it was told of one connection.
func (e *engine) Stats() poller.Stats {
	s := poller.Stats{AcceptPaused: e.acceptPaused.Load(), OutboxBytes: e.outboxBytes.Load(), Panics: e.panics.Count(),
		Descriptors: e.cfg.Connections}
	s.Open, s.Opened = e.gates.Counts()
	for i := range s.Refused {
		s.Refused[i] = e.refused[i].Load()
	}
	for _, l := range e.lanes {
		s.Parked += l.parked.Load()
		s.Passes += l.passes.Load()
		s.Events += l.events.Load()
		s.PassNanos += l.nanos.Load()
	}
	return s
}

// host takes the connections of one listener.
type host struct {
	engine   *engine
	listener uint8
	tls      *tls.Config // nil on a plain listener
	policy   proxy.Policy
}

// Accepted implements gate.Host: it gives the connection a slot and a lane, or refuses it.
func (h *host) Accepted(fd int, remote netip.AddrPort) {
	e := h.engine
	now := time.Now()
	s, served := h.stageFor(remote)
	if !served {
		h.refuse(fd, poller.CauseBadProxyHeader)
		return
	}
	var quota *gate.Quota
	if s == nil || !s.proxy {
		var ok bool
		if quota, ok = e.limits.Address(h.policy.Counted(remote.Addr()), now); !ok {
			h.refuse(fd, poller.CauseAddressLimit)
			return
		}
	}
	if !e.limits.Rate(now) { // last, or one address over its limit would use up everybody's
		e.limits.Left(quota)
		h.refuse(fd, poller.CauseAcceptRate)
		return
	}
	c := e.slab.Take()
	if c == nil {
		e.limits.Left(quota)
		h.refuse(fd, poller.CauseConnectionLimit)
		return
	}
	l := e.idlest()
	c.mu.Lock()
	c.lane, c.fd, c.quota, c.listener = l, int32(fd), quota, h.listener
	c.state, c.mask = stateOpening, disarmed
	id := c.id()
	c.mu.Unlock()
	l.conns.Add(1)
	l.arrive(incoming{id: id, remote: remote, accepted: e.clock.At(now), stage: s})
}

// refuse closes a connection that Open will not see.
func (h *host) refuse(fd int, cause poller.Cause) {
	h.engine.refused[cause].Add(1) // first, so that whoever sees the end finds it counted
	_ = unix.Close(fd)
}

// Shed implements gate.Host.
func (h *host) Shed() { h.engine.refused[poller.CauseConnectionLimit].Add(1) }

// Paused implements gate.Host.
func (h *host) Paused() { h.engine.acceptPaused.Add(1) }

// idlest is the lane with the fewest connections.
func (e *engine) idlest() *lane {
	best := e.lanes[0]
	for _, l := range e.lanes[1:] {
		if l.conns.Load() < best.conns.Load() {
			best = l
		}
	}
	return best
}
