package stateclient

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	statev1 "github.com/sluice-im/sluice/api/state/v1"
)

func TestAuthenticate(t *testing.T) {
	ends := time.UnixMilli(1_900_000_000_000)
	b := (&logicTier{relay: echo(nil), connect: func(ctx context.Context, in *statev1.ConnectRequest) (*statev1.ConnectResponse, error) {
		if in.ConnId != 7 || in.Incarnation != "gw-test" || in.RemoteAddr != "192.0.2.1:1" || in.TraceParent != "trace" {
			t.Errorf("the request is %v", in)
		}
		switch word, code, _ := strings.Cut(in.Token, " "); word {
		case "no":
			return &statev1.ConnectResponse{Refused: true, Reason: strings.Repeat("banned ", 100) + "\xff"}, nil
		case "status":
			for c := range codes.Code(17) {
				if c.String() == code {
					return nil, status.Error(c, "because")
				}
			}
		case "slow":
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return &statev1.ConnectResponse{Uid: "alice", DeviceId: "phone", ExpiresAtMs: ends.UnixMilli(),
			Limits: &statev1.ConnectLimits{MessagesPerSecond: 1, MessagesBurst: 2, BytesPerSecond: 3, BytesBurst: 4, InflightFrames: 5}}, nil
	}}).start(t, "")
	for _, mode := range []string{ModeStream, ModeUnary} {
		t.Run(mode, func(t *testing.T) {
			cfg := quick(b.addr)
			cfg.Mode, cfg.Incarnation = mode, "gw-test"
			r := open(t, cfg, newWatcher(t))
			ask := func(ctx context.Context, token string) (Grant, error) {
				return r.Authenticate(ctx, Login{Peer: &Peer{ConnID: 7, RemoteAddr: "192.0.2.1:1"}, Token: token, TraceParent: "trace"})
			}
			eventually(t, "ready", r.Ready)
			want := Grant{UID: "alice", DeviceID: "phone", Expires: ends, Limits: Limits{1, 2, 3, 4, 5}}
			if g, err := ask(t.Context(), "yes"); err != nil || g != want {
				t.Errorf("a good token: %+v, %v", g, err)
			}
			if g, err := ask(t.Context(), "no"); err != nil || !g.Refused || len(g.Reason) != detailMax {
				t.Errorf("a bad token: %+v, %v", g, err)
			}
			for _, code := range []codes.Code{codes.Unauthenticated, codes.PermissionDenied, codes.NotFound, codes.InvalidArgument, codes.FailedPrecondition} {
				if g, err := ask(t.Context(), "status "+code.String()); err != nil || !g.Refused || g.Reason != "because" {
					t.Errorf("%v: %+v, %v", code, g, err)
				}
			}
			for _, code := range []codes.Code{codes.Unknown, codes.Internal, codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded, codes.Aborted} {
				if g, err := ask(t.Context(), "status "+code.String()); err == nil || g.Refused || errors.Is(err, ErrNoConnect) {
					t.Errorf("%v: %+v, %v", code, g, err)
				}
			}
			if _, err := ask(t.Context(), "status Unimplemented"); !errors.Is(err, ErrNoConnect) {
				t.Errorf("without the method: %v", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := ask(ctx, "slow"); err == nil {
				t.Error("a backend that does not answer is no error")
			}
			late := make(chan error)
			go func() { _, err := ask(t.Context(), "slow"); late <- err }()
			r.Close()
			if err := <-late; err == nil {
				t.Error("Close does not end a call")
			}
			if _, err := ask(t.Context(), "yes"); !errors.Is(err, ErrNoBackend) {
				t.Errorf("after Close: %v", err)
			}
		})
	}
}

// One of two backends is not there: the other one is asked.
func TestAuthenticateElsewhere(t *testing.T) {
	b := (&logicTier{relay: echo(nil), connect: func(context.Context, *statev1.ConnectRequest) (*statev1.ConnectResponse, error) {
		return &statev1.ConnectResponse{Uid: "alice"}, nil
	}}).start(t, "")
	r := open(t, quick("127.0.0.1:1", b.addr), newWatcher(t))
	for id := range uint64(20) {
		if g, err := r.Authenticate(t.Context(), Login{Peer: &Peer{ConnID: id}, Token: "x"}); err != nil || g.UID != "alice" {
			t.Errorf("connection %d: %+v, %v", id, g, err)
		}
	}
}
