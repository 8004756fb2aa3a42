package core

import (
	"strings"
	"time"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/ident"
)

// serverClockSlack is subtracted from the time of the last SYNC: the next one may be answered by another server, whose
// clock is a little behind. A conversation reported twice costs nothing.
const serverClockSlack = 10 * time.Second

// syncAlarmTries is after how many unanswered SYNCs an alarm is raised, syncAbsentTries after how many the logic tier
// seems to have none: 75 s, by when heartbeats have shown that it is not the connection.
const (
	syncAlarmTries  = 3
	syncAbsentTries = 4
)

// syncing is the catching up after a (re)connect.
type syncing struct {
	// SinceMs of the next SYNC, and what it will be once the one under way is complete.
	sinceMs, nextMs int64
	// The newest sinceMs for which the application holds everything that was known: what the next run may start from.
	heldMs  int64
	running bool
	// A SYNC was asked for while one was running.
	again bool
	// At least one was complete in this run.
	complete bool
	// absent: this logic tier seems to know no SYNC, so that nothing is held for its sake.
	absent  bool
	cursor  string
	waiting bool
	// SYNCs of this run that have no answer yet, and those of earlier runs on this connection. Answers come in the order
	// of their questions, so that the next stale answers belong to earlier runs and were worked out before this one began.
	unanswered, stale int
	dueAt             time.Time
	tries             int
}

// stop forgets a SYNC under way, with its connection.
func (s *syncing) stop() {
	s.running, s.again, s.waiting, s.dueAt = false, false, false, time.Time{}
	s.unanswered, s.stale = 0, 0
}

// startSync asks from the beginning, or once more after the one that is running.
func (m *Machine) startSync(now time.Time) {
	if m.sync.running {
		m.sync.again = true
		return
	}
	m.sync.running, m.sync.again, m.sync.cursor, m.sync.tries, m.sync.nextMs = true, false, "", 0, 0
	for _, c := range m.convs {
		c.syncBase = c.mark
	}
	m.askSync(now)
}

func (m *Machine) askSync(now time.Time) {
	m.sync.waiting = true
	m.sync.unanswered++
	m.sync.dueAt = now.Add(m.backoff(m.cfg.ReplyTimeout, 12*m.cfg.ReplyTimeout, m.sync.tries))
	m.emit(Write{Type: clientv1.CommandType_SYNC, Message: &clientv1.Sync{SinceMs: m.sync.sinceMs, Cursor: m.sync.cursor}})
}

// advanceSync asks again when an answer is overdue, or when the pause after an ERROR is over.
func (m *Machine) advanceSync(now time.Time) {
	if !m.sync.running || !due(now, m.sync.dueAt) {
		return
	}
	if m.sync.waiting {
		switch m.sync.tries++; m.sync.tries {
		case syncAlarmTries:
			m.emit(Alarm{Kind: AlarmSyncUnanswered})
		case syncAbsentTries:
			m.goWithoutSync(now)
		}
	}
	m.askSync(now)
}

// goWithoutSync is for a logic tier that refuses SYNC, or never answers it (trouble on the way would be an ERROR): its
// conversations start at the first message that comes. SYNC is still asked for now and then.
func (m *Machine) goWithoutSync(now time.Time) {
	m.sync.absent = true
	for _, c := range m.undecided {
		if len(c.early) > 0 {
			m.decide(now, c, c.early[0].seq-1)
		}
	}
}

// retrySync is an ERROR that answers SYNC.
func (m *Machine) retrySync(now time.Time, why string, after time.Duration) {
	if m.sync.answersEarlier() || !m.sync.running {
		return
	}
	m.sync.waiting = false
	m.sync.dueAt = now.Add(max(after, m.backoff(m.cfg.RetryBase, 12*m.cfg.ReplyTimeout, m.sync.tries)))
	m.sync.tries++
	if finalRefusal(why) {
		m.goWithoutSync(now)
	}
}

// answersEarlier reports whether the answer that just came belongs to an earlier run, and counts it. Were it taken for
// this run's, what happened in between would be missed, or look as if the store had gone back.
func (s *syncing) answersEarlier() bool {
	if s.stale > 0 {
		s.stale--
		return true
	}
	s.unanswered = max(s.unanswered-1, 0)
	return false
}

