package core

import (
	"fmt"
	"slices"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/reason"
)

// pulls bounds the PULLs of all conversations together.
type pulls struct {
	out    int
	lastID uint64
	// The application's own, that wait for their conversation or for a place.
	waiting []*history
}

// history is a PULL that the application asked for.
type history struct {
	id     uint64
	convID string
	after  int64
	limit  int
	dueAt  time.Time
}

// watchGap lets the gap be pulled after wait, if there is one and nothing is being done about it.
func (m *Machine) watchGap(now time.Time, c *conversation, wait time.Duration) {
	if !c.decided {
		return
	}
	if c.mark >= c.top {
		c.gapAt = time.Time{}
		return
	}
	at := now.Add(wait)
	if c.pulling || (!c.gapAt.IsZero() && !at.Before(c.gapAt)) || c.unheard > m.cfg.PullTries {
		return
	}
	c.gapAt = at
	m.activate(c)
}

// advancePull starts the PULL of a gap that has lasted, and gives up on an answer that is overdue.
func (m *Machine) advancePull(now time.Time, c *conversation) {
	if c.history != nil && due(now, c.history.dueAt) {
		m.endHistory(c, Pulled{Err: ErrNoAnswer})
	}
	if c.pulling && due(now, c.pullDueAt) {
		m.pullUnheard(now, c, 0)
	}
	if c.pulling || c.history != nil || !due(now, c.gapAt) || m.pulls.out >= m.cfg.PullsMax {
		return
	}
	if c.mark >= c.top {
		c.gapAt = time.Time{}
		return
	}
	c.gapAt, c.pulling, c.pullDueAt = time.Time{}, true, now.Add(m.cfg.ReplyTimeout)
	m.pulls.out++
	m.emit(Write{Type: clientv1.CommandType_PULL, Message: &clientv1.Pull{
		ConvId: c.id, AfterSeq: c.mark, Limit: uint32(m.cfg.PullLimit),
	}})
}

func (m *Machine) endPull(c *conversation) {
	c.pulling, c.pullDueAt = false, time.Time{}
	m.pulls.out--
}

// pullUnheard is a PULL that brought no answer, or an ERROR: tried again, less and less often, a bounded number of times.
func (m *Machine) pullUnheard(now time.Time, c *conversation, after time.Duration) {
	m.endPull(c)
	if c.unheard++; c.unheard > m.cfg.PullTries {
		m.emit(Alarm{Kind: AlarmPullGivenUp, ConvID: c.id, From: c.mark, To: c.top})
		return
	}
	m.watchGap(now, c, max(after, m.backoff(m.cfg.RetryBase, m.cfg.RetryMax, c.unheard)))
}

// onPullError is an ERROR that answers PULL.
func (m *Machine) onPullError(now time.Time, convID, why string, after time.Duration) {
	c := m.convs[convID]
	switch {
	case c == nil:
	case c.history != nil:
		m.endHistory(c, Pulled{Err: fmt.Errorf("%w: %s", ErrRefused, why)})
	case c.pulling && finalRefusal(why):
		m.endPull(c)
		m.skipHole(c)
	case c.pulling:
		m.pullUnheard(now, c, after)
	}
}

// finalRefusal reports whether asking for the same SYNC or PULL again is of no use.
func finalRefusal(why string) bool {
	switch r, _ := reason.Parse(why); r {
	case reason.NotMember, reason.NoSuchGroup, reason.BackendRefused, reason.BadCommand, reason.UnknownCommand:
		return true
	default:
		return false
	}
}

func (m *Machine) onPullReply(now time.Time, r *clientv1.PullReply) {
	c := m.convs[r.ConvId]
	if c == nil {
		return
	}
	if c.history != nil {
		m.onHistoryReply(now, c, r)
		return
	}
	if c.pulling {
		m.endPull(c)
	}
	before := c.mark
	m.raise(c, r.FloorSeq)
	m.takePulled(now, c, r.Messages)
	if n := len(r.Messages); n > 0 && r.HasMore {
		c.top = max(c.top, r.Messages[n-1].Seq+1)
	}
	switch {
	case c.mark >= c.top:
		c.unheard, c.fruitless, c.gapAt = 0, 0, time.Time{}
	case c.mark > before:
		c.unheard, c.fruitless, c.gapAt = 0, 0, time.Time{}
		m.watchGap(now, c, 0)
	default:
		m.pullFruitless(now, c)
	}
}

