// Package reorder keeps the order of windowed senders: per (sender, session, receiver) it lets message numbers through one
// after another, holds what came early, and takes the session back to the number that failed (design: protocol 1
// "windowed sender", guarantees 4). It has no clock and does no I/O.
//
// The life of a number: offered; held while an earlier one is missing; released in order; then failed, or settled, which
// needs no word, since the session has gone on by then. When one fails, the session goes back to its number: what was
// released behind it must be refused, and its Ticket tells, while what was released before it goes on.
package reorder

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Key is one order: numbers count per sender, session and receiver.
type Key struct{ UID, Session, Receiver string }

// Policy says what becomes of messages behind a gap that outlasts the wait.
type Policy uint8

const (
	// Refuse keeps the order: they are answered gap.
	Refuse Policy = iota
	// Deliver releases what is there; the latecomer is out of order.
	Deliver
)

// Config bounds a Table. All values must be positive.
type Config struct {
	Policy Policy
	// Window is how many messages one session may have held, HeldBytesMax bounds all held messages together. What has no
	// room is a gap at once.
	Window       int
	HeldBytesMax int
	// Wait is how long a message is held.
	Wait time.Duration
	// SessionsMax bounds how many sessions are remembered, Idle how long after their last message. A forgotten session is
	// learnt again from its next message.
	SessionsMax int
	Idle        time.Duration
}

// Verdict is what Offer did with a message.
type Verdict uint8

const (
	// Released: the message, and maybe held ones behind it, were handed on.
	Released Verdict = iota
	// Held: it waits for an earlier one.
	Held
	// Late: its number has passed. It may only be answered if it is known, or be stored out of order, as the policy says.
	Late
	// Gap: an earlier one is missing and there is no room to wait.
	Gap
)

// Ticket tells whether a released message may still run. The zero Ticket belongs to no session and is always valid.
type Ticket struct {
	s   *session
	era *era
	seq uint64
}

// era is the time between two failures of a session. What was released in it, or before, above the number that failed in
// the end is not valid any more. Tickets know their own era and the later ones, so old eras go when nobody needs them.
type era struct {
	// cutoff is set before later is.
	cutoff uint64
	later  atomic.Pointer[era]
}

// Valid is false once an earlier message of the session failed after this one was released.
func (t Ticket) Valid() bool {
	for e := t.era; e != nil; {
		later := e.later.Load()
		if later != nil && e.cutoff < t.seq {
			return false
		}
		e = later
	}
	return true
}

// Expected is the number that the session waits for; 0 for the zero Ticket.
func (t Ticket) Expected() uint64 {
	if t.s == nil {
		return 0
	}
	return t.s.next.Load()
}

// session is one order.
type session struct {
	// next is the number that is to be released next; written under the table's lock, read without it.
	next atomic.Uint64

	// Guarded by the table's mu.
	era   *era
	key   Key
	used  time.Time
	held  []held
	since time.Time
	older *session
	newer *session
}

type held struct {
	seq   uint64
	item  any
	bytes int
}

// Table holds the sessions of one server. It is safe for concurrent use.
type Table struct {
	cfg Config

	mu sync.Mutex
	// Guarded by mu. The list goes from the session unused for longest to the newest.
	sessions       map[Key]*session
	oldest, newest *session
	heldBytes      int
	waiting        map[*session]struct{}
}

// New makes an empty table.
func New(cfg Config) *Table {
	return &Table{cfg: cfg, sessions: make(map[Key]*session), waiting: make(map[*session]struct{})}
}

// Release hands on a message whose turn it is. It runs under the table's lock, so that the order of calls is the order of
// the numbers; it must not block, nor call the table. With false it says that the message could not be taken: the session
// goes back to its number at once.
type Release func(item any, t Ticket) bool

// Offer brings the message seq of a session whose sender holds low as his lowest unsettled number. bytes is what it
// weighs while it is held. A nil item is a number that needs nothing more: it was answered already.
func (t *Table) Offer(k Key, seq, low uint64, item any, bytes int, now time.Time, release Release) Verdict {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.touch(k, now)
	if next := max(s.next.Load(), low, 1); next > s.next.Load() {
		// What lies below low was given up by the sender and blocks nobody.
		s.next.Store(next)
		t.advance(s, now, release)
	}
	switch next := s.next.Load(); {
	case seq < next:
		return Late
	case seq == next:
		if t.let(s, held{seq: seq, item: item}, release) {
			t.advance(s, now, release)
		}
		return Released
	}
	return t.hold(s, seq, item, bytes, now)
}

