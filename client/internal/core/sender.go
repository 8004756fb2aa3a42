package core

import (
	"iter"
	"slices"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/reason"
)

// aroundBody is what the ids and envelope around a message's text and body may take on its way down: a body is at
// most the frame limit less 2 KiB.
const aroundBody = 2 << 10

func (m *Machine) tooBig(up *clientv1.MessageUp) bool {
	return len(up.Content)+len(up.Body) > m.frameMax-aroundBody
}

// item is a message on its way up, or a draft.
type item struct {
	up    *clientv1.MessageUp
	state State
	// The draft's reason.
	reason string

	// While it is queued.
	inFlight bool
	sends    int
	timeouts int
	retries  int
	losses   int
	sentAt   time.Time
	// In flight: when the answer is overdue. Else: not to be sent before.
	dueAt time.Time
	// Connected time since it was first sent: what is complete, and when the current stretch began (zero = none).
	spent    time.Duration
	countsAt time.Time
}

// Enqueue puts a message behind the others. known is true, and nothing happens, if its uuid is queued already. A uuid
// that is FAILED is sent again by hand: it keeps its uuid and its state, and stands behind the others.
func (m *Machine) Enqueue(now time.Time, up *clientv1.MessageUp) (known bool, err error) {
	if known, err = m.Check(up); known || err != nil {
		return known, err
	}
	it := m.byUUID[up.Uuid]
	if it != nil {
		m.drafts = slices.DeleteFunc(m.drafts, func(d *item) bool { return d == it })
		*it = item{up: up, state: Failed}
	} else {
		it = &item{up: up, state: Local}
		m.byUUID[up.Uuid] = it
		m.emit(Changed{Message: up, State: Local})
	}
	m.queue = append(m.queue, it)
	m.advance(now)
	return false, nil
}

// Check says whether Enqueue would take the message; known and err are as there.
func (m *Machine) Check(up *clientv1.MessageUp) (known bool, err error) {
	switch it := m.byUUID[up.Uuid]; {
	case it != nil && (it.state != Failed || slices.Contains(m.queue, it)):
		return true, nil
	case len(m.queue) >= m.cfg.QueueMax:
		return false, ErrQueueFull
	case m.tooBig(up):
		return false, ErrTooBig
	}
	return false, nil
}

// Restore puts a message of an earlier run behind the others, before the first Connected: as unsettled, or with a
// reason as a draft. It is not bounded, since what was accepted once must not be lost.
func (m *Machine) Restore(up *clientv1.MessageUp, failed string) {
	if m.byUUID[up.Uuid] != nil {
		return
	}
	it := &item{up: up, state: Local}
	m.byUUID[up.Uuid] = it
	if failed != "" {
		it.state, it.reason = Failed, failed
		m.drafts = append(m.drafts, it)
		return
	}
	m.queue = append(m.queue, it)
}

// Discard forgets a draft; ok is false if there is none with this uuid.
func (m *Machine) Discard(uuid string) (ok bool) {
	i := slices.IndexFunc(m.drafts, func(d *item) bool { return d.up.Uuid == uuid })
	if i < 0 {
		return false
	}
	m.drafts = slices.Delete(m.drafts, i, i+1)
	delete(m.byUUID, uuid)
	m.emit(Forget{UUID: uuid})
	return true
}

// Queued returns the unsettled messages in their order.
func (m *Machine) Queued() []*clientv1.MessageUp {
	list := make([]*clientv1.MessageUp, 0, len(m.queue))
	for _, it := range m.queue {
		list = append(list, it.up)
	}
	return list
}

// Drafts goes over the failed messages, oldest first, with their reasons.
func (m *Machine) Drafts() iter.Seq2[*clientv1.MessageUp, string] {
	return func(yield func(*clientv1.MessageUp, string) bool) {
		for _, it := range m.drafts {
			if !yield(it.up, it.reason) {
				return
			}
		}
	}
}

// pump sends what may be sent and what is overdue, in the queue's order and within the window.
func (m *Machine) pump(now time.Time) {
	for i := 0; i < min(m.cfg.Window, len(m.queue)); {
		it := m.queue[i]
		if it.inFlight && !now.Before(it.dueAt) {
			m.timeOut(now, it)
		} else if !it.inFlight && !now.Before(it.dueAt) {
			m.transmit(now, it)
		}
		// A message that failed left the queue, and its place has the next one.
		if i < len(m.queue) && m.queue[i] == it {
			i++
		}
	}
}

// pumpDeadline notes when pump has something to do.
func (m *Machine) pumpDeadline(d *deadline) {
	for _, it := range m.queue[:min(m.cfg.Window, len(m.queue))] {
		d.note(it.dueAt)
	}
}

func (m *Machine) transmit(now time.Time, it *item) {
	if m.tooBig(it.up) {
		m.fail(it, reason.BodyTooBig.String())
		return
	}
	it.inFlight = true
	it.sends++
	it.sentAt = now
	it.dueAt = now.Add(m.rto.Timeout(it.timeouts, m.rnd.Float64()))
	if it.countsAt.IsZero() {
		it.countsAt = now
	}
	m.emit(Write{Type: clientv1.CommandType_MESSAGEUP, Message: it.up})
	if it.state < Sent {
		it.state = Sent
		m.emit(Changed{Message: it.up, State: Sent})
	}
}