// takePulled puts pulled messages in their places. What is here already needs no DELIVERED again: no push was repeated.
func (m *Machine) takePulled(now time.Time, c *conversation, messages []*clientv1.MessageDown) {
	for _, d := range messages {
		if d.ConvId == c.id && d.Seq > c.mark {
			m.arrive(now, c, d.Seq, m.foreign(d))
		}
	}
}

// pullFruitless is an answer that left the gap as it was. Numbers are dense, so this passes with the server's trouble;
// if it does not, the numbers do not exist, and going on with an alarm is better than standing still for ever.
func (m *Machine) pullFruitless(now time.Time, c *conversation) {
	c.unheard = 0
	if c.fruitless++; c.fruitless < m.cfg.PullTries {
		m.watchGap(now, c, m.backoff(m.cfg.RetryBase, m.cfg.RetryMax, c.fruitless))
		return
	}
	m.skipHole(c)
	m.watchGap(now, c, m.cfg.GapWait)
}

// skipHole goes on behind a gap that cannot be filled.
func (m *Machine) skipHole(c *conversation) {
	to := c.top
	if len(c.early) > 0 {
		to = c.early[0].seq - 1
	}
	m.emit(Alarm{Kind: AlarmHole, ConvID: c.id, From: c.mark, To: to})
	m.raise(c, to)
}

// stopPulls ends all PULLs with their connection. The gaps are pulled at once on the next: its SYNC need not name them,
// since it only names what has changed since the last.
func (m *Machine) stopPulls(now time.Time) {
	for _, c := range m.active {
		if c.pulling {
			m.endPull(c)
		}
		if c.history != nil {
			m.endHistory(c, Pulled{Err: ErrOffline})
		}
		c.unheard, c.gapAt = 0, time.Time{}
		m.watchGap(now, c, 0)
	}
	for _, h := range m.pulls.waiting {
		m.emit(Pulled{ID: h.id, Err: ErrOffline})
	}
	m.pulls.waiting = nil
}

// History pulls up to limit messages of a conversation after a number, for the application; Pulled with the id answers.
func (m *Machine) History(now time.Time, convID string, after int64, limit int) (id uint64, err error) {
	if !m.connected {
		return 0, ErrOffline
	}
	if len(m.pulls.waiting) >= m.cfg.HistoryMax {
		return 0, ErrQueueFull
	}
	if m.conversation(convID) == nil {
		return 0, fmt.Errorf("%w: no room for conversation %q", ErrQueueFull, convID)
	}
	m.pulls.lastID++
	h := &history{id: m.pulls.lastID, convID: convID, after: max(after, 0), limit: limit}
	m.pulls.waiting = append(m.pulls.waiting, h)
	m.advance(now)
	return h.id, nil
}

// advanceHistory sends those whose conversation has no PULL under way: replies are told apart by conversation only.
func (m *Machine) advanceHistory(now time.Time) {
	m.pulls.waiting = slices.DeleteFunc(m.pulls.waiting, func(h *history) bool {
		c := m.convs[h.convID]
		if c.pulling || c.history != nil || m.pulls.out >= m.cfg.PullsMax {
			return false
		}
		h.dueAt = now.Add(m.cfg.ReplyTimeout)
		c.history = h
		m.pulls.out++
		m.activate(c)
		m.emit(Write{Type: clientv1.CommandType_PULL, Message: &clientv1.Pull{
			ConvId: h.convID, AfterSeq: h.after, Limit: uint32(h.limit),
		}})
		return true
	})
}

// onHistoryReply answers the application, unless the reply belongs to an earlier PULL that was given up: numbers are
// dense, so the first message tells.
func (m *Machine) onHistoryReply(now time.Time, c *conversation, r *clientv1.PullReply) {
	first := max(c.history.after, r.FloorSeq) + 1
	if len(r.Messages) > 0 && r.Messages[0].Seq != first {
		return
	}
	m.endHistory(c, Pulled{Messages: r.Messages, FloorSeq: r.FloorSeq, HasMore: r.HasMore})
	for _, d := range r.Messages {
		if it := m.byUUID[d.Uuid]; it != nil && d.FromUid == m.uid {
			m.settleStored(it, Changed{ConvID: d.ConvId, Seq: d.Seq, MsgID: d.MsgId, ServerAtMs: d.ServerAtMs})
			m.ownReceipt(now, d.ConvId, d.Seq)
		}
	}
}

func (m *Machine) endHistory(c *conversation, p Pulled) {
	p.ID = c.history.id
	c.history = nil
	m.pulls.out--
	m.emit(p)
}