// hold keeps an early message; a second copy of one that is held is a gap, since one answer is enough.
func (t *Table) hold(s *session, seq uint64, item any, bytes int, now time.Time) Verdict {
	i, found := slices.BinarySearchFunc(s.held, seq, func(h held, seq uint64) int {
		switch {
		case h.seq < seq:
			return -1
		case h.seq > seq:
			return 1
		}
		return 0
	})
	if found || len(s.held) >= t.cfg.Window || t.heldBytes+bytes > t.cfg.HeldBytesMax {
		return Gap
	}
	if len(s.held) == 0 {
		s.since = now
		t.waiting[s] = struct{}{}
	}
	s.held = slices.Insert(s.held, i, held{seq, item, bytes})
	t.heldBytes += bytes
	return Held
}

// advance releases held messages whose turn has come; what low has passed is late, and is released all the same: it was
// sent before the sender gave it up, and is the next one in the order of what is left.
func (t *Table) advance(s *session, now time.Time, release Release) {
	n := 0
	for n < len(s.held) && s.held[n].seq <= s.next.Load() {
		n++
		if !t.let(s, s.held[n-1], release) {
			break
		}
	}
	t.drop(s, n)
	if n > 0 {
		s.since = now
	}
}

// let releases one message and moves the session on.
func (t *Table) let(s *session, h held, release Release) bool {
	s.next.Store(max(s.next.Load(), h.seq+1))
	if h.item == nil || release(h.item, Ticket{s, s.era, h.seq}) {
		return true
	}
	s.back(h.seq)
	return false
}

// back returns to a number that failed, and begins a new era.
func (s *session) back(seq uint64) {
	s.next.Store(min(s.next.Load(), seq))
	old := s.era
	s.era = &era{}
	old.cutoff = seq
	old.later.Store(s.era)
}

// drop takes the first n held messages off the books.
func (t *Table) drop(s *session, n int) {
	for _, h := range s.held[:n] {
		t.heldBytes -= h.bytes
	}
	s.held = slices.Delete(s.held, 0, n)
	if len(s.held) == 0 {
		s.held = nil
		delete(t.waiting, s)
	}
}

// Fail says that a released message was not stored: the session goes back to it. Behind a failure, further ones change
// nothing.
func (t *Table) Fail(k Ticket) {
	if k.s == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if k.Valid() {
		k.s.back(k.seq)
	}
}

// Expected is the number a session waits for; 0 when it is not known.
func (t *Table) Expected(k Key) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s, ok := t.sessions[k]; ok {
		return s.next.Load()
	}
	return 0
}

// Sweep ends waits that are over: with Refuse each held message goes to gap with the number that is missing, with Deliver
// they are released in order. It also forgets idle sessions.
func (t *Table) Sweep(now time.Time, release Release, gap func(item any, expected uint64)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for s := range t.waiting {
		if now.Sub(s.since) < t.cfg.Wait {
			continue
		}
		if t.cfg.Policy == Deliver {
			s.next.Store(s.held[0].seq)
			t.advance(s, now, release)
			continue
		}
		for _, h := range s.held {
			if h.item != nil {
				gap(h.item, s.next.Load())
			}
		}
		t.drop(s, len(s.held))
	}
	for s := t.oldest; s != nil && now.Sub(s.used) > t.cfg.Idle; s = t.oldest {
		t.forget(s)
	}
}

// Sessions is how many sessions are remembered, held how many bytes wait.
func (t *Table) Sessions() (sessions, heldBytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.sessions), t.heldBytes
}

// touch finds or makes a session and puts it at the newest end.
func (t *Table) touch(k Key, now time.Time) *session {
	s, ok := t.sessions[k]
	if ok {
		t.unlink(s)
	} else {
		// The one unused for longest goes; while it holds messages they are about to be ended by Sweep, so look further.
		for old := t.oldest; old != nil && len(t.sessions) >= t.cfg.SessionsMax; {
			newer := old.newer
			if len(old.held) == 0 {
				t.forget(old)
			}
			old = newer
		}
		s = &session{key: k, era: &era{}}
		t.sessions[k] = s
	}
	s.used = now
	s.older, s.newer = t.newest, nil
	if t.newest != nil {
		t.newest.newer = s
	} else {
		t.oldest = s
	}
	t.newest = s
	return s
}

func (t *Table) unlink(s *session) {
	if s.older != nil {
		s.older.newer = s.newer
	} else {
		t.oldest = s.newer
	}
	if s.newer != nil {
		s.newer.older = s.older
	} else {
		t.newest = s.older
	}
}

func (t *Table) forget(s *session) {
	t.drop(s, len(s.held))
	t.unlink(s)
	delete(t.sessions, s.key)
}