// timeOut is an answer that did not come: sent again, a bounded number of times.
func (m *Machine) timeOut(now time.Time, it *item) {
	if it.timeouts >= m.cfg.Resends {
		m.fail(it, reason.Timeout.String())
		return
	}
	it.timeouts++
	m.emit(Probe{})
	m.transmit(now, it)
}

// onAck is the answer to a message, perhaps a late one.
func (m *Machine) onAck(now time.Time, a *clientv1.MessageAck) {
	it := m.byUUID[a.Uuid]
	switch a.Status {
	case clientv1.MessageAckStatus_ACK_OK:
		if it != nil {
			if it.inFlight && it.sends == 1 {
				m.rto.Sample(now.Sub(it.sentAt))
			}
			m.settleStored(it, Changed{ConvID: a.ConvId, Seq: a.Seq, MsgID: a.MsgId, ServerAtMs: a.ServerAtMs, OutOfOrder: a.OutOfOrder})
		}
		m.ownReceipt(now, a.ConvId, a.Seq)
	case clientv1.MessageAckStatus_ACK_RETRY:
		if it != nil && it.inFlight {
			m.retryLater(now, it, a)
		}
	case clientv1.MessageAckStatus_ACK_FAIL:
		if it != nil && slices.Contains(m.queue, it) {
			m.fail(it, orUnknown(a.Reason))
		}
	}
}

// retryLater is a RETRY: not a resend for a timeout, but bounded by the connected time that the message has taken.
func (m *Machine) retryLater(now time.Time, it *item, a *clientv1.MessageAck) {
	if it.spent+now.Sub(it.countsAt) >= m.cfg.GiveUp {
		m.fail(it, orUnknown(a.Reason))
		return
	}
	pause := m.backoff(m.cfg.RetryBase, m.cfg.RetryMax, it.retries)
	if asked := time.Duration(a.RetryAfterMs) * time.Millisecond; asked > 0 {
		pause = max(pause, m.jittered(min(asked, m.cfg.GiveUp), 0.5))
	}
	it.retries++
	it.inFlight = false
	it.dueAt = now.Add(pause)
}

// failRefused is an ERROR about a message: the one with the uuid, or the only one it can be about.
func (m *Machine) failRefused(uuid, why string) {
	if it := m.byUUID[uuid]; it != nil && slices.Contains(m.queue, it) {
		m.fail(it, orUnknown(why))
		return
	}
	var only *item
	for _, it := range m.queue[:min(m.cfg.Window, len(m.queue))] {
		if it.inFlight && only != nil {
			return
		}
		if it.inFlight {
			only = it
		}
	}
	if uuid == "" && only != nil {
		m.fail(only, orUnknown(why))
	}
}

// settleStored is the end of the sending: by an OK, or by the own message seen in a push or pull.
func (m *Machine) settleStored(it *item, c Changed) {
	c.Message, c.State = it.up, Stored
	wasQueued := m.unqueue(it)
	if !wasQueued {
		m.drafts = slices.DeleteFunc(m.drafts, func(d *item) bool { return d == it })
	}
	delete(m.byUUID, it.up.Uuid)
	it.state = Stored
	m.emit(Forget{UUID: it.up.Uuid})
	m.emit(c)
	if wasQueued {
		m.emit(Settled{c})
	}
	m.track(it.up, c)
}

// fail gives a message up and keeps it as a draft.
func (m *Machine) fail(it *item, why string) {
	m.unqueue(it)
	changed := Changed{Message: it.up, State: Failed, Reason: why}
	m.emit(KeepDraft{Message: it.up, Reason: why})
	if it.state < Failed {
		m.emit(changed)
	}
	m.emit(Settled{changed})
	*it = item{up: it.up, state: Failed, reason: why}
	if len(m.drafts) >= m.cfg.DraftsMax {
		oldest := m.drafts[0]
		m.drafts = slices.Delete(m.drafts, 0, 1)
		delete(m.byUUID, oldest.up.Uuid)
		m.emit(Forget{UUID: oldest.up.Uuid})
	}
	m.drafts = append(m.drafts, it)
}

// unqueue takes a message out of the queue; false if it was not in it.
func (m *Machine) unqueue(it *item) bool {
	i := slices.Index(m.queue, it)
	if i < 0 {
		return false
	}
	m.queue = slices.Delete(m.queue, i, i+1)
	return true
}

// loseInFlight is the end of a connection under the unanswered messages: what became of them is unknown.
func (m *Machine) loseInFlight(now time.Time) {
	var lost []*item
	for _, it := range m.queue {
		if !it.countsAt.IsZero() {
			it.spent += now.Sub(it.countsAt)
			it.countsAt = time.Time{}
		}
		if it.inFlight {
			it.inFlight, it.dueAt = false, time.Time{}
			lost = append(lost, it)
		}
	}
	for _, it := range lost {
		if it.losses++; it.losses >= m.cfg.LossesMax {
			m.fail(it, reason.ConnectionGone.String())
		}
	}
}

// resumeCounting starts the next stretch of connected time for what was sent before.
func (m *Machine) resumeCounting(now time.Time) {
	for _, it := range m.queue {
		if it.sends > 0 {
			it.countsAt = now
		}
	}
}

// orUnknown names a refusal that came without a reason, as the documents' logic tier gives it.
func orUnknown(why string) string {
	if why == "" {
		return reason.BackendRefused.String()
	}
	return why
}
