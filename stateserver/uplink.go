package stateserver

import (
	"errors"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/stateserver/commit"
	"github.com/sluice-im/sluice/stateserver/reorder"
	"github.com/sluice-im/sluice/stateserver/store"
)

// answer is what ends an uplink: a payload (empty = nothing is written to the client), or a status for it alone.
type answer struct {
	payload []byte
	code    codes.Code
	detail  string
	// repeated says that the message had been stored before.
	repeated bool
}

// sink takes the one answer of an uplink. It must not block.
type sink interface {
	answered(u *uplink, a answer)
}

// uplink is one frame of a client on its way through the server. Every uplink is answered exactly once: by whoever comes
// first of its handler, the committer and the sweeper; the others find that it is done.
type uplink struct {
	// Fixed at receipt.
	s           *Server
	sink        sink
	incarnation string
	connID      uint64
	connSeq     uint64
	uid, device string
	remoteAddr  string
	traceParent string
	payload     []byte
	receivedAt  int64
	// age is how long ago the gateway received it, as well as that is known.
	age time.Duration
	// deadline is when nobody waits for an answer any more; zero = never.
	deadline time.Time

	// slot is its place among the answers of its connection (streams only).
	slot *slot
	done atomic.Bool

	// Owned by the handler until the message is submitted, then read only; msg belongs to the committer from then on.
	up     clientv1.MessageUp
	msg    store.Message
	to     []string
	ticket reorder.Ticket
	late   bool
	// waitUntil is when the store's time is up.
	waitUntil time.Time
}

var _ commit.Item = (*uplink)(nil)

// answer ends the uplink; false when it was ended before.
func (u *uplink) answer(a answer) bool {
	if !u.done.CompareAndSwap(false, true) {
		return false
	}
	u.sink.answered(u, a)
	return true
}

func (u *uplink) reply(payload []byte) bool { return u.answer(answer{payload: payload}) }

func (u *uplink) ok(r *store.Result, where order) {
	if u.answer(answer{payload: ackOK(u.up.Uuid, r, where), repeated: r.Outcome == store.Duplicate}) {
		u.s.metrics.ok.Inc()
	}
}

func (u *uplink) retry(why reason.Reason) {
	if u.reply(ackRetry(u.up.Uuid, why)) {
		u.s.metrics.retry.Inc()
	}
}

func (u *uplink) gap(expected uint64) {
	if u.reply(ackGap(u.up.Uuid, expected)) {
		u.s.metrics.gap.Inc()
	}
}

func (u *uplink) fail(why reason.Reason) {
	if u.reply(ackFail(u.up.Uuid, why)) {
		u.s.metrics.fail.Inc()
	}
}

// Message implements commit.Item.
func (u *uplink) Message() *store.Message { return &u.msg }

// Start implements commit.Item: the last moment at which a message can still be refused without effect.
func (u *uplink) Start() commit.Start {
	switch {
	case !u.ticket.Valid():
		u.gap(u.ticket.Expected())
		return commit.No
	case u.done.Load():
		// The sweeper has answered RETRY while it still waited.
		u.s.order.Fail(u.ticket)
		return commit.No
	case !u.deadline.IsZero() && time.Now().After(u.deadline):
		u.s.order.Fail(u.ticket)
		u.retry(reason.Expired)
		return commit.No
	case u.late && u.s.latePolicy == reorder.Refuse:
		return commit.OnlyKnown
	}
	return commit.Insert
}

// Done implements commit.Item.
func (u *uplink) Done(r store.Result, err error) {
	if err != nil || r.Outcome == store.Moved {
		u.s.order.Fail(u.ticket)
	}
	u.s.fail(FailpointReply)
	switch {
	case errors.Is(err, commit.ErrNotKnown):
		u.gap(u.s.order.Expected(sessionOf(u)))
	case errors.Is(err, commit.ErrFull):
		u.retry(reason.QueueFull)
	case err != nil:
		u.retry(reason.StoreUnavailable)
	case r.Outcome == store.Moved:
		u.s.groups.forget(u.msg.ReceiverID)
		u.retry(reason.MembersChanged)
	case r.Outcome == store.NoGroup:
		u.fail(reason.NoSuchGroup)
	case r.Outcome == store.Reused:
		u.fail(reason.UUIDReused)
	default:
		where := inOrder
		if u.late && r.Outcome == store.Stored {
			where = outOfOrder
		}
		u.ok(&r, where)
		u.s.memory.add(u.msg.FromUID, u.msg.UUID, r)
	}
}

func sessionOf(u *uplink) reorder.Key {
	return reorder.Key{UID: u.uid, Session: u.up.SessionId, Receiver: u.up.ReceiverId}
}
