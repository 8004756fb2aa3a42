package stateserver

import (
	"context"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/ident"
	"github.com/sluice-im/sluice/api/reason"
	statev1 "github.com/sluice-im/sluice/api/state/v1"
	"github.com/sluice-im/sluice/stateserver/dedup"
	"github.com/sluice-im/sluice/stateserver/reorder"
	"github.com/sluice-im/sluice/stateserver/snowflake"
	"github.com/sluice-im/sluice/stateserver/store"
)

const (
	// frameAgeMax is how old a frame may be: after a long pause of either side nobody waits for it any more, whatever its
	// budget says.
	frameAgeMax = 5 * time.Second
	// customTypeMin is where the user's own command types start.
	customTypeMin = 1000
	// sessionBytesMax bounds a session id; the SDK's have 36 bytes.
	sessionBytesMax = 128
)

// starter runs what must wait until everything before an uplink on its connection is answered.
type starter interface {
	whenFirst(u *uplink, start func())
}

func (s *Server) uplinkOf(incarnation string, it *statev1.UplinkItem, to sink, now time.Time) *uplink {
	u := &uplink{
		s: s, sink: to, incarnation: incarnation, connID: it.ConnId, connSeq: it.ConnSeq, uid: it.Uid, device: it.DeviceId,
		remoteAddr: it.RemoteAddr, traceParent: it.TraceParent, payload: it.Payload, receivedAt: it.ReceivedAtMs,
	}
	if it.BudgetMs > 0 {
		u.deadline = now.Add(time.Duration(it.BudgetMs) * time.Millisecond)
	}
	return u
}

// handle handles one batch: every uplink of ups is answered sooner or later, those of one connection in order.
func (s *Server) handle(ctx context.Context, items []*statev1.UplinkItem, ups []*uplink, first starter) {
	now := time.Now()
	msgs := make([]*uplink, 0, len(ups))
	for i, u := range ups {
		switch items[i].Kind {
		case statev1.UplinkKind_UPLINK_KIND_CONNECT:
			s.peers.connect(u.incarnation, u.connID, u.connSeq, now)
			u.reply(nil)
		case statev1.UplinkKind_UPLINK_KIND_DISCONNECT:
			s.peers.forget(u.incarnation, u.connID)
			u.reply(nil)
		case statev1.UplinkKind_UPLINK_KIND_FRAME:
			if s.frame(u, first, now) {
				msgs = append(msgs, u)
			}
		default:
			u.answer(answer{code: codes.Unimplemented, detail: "unknown kind of item"})
		}
	}
	s.messages(ctx, msgs, now)
}

// frame handles one frame; true says that it is a good MESSAGEUP, to be handled together with the others of its batch.
func (s *Server) frame(u *uplink, first starter, now time.Time) bool {
	if !ident.ValidUID(u.uid) {
		u.answer(answer{code: codes.InvalidArgument, detail: "uid is not of the alphabet"})
		return false
	}
	if !s.peers.take(u.incarnation, u.connID, u.connSeq, now) {
		// A copy of a frame that was handled, or one that a later frame has overtaken: nobody waits for its answer.
		s.metrics.stale.Inc()
		u.reply(nil)
		return false
	}
	var cmd clientv1.Command
	if err := cmd.UnmarshalVT(u.payload); err != nil {
		u.answer(answer{code: codes.InvalidArgument, detail: "not a Command"})
		return false
	}
	if u.age > frameAgeMax {
		s.expire(u, &cmd)
		return false
	}
	switch t := cmd.Type; {
	case t == clientv1.CommandType_MESSAGEUP:
		return s.parse(u, cmd.Data)
	case t == clientv1.CommandType_DELIVERED:
		s.delivered(u, cmd.Data)
	case t == clientv1.CommandType_READ:
		s.read(u, cmd.Data)
	case t == clientv1.CommandType_SYNC:
		s.query(s.queries, u, first, t, cmd.Data, s.sync)
	case t == clientv1.CommandType_PULL:
		s.query(s.queries, u, first, t, cmd.Data, s.pull)
	case t == clientv1.CommandType_LOGOUT:
		u.reply(nil)
	case t >= customTypeMin && s.deps.Custom != nil:
		s.query(s.customs, u, first, t, cmd.Data, s.custom)
	default:
		u.answer(answer{code: codes.Unimplemented, detail: "command " + t.String()})
	}
	return false
}

// expire refuses a frame that is too old to be worth doing.
func (s *Server) expire(u *uplink, cmd *clientv1.Command) {
	s.metrics.expired.Inc()
	switch cmd.Type {
	case clientv1.CommandType_MESSAGEUP:
		if err := u.up.UnmarshalVT(cmd.Data); err != nil || !ident.ValidUUID(u.up.Uuid) {
			u.reply(errorTo(cmd.Type, "", reason.Expired, ""))
			return
		}
		s.metrics.messages.Inc()
		u.retry(reason.Expired)
	case clientv1.CommandType_DELIVERED, clientv1.CommandType_LOGOUT:
		u.reply(nil)
	default:
		u.reply(errorTo(cmd.Type, "", reason.Expired, ""))
	}
}

