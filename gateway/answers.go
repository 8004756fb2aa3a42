package gateway

import (
	"bytes"
	"time"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/protobuf/encoding/protowire"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/reason"
	"github.com/sluice-im/sluice/codec"
	"github.com/sluice-im/sluice/poller"
	"github.com/sluice-im/sluice/stateclient"
)

// The way of an answer: Answers → find the peer by id → settle → Conns.Queue; at the end of the batch one Flush a
// connection, then the wakes of those whose window has opened.

// sink is where the relay puts its answers.
type sink struct{ g *Gateway }

// outgoing is one batch of answers on its way out. It is scratch, kept from batch to batch.
type outgoing struct {
	frame, reply []byte
	// touched have something queued, wakes may be read again, done have their last answer. A connection can stand there
	// more than once: the second flush finds nothing to do.
	touched, wakes, done []poller.ID
	// received is when each answered MESSAGEUP came.
	received []time.Duration
	tally    tally
}

// Answers implements stateclient.Sink.
func (s sink) Answers(batch []stateclient.Downlink) {
	g := s.g
	o, _ := g.outgoing.Get().(*outgoing)
	if o == nil {
		o = &outgoing{}
	}
	for i := range batch {
		g.answer(o, &batch[i])
	}
	if len(batch) > 0 {
		g.sendOff(o, uint32(batch[0].ConnID))
	}
	g.outgoing.Put(o)
}

// answer settles one uplink.
func (g *Gateway) answer(o *outgoing, d *stateclient.Downlink) {
	if d.Kind == stateclient.KindDisconnect {
		g.farewells.Add(-1)
		return
	}
	id := poller.ID(d.ConnID)
	p := g.peers.locked(id)
	if p == nil {
		return // its connection is gone, which has counted it as lost
	}
	u := p.answeredBy(d.Seq)
	if u == nil {
		p.mu.Unlock()
		o.tally.unmatched++
		return
	}
	if u.kind != stateclient.KindFrame {
		p.mu.Unlock()
		return
	}
	st := g.settled(p, u, d)
	result, framed := g.encodeAnswer(o, p, u, d, &st)
	switch st.verb {
	case doRetry:
		g.owe(p, u, st, g.clock())
		p.mu.Unlock()
		return
	case doDrop:
		o.tally.dropped++
	}
	p.session.answered(len(u.payload))
	if p.parked && p.session.opens(p.rules(g)) {
		o.wakes = append(o.wakes, id)
	}
	if p.session.drained() {
		o.done = append(o.done, id)
	}
	p.mu.Unlock()
	if len(framed) > 0 {
		switch g.conns.Queue(id, framed) {
		case poller.StatusGone, poller.StatusOverflow:
			result = resultLost
		case poller.StatusWritten, poller.StatusQueued:
			o.touch(id)
		}
	}
	if u.command == clientv1.CommandType_MESSAGEUP {
		o.tally.inflight--
		o.tally.results[result]++
		o.received = append(o.received, u.received)
	}
	g.pools.give(u)
}

func (o *outgoing) touch(id poller.ID) {
	if n := len(o.touched); n == 0 || o.touched[n-1] != id {
		o.touched = append(o.touched, id)
	}
}

// settled asks the session what the client is told.
func (g *Gateway) settled(p *peer, u *uplink, d *stateclient.Downlink) step {
	e := settlement{command: u.command, outcome: d.Outcome, retryAfter: d.RetryAfter}
	if d.Outcome == stateclient.FailedUnknown && u.command == clientv1.CommandType_MESSAGEUP {
		h, _ := codec.Scan(u.payload)
		e.uuidHash = xxhash.Sum64(h.UUID)
	}
	return p.session.settle(e)
}

// encodeAnswer frames what st says. An answer of the logic tier that no client could read becomes a RETRY: what it did
// is unknown. p.mu is held.
func (g *Gateway) encodeAnswer(o *outgoing, p *peer, u *uplink, d *stateclient.Downlink, st *step) (result, []byte) {
	switch st.verb {
	case doWrite:
		if len(d.Payload) == 0 {
			return resultNone, nil
		}
		r, ok := resultOf(u, d.Payload)
		if ok && len(d.Payload) <= g.frameLimits.FrameBytes {
			framed, err := p.stream.Append(o.frame[:0], d.Payload)
			if err == nil {
				o.frame = scratch(framed)
				return r, framed
			}
		}
		o.tally.garbage++
		*st = p.session.later(settlement{command: u.command}, reason.BackendError, retryPace)
	case doFail, doError:
		o.reply = scratch(appendRefusal(o.reply[:0], u.payload, st.reason, 0, clientv1.MessageAckStatus_ACK_FAIL))
		framed, err := p.stream.Append(o.frame[:0], o.reply)
		if err == nil {
			o.frame = scratch(framed)
			return resultFail, framed
		}
	}
	return resultNone, nil
}

// sendOff writes a batch: one write a connection, then the wakes, then the closes of those that only waited for it.
func (g *Gateway) sendOff(o *outgoing, shard uint32) {
	for _, id := range o.touched {
		g.conns.Flush(id)
	}
	for _, id := range o.wakes {
		g.conns.Wake(id)
	}
	for _, id := range o.done {
		g.hangUp(id, reason.None)
	}
	if len(o.received) > 0 {
		now := g.clock()
		for _, at := range o.received {
			o.tally.latency.observe(now - at)
		}
	}
	g.counters.add(shard, &o.tally)
	o.touched, o.wakes, o.done, o.received = o.touched[:0], o.wakes[:0], o.done[:0], o.received[:0]
}

// resultOf reads an answer's envelope: what it is counted as, and whether it is a Command at all. An ack of another
// message than the one that it answers would leave the client without a word about its own.
func resultOf(u *uplink, payload []byte) (result, bool) {
	h, err := codec.Scan(payload)
	if err != nil {
		return resultNone, false
	}
	if u.command != clientv1.CommandType_MESSAGEUP {
		return resultNone, true
	}
	switch h.Type {
	case clientv1.CommandType_MESSAGEACK:
		up, _ := codec.Scan(u.payload) // it was scanned when it came
		return ackResult(h.Data, up.UUID)
	case clientv1.CommandType_ERROR:
		return resultFail, true
	}
	return resultNone, true
}

// ackUUID and ackStatus are fields of MessageAck.
const (
	ackUUID   protowire.Number = 1
	ackStatus protowire.Number = 2
)

// ackResult reads the status of a MessageAck without decoding the rest. One that names another uuid is none; one that
// names no uuid is passed on, since a stop-and-wait client may need none.
func ackResult(ack, uuid []byte) (result, bool) {
	status := clientv1.MessageAckStatus_ACK_OK // proto3: 0 is not on the wire
	for rest := ack; len(rest) > 0; {
		num, typ, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return resultNone, false
		}
		rest = rest[n:]
		switch {
		case num == ackStatus && typ == protowire.VarintType:
			v, m := protowire.ConsumeVarint(rest)
			status, n = clientv1.MessageAckStatus(int32(v)), m
		case num == ackUUID && typ == protowire.BytesType:
			v, m := protowire.ConsumeBytes(rest)
			if n = m; len(v) > 0 && !bytes.Equal(v, uuid) {
				return resultNone, false
			}
		default:
			n = protowire.ConsumeFieldValue(num, typ, rest)
		}
		if n < 0 {
			return resultNone, false
		}
		rest = rest[n:]
	}
	switch status {
	case clientv1.MessageAckStatus_ACK_OK:
		return resultOK, true
	case clientv1.MessageAckStatus_ACK_RETRY:
		return resultRetry, true
	}
	return resultFail, true
}
