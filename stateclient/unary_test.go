package stateclient

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	statev1 "github.com/sluice-im/sluice/api/state/v1"
)

func unaryConfig(addrs ...string) Config {
	c := quick(addrs...)
	c.Mode = ModeUnary
	return c
}

// Every call carries what the gateway knows, as fields and as metadata, and the calls of one connection never overlap.
func TestUnaryCalls(t *testing.T) {
	var mu sync.Mutex
	busy, last := map[uint64]bool{}, map[uint64]uint64{}
	b := (&logicTier{receive: func(ctx context.Context, req *statev1.ReceiveMessageRequest) (*statev1.ReceiveMessageResponse, error) {
		mu.Lock()
		if busy[req.ConnId] {
			t.Errorf("connection %d: two calls at once", req.ConnId)
		}
		if req.ConnSeq != last[req.ConnId]+1 {
			t.Errorf("connection %d: call %d after %d", req.ConnId, req.ConnSeq, last[req.ConnId])
		}
		busy[req.ConnId], last[req.ConnId] = true, req.ConnSeq
		mu.Unlock()
		md, _ := metadata.FromIncomingContext(ctx)
		for key, want := range map[string]string{
			mdUID: req.Uid, mdDevice: req.DeviceId, mdConn: fmt.Sprint(req.ConnId), mdSeq: fmt.Sprint(req.ConnSeq),
			mdReceived: fmt.Sprint(req.ReceivedAtMs), mdRemoteAddr: req.RemoteAddr, mdTrace: req.TraceParent,
		} {
			if got := strings.Join(md.Get(key), ","); got != want {
				t.Errorf("metadata %s = %q, want %q", key, got, want)
			}
		}
		if got := strings.Join(md.Get("authorization"), ","); got != "Bearer secret" {
			t.Errorf("authorization = %q", got)
		}
		mu.Lock()
		busy[req.ConnId] = false
		mu.Unlock()
		return &statev1.ReceiveMessageResponse{ResponsePayload: req.Payload}, nil
	}}).start(t, "")
	w := newWatcher(t)
	w.onAnswer = func(d Downlink) {
		if want := fmt.Sprintf("%d/%d", d.ConnID, d.Seq); d.Outcome != Answered || string(d.Payload) != want {
			t.Errorf("outcome %d (%s), payload %q, want %q", d.Outcome, d.Detail, d.Payload, want)
		}
	}
	cfg := unaryConfig(b.addr)
	cfg.Token = "secret"
	cfg.Timeout = soon
	r := open(t, cfg, w)
	eventually(t, "ready", r.Ready)
	crowd := peers(50)
	for seq := uint64(1); seq <= 20; seq++ {
		w.submit(r, pass(crowd, seq))
	}
	eventually(t, "all answered", func() bool { return w.answered() == 1000 })
}

