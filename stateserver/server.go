// Package stateserver is the reference logic tier. The way of a message through it, and the file of each step:
//
//  1. stream.go    a batch comes from a gateway; frames of one connection stay in order, and so do their answers
//  2. handle.go    the frame is decoded and checked
//  3. dedup        what is known is answered again (package dedup)
//  4. reorder      windowed senders keep their order (package reorder)
//  5. commit       numbered and durable in one transaction (packages commit and store)
//  6. uplink.go    MESSAGEACK
//  7. deliver.go   handed to the delivery
//
// Beside it: sync.go (SYNC, PULL), position.go (DELIVERED, READ), takeover.go (messages of dead nodes), messaging.go (its
// own API), hooks.go (who else is told), admin.go.
package stateserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"

	"github.com/sluice-im/sluice/stateserver/commit"
	"github.com/sluice-im/sluice/stateserver/dedup"
	"github.com/sluice-im/sluice/stateserver/node"
	"github.com/sluice-im/sluice/stateserver/reorder"
	"github.com/sluice-im/sluice/stateserver/store"
)

// Frame is a command of the user's own (type 1000 and above).
type Frame struct {
	UID, DeviceID string
	Type          int32
	Data          []byte
}

// Deps are what a Server works with besides its Config.
type Deps struct {
	// Delivery makes the downlink half. Needed.
	Delivery func(DeliveryParts) (Delivery, error)
	// Redis is used instead of a client made from Config.Redis; the caller closes it.
	Redis redis.UniversalClient
	// Store is used instead of the one that Config.Store names; the caller closes it.
	Store store.Store
	// Registry takes the metrics and is what the admin port shows. Default: a new one.
	Registry *prometheus.Registry
	// Log gets the log lines. Default: discarded.
	Log *slog.Logger
	// Failpoint is called at the places that the Failpoint constants name. Default: nothing.
	Failpoint func(name string)
	// Custom answers commands of type 1000 and above with the bytes of a Command, or nothing; its error's gRPC status goes
	// back for that frame alone. Without it they are Unimplemented. It runs in one of a bounded number of goroutines.
	Custom func(ctx context.Context, f Frame) (payload []byte, err error)
	// Offline says who of uids has no connection, for hooks.offline; an error means that it is not known. Needed with it.
	Offline func(ctx context.Context, uids []string) ([]string, error)
	// ServerOptions are added when the gRPC server is made.
	ServerOptions []grpc.ServerOption
}

// Names of the failpoints: where a test may end the process.
const (
	FailpointInserted  = "store.after_insert"  // rows are in, the transaction is open
	FailpointCommit    = "store.before_commit" // nothing more is to be done but COMMIT
	FailpointCommitted = "store.after_commit"  // durable, nobody has been told, nothing is enrolled
	FailpointReply     = "reply.before"        // before an answer of the store goes out
)

// Server is one StateServer.
type Server struct {
	// Fixed after New.
	cfg        Config
	deps       Deps
	log        *slog.Logger
	fail       func(string)
	store      store.Store
	redis      redis.UniversalClient
	closers    []func() error
	node       *node.Node
	gate       *dedup.Gate
	order      *reorder.Table
	latePolicy reorder.Policy
	commits    *commit.Committers
	delivery   Delivery
	metrics    *metrics
	memory     *memory
	positions  *positions
	queries    *queries
	customs    *queries
	groups     *groupCache
	peers      *connections
	waits      *waits
	rates      *rates
	listener   net.Listener
	admin      net.Listener
	grpc       *grpc.Server
	streams    *streams
	hooks      *hookSet
	// queryFailed keeps lines about queries apart.
	queryFailed rate.Sometimes

	running  atomic.Bool
	draining atomic.Bool
}

// Bounds of the session table: 64 Ki windowed conversations a server at once; a session is kept longer than a client
// resends (give_up 60 s), and held messages share 64 MiB.
const (
	sessionsMax  = 1 << 16
	sessionsIdle = 10 * time.Minute
	heldBytesMax = 64 << 20
)

// New opens what the server works with and listens. An error names what could not be opened; nothing is left open then.
func New(ctx context.Context, cfg Config, deps Deps) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Delivery == nil {
		return nil, errors.New("stateserver: Deps.Delivery is needed")
	}
	if deps.Log == nil {
		deps.Log = slog.New(slog.DiscardHandler)
	}
	if deps.Failpoint == nil {
		deps.Failpoint = func(string) {}
	}
	if deps.Registry == nil {
		deps.Registry = prometheus.NewRegistry()
	}
	s := &Server{cfg: cfg, deps: deps, log: deps.Log, fail: deps.Failpoint, store: deps.Store, redis: deps.Redis,
		queryFailed: rate.Sometimes{Interval: time.Second}}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *Server) open(ctx context.Context) error {
	var err error
	var listen net.ListenConfig
	if s.listener, err = listen.Listen(ctx, "tcp", s.cfg.GRPC.Addr); err != nil {
		return fmt.Errorf("listen on grpc.addr: %w", err)
	}
	s.closers = append(s.closers, closeListener(s.listener))
	if s.cfg.Admin.Addr != "" {
		if s.admin, err = listen.Listen(ctx, "tcp", s.cfg.Admin.Addr); err != nil {
			return fmt.Errorf("listen on admin.addr: %w", err)
		}
		s.closers = append(s.closers, closeListener(s.admin))
	}
	if s.store == nil {
		if s.store, err = store.Open(ctx, s.cfg.Store.DSN, store.Options{Log: s.log, Failpoint: s.fail}); err != nil {
			return err
		}
		s.closers = append(s.closers, s.store.Close)
	}
	if s.redis == nil {
		s.redis = newRedis(s.cfg)
		s.closers = append(s.closers, s.redis.Close)
	}
	if s.node, err = node.Acquire(ctx, s.store, s.log); err != nil {
		return err
	}
	return s.build() //nolint:contextcheck // each call that comes in has a context of its own
}

