package gateway

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/stateclient"
	"github.com/sluice-im/sluice/stateclient/routes"
)

const (
	// closesPerSecondMin is the least pace of a drain: few connections need no spreading.
	closesPerSecondMin = 1000
	// closesSpreadMax is how long a gateway that ends spreads its closes at most: a supervisor loses patience after 10 to
	// 30 s.
	closesSpreadMax = 5 * time.Second
	// drainTick is the pause between two groups of closes, or between two looks at what is left.
	drainTick = 10 * time.Millisecond
	// farewellMax is how long the last disconnects and releases may take.
	farewellMax = 2 * time.Second
	// shutdownMax ends calls on the internal and admin ports that do not end by themselves.
	shutdownMax = time.Second
)

// ErrRunning is returned by a second Run.
var ErrRunning = errors.New("gateway: it runs, or ran, already")

// Run opens every port and serves until ctx ends; then it drains and ends (operations, "SIGTERM drains"). An error names
// the port that is taken, or the part that could not be started. It may be called once.
func (g *Gateway) Run(ctx context.Context) error {
	if !g.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	failed := make(chan error, 2)
	err := g.start(context.WithoutCancel(ctx), failed)
	if err == nil {
		close(g.started)
		g.log.Info("gateway started", "incarnation", g.incarnation, "advertise", g.advertise, "internal", g.internalAt,
			"admin", g.adminAt, "connections_asked", g.cfg.Limits.Connections, "connections_max", g.engine.Stats().Descriptors)
		select {
		case <-ctx.Done():
		case err = <-failed:
		}
		g.drain()
	}
	for i := len(g.closers) - 1; i >= 0; i-- {
		g.closers[i]()
	}
	g.log.Info("gateway ended", "incarnation", g.incarnation)
	return err
}

// onStop adds what undoes the step just taken; Run calls all of them, the last first.
func (g *Gateway) onStop(f func()) { g.closers = append(g.closers, f) }

// start opens and starts everything, the ports for clients last. ctx lives until everything has ended.
func (g *Gateway) start(ctx context.Context, failed chan<- error) error {
	stop := make(chan struct{})
	var background sync.WaitGroup
	background.Go(func() { g.journal.run(ctx, stop) })
	g.onStop(func() { close(stop); background.Wait() })

	var port net.ListenConfig
	inner, err := port.Listen(ctx, "tcp", g.cfg.Internal.Addr)
	if err != nil {
		return fmt.Errorf("internal.addr: %w", err)
	}
	g.onStop(func() { _ = inner.Close() })
	admin, err := port.Listen(ctx, "tcp", g.cfg.Admin.Addr)
	if err != nil {
		return fmt.Errorf("admin.addr: %w", err)
	}
	g.onStop(func() { _ = admin.Close() })
	g.internalAt, g.adminAt, g.advertise = inner.Addr().String(), admin.Addr().String(), g.advertised(inner.Addr())

	if err := g.startRoutes(ctx); err != nil {
		return err
	}
	if err := g.startRelay(); err != nil {
		return err
	}
	if err := g.startEngine(); err != nil {
		return err
	}
	if err := g.startWorkers(ctx); err != nil {
		return err
	}
	g.serve(ctx, inner, admin, failed)
	return g.listen()
}

// openRoutes is the route table in Redis, with a client of its own for the lease, so that no batch of claims delays it.
func openRoutes(o RouteOptions) (RouteTable, RouteLease, func(), error) {
	redis := routes.RedisOptions{Addrs: o.Config.Redis.Addrs, Mode: routes.Mode(o.Config.Redis.Mode),
		MasterName: o.Config.Redis.Master, Username: o.Config.Redis.Username, Password: o.Config.Redis.Password}
	rdb, err := routes.Connect(redis)
	if err != nil {
		return nil, nil, nil, err
	}
	leaseRedis, err := routes.Connect(redis)
	if err != nil {
		_ = rdb.Close()
		return nil, nil, nil, err
	}
	policy := routes.Multi
	if o.Config.Policy == policySingle {
		policy = routes.Single
	}
	table := routes.New(rdb, routes.Options{Policy: policy, DevicesMax: o.Config.DevicesMax, Audit: o.Config.Audit,
		LookupTimeout: o.Config.LookupTimeout})
	lease := routes.NewLease(leaseRedis, routes.LeaseOptions{Incarnation: o.Incarnation, Addr: o.Addr, Build: o.Build,
		Zone: o.Zone, TTL: o.Config.Lease, Every: o.Config.Lease / 3, Table: table,
		OnLost: func(routes.Loss) { o.OnLost() }, Log: o.Log})
	return table, lease, func() { _, _ = rdb.Close(), leaseRedis.Close() }, nil
}