// The rows of the truth table, in both modes.
func TestStatusOutcomes(t *testing.T) {
	want := map[codes.Code]Outcome{
		codes.OK: Answered, codes.Canceled: Failed, codes.Unknown: FailedUnknown, codes.InvalidArgument: Refused,
		codes.DeadlineExceeded: Failed, codes.NotFound: Refused, codes.AlreadyExists: Failed,
		codes.PermissionDenied: Refused, codes.ResourceExhausted: Exhausted, codes.FailedPrecondition: Refused,
		codes.Aborted: Failed, codes.OutOfRange: Refused, codes.Unimplemented: Refused, codes.Internal: Failed,
		codes.Unavailable: Failed, codes.DataLoss: Failed, codes.Unauthenticated: Failed, 99: Failed,
	}
	b := (&logicTier{
		receive: func(_ context.Context, req *statev1.ReceiveMessageRequest) (*statev1.ReceiveMessageResponse, error) {
			s := status.New(codes.Code(req.ConnSeq-1), "because")
			if s.Code() == codes.ResourceExhausted {
				s, _ = s.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(1500 * time.Millisecond)})
			}
			return &statev1.ReceiveMessageResponse{ResponsePayload: []byte("x")}, s.Err()
		},
		relay: reply(func(it *statev1.UplinkItem) *statev1.DownlinkItem {
			return &statev1.DownlinkItem{
				ConnId: it.ConnId, ConnSeq: it.ConnSeq, Payload: []byte("x"), Status: uint32(it.ConnSeq - 1),
				Detail: "because", RetryAfterMs: 1500,
			}
		}),
	}).start(t, "")
	for _, mode := range []string{ModeStream, ModeUnary} {
		t.Run(mode, func(t *testing.T) {
			got := make(chan Downlink, 100)
			w := newWatcher(t)
			w.onAnswer = func(d Downlink) { got <- d }
			cfg := quick(b.addr)
			cfg.Mode, cfg.Timeout = mode, soon
			r := open(t, cfg, w)
			eventually(t, "ready", r.Ready)
			for code, outcome := range want {
				w2 := Uplink{Peer: peer(int(code) + 1), Seq: uint64(code) + 1, Payload: []byte("p"), Received: time.Now()}
				w.submit(r, []Uplink{w2})
				d := <-got
				if d.Outcome != outcome {
					t.Errorf("%v: outcome %d, want %d", code, d.Outcome, outcome)
				}
				if d.Outcome == Exhausted && d.RetryAfter != 1500*time.Millisecond {
					t.Errorf("retry after %v", d.RetryAfter)
				}
				if d.Outcome != Answered && code != 99 && d.Detail != "because" {
					t.Errorf("%v: detail %q", code, d.Detail)
				}
			}
		})
	}
}

// A logic tier with nothing but ReceiveMessage is asked for Connect and Disconnect once; one that has them is told.
func TestUnaryLifecycle(t *testing.T) {
	var connects, disconnects atomic.Int32
	receive := func(_ context.Context, req *statev1.ReceiveMessageRequest) (*statev1.ReceiveMessageResponse, error) {
		return &statev1.ReceiveMessageResponse{}, nil
	}
	full := (&logicTier{
		receive: receive,
		connect: func(_ context.Context, req *statev1.ConnectRequest) (*statev1.ConnectResponse, error) {
			connects.Add(1)
			return &statev1.ConnectResponse{Refused: req.Uid == "user3", Reason: "no"}, nil
		},
		ended: func(_ context.Context, req *statev1.DisconnectRequest) (*statev1.DisconnectResponse, error) {
			disconnects.Add(1)
			return &statev1.DisconnectResponse{}, nil
		},
	}).start(t, "")
	bare := (&logicTier{receive: receive}).start(t, "")
	for name, b := range map[string]*logicTier{"full": full, "bare": bare} {
		t.Run(name, func(t *testing.T) {
			w := newWatcher(t)
			cfg := unaryConfig(b.addr)
			cfg.Timeout = soon
			r := open(t, cfg, w)
			eventually(t, "ready", r.Ready)
			for i := 1; i <= 3; i++ {
				p := peer(i)
				w.submit(r, []Uplink{
					{Peer: p, Seq: 1, Kind: KindConnect, Received: time.Now()}, frame(p, 2),
					{Peer: p, Seq: 3, Kind: KindDisconnect, Reason: "client_closed", Received: time.Now()},
				})
			}
			eventually(t, "all answered", func() bool { return w.answered() == 9 })
			refused := 0
			if name == "full" {
				refused = 1
			}
			if w.count(Refused) != refused || w.count(Answered) != 9-refused {
				t.Errorf("outcomes %v", w.by)
			}
		})
	}
	if connects.Load() != 3 || disconnects.Load() != 3 {
		t.Errorf("%d connects, %d disconnects, want 3 of each", connects.Load(), disconnects.Load())
	}
}

