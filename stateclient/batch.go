package stateclient

import (
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"

	statev1 "github.com/sluice-im/sluice/api/state/v1"
)

// msOf is the wire's unit.
func msOf(ms uint32) time.Duration { return time.Duration(ms) * time.Millisecond }

// itemOverhead is what the fields of an item other than its strings and bytes take on the wire, at most.
const itemOverhead = 80

// send empties the queue, batch by batch: each takes what has gathered since the last one was sent.
func (s *stream) send(a *attempt) error {
	for {
		ok, err := s.fill()
		if err != nil || !ok {
			return err
		}
		if err := a.call.SendMsg(&s.encoded); err != nil {
			return errSend
		}
	}
}

// fill makes the next message out of the queue, or a ping when one is due; ok is false when there is nothing to send.
// The uplinks are encoded outside the mutex: until that is over they cannot be answered, since their payloads would go
// back to the gateway while they are read.
func (s *stream) fill() (ok bool, err error) {
	l := s.lane
	l.mu.Lock()
	if l.queue.head != 0 && !l.draining {
		if n := l.backend.admits(l.relay.cfg.Batch); n == 0 {
			l.mu.Unlock()
			l.settleQueue("the breaker is open")
			l.mu.Lock()
		} else {
			s.gather(n)
			if len(s.taken) == 0 {
				l.backend.probing.Store(false)
			}
		}
	}
	if len(s.taken) == 0 && !s.pingDue {
		l.mu.Unlock()
		return false, nil
	}
	if len(s.taken) == 0 {
		s.pingDue = false
	}
	l.mu.Unlock()

	s.batch.Incarnation, s.batch.GatewayAddr = l.relay.cfg.Incarnation, l.relay.cfg.GatewayAddr
	err = s.encoded.Encode(&s.batch)
	for _, it := range s.batch.Items {
		it.Payload = nil // The gateway's again once the uplink is answered.
	}
	s.batch.Items = s.batch.Items[:0]
	if n := len(s.taken); n > 0 {
		l.backend.batch.Observe(float64(n))
		l.mu.Lock()
		for _, i := range s.taken {
			l.slab.items[i].encoding = false
		}
		l.mu.Unlock()
		s.taken = s.taken[:0]
	}
	return true, err
}

// gather takes at most n uplinks from the queue into the batch. mu is held.
func (s *stream) gather(n int) {
	l, now := s.lane, s.lane.relay.now()
	size := 0
	for i := l.queue.head; i != 0 && len(s.taken) < n; i = l.queue.head {
		it := &l.slab.items[i]
		left := budget(it, now)
		if left == 0 {
			l.leave(i) // Expired: the wheel ends it.
			continue
		}
		u := &it.uplink
		p := u.Peer
		announce := u.Kind == KindFrame && p.flight.announced != s.generation
		count := len(s.batch.Items) + 1
		size += itemSize(u)
		if announce {
			count++
			size += itemSize(u) - len(u.Payload)
		}
		if count > l.relay.cfg.Batch || len(s.taken) > 0 && size > l.relay.cfg.BatchBytes {
			break
		}
		if announce {
			s.announce(u, left)
		}
		if u.Kind != KindDisconnect {
			p.flight.announced = s.generation
		}
		out := s.item(p, u.Kind, left)
		out.ConnSeq, out.Payload, out.ReceivedAtMs = u.Seq, u.Payload, u.Received.UnixMilli()
		out.TraceParent, out.Reason = valid(u.TraceParent), valid(u.Reason)
		l.dequeue(i, now)
		s.taken = append(s.taken, i)
	}
	if len(s.taken) > 0 && s.owedSince == 0 {
		s.owedSince = now
		if now+s.silent < l.armed {
			signal(l.kick)
		}
	}
}

// announce adds a Connect of the relay's own: this stream has not carried one for the connection. Its conn_seq of 0 says
// that it takes no number, and its answer is dropped.
func (s *stream) announce(u *Uplink, left uint32) {
	out := s.item(u.Peer, KindConnect, left)
	out.ConnSeq, out.Payload, out.ReceivedAtMs = 0, nil, u.Received.UnixMilli()
	out.TraceParent, out.Reason = "", ""
}