func (g *Gateway) startRoutes(ctx context.Context) error {
	lost := make(chan struct{}, 1)
	table, lease, shut, err := g.deps.Routes(RouteOptions{Config: g.cfg.Routes, Incarnation: g.incarnation, Addr: g.advertise,
		Build: g.build, Zone: g.cfg.Gateway.Zone, OnLost: func() { notify(lost) }, Log: g.log})
	if err != nil {
		return fmt.Errorf("routes.redis: %w", err)
	}
	g.onStop(shut)
	g.lease, g.routes = lease, newRouting(g, table, lost)

	last, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() { g.routes.releaser(last) })
	g.onStop(func() {
		// What is queued is released, unless Redis does not answer in time: then the end of the lease does it.
		g.routes.releases.close()
		after := time.AfterFunc(farewellMax, cancel)
		work.Wait()
		after.Stop()
		cancel()
		// Nobody needs to wait for its end: what was not released above is known to be dead at once.
		if err := g.lease.Release(ctx); err != nil {
			g.log.Warn("lease not released: it ends by itself", "err", err)
		}
	})
	walk, end := context.WithCancel(ctx)
	var walks sync.WaitGroup
	walks.Go(func() { _ = g.lease.Run(walk) })
	walks.Go(func() { g.routes.audit(walk) })
	g.onStop(func() { end(); walks.Wait() })
	return nil
}

func (g *Gateway) startRelay() error {
	c := g.cfg.relay()
	c.Incarnation, c.GatewayAddr, c.Room = g.incarnation, g.advertise, g.courier.room
	relay, err := g.deps.Relay(c, sink{g}, stateclient.Deps{Registerer: g.registry, Log: g.log})
	if err != nil {
		return fmt.Errorf("relay: %w", err)
	}
	g.relay = relay
	g.onStop(func() { g.sayFarewell(); relay.Close() })
	return nil
}

// startEngine starts the loops. They may call the handler as soon as a port is open, which is later.
func (g *Gateway) startEngine() error {
	b, l := g.cfg.Backpressure, g.cfg.Limits
	engine, err := g.deps.Engine(poller.Config{
		Loops: g.cfg.Engine.Loops, Connections: l.Connections, LeftoverBytes: leftoverBytes(&l),
		OutboxBytes: b.OutboxBytes, SendBuffer: b.SendBuffer, WriteTimeout: b.WriteTimeout,
		HandshakeTimeout: l.Handshake.Timeout,
		Accept: poller.Accept{PerSecond: l.Accept.PerSecond, Burst: l.Accept.Burst,
			PerAddrPerSecond: l.Accept.PerIPPerSecond, PerAddrConnections: l.Accept.PerIPConnections},
	}, handler{g}, g.log)
	if err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	g.engine, g.conns = engine, engine.Conns()
	g.onStop(engine.Shutdown)
	if err := g.registry.Register(newCollector(g)); err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}

// leftoverBytes is what a connection may leave unread: a largest frame with its header, or a request, and one read
// behind it.
func leftoverBytes(l *Limits) int {
	const headerMax, read = 14, 16 << 10
	return max(l.Frame.Bytes+headerMax, l.Handshake.HeaderBytes) + read
}

// startWorkers starts the bounded pools: token checks, claims, kicks, the pacer and the courier.
func (g *Gateway) startWorkers(ctx context.Context) error {
	options, err := neighbourOptions(g.cfg.Internal)
	if err != nil {
		return err
	}
	g.neighbours = newNeighbours(options)
	stop := make(chan struct{})
	var pacing sync.WaitGroup
	pacing.Go(func() { g.pacer.run(stop, g.dueAll) })
	pacing.Go(func() { g.courier.run(stop, g) })
	pacing.Go(func() { g.watchMemory(stop) })
	g.onStop(func() { close(stop); pacing.Wait() })

	var claiming, verifying, kicking sync.WaitGroup
	for range claimers {
		claiming.Go(func() { g.claimer(ctx) })
	}
	g.onStop(func() { g.claiming.close(); claiming.Wait() })
	asking, enough := context.WithCancel(ctx)
	count, _ := g.verifiers()
	for range count {
		verifying.Go(func() { g.verifier(asking) })
	}
	g.onStop(func() { g.verifying.close(); enough(); verifying.Wait() })
	for range kickers {
		kicking.Go(func() { g.kicker(ctx) })
	}
	again, giveUp := context.WithCancel(ctx)
	kicking.Go(func() { g.rekicker(again) })
	g.onStop(func() { giveUp(); g.unkicked.close(); g.kicks.close(); kicking.Wait(); g.neighbours.close() })
	return nil
}

