package stateclient

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc"

	statev1 "github.com/sluice-im/sluice/api/state/v1"
	"github.com/sluice-im/sluice/api/vtcodec"
)

const (
	// pingEvery and pingsMax find a stream that is dead while nothing is sent on it.
	pingEvery = int64(2 * time.Second)
	pingsMax  = 3
	// silentMax finds one that is dead while something is: nothing at all came for this long after an uplink went out.
	silentMax = time.Second
	// retryMin and retryMax bound the jittered pause between two attempts: soon enough to hide a restart, seldom enough
	// that a fleet of gateways does not hold a backend down.
	retryMin = 100 * time.Millisecond
	retryMax = 2 * time.Second
	// stableMin is how long a stream must have lived for the pause to begin small again.
	stableMin = int64(5 * time.Second)
	// partingMax is how long a stream that was closed in order may take to end.
	partingMax = 250 * time.Millisecond
)

var (
	errStopped  = errors.New("the relay was closed")
	errRetired  = errors.New("the backend was removed")
	errDraining = errors.New("the backend is draining")
	errSilent   = errors.New("the backend fell silent")
	errNoAnswer = errors.New("the backend did not answer the first ping")
	errEnded    = errors.New("the backend ended the stream")
	errSend     = errors.New("the stream cannot be written")
)

// stream is the driver of mode stream. Its goroutine (run) opens the stream and is the only one that sends on it; for
// each stream there is a second one that receives.
type stream struct {
	// Fixed after New.
	lane   *lane
	silent int64

	// run's.
	pauses  *backoff.ExponentialBackOff
	batch   statev1.UplinkBatch
	items   []*statev1.UplinkItem
	taken   []int32
	encoded vtcodec.Encoded
	logged  bool

	// Guarded by lane.mu.
	attempt    *attempt
	generation uint32
	pings      int
	pingAt     int64
	pingDue    bool
	// owedSince is when the first uplink went out after something was last heard; 0 = none has.
	owedSince int64
}

// attempt is one stream, on a connection of its own.
type attempt struct {
	conn   *grpc.ClientConn
	ctx    context.Context
	cancel context.CancelCauseFunc
	// ready closes when the first ping was answered: until then a stream may be nothing but a TCP handshake that the
	// kernel of a stopped process made. call is set before.
	ready chan struct{}
	call  grpc.ClientStream
	// done closes when the receiver has ended; err is set before.
	done chan struct{}
	err  error
}

func newStream(l *lane) *stream {
	s := &stream{lane: l, pauses: backoff.NewExponentialBackOff()}
	s.pauses.InitialInterval, s.pauses.MaxInterval, s.pauses.Multiplier = retryMin, retryMax, 1.6
	// A backend that may take longer than silentMax for an uplink must not be cut off for doing so.
	s.silent = int64(max(silentMax, l.relay.cfg.Timeout))
	return s
}

func (s *stream) run() {
	for {
		began := s.lane.relay.now()
		err := s.serve()
		if errors.Is(err, errStopped) || errors.Is(err, errRetired) {
			return
		}
		if s.lane.relay.now()-began >= stableMin {
			s.pauses.Reset()
		}
		if !s.pause(s.pauses.NextBackOff()) {
			return
		}
	}
}

// serve opens one stream, feeds it until it ends, and answers what was in flight on it.
func (s *stream) serve() error {
	l, r := s.lane, s.lane.relay
	conn, err := r.connect(l.backend.addr)
	if err != nil {
		return err
	}
	a := &attempt{conn: conn, ready: make(chan struct{}), done: make(chan struct{})}
	a.ctx, a.cancel = context.WithCancelCause(context.Background())
	l.mu.Lock()
	l.draining = false
	s.attempt, s.pings, s.pingDue, s.owedSince, s.pingAt = a, 0, false, 0, never
	l.mu.Unlock()
	r.wg.Go(func() { s.receive(a) })

	err = s.feed(a)
	r.laneDown(l)
	if errors.Is(err, errSend) {
		a.parted() // Only the receiver learns why.
	}
	a.cancel(err)
	<-a.done
	if errors.Is(err, errSend) {
		err = a.err
	}
	l.mu.Lock()
	s.attempt = nil
	l.mu.Unlock()
	_ = conn.Close()
	l.settleSent(clip(err.Error()))
	s.report(err)
	if errors.Is(err, errDraining) {
		r.rehome(l)
	}
	return err
}

