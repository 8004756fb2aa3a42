package core

import (
	"cmp"
	"slices"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
)

// recently is how long before the end of a connection a DELIVERED or READ may have been lost with it unnoticed: a
// heartbeat interval of 30 s and its timeout, until a dead connection is known to be dead, with something to spare.
const recently = time.Minute

// early is a message that arrived before an earlier one; message is nil where the number is an own message's.
type early struct {
	seq     int64
	message *clientv1.MessageDown
}

// conversation is one line of numbers.
type conversation struct {
	id string

	// What was received. mark: everything up to it was released to the application, or is the user's own. While the mark
	// is undecided (the first SYNC has not said where to start) everything is held as early.
	decided bool
	mark    int64
	// The highest number known to exist.
	top   int64
	early []early
	// The mark when the SYNC under way was asked for: a max_seq below it means that the store went back.
	syncBase int64

	// What the application has consumed, which is what DELIVERED says and what is persisted.
	held     int64
	released int

	// DELIVERED and READ: when the next one goes, and when the last one went.
	ackAt, ackedAt   time.Time
	read             int64
	readAt, readedAt time.Time

	// The gap: when it is pulled, and the PULL under way.
	gapAt     time.Time
	pulling   bool
	pullDueAt time.Time
	unheard   int // PULLs without an answer
	fruitless int // PULLs whose answer did not help
	history   *history

	// The user's own messages, by seq, and how far the other side has come.
	mine                    []*stored
	peerDelivered, peerRead int64

	// Whether it is in Machine.active.
	listed bool
}

func (c *conversation) idle() bool {
	return c.ackAt.IsZero() && c.readAt.IsZero() && c.gapAt.IsZero() && !c.pulling && c.history == nil
}

// conversation finds or begins one; nil if there is no room for another.
func (m *Machine) conversation(id string) *conversation {
	if c := m.convs[id]; c != nil {
		return c
	}
	if id == "" {
		return nil
	}
	if len(m.convs) >= m.cfg.ConversationsMax {
		m.emit(Alarm{Kind: AlarmConversations, ConvID: id})
		return nil
	}
	// Once a SYNC is complete, a conversation that was not in it began after it: its first number is 1.
	c := &conversation{id: id, decided: m.sync.complete && !m.sync.running}
	if !c.decided {
		m.undecided = append(m.undecided, c)
	}
	m.convs[id] = c
	return c
}

// activate makes advance look at the conversation.
func (m *Machine) activate(c *conversation) {
	if !c.listed {
		c.listed = true
		m.active = append(m.active, c)
	}
}

// onDown is a pushed message. One without a number comes from a logic tier that has none: it is passed on as it is.
func (m *Machine) onDown(now time.Time, d *clientv1.MessageDown) {
	if d.ConvId == "" || d.Seq <= 0 {
		m.emit(Release{Message: d})
		return
	}
	c := m.conversation(d.ConvId)
	if c == nil {
		return
	}
	if c.decided && d.Seq <= c.mark {
		// The server does not know that it arrived. What the application still has in hand is confirmed after it.
		if d.Seq <= c.held {
			m.wantAck(now, c)
		}
		return
	}
	m.arrive(now, c, d.Seq, m.foreign(d))
}

// foreign is d, or nil if d is a message of this client, which the application knows; the sender may learn from it.
func (m *Machine) foreign(d *clientv1.MessageDown) *clientv1.MessageDown {
	if m.uid == "" || d.FromUid != m.uid {
		return d
	}
	if it := m.byUUID[d.Uuid]; it != nil {
		m.settleStored(it, Changed{ConvID: d.ConvId, Seq: d.Seq, MsgID: d.MsgId, ServerAtMs: d.ServerAtMs})
		return nil
	}
	if s := m.stored.byUUID[d.Uuid]; s != nil && s.changed.Seq == d.Seq && s.changed.ConvID == d.ConvId {
		return nil
	}
	return d
}

