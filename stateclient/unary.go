package stateclient

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// probeEvery is the shortest time between two questions to a backend whether it lives.
const probeEvery = int64(2 * time.Second)

// unary is the driver of mode unary. Its goroutine (run) starts workers, of which there is one for each concurrent call;
// another one watches the connection. A worker ends when the queue is empty. Of one connection only one call is under
// way, so the lane's queue holds nothing but the heads of chains whose connection is not being served.
type unary struct {
	// Fixed after New.
	lane       *lane
	callsMax   int
	generation uint32
	ctx        context.Context
	cancel     context.CancelFunc

	// conn is set by run before anything else uses it.
	conn    *grpc.ClientConn
	workers sync.WaitGroup
	// probeAt is the minder's; probes is the one probe that may be under way.
	probeAt int64
	probes  atomic.Bool
	// noConnect and noDisconnect remember UNIMPLEMENTED until the connection was made anew.
	noConnect, noDisconnect atomic.Bool

	// Guarded by lane.mu.
	busy int
}

func newUnary(l *lane) *unary {
	u := &unary{
		lane: l, callsMax: max(l.relay.cfg.Calls/l.relay.cfg.StreamsPerBackend, 1),
		generation: l.relay.generations.Add(1),
	}
	u.ctx, u.cancel = context.WithCancel(context.Background())
	return u
}

func (u *unary) run() {
	l := u.lane
	conn, err := l.relay.connect(l.backend.addr)
	if err != nil {
		// Only options that no backend could be reached with fail here; everything is answered NoBackend.
		l.relay.log.Error("backend cannot be used", "backend", l.backend.addr, "error", err)
		limbo{l}.run()
		return
	}
	defer func() { _ = conn.Close() }()
	defer u.workers.Wait()
	defer u.cancel()
	u.conn = conn
	u.workers.Go(u.watch)
	for !u.dispatch() {
		select {
		case <-l.stop:
			return
		case <-l.wake:
		}
	}
}

// watch follows the state of the connection. It ends when ctx does.
func (u *unary) watch() {
	l := u.lane
	defer l.relay.laneDown(l)
	for {
		state := u.conn.GetState()
		switch state {
		case connectivity.Ready:
			u.noConnect.Store(false)
			u.noDisconnect.Store(false)
			l.relay.laneUp(l)
			signal(l.kick)
		case connectivity.Idle:
			l.relay.laneDown(l)
			u.conn.Connect()
		case connectivity.TransientFailure:
			l.relay.laneDown(l)
			l.backend.failed(1)
		case connectivity.Connecting, connectivity.Shutdown:
			l.relay.laneDown(l)
		}
		signal(l.wake)
		if !u.conn.WaitForStateChange(u.ctx, state) {
			return
		}
	}
}

// dispatch starts as many calls as the queue, the breaker and the bound allow. It says whether the lane is to end.
func (u *unary) dispatch() (ended bool) {
	l := u.lane
	if !l.up.Load() {
		return l.unserved()
	}
	for {
		c, ok := u.next()
		if !ok {
			break
		}
		u.workers.Go(func() { u.serve(c) })
	}
	return l.over()
}

// next takes one uplink from the queue; ok is false when there is none, or it may not be sent now.
func (u *unary) next() (c call, ok bool) {
	l, now := u.lane, u.lane.relay.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := l.queue.head; i != 0 && budget(&l.slab.items[i], now) == 0; i = l.queue.head {
		l.leave(i) // Expired: the wheel ends it.
	}
	i := l.queue.head
	if i == 0 || u.busy >= u.callsMax || !l.up.Load() || u.ctx.Err() != nil {
		return c, false
	}
	if l.backend.admits(1) == 0 {
		l.mu.Unlock()
		l.settleQueue("the breaker is open")
		l.mu.Lock()
		return c, false
	}
	it := l.dequeue(i, now)
	u.busy++
	f := &it.uplink.Peer.flight
	f.calling = true
	c = call{place: i, id: it.call, uplink: it.uplink, deadline: it.deadline}
	if it.uplink.Kind != KindDisconnect {
		c.announce = it.uplink.Kind == KindFrame && f.announced != u.generation
		f.announced = u.generation
	}
	return c, true
}

// serve is one worker. It ends when there is nothing it may send.
func (u *unary) serve(c call) {
	w := worker{unary: u}
	for ok := true; ok; c, ok = u.next() {
		w.do(&c)
	}
}

// done ends a call, and lets the next uplink of its connection into the queue.
func (u *unary) done(c *call, a answer, code codes.Code) {
	l := u.lane
	l.deliver.Lock()
	l.mu.Lock()
	u.busy--
	f := &c.uplink.Peer.flight
	f.calling = false
	it := &l.slab.items[c.place]
	mine := it.call == c.id
	switch {
	case mine:
		l.settle(c.place, a)
	case a.outcome == Answered:
		l.relay.metrics.late.Inc()
	}
	if h := f.head; h != 0 && l.slab.items[h].where == nowhere {
		l.enqueue(h)
	}
	l.mu.Unlock()
	l.give()
	l.deliver.Unlock()
	switch {
	case !mine || a.outcome == Broken: // Its deadline, or the end of the relay, was counted where it was found.
	case a.outcome == TimedOut || sick(code):
		l.backend.failed(1)
	default:
		l.backend.succeeded()
	}
}

// tick asks a backend whether it lives when nothing else would close its breaker. Any answer but "not serving" says that
// it does, since a logic tier need not have the health service.
func (u *unary) tick(now int64) int64 {
	l := u.lane
	if now < u.probeAt || !l.up.Load() || !l.backend.pingCloses(now) || u.probes.Swap(true) {
		return never // The relay kicks the lanes of a half-open breaker often.
	}
	u.probeAt = now + probeEvery
	l.relay.wg.Go(func() {
		defer u.probes.Store(false)
		ctx, cancel := context.WithTimeout(u.ctx, l.relay.cfg.Timeout)
		defer cancel()
		reply, err := grpc_health_v1.NewHealthClient(u.conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		if ctx.Err() == nil && !sick(status.Code(err)) && reply.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
			l.backend.succeeded()
		}
	})
	return never
}