func (m *Machine) onSyncReply(now time.Time, r *clientv1.SyncReply) {
	if m.sync.answersEarlier() || !m.sync.running || !m.sync.waiting {
		return
	}
	if m.sync.nextMs == 0 {
		// The first page's time: what changes while the later pages are read must be in the next SYNC.
		m.sync.nextMs = max(r.ServerTimeMs-serverClockSlack.Milliseconds(), 0)
	}
	for _, s := range r.Conversations {
		m.applyState(now, s)
	}
	m.sync.waiting, m.sync.absent, m.sync.tries, m.sync.dueAt = false, false, 0, time.Time{}
	// A page that brings neither a conversation nor a new cursor cannot lead to an end.
	if r.HasMore && (len(r.Conversations) > 0 || r.Cursor != m.sync.cursor) {
		m.sync.cursor = r.Cursor
		m.askSync(now)
		return
	}
	m.completeSync(now)
}

// completeSync decides where the conversations start that the server did not speak of: it has nothing of them.
func (m *Machine) completeSync(now time.Time) {
	m.sync.running, m.sync.complete = false, true
	m.sync.stale, m.sync.unanswered = m.sync.stale+m.sync.unanswered, 0
	m.sync.sinceMs = max(m.sync.sinceMs, m.sync.nextMs)
	for _, c := range m.undecided {
		m.decide(now, c, 0)
	}
	m.undecided = nil
	m.emit(MarksChanged{})
	m.emit(Synced{})
	if m.sync.again {
		m.startSync(now)
	}
}

// decide sets the place to start at, and releases what was held.
func (m *Machine) decide(now time.Time, c *conversation, mark int64) {
	if c.decided {
		return
	}
	c.decided, c.mark, c.held, c.syncBase = true, mark, mark, mark
	c.top = max(c.top, mark)
	if len(c.early) > 0 && c.early[0].seq <= mark {
		// Read on another device, pushed to this one: without a DELIVERED it would be pushed again.
		m.wantAck(now, c)
	}
	m.releaseEarly(c)
	m.watchGap(now, c, m.jittered(m.cfg.GapWait, 0.5))
}

// applyState is one conversation of a SYNC_REPLY.
func (m *Machine) applyState(now time.Time, s *clientv1.ConversationState) {
	c := m.conversation(s.ConvId)
	if c == nil {
		return
	}
	if !c.decided {
		m.decide(now, c, max(s.FloorSeq, s.ReadSeq))
	}
	if s.MaxSeq < c.syncBase {
		m.goBack(c, s)
	}
	m.raise(c, s.FloorSeq)
	read := min(s.ReadSeq, s.MaxSeq)
	if s.Unread > 0 || read > c.read {
		m.emit(Standing{ConvID: s.ConvId, MaxSeq: s.MaxSeq, ReadSeq: read, Unread: s.Unread})
	}
	c.read = max(c.read, read)
	c.top, c.unheard = max(c.top, s.MaxSeq), 0
	// The server said so itself: there is nothing to wait for.
	m.watchGap(now, c, 0)

	peer := ""
	if lower, higher, ok := ident.Users(s.ConvId); ok {
		if peer = lower; lower == m.uid {
			peer = higher
		}
	}
	m.onNotice(Delivered, s.ConvId, peer, s.PeerDelivered)
	m.onNotice(Read, s.ConvId, peer, s.PeerRead)
}

// goBack: the store lost its end, for instance in a failover to a replica that was behind. What it gives out from now
// on are other messages under numbers that were seen before.
func (m *Machine) goBack(c *conversation, s *clientv1.ConversationState) {
	m.emit(Alarm{Kind: AlarmStoreWentBack, ConvID: c.id, From: s.MaxSeq, To: c.mark})
	m.dropEarly(c)
	c.mark, c.top, c.held = s.MaxSeq, s.MaxSeq, min(c.held, s.MaxSeq)
	c.syncBase = s.MaxSeq
	c.read = min(c.read, s.MaxSeq)
	c.peerDelivered, c.peerRead = min(c.peerDelivered, s.MaxSeq), min(c.peerRead, s.MaxSeq)
	m.holdMark(c)
	m.emit(MarksChanged{})
}

func isGroup(convID string) bool { return strings.HasPrefix(convID, "g:") }