// ownReceipt: an OK says that the number is the own message's, which therefore has arrived.
func (m *Machine) ownReceipt(now time.Time, convID string, seq int64) {
	if convID == "" || seq <= 0 {
		return
	}
	if c := m.conversation(convID); c != nil {
		m.arrive(now, c, seq, nil)
	}
}

// arrive puts number seq in its place; a nil message is an own one.
func (m *Machine) arrive(now time.Time, c *conversation, seq int64, d *clientv1.MessageDown) {
	if c.decided && seq <= c.mark {
		return
	}
	if !c.decided && m.sync.absent {
		m.decide(now, c, seq-1)
	}
	if seq > c.top {
		c.top, c.unheard = seq, 0
	}
	if !c.decided || seq > c.mark+1 {
		m.keepEarly(c, seq, d)
	} else {
		m.release(c, seq, d)
		m.releaseEarly(c)
	}
	m.watchGap(now, c, m.jittered(m.cfg.GapWait, 0.5))
}

// release moves the mark over the next number.
func (m *Machine) release(c *conversation, seq int64, d *clientv1.MessageDown) {
	c.mark, c.fruitless = seq, 0
	if d != nil {
		c.released++
		m.emit(Release{Message: d})
		return
	}
	m.holdMark(c)
}

// holdMark: with nothing in the application's hands, everything up to the mark is held.
func (m *Machine) holdMark(c *conversation) {
	if c.released == 0 && c.held != c.mark {
		c.held = c.mark
		m.emit(MarksChanged{})
	}
}

func (m *Machine) releaseEarly(c *conversation) {
	n := 0
	for n < len(c.early) && c.early[n].seq <= c.mark+1 {
		e := c.early[n]
		m.earlyBytes -= e.bytes()
		if e.seq == c.mark+1 {
			m.release(c, e.seq, e.message)
		}
		n++
	}
	c.early = slices.Delete(c.early, 0, n)
}

// keepEarly holds a message until its turn. Without room it is dropped: top remembers that it exists, so it is pulled.
func (m *Machine) keepEarly(c *conversation, seq int64, d *clientv1.MessageDown) {
	e := early{seq: seq, message: d}
	i, found := slices.BinarySearchFunc(c.early, seq, func(e early, seq int64) int { return cmp.Compare(e.seq, seq) })
	if found || len(c.early) >= m.cfg.EarlyMax || m.earlyBytes+e.bytes() > m.cfg.EarlyBytes {
		return
	}
	m.earlyBytes += e.bytes()
	c.early = slices.Insert(c.early, i, e)
}

func (m *Machine) dropEarly(c *conversation) {
	for _, e := range c.early {
		m.earlyBytes -= e.bytes()
	}
	c.early = nil
}

func (e early) bytes() int {
	if e.message == nil {
		return 0
	}
	return e.message.SizeVT()
}

// raise moves the mark to seq, since nothing at or below it exists for this user any more.
func (m *Machine) raise(c *conversation, seq int64) {
	if seq <= c.mark {
		return
	}
	c.mark, c.fruitless = seq, 0
	c.top = max(c.top, seq)
	m.holdMark(c)
	m.releaseEarly(c)
}

// Consumed says that the application has taken a released message for good.
func (m *Machine) Consumed(now time.Time, convID string, seq int64) {
	c := m.convs[convID]
	if c == nil || c.released == 0 {
		return
	}
	c.released--
	// After the store went back, what the application still had in hand is above the mark.
	c.held = max(c.held, min(seq, c.mark))
	if c.released == 0 {
		c.held = c.mark
	}
	m.emit(MarksChanged{})
	m.wantAck(now, c)
	m.advance(now)
}

