package core

import (
	"slices"
	"sort"

	clientv1 "github.com/sluice-im/sluice/api/client/v1"
	"github.com/sluice-im/sluice/api/ident"
)

// stored is an own message whose receipts are awaited.
type stored struct {
	changed Changed
	conv    *conversation
	gone    bool
}

// receipts follows what becomes of stored messages.
type receipts struct {
	byUUID map[string]*stored
	// Oldest first; entries that are gone stay until the next compaction.
	order []*stored
}

// track follows a message that was just stored. Its receipts may be here already: they come on another way.
func (m *Machine) track(up *clientv1.MessageUp, changed Changed) {
	if changed.ConvID == "" || changed.Seq <= 0 {
		return
	}
	c := m.conversation(changed.ConvID)
	if c == nil {
		return
	}
	m.boundTracked()
	s := &stored{changed: changed, conv: c}
	for _, reached := range []struct {
		state State
		mark  int64
	}{{Delivered, c.peerDelivered}, {Read, c.peerRead}} {
		if changed.Seq <= reached.mark {
			s.changed.State = reached.state
			m.emit(s.changed)
		}
	}
	if s.changed.State == Read {
		return
	}
	m.stored.byUUID[up.Uuid] = s
	m.stored.order = append(m.stored.order, s)
	at := sort.Search(len(c.mine), func(i int) bool { return c.mine[i].changed.Seq > changed.Seq })
	c.mine = slices.Insert(c.mine, at, s)
}

// boundTracked makes room: first what is gone, then the oldest quarter, so that the work is rare.
func (m *Machine) boundTracked() {
	if len(m.stored.order) < m.cfg.TrackedMax {
		return
	}
	m.stored.order = slices.DeleteFunc(m.stored.order, func(s *stored) bool { return s.gone })
	if len(m.stored.order) < m.cfg.TrackedMax {
		return
	}
	cut := max(1, m.cfg.TrackedMax/4)
	for _, s := range m.stored.order[:cut] {
		m.untrack(s)
	}
	m.stored.order = slices.Delete(m.stored.order, 0, cut)
}

func (m *Machine) untrack(s *stored) {
	s.gone = true
	delete(m.stored.byUUID, s.changed.Message.Uuid)
	s.conv.mine = slices.DeleteFunc(s.conv.mine, func(o *stored) bool { return o == s })
}

// onNotice is how far somebody holds or has read a conversation. The user's own other devices are not the other side.
func (m *Machine) onNotice(state State, convID, uid string, seq int64) {
	if seq <= 0 {
		return
	}
	c := m.conversation(convID)
	if c == nil {
		return
	}
	if uid != "" && uid == m.uid {
		if state == Read && seq > c.read {
			// Read on another device: it need not be marked here any more.
			c.read = seq
			m.emit(Receipt{ConvID: convID, UID: uid, Seq: seq, State: Read})
		}
		return
	}
	grown := false
	if seq > c.peerDelivered {
		c.peerDelivered, grown = seq, true
	}
	if state == Read && seq > c.peerRead {
		c.peerRead, grown = seq, true
	}
	// In a group the marks are those of the member who is farthest, and every member's receipt is news.
	if grown || ident.ValidGroup(convID) {
		m.emit(Receipt{ConvID: convID, UID: uid, Seq: seq, State: state})
	}
	m.applyReceipts(c)
}

// applyReceipts moves the conversation's own messages to what the marks say.
func (m *Machine) applyReceipts(c *conversation) {
	m.advanceMine(c, c.peerDelivered, Delivered)
	m.advanceMine(c, c.peerRead, Read)
	read := sort.Search(len(c.mine), func(i int) bool { return c.mine[i].changed.Seq > c.peerRead })
	for _, s := range c.mine[:read] {
		s.gone = true
		delete(m.stored.byUUID, s.changed.Message.Uuid)
	}
	c.mine = slices.Delete(c.mine, 0, read)
}

// advanceMine moves own messages up to seq to state. Those that have it already are a prefix, since track begins with
// what the marks say.
func (m *Machine) advanceMine(c *conversation, seq int64, state State) {
	end := sort.Search(len(c.mine), func(i int) bool { return c.mine[i].changed.Seq > seq })
	start := end
	for start > 0 && c.mine[start-1].changed.State < state {
		start--
	}
	for _, s := range c.mine[start:end] {
		s.changed.State = state
		m.emit(s.changed)
	}
}