// What is true of the streams is true of the calls: exactly one answer each, in order, through a restart.
func TestUnaryBackendRestarted(t *testing.T) {
	var calls atomic.Int64
	b := (&logicTier{receive: func(_ context.Context, req *statev1.ReceiveMessageRequest) (*statev1.ReceiveMessageResponse, error) {
		calls.Add(1)
		return &statev1.ReceiveMessageResponse{ResponsePayload: req.Payload}, nil
	}}).start(t, "")
	w := newWatcher(t)
	c := newCrowd(w, 30, 4)
	r := open(t, unaryConfig(b.addr), w)
	eventually(t, "ready", r.Ready)
	c.run(r)
	eventually(t, "answers", func() bool { return w.count(Answered) > 300 })
	b.kill()
	eventually(t, "not ready", func() bool { return !r.Ready() })
	b.start(t, b.addr)
	eventually(t, "ready again", r.Ready)
	n := w.count(Answered)
	eventually(t, "answers again", func() bool { return w.count(Answered) > n+300 })
	c.end(t)
}

// A backend whose handlers hang opens the breaker, is asked again by single uplinks, and comes back.
func TestUnaryBackendHangs(t *testing.T) {
	var hang atomic.Bool
	hang.Store(true)
	var calls atomic.Int64
	b := (&logicTier{receive: func(ctx context.Context, req *statev1.ReceiveMessageRequest) (*statev1.ReceiveMessageResponse, error) {
		calls.Add(1)
		if hang.Load() {
			<-ctx.Done()
		}
		return &statev1.ReceiveMessageResponse{ResponsePayload: req.Payload}, ctx.Err()
	}}).start(t, "")
	w := newWatcher(t)
	cfg := unaryConfig(b.addr)
	cfg.Timeout, cfg.Calls, cfg.StreamsPerBackend = 50*time.Millisecond, 8, 1
	cfg.Breaker.OpenFor = 100 * time.Millisecond
	r := open(t, cfg, w)
	eventually(t, "ready", r.Ready)
	ps := peers(40)
	w.submit(r, pass(ps, 1))
	eventually(t, "answered", func() bool { return w.answered() == 40 })
	if n := calls.Load(); n > 32 {
		t.Errorf("%d calls though only 8 at a time may hang for 50 ms", n)
	}
	seq := uint64(1)
	eventually(t, "breaker open", func() bool {
		seq++
		w.submit(r, pass(ps, seq))
		return !r.Ready()
	})
	w.mu.Lock()
	if w.by[TimedOut] == 0 || w.by[TimedOut]+w.by[NoBackend] != w.total {
		t.Errorf("outcomes %v", w.by)
	}
	w.mu.Unlock()
	hang.Store(false)
	eventually(t, "back", func() bool {
		seq++
		w.submit(r, pass(ps[:1], seq))
		return r.Ready()
	})
	eventually(t, "everything answered", func() bool { return w.open() == 0 })
}

// dueContext has a deadline that has passed, and a timer that has not noticed yet.
type dueContext struct{ context.Context }

func (dueContext) Deadline() (time.Time, bool) { return time.Now(), true }

// Who gives up first, the backend at the deadline or the relay's own timer, is no difference to the client.
func TestUnaryDeadlineIsATimeOutWhoeverNoticesIt(t *testing.T) {
	u := &unary{ctx: t.Context()}
	expired := status.Error(codes.DeadlineExceeded, "context deadline exceeded")
	if a := u.errorAnswer(dueContext{t.Context()}, expired); a.outcome != TimedOut {
		t.Errorf("at the deadline: outcome %d", a.outcome)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	if a := u.errorAnswer(ctx, expired); a.outcome != Failed {
		t.Errorf("long before it: outcome %d", a.outcome)
	}
}

// Nobody sends anything: the question whether the backend lives closes the breaker.
func TestUnaryBreakerClosesByItself(t *testing.T) {
	b := (&logicTier{receive: func(context.Context, *statev1.ReceiveMessageRequest) (*statev1.ReceiveMessageResponse, error) {
		return &statev1.ReceiveMessageResponse{}, nil
	}}).start(t, "")
	cfg := unaryConfig(b.addr)
	cfg.Breaker.OpenFor = 500 * time.Millisecond // long enough to be seen
	r := open(t, cfg, newWatcher(t))
	eventually(t, "ready", r.Ready)
	r.(*relay).known()[0].failed(cfg.Breaker.Failures)
	eventually(t, "not ready", func() bool { return !r.Ready() })
	eventually(t, "ready again", r.Ready)
}