// wantAck lets a DELIVERED go soon: at once if the last one is long ago, and in a group at a random moment of the next
// second, since all its members have the same reason to speak now.
func (m *Machine) wantAck(now time.Time, c *conversation) {
	if !c.ackAt.IsZero() {
		return
	}
	c.ackAt = now
	if next := c.ackedAt.Add(m.cfg.AckEvery); next.After(now) {
		c.ackAt = next
	}
	if isGroup(c.id) {
		c.ackAt = now.Add(time.Duration(float64(m.cfg.GroupAckEvery) * m.rnd.Float64()))
		if next := c.ackedAt.Add(m.cfg.GroupAckEvery); next.After(c.ackAt) {
			c.ackAt = next
		}
	}
	m.activate(c)
}

// MarkRead says that the user has seen the conversation up to seq; beyond what was released it is cut.
func (m *Machine) MarkRead(now time.Time, convID string, seq int64) {
	c := m.convs[convID]
	if c == nil {
		return
	}
	if seq = min(seq, c.mark); seq <= c.read {
		return
	}
	c.read = seq
	if c.readAt.IsZero() {
		c.readAt = now
		if next := c.readedAt.Add(m.cfg.AckEvery); next.After(now) {
			c.readAt = next
		}
	}
	m.activate(c)
	m.advance(now)
}

// Flush sends at once the DELIVERED and READ that wait for their time, since the connection is about to be closed.
func (m *Machine) Flush(now time.Time) {
	for _, c := range m.active {
		if !c.ackAt.IsZero() {
			c.ackAt = now
		}
		if !c.readAt.IsZero() {
			c.readAt = now
		}
	}
	m.advance(now)
}

// repeatRecent lets the next connection say again what may have been lost with this one.
func (m *Machine) repeatRecent(now time.Time) {
	for _, c := range m.convs {
		if !c.ackedAt.IsZero() && now.Sub(c.ackedAt) < recently && c.ackAt.IsZero() {
			c.ackAt = now
			m.activate(c)
		}
		if !c.readedAt.IsZero() && now.Sub(c.readedAt) < recently && c.readAt.IsZero() {
			c.readAt = now
			m.activate(c)
		}
	}
}

// advanceConversation sends what is due of one conversation.
func (m *Machine) advanceConversation(now time.Time, c *conversation) {
	if due(now, c.readAt) {
		c.readAt = time.Time{}
		// READ implies DELIVERED up to the same number. What was read on another device beyond what this one has was told by
		// that one, and must not be confirmed here.
		if c.read <= c.mark {
			c.readedAt = now
			if c.read >= c.held {
				c.ackAt, c.ackedAt = time.Time{}, now
			}
			m.emit(Write{Type: clientv1.CommandType_READ, Message: &clientv1.Read{ConvId: c.id, Seq: c.read}})
		}
	}
	if due(now, c.ackAt) {
		c.ackAt, c.ackedAt = time.Time{}, now
		if c.held > 0 {
			m.emit(Write{Type: clientv1.CommandType_DELIVERED, Message: &clientv1.Delivered{ConvId: c.id, Seq: c.held}})
		}
	}
	m.advancePull(now, c)
}

func due(now, at time.Time) bool { return !at.IsZero() && !now.Before(at) }

// Marks is where the receiver stands, for the next run.
type Marks struct {
	// UID is whose marks these are.
	UID string
	// SinceMs is the server's time of the last complete SYNC.
	SinceMs int64
	// Conversations maps a conversation to the highest number up to which the application has consumed everything.
	Conversations map[string]int64
}

// Marks is a copy of where the receiver stands.
func (m *Machine) Marks() Marks {
	marks := Marks{UID: m.uid, Conversations: make(map[string]int64, len(m.convs))}
	allHeld := m.sync.complete
	for id, c := range m.convs {
		if c.decided {
			marks.Conversations[id] = c.held
		}
		// The next SYNC need not name what was known of before: a run that begins with a gap would not hear of it.
		allHeld = allHeld && c.decided && c.held >= c.top
	}
	if allHeld {
		m.sync.heldMs = m.sync.sinceMs
	}
	marks.SinceMs = m.sync.heldMs
	return marks
}