// serve opens the internal and the admin port.
func (g *Gateway) serve(ctx context.Context, inner, admin net.Listener, failed chan<- error) {
	calls := newInternalServer(g)
	pages := newAdminServer(g)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := calls.Serve(inner); err != nil {
			failed <- fmt.Errorf("internal port: %w", err)
		}
	})
	serving.Go(func() {
		if err := pages.Serve(admin); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("admin port: %w", err)
		}
	})
	g.onStop(func() {
		after := time.AfterFunc(shutdownMax, calls.Stop)
		calls.GracefulStop()
		after.Stop()
		ctx, cancel := context.WithTimeout(ctx, shutdownMax)
		defer cancel()
		if pages.Shutdown(ctx) != nil {
			_ = pages.Close()
		}
		serving.Wait()
	})
}

// listen opens the ports for clients.
func (g *Gateway) listen() error {
	for i := range g.listeners {
		l := &g.listeners[i]
		at := poller.Listener{Index: i, Addr: l.Listener.Addr, TLS: l.certificates.config(), Proxy: proxyMode(l.ProxyProtocol),
			TrustedProxies: l.proxies}
		bound, err := g.engine.Listen(at)
		if err != nil {
			return fmt.Errorf("listeners[%d] %s: %w", i, l.Name, err)
		}
		l.bound = bound.String()
	}
	return nil
}

func proxyMode(s string) poller.ProxyMode {
	switch s {
	case "optional":
		return poller.ProxyOptional
	case "strict":
		return poller.ProxyStrict
	}
	return poller.ProxyOff
}

// dueAll does what the pacer says is due.
func (g *Gateway) dueAll(ids []poller.ID) {
	o, _ := g.outgoing.Get().(*outgoing)
	if o == nil {
		o = &outgoing{}
	}
	for _, id := range ids {
		g.due(id, o)
	}
	g.sendOff(o, uint32(ids[0]))
	g.outgoing.Put(o)
}

// drain sends clients elsewhere: not ready, no new connections, the open ones closed over a few seconds, each after its
// answers.
func (g *Gateway) drain() {
	g.ending.Store(true)
	g.draining.Store(true)
	time.Sleep(g.cfg.Drain.PreDelay)
	g.engine.StopAccepting()
	open := g.gauges.open()
	rate := float64(open) / min(g.cfg.Drain.Window, closesSpreadMax).Seconds()
	if g.cfg.Drain.Rate > 0 {
		rate = float64(g.cfg.Drain.Rate)
	}
	if rate = max(rate, closesPerSecondMin); math.IsInf(rate, 0) {
		rate = math.MaxInt32
	}
	begun, closed := g.clock(), 0
	g.peers.each(func(_ uint32, p *peer) bool {
		p.mu.Lock()
		id := p.id
		p.mu.Unlock()
		if id == 0 || !g.leave(id, reason.Draining) {
			return true
		}
		closed++
		if ahead := time.Duration(float64(closed)/rate*float64(time.Second)) - (g.clock() - begun); ahead > drainTick {
			time.Sleep(ahead)
		}
		return true
	})
	// Each has leaveMax for its answers, and the engine lingers for a moment.
	for deadline := g.clock() + leaveMax + farewellMax; g.gauges.open() > 0 && g.clock() < deadline; {
		time.Sleep(drainTick)
	}
}

// sayFarewell waits until the relay has passed the last disconnects on.
func (g *Gateway) sayFarewell() {
	for i := range g.lanes {
		l := &g.lanes[i]
		l.mu.Lock()
		g.submit(l)
		l.mu.Unlock()
	}
	for deadline := g.clock() + farewellMax; g.farewells.Load() > 0 && g.clock() < deadline; {
		time.Sleep(drainTick)
	}
}

func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