// report tells breaker and log how a stream ended.
func (s *stream) report(err error) {
	l := s.lane
	switch {
	case errors.Is(err, errStopped), errors.Is(err, errRetired):
	case errors.Is(err, errDraining):
		l.relay.log.Info("stream drained", "backend", l.backend.addr)
	default:
		l.backend.failed(1)
		if !s.logged {
			l.relay.log.Warn("stream broken", "backend", l.backend.addr, "error", err)
		}
		s.logged = true
	}
}

// feed sends until the stream ends, for whatever reason.
func (s *stream) feed(a *attempt) error {
	l := s.lane
	opening := time.NewTimer(connectMax)
	defer opening.Stop()
	ready, up := a.ready, false
	for {
		select {
		case <-l.stop:
			s.part(a, up)
			return errStopped
		case <-a.done:
			return a.err
		case <-opening.C:
			return errNoAnswer
		case <-ready:
			opening.Stop()
			ready, up = nil, true
			s.begin()
		case <-l.wake:
		}
		if !up {
			if l.unserved() {
				return errRetired
			}
			continue
		}
		if err := s.send(a); err != nil {
			return err
		}
		if err := s.leaving(); err != nil {
			s.part(a, up)
			return err
		}
	}
}

// begin lets uplinks in.
func (s *stream) begin() {
	l := s.lane
	l.mu.Lock()
	s.generation = l.relay.generations.Add(1)
	s.pingAt = l.relay.now() + pingEvery
	l.mu.Unlock()
	s.logged = false
	l.backend.succeeded()
	l.relay.laneUp(l)
	l.mu.Lock()
	draining := l.draining
	l.mu.Unlock()
	if draining {
		l.relay.laneDraining(l) // Said before the lane was up.
	}
	signal(l.kick)
}

// leaving says why the stream should be closed in order, if it should.
func (s *stream) leaving() error {
	l := s.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.retiring && l.held == 0:
		l.closed = true
		return errRetired
	case l.draining && l.sent.head == 0:
		return errDraining
	}
	return nil
}

// part closes a stream in order: the backend sees the end of the stream, and not a reset.
func (s *stream) part(a *attempt, up bool) {
	if !up {
		return
	}
	_ = a.call.CloseSend()
	a.parted()
}

// parted waits a moment for the receiver to see the end of the stream.
func (a *attempt) parted() {
	t := time.NewTimer(partingMax)
	defer t.Stop()
	select {
	case <-a.done:
	case <-t.C:
	}
}

// pause waits before the next attempt; it says whether there is to be one.
func (s *stream) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		if s.lane.unserved() {
			return false
		}
		select {
		case <-s.lane.stop:
			return false
		case <-t.C:
			return true
		case <-s.lane.wake:
		}
	}
}

// tick is the stream's own keepalive.
func (s *stream) tick(now int64) int64 {
	l := s.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	a := s.attempt
	if a == nil || s.pingAt == never {
		return never
	}
	silentAt := never
	if s.owedSince != 0 {
		silentAt = s.owedSince + s.silent
	}
	if now >= silentAt {
		a.cancel(errSilent)
		return never
	}
	if now >= s.pingAt || s.pings == 0 && l.backend.pingCloses(now) {
		if s.pings >= pingsMax {
			a.cancel(errSilent)
			return never
		}
		s.pings++
		s.pingDue = true
		s.pingAt = now + pingEvery
		signal(l.wake)
	}
	return min(s.pingAt, silentAt)
}

// receive is the receiving goroutine of one stream. It ends when the stream does.
func (s *stream) receive(a *attempt) {
	defer close(a.done)
	a.err = s.listen(a)
	if cause := context.Cause(a.ctx); cause != nil {
		a.err = cause
	}
	if errors.Is(a.err, io.EOF) {
		a.err = errEnded
	}
}

func (s *stream) listen(a *attempt) error {
	call, err := a.conn.NewStream(a.ctx, &statev1.StateServer_ServiceDesc.Streams[0], statev1.StateServer_Relay_FullMethodName)
	if err != nil {
		return err
	}
	a.call = call
	if err := call.SendMsg(s.lane.relay.newBatch()); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	in := &statev1.DownlinkBatch{}
	borrowed := vtcodec.Borrowed{Message: in}
	defer borrowed.Release()
	for first := true; ; first = false {
		if err := call.RecvMsg(&borrowed); err != nil {
			if borrowed.Err() != nil {
				s.lane.relay.metrics.garbage.Inc()
			}
			return err
		}
		if first && in.Draining {
			s.drain()
			return errDraining
		}
		s.hear(in)
		if first {
			close(a.ready)
		}
	}
}

func (r *relay) newBatch() *statev1.UplinkBatch {
	return &statev1.UplinkBatch{Incarnation: r.cfg.Incarnation, GatewayAddr: r.cfg.GatewayAddr}
}
