package stateclient

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	statev1 "github.com/sluice-im/sluice/api/state/v1"
)

// Errors of Authenticate. Any other error means that no backend has given an answer.
var (
	// ErrNoConnect: the logic tier has no Connect method, so it cannot check logins.
	ErrNoConnect = errors.New("the logic tier has no Connect method")
	// ErrNoBackend: no backend is known.
	ErrNoBackend = errors.New("no backend")
)

// authenticateTries is how many backends are asked when the first one cannot be reached: another one may be well, and
// whoever logs in waits.
const authenticateTries = 2

// Login is what the logic tier is asked to decide.
type Login struct {
	// Peer is the connection as far as it is known: UID is empty at the first login.
	Peer        *Peer
	Token       string
	TraceParent string
}

// Grant is what the logic tier says to a Login.
type Grant struct {
	// Refused says no; Reason is the logic tier's text for the client, at most 256 bytes.
	Refused bool
	Reason  string
	// UID and DeviceID are who this is; empty = as asked.
	UID, DeviceID string
	// Limits override the configured ones; 0 = as configured.
	Limits Limits
	// Expires is when the token ends; the zero time = never.
	Expires time.Time
}

// Limits of one connection; 0 = as configured.
type Limits struct {
	MessagesPerSecond, MessagesBurst, BytesPerSecond, BytesBurst, InflightFrames uint32
}

// Authenticate implements Relay. Every backend has a connection of its own for these calls: they must neither wait behind
// frames nor end with a stream.
func (r *relay) Authenticate(ctx context.Context, l Login) (Grant, error) {
	p := l.Peer
	req := &statev1.ConnectRequest{
		Uid: valid(p.UID), DeviceId: valid(p.DeviceID), Incarnation: r.cfg.Incarnation, ConnId: p.ConnID, Epoch: p.Epoch,
		RemoteAddr: valid(p.RemoteAddr), Platform: valid(p.Platform), SessionId: valid(p.SessionID), Token: valid(l.Token),
		GatewayAddr: r.cfg.GatewayAddr, TraceParent: valid(l.TraceParent),
	}
	backends := r.view.Load().among
	err := ErrNoBackend
	for i := range min(len(backends), authenticateTries) {
		b := backends[(mix(p.ConnID)+uint64(i))%uint64(len(backends))]
		var g Grant
		if g, err = r.ask(ctx, b, req); status.Code(err) != codes.Unavailable {
			return g, err
		}
	}
	return Grant{}, err
}

// ask is one call to one backend.
func (r *relay) ask(ctx context.Context, b *backend, req *statev1.ConnectRequest) (Grant, error) {
	conn, err := r.asking(b)
	if err != nil {
		return Grant{}, err
	}
	reply, err := statev1.NewStateServerClient(conn).Connect(ctx, req)
	switch status.Code(err) {
	case codes.OK:
	case codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition:
		// Another way to say no.
		return Grant{Refused: true, Reason: clip(status.Convert(err).Message())}, nil
	case codes.Unimplemented:
		return Grant{}, fmt.Errorf("%w (%s)", ErrNoConnect, b.addr)
	default:
		return Grant{}, fmt.Errorf("connect at %s: %w", b.addr, err)
	}
	g := Grant{Refused: reply.GetRefused(), Reason: clip(reply.GetReason()), UID: reply.GetUid(), DeviceID: reply.GetDeviceId()}
	if l := reply.GetLimits(); l != nil {
		g.Limits = Limits{MessagesPerSecond: l.GetMessagesPerSecond(), MessagesBurst: l.GetMessagesBurst(),
			BytesPerSecond: l.GetBytesPerSecond(), BytesBurst: l.GetBytesBurst(), InflightFrames: l.GetInflightFrames()}
	}
	if ms := reply.GetExpiresAtMs(); ms != 0 {
		g.Expires = time.UnixMilli(ms)
	}
	return g, nil
}

// asking is the connection for Authenticate to one backend, made when it is needed first.
func (r *relay) asking(b *backend) (*grpc.ClientConn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || b.ended == len(b.lanes) {
		return nil, ErrNoBackend
	}
	if b.asked == nil {
		conn, err := r.connect(b.addr)
		if err != nil {
			return nil, fmt.Errorf("backend %s: %w", b.addr, err)
		}
		b.asked = conn
	}
	return b.asked, nil
}
