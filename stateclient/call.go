package stateclient

import (
	"context"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	statev1 "github.com/sluice-im/sluice/api/state/v1"
	"github.com/sluice-im/sluice/api/vtcodec"
)

// Keys of the metadata that goes with every call of mode unary, for logic tiers whose message has no field for it.
const (
	mdUID        = "sluice-uid"
	mdDevice     = "sluice-device-id"
	mdConn       = "sluice-conn-id"
	mdSeq        = "sluice-conn-seq"
	mdReceived   = "sluice-received-at-ms"
	mdRemoteAddr = "sluice-remote-addr"
	mdTrace      = "traceparent"
)

// call is one unary call: the uplink, where it stands in the lane, and whether the backend must be told of the
// connection first.
type call struct {
	place    int32
	id       uint64
	uplink   Uplink
	deadline int64
	announce bool
}

// worker makes calls one after another.
type worker struct {
	unary    *unary
	request  statev1.ReceiveMessageRequest
	response response
	encoded  vtcodec.Encoded
}

// response is borrowed from the receive buffer.
type response struct{ statev1.ReceiveMessageResponse }

// ResetVT implements vtcodec.Borrowable.
func (r *response) ResetVT() { r.Reset() }

func (w *worker) do(c *call) {
	u := w.unary
	l := u.lane
	w.fill(c)
	err := w.encoded.Encode(&w.request)
	w.request.Payload = nil
	l.mu.Lock()
	l.slab.items[c.place].encoding = false
	l.mu.Unlock()
	if err != nil {
		u.done(c, answer{outcome: Failed, detail: clip(err.Error())}, codes.Internal)
		return
	}
	defer w.encoded.Discard()

	ctx, cancel := context.WithDeadline(u.ctx, l.relay.started.Add(time.Duration(c.deadline)))
	defer cancel()
	ctx = metadata.NewOutgoingContext(ctx, describe(&c.uplink))
	var a answer
	switch c.uplink.Kind {
	case KindConnect:
		a, err = u.connect(ctx, &c.uplink)
	case KindDisconnect:
		a, err = u.disconnect(ctx, &c.uplink)
	case KindFrame:
		if c.announce {
			_, _ = u.connect(ctx, &c.uplink) // For the backend's information only; the frame goes in any case.
		}
		reply := vtcodec.Borrowed{Message: &w.response}
		defer reply.Release()
		l.backend.batch.Observe(1)
		if err = u.conn.Invoke(ctx, l.relay.cfg.UnaryMethod, &w.encoded, &reply); err == nil {
			a = l.payloadAnswer(w.response.ResponsePayload)
		} else if reply.Err() != nil {
			l.relay.metrics.garbage.Inc()
		}
	}
	code := status.Code(err)
	if err != nil {
		a = u.errorAnswer(ctx, err)
	}
	u.done(c, a, code)
}

func (w *worker) fill(c *call) {
	u, p, r := &c.uplink, c.uplink.Peer, &w.request
	r.Uid, r.Payload, r.DeviceId = valid(p.UID), u.Payload, valid(p.DeviceID)
	r.Incarnation, r.ConnId, r.ConnSeq, r.Epoch = w.unary.lane.relay.cfg.Incarnation, p.ConnID, u.Seq, p.Epoch
	r.ReceivedAtMs, r.RemoteAddr, r.TraceParent = u.Received.UnixMilli(), valid(p.RemoteAddr), valid(u.TraceParent)
}

// errorAnswer is the truth table for a call that failed.
func (u *unary) errorAnswer(ctx context.Context, err error) answer {
	switch {
	case u.ctx.Err() != nil:
		return answer{outcome: Broken, detail: "the relay was closed"}
	case ctx.Err() != nil, timeIsUp(ctx):
		return answer{outcome: TimedOut}
	}
	s := status.Convert(err)
	var after time.Duration
	if s.Code() == codes.ResourceExhausted {
		for _, d := range s.Details() {
			if info, ok := d.(*errdetails.RetryInfo); ok {
				after = info.GetRetryDelay().AsDuration()
			}
		}
	}
	return statusAnswer(s.Code(), s.Message(), after)
}

// timeIsUp says whether the deadline has passed. On a busy machine the backend's own timer for the same deadline, and what
// it says then, can be here before ctx's.
func timeIsUp(ctx context.Context) bool {
	at, ok := ctx.Deadline()
	return ok && !time.Now().Before(at)
}

// connect tells the backend of a connection. One that has no such method is not asked again.
func (u *unary) connect(ctx context.Context, up *Uplink) (answer, error) {
	if u.noConnect.Load() {
		return answer{}, nil
	}
	p := up.Peer
	reply, err := statev1.NewStateServerClient(u.conn).Connect(ctx, &statev1.ConnectRequest{
		Uid: valid(p.UID), DeviceId: valid(p.DeviceID), Incarnation: u.lane.relay.cfg.Incarnation, ConnId: p.ConnID,
		Epoch: p.Epoch, RemoteAddr: valid(p.RemoteAddr), Platform: valid(p.Platform), SessionId: valid(p.SessionID),
		GatewayAddr: u.lane.relay.cfg.GatewayAddr, TraceParent: valid(up.TraceParent),
	})
	if status.Code(err) == codes.Unimplemented {
		u.noConnect.Store(true)
		return answer{}, nil
	}
	if reply.GetRefused() {
		return answer{outcome: Refused, detail: clip(reply.GetReason())}, nil
	}
	return answer{}, err
}

func (u *unary) disconnect(ctx context.Context, up *Uplink) (answer, error) {
	if u.noDisconnect.Load() {
		return answer{}, nil
	}
	p := up.Peer
	_, err := statev1.NewStateServerClient(u.conn).Disconnect(ctx, &statev1.DisconnectRequest{
		Uid: valid(p.UID), DeviceId: valid(p.DeviceID), Incarnation: u.lane.relay.cfg.Incarnation, ConnId: p.ConnID,
		Epoch: p.Epoch, Reason: valid(up.Reason),
	})
	if status.Code(err) == codes.Unimplemented {
		u.noDisconnect.Store(true)
		return answer{}, nil
	}
	return answer{}, err
}

// describe is the metadata of a call. A value that HTTP/2 would not carry is left out: gRPC would fail the call for it.
func describe(u *Uplink) metadata.MD {
	md := make(metadata.MD, 8)
	values := make([]string, 0, 8) // One array for all keys: this is done for every call.
	add := func(key, value string) {
		if value != "" && printable(value) {
			values = append(values, value)
			md[key] = values[len(values)-1 : len(values) : len(values)]
		}
	}
	p := u.Peer
	add(mdUID, p.UID)
	add(mdDevice, p.DeviceID)
	add(mdConn, strconv.FormatUint(p.ConnID, 10))
	add(mdSeq, strconv.FormatUint(u.Seq, 10))
	add(mdReceived, strconv.FormatInt(u.Received.UnixMilli(), 10))
	add(mdRemoteAddr, p.RemoteAddr)
	add(mdTrace, u.TraceParent)
	return md
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
