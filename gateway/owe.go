package gateway

import (
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/codec"
	"github.com/sluice-im/sluice/poller"
)

// owe promises a RETRY of the gateway's own: the client is told after st.after, at most retryMax, and its connection is
// not read until then. A client that resends at once would spin otherwise. p.mu is held.
func (g *Gateway) owe(p *peer, u *uplink, st step, now time.Duration) {
	p.session.pending++
	u.why, u.after, u.at = st.reason, st.after, now+min(st.after, retryMax)
	last := &p.rarely().later
	for *last != nil {
		last = &(*last).next
	}
	*last = u
	g.pacer.add(p.id, u.at-now)
}

// due does for one connection what its time has come for, on the pacer's goroutine.
func (g *Gateway) due(id poller.ID, o *outgoing) {
	p := g.peers.locked(id)
	if p == nil {
		return
	}
	r := p.rare
	if r == nil {
		p.mu.Unlock()
		return
	}
	now := g.clock()
	if r.parkedAt != 0 && p.session.blocked && !p.session.refusing {
		if wait := r.parkedAt + g.cfg.Backpressure.ParkMax - now; wait > 0 {
			g.pacer.add(id, wait)
		} else {
			p.session.parkedTooLong()
			g.giveUp(p, o, now)
			o.wakes = append(o.wakes, id)
		}
	}
	o.frame = g.owed(o, p, now)
	over := r.leaveAt != 0 && (now >= r.leaveAt || p.session.drained())
	p.tidy()
	p.mu.Unlock()
	if len(o.frame) > 0 {
		g.conns.Queue(id, o.frame)
		o.touch(id)
		o.wakes = append(o.wakes, id)
		o.frame = scratch(o.frame)
	}
	if over {
		o.done = append(o.done, id)
	}
}

// owed frames every RETRY whose time has come. p.mu is held.
func (g *Gateway) owed(o *outgoing, p *peer, now time.Duration) []byte {
	framed := o.frame[:0]
	for at := &p.rare.later; *at != nil; {
		u := *at
		if u.at > now {
			at = &u.next
			continue
		}
		*at = u.next
		p.session.pending--
		p.session.answered(len(u.payload))
		o.reply = scratch(appendRefusal(o.reply[:0], u.payload, u.why, u.after, clientv1.MessageAckStatus_ACK_RETRY))
		if more, err := p.stream.Append(framed, o.reply); err == nil {
			framed = more
		}
		if u.command == clientv1.CommandType_MESSAGEUP {
			o.tally.inflight--
			o.tally.results[resultRetry]++
			o.received = append(o.received, u.received)
		}
		g.pools.give(u)
	}
	return framed
}

// appendRefusal is the gateway's own answer to a Command: MESSAGEACK for a MESSAGEUP, ERROR naming command and
// conversation for everything else.
func appendRefusal(dst, command []byte, why reason.Reason, after time.Duration, status clientv1.MessageAckStatus) []byte {
	h, _ := codec.Scan(command) // it was scanned when it came
	if h.Type == clientv1.CommandType_MESSAGEUP {
		return codec.AppendCommand(dst, clientv1.CommandType_MESSAGEACK, 0, &clientv1.MessageAck{Uuid: string(h.UUID),
			Status: status, RetryAfterMs: milliseconds(after), Reason: why.String()})
	}
	e := refusal(&h, why)
	e.RetryAfterMs = milliseconds(after)
	return codec.AppendCommand(dst, clientv1.CommandType_ERROR, 0, e)
}

// refusal is the ERROR that answers a Command without closing the connection.
func refusal(h *codec.Header, why reason.Reason) *clientv1.Error {
	e := &clientv1.Error{Reason: why.String(), Command: h.Type, Uuid: string(h.UUID)}
	if conv := h.ConvID(); len(conv) <= convBytesMax && printable(conv) {
		e.ConvId = string(conv)
	}
	return e
}

// convBytesMax is the longest conversation id: two user ids of 128 bytes with u: and a colon.
const convBytesMax = 260

// printable reports whether every byte of b is printable ASCII: what a client sent is not echoed otherwise.
func printable(b []byte) bool {
	for _, c := range b {
		if c < 0x20 || c > 0x7e {
			return false
		}
	}
	return true
}

func milliseconds(d time.Duration) uint32 {
	return uint32((d + time.Millisecond - 1) / time.Millisecond)
}