func (s *Server) build() error {
	var err error
	s.metrics = newMetrics(s)
	s.gate = dedup.New(s.redis, s.cfg.Dedup.TTL, s.cfg.Dedup.Timeout)
	if s.cfg.Reorder.Policy == "deliver" {
		s.latePolicy = reorder.Deliver
	}
	s.order = reorder.New(reorder.Config{Policy: s.latePolicy, Window: s.cfg.Reorder.Window, Wait: s.cfg.Reorder.Wait,
		HeldBytesMax: heldBytesMax, SessionsMax: sessionsMax, Idle: sessionsIdle})
	s.memory = newMemory(s)
	s.positions = newPositions(s)
	s.queries, s.customs = newQueries(), newQueries()
	s.groups = newGroupCache(s.store)
	s.peers = newConnections()
	s.waits = &waits{}
	s.rates = newRates(s.cfg.Limits.UIDMessagesPerSecond)
	s.streams = newStreams()
	if s.hooks, err = s.newHooks(); err != nil {
		return err
	}
	s.delivery, err = s.deps.Delivery(DeliveryParts{
		Load: s.store.Load, SaveMark: s.node.SaveMark, Redeliver: s.redeliverOwn, Offline: s.hooks.found(), Gone: s.hooks.gone(),
		Registerer: s.deps.Registry, Log: s.log, Failpoint: s.fail,
	})
	if err != nil {
		return err
	}
	s.commits = commit.New(commit.Config{}, commit.Deps{
		Store: s.store, IDs: s.node, Delivery: handover{s}, Observer: s.metrics.observer(s.log), Log: s.log, Failpoint: s.fail,
	})
	s.grpc, err = s.newGRPC()
	return err
}

func closeListener(l net.Listener) func() error {
	return func() error {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
		return nil
	}
}

func (s *Server) close() error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i]())
	}
	return errors.Join(errs...)
}

// Addr is where gateways connect.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// AdminAddr is where probes and metrics are; empty when the port is off.
func (s *Server) AdminAddr() string {
	if s.admin == nil {
		return ""
	}
	return s.admin.Addr().String()
}

// Run serves until ctx ends, then drains: streams are told, what is in flight is answered, delivery keeps what it has on
// record, and the node lease is given back. It may be called once; it closes what New opened.
func (s *Server) Run(ctx context.Context) error {
	if !s.running.CompareAndSwap(false, true) {
		return errors.New("stateserver: Run was called before")
	}
	// Workers outlive ctx until the streams have ended: answers in flight need them.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	down, stopDown := context.WithCancel(context.WithoutCancel(ctx))
	defer stopDown()

	var serving, working, delivering sync.WaitGroup
	failed := make(chan error, 3)
	serving.Go(func() { failed <- s.grpc.Serve(s.listener) })
	if s.admin != nil {
		serving.Go(func() { failed <- s.serveAdmin(down) })
	}
	delivering.Go(func() {
		if err := s.delivery.Run(down); err != nil {
			failed <- fmt.Errorf("delivery: %w", err)
		}
	})
	for _, run := range []func(context.Context){
		s.commits.Run, s.memory.run, s.positions.run, s.queries.run, s.customs.run, s.sweep, s.takeOver, s.hooks.run,
	} {
		working.Go(func() { run(work) })
	}
	renewing, stopRenewing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRenewing()
	delivering.Go(func() { s.node.Run(renewing) })

	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	s.drain()
	stop()
	working.Wait()
	stopDown()
	stopRenewing()
	delivering.Wait()
	serving.Wait()
	return errors.Join(err, s.node.Release(context.WithoutCancel(ctx)), s.close())
}

// drain tells all streams, waits for them within the limit, and ends the gRPC server.
func (s *Server) drain() {
	s.draining.Store(true)
	s.streams.drain()
	ended := make(chan struct{})
	go func() { // ends with GracefulStop, which Stop below cuts short
		defer close(ended)
		s.grpc.GracefulStop()
	}()
	limit := time.NewTimer(s.cfg.GRPC.Drain)
	defer limit.Stop()
	select {
	case <-ended:
	case <-limit.C:
		s.grpc.Stop()
		<-ended
	}
}