// item is the next item of the batch with what is the same for all uplinks of a connection; the caller fills the rest.
func (s *stream) item(p *Peer, kind Kind, left uint32) *statev1.UplinkItem {
	n := len(s.batch.Items)
	if n == len(s.items) {
		s.items = append(s.items, &statev1.UplinkItem{})
	}
	out := s.items[n]
	s.batch.Items = append(s.batch.Items, out)
	out.ConnId, out.Uid, out.DeviceId, out.Epoch = p.ConnID, p.UID, p.DeviceID, p.Epoch
	out.RemoteAddr, out.Platform, out.SessionId = p.RemoteAddr, p.Platform, p.SessionID
	out.Kind, out.BudgetMs = wireKind(kind), left
	if p.flight.unclean {
		out.Uid, out.DeviceId, out.RemoteAddr = valid(out.Uid), valid(out.DeviceId), valid(out.RemoteAddr)
		out.Platform, out.SessionId = valid(out.Platform), valid(out.SessionId)
	}
	return out
}

func wireKind(k Kind) statev1.UplinkKind {
	switch k {
	case KindConnect:
		return statev1.UplinkKind_UPLINK_KIND_CONNECT
	case KindDisconnect:
		return statev1.UplinkKind_UPLINK_KIND_DISCONNECT
	case KindFrame:
	}
	return statev1.UplinkKind_UPLINK_KIND_FRAME
}

func itemSize(u *Uplink) int {
	p := u.Peer
	return itemOverhead + len(u.Payload) + len(u.TraceParent) + len(u.Reason) +
		len(p.UID) + len(p.DeviceID) + len(p.Platform) + len(p.SessionID) + len(p.RemoteAddr)
}

// valid is s as proto3 wants strings: one that is not UTF-8 would make a backend refuse the whole batch.
func valid(s string) string {
	if s == "" || utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, "?")
}

// hear handles one message of the backend. Its items point into the receive buffer; what the sink gets of them is valid
// for as long as a Downlink's payload is.
func (s *stream) hear(in *statev1.DownlinkBatch) {
	l := s.lane
	good, bad := 0, 0
	l.deliver.Lock()
	for first, rest := true, in.Items; first || len(rest) > 0; first = false {
		n := min(len(rest), deliverMax)
		l.mu.Lock()
		if first {
			s.pings, s.owedSince = 0, 0
		}
		for _, it := range rest[:n] {
			if it.ConnSeq == 0 {
				continue // Answers an announcement.
			}
			if !l.take(it.ConnId, it.ConnSeq, l.itemAnswer(it)) {
				continue
			}
			if sick(codes.Code(it.Status)) {
				bad++
			} else {
				good++
			}
		}
		l.mu.Unlock()
		l.give()
		rest = rest[n:]
	}
	l.deliver.Unlock()
	if in.Draining {
		s.drain()
	}
	switch {
	case good > 0, len(in.Items) == 0 && l.backend.pingCloses(l.relay.now()):
		l.backend.succeeded()
	case bad > 0:
		l.backend.failed(bad)
	}
}

// drain lets nothing new in; feed closes the stream when the last answer was given.
func (s *stream) drain() {
	l := s.lane
	l.mu.Lock()
	was := l.draining
	l.draining = true
	l.mu.Unlock()
	if !was {
		l.relay.laneDraining(l)
		signal(l.wake)
	}
}

// itemAnswer is what one item says.
func (l *lane) itemAnswer(it *statev1.DownlinkItem) answer {
	if c := codes.Code(it.Status); c != codes.OK {
		return statusAnswer(c, it.Detail, msOf(it.RetryAfterMs))
	}
	return l.payloadAnswer(it.Payload)
}

func (l *lane) payloadAnswer(payload []byte) answer {
	if len(payload) > l.relay.cfg.AnswerBytes {
		l.relay.metrics.oversize.Inc()
		return answer{outcome: Failed, detail: "the answer is larger than a client may be sent"}
	}
	return answer{payload: payload}
}
