package gateway

import (
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/ident"
	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/codec"
	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/stateclient"
)

// bodySpare is what a body must leave of the frame limit, so that the message it becomes fits a frame on its way down,
// with its ids around it (design: protocol 1, "Receiver").
const bodySpare = 2048

// command handles one Command of size bytes on the wire.
func (t *turn) command(payload []byte, size int) poller.Verdict {
	h, err := codec.Scan(payload)
	scanned := t.g.judge(&h, err)
	before := t.p.session.state
	st := t.p.session.command(t.now, t.p.rules(t.g), &h, scanned, size)
	t.limited(st)
	if h.Type == clientv1.CommandType_MESSAGEUP && scanned != reason.BadCommand && before == live {
		t.count(st.verb)
	}
	switch st.verb {
	case doRelay:
		t.relay(h.Type, payload)
	case doRetry:
		t.retryLater(h.Type, payload, st)
	case doHeartbeat:
		t.say(clientv1.CommandType_HEARTBEAT, nil)
	case doFail:
		t.say(clientv1.CommandType_MESSAGEACK, &clientv1.MessageAck{Uuid: string(h.UUID),
			Status: clientv1.MessageAckStatus_ACK_FAIL, Reason: st.reason.String()})
	case doError:
		t.say(clientv1.CommandType_ERROR, refusal(&h, st.reason))
	case doLogin:
		return t.loginCommand(h.Data)
	case doLoginReply:
		t.say(clientv1.CommandType_LOGIN_REPLY, t.g.loginReply(t.p))
	case doRefresh:
		return t.refresh(&h)
	case doLogout:
		t.relay(h.Type, payload)
		return t.logout(st.reason)
	case doClose:
		return t.end(st.reason)
	}
	return poller.Rearm
}

// judge says what is wrong with a Command before anybody asks what it wants.
func (g *Gateway) judge(h *codec.Header, scanned error) reason.Reason {
	switch {
	case scanned == codec.ErrBadCommand: //nolint:errorlint // a plain sentinel, compared on the hot path
		return reason.BadCommand
	case scanned != nil:
		if !ident.ValidUUID(h.UUID) {
			h.UUID = nil
		}
		return reason.BadMessage
	case h.Type != clientv1.CommandType_MESSAGEUP:
		return reason.None
	case !ident.ValidUUID(h.UUID):
		h.UUID = nil
		return reason.BadUUID
	case !ident.ValidReceiver(h.ReceiverID):
		return reason.BadReceiver
	case h.ContentBytes > g.frameLimits.FrameBytes-bodySpare:
		return reason.BodyTooBig
	}
	return reason.None
}

// count keeps the books of MESSAGEUP (guarantees, 10).
func (t *turn) count(v verb) {
	t.l.tally.received++
	switch v {
	case doRelay, doRetry:
		t.l.tally.inflight++
	default:
		t.l.tally.results[resultFail]++
	}
}

// readAt is when this pass read its first frame.
func (t *turn) readAt() time.Time {
	if t.l.read.IsZero() {
		t.l.read = t.g.now()
	}
	return t.l.read
}

// relay gathers a frame for the logic tier.
func (t *turn) relay(command clientv1.CommandType, payload []byte) {
	read := t.readAt()
	u := t.g.pools.take(payload)
	u.command, u.kind, u.received = command, stateclient.KindFrame, read.Sub(t.g.base)
	u.seq = t.p.session.number()
	t.p.session.took(len(u.payload))
	t.p.push(u)
	t.l.add(t.p, u, read)
}

// retryLater owes the client a RETRY of the gateway's own, or drops what needs none.
func (t *turn) retryLater(command clientv1.CommandType, payload []byte, st step) {
	if command == clientv1.CommandType_DELIVERED {
		t.l.tally.dropped++
		return
	}
	u := t.g.pools.take(payload)
	u.command, u.received = command, t.readAt().Sub(t.g.base)
	t.p.session.took(len(u.payload))
	t.g.owe(t.p, u, st, t.g.clock())
}

// logout leaves once everything is answered, the LOGOUT itself included.
func (t *turn) logout(why reason.Reason) poller.Verdict {
	was := t.p.session.state
	if t.p.session.leave(why) {
		t.g.gauges.moved(int(t.p.listener), was, leaving)
		t.g.leaveLater(t.p)
	}
	return poller.Rearm // the gate parks it
}

// say writes one Command of the gateway's own.
func (t *turn) say(command clientv1.CommandType, m codec.Message) {
	t.l.reply = scratch(codec.AppendCommand(t.l.reply[:0], command, 0, m))
	framed, err := t.p.stream.Append(t.l.frame[:0], t.l.reply)
	if err != nil {
		return // our own commands can always be encoded
	}
	t.write(framed)
}