// parse decodes and checks a MessageUp.
func (s *Server) parse(u *uplink, data []byte) bool {
	m := &u.up
	if err := m.UnmarshalVT(data); err != nil {
		u.reply(errorTo(clientv1.CommandType_MESSAGEUP, "", reason.BadMessage, "not a MessageUp"))
		return false
	}
	if !ident.ValidUUID(m.Uuid) {
		u.reply(errorTo(clientv1.CommandType_MESSAGEUP, "", reason.BadUUID, ""))
		return false
	}
	s.metrics.messages.Inc()
	if why := s.check(m); why != reason.None {
		u.fail(why)
		s.settle(u)
		return false
	}
	if !s.rates.allow(u.uid) {
		u.retry(reason.RateLimited)
		return false
	}
	u.msg = store.Message{
		FromUID: u.uid, UUID: m.Uuid, ReceiverID: m.ReceiverId, ConvID: ident.Conversation(u.uid, m.ReceiverId),
		Type: m.Type, Content: m.Content, Body: m.Body, ReceivedAt: u.receivedAt,
	}
	u.msg.Hash = store.HashOf(&u.msg)
	return true
}

// check is everything that is wrong with a message whoever sends it.
func (s *Server) check(m *clientv1.MessageUp) reason.Reason {
	switch {
	case !ident.ValidReceiver(m.ReceiverId):
		return reason.BadReceiver
	case len(m.Content)+len(m.Body) > s.cfg.Limits.FrameBytes-bodyReserve:
		return reason.BodyTooBig
	case !utf8.ValidString(m.Content), len(m.SessionId) > sessionBytesMax:
		return reason.BadMessage
	}
	return reason.None
}

// windowed says whether the sender numbers his messages.
func (u *uplink) windowed() bool { return u.up.SessionSeq > 0 && u.up.SessionId != "" }

// settle tells the order of a windowed sender that a message needs nothing more.
func (s *Server) settle(u *uplink) {
	if u.windowed() {
		s.order.Offer(sessionOf(u), u.up.SessionSeq, u.up.SessionLow, nil, 0, time.Now(), s.release)
	}
}

// messages takes good messages through the gate, in one round trip, and on in their order.
func (s *Server) messages(ctx context.Context, msgs []*uplink, now time.Time) {
	if len(msgs) == 0 {
		return
	}
	queries := make([]dedup.Query, len(msgs))
	answers := make([]dedup.Answer, len(msgs))
	for i, u := range msgs {
		queries[i] = dedup.Query{Key: store.Key{FromUID: u.uid, UUID: u.up.Uuid}, Hash: u.msg.Hash}
	}
	s.gate.Check(ctx, queries, answers)
	for i, u := range msgs {
		s.metrics.dedup(answers[i].Verdict)
		switch a := answers[i]; a.Verdict {
		case dedup.Known:
			r := store.Result{Outcome: store.Duplicate, MsgID: a.MsgID, Seq: a.Seq, ConvID: u.msg.ConvID, ServerAt: snowflake.Time(a.MsgID)}
			u.ok(&r, inOrder)
			s.settle(u)
		case dedup.Reused:
			u.fail(reason.UUIDReused)
			s.settle(u)
		case dedup.Unavailable:
			u.retry(reason.DedupUnavailable)
		default:
			s.route(ctx, u, now)
		}
	}
}

// route finds the receivers of a message and brings it to the store, at its turn.
func (s *Server) route(ctx context.Context, u *uplink, now time.Time) {
	to, roster, why := s.receivers(ctx, u.uid, u.msg.ReceiverID)
	switch why {
	case reason.None:
	case reason.StoreUnavailable:
		u.retry(why)
		return
	default:
		u.fail(why)
		s.settle(u)
		return
	}
	u.to, u.msg.Roster = to, roster
	if !u.windowed() {
		s.release(u, reorder.Ticket{})
		return
	}
	switch s.order.Offer(sessionOf(u), u.up.SessionSeq, u.up.SessionLow, u, len(u.payload), now, s.release) {
	case reorder.Late:
		u.late = true
		s.release(u, reorder.Ticket{})
	case reorder.Gap:
		u.gap(s.order.Expected(sessionOf(u)))
	case reorder.Released, reorder.Held:
	}
}

// release hands a message to the committers. It is a reorder.Release.
func (s *Server) release(item any, t reorder.Ticket) bool {
	u := item.(*uplink)
	u.ticket = t
	u.waitUntil = time.Now().Add(s.cfg.Store.Wait)
	if err := s.commits.Submit(u); err != nil {
		u.retry(reason.QueueFull)
		return false
	}
	s.waits.add(u)
	return true
}

// custom hands one of the user's own commands to the hook.
func (s *Server) custom(ctx context.Context, u *uplink, t clientv1.CommandType, data []byte) answer {
	payload, err := s.deps.Custom(ctx, Frame{UID: u.uid, DeviceID: u.device, Type: int32(t), Data: data})
	if err != nil {
		st := status.Convert(err)
		return answer{code: st.Code(), detail: st.Message()}
	}
	return answer{payload: payload}
}
