package reorder

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var start = time.Unix(1_800_000_000, 0)

func config(p Policy) Config {
	return Config{Policy: p, Window: 4, HeldBytesMax: 1000, Wait: 50 * time.Millisecond, SessionsMax: 3, Idle: time.Minute}
}

var key = Key{"alice", "s1", "bob"}

// script is a table and what it released.
type script struct {
	t        *testing.T
	table    *Table
	now      time.Time
	released []string
	tickets  map[string]Ticket
	refuse   string
}

func newScript(t *testing.T, c Config) *script {
	return &script{t: t, table: New(c), now: start, tickets: map[string]Ticket{}}
}

func (s *script) release(item any, tk Ticket) bool {
	if item == s.refuse {
		return false
	}
	s.released = append(s.released, item.(string))
	s.tickets[item.(string)] = tk
	return true
}

func (s *script) offer(seq, low uint64, item string, want Verdict) {
	s.t.Helper()
	var v any = item
	if item == "" {
		v = nil
	}
	if got := s.table.Offer(key, seq, low, v, 10, s.now, s.release); got != want {
		s.t.Errorf("offer %d (low %d): verdict %d, want %d", seq, low, got, want)
	}
}

func (s *script) expect(want ...string) {
	s.t.Helper()
	if !slices.Equal(s.released, want) {
		s.t.Errorf("released %v, want %v", s.released, want)
	}
	s.released = nil
}

func (s *script) sweep(after time.Duration) (gaps []string) {
	s.now = s.now.Add(after)
	s.table.Sweep(s.now, s.release, func(item any, expected uint64) { gaps = append(gaps, fmt.Sprintf("%v:%d", item, expected)) })
	return gaps
}

func TestInOrder(t *testing.T) {
	s := newScript(t, config(Refuse))
	s.offer(1, 1, "a", Released)
	s.offer(2, 1, "b", Released)
	s.offer(4, 1, "d", Held)
	s.offer(4, 1, "d again", Gap)
	s.offer(5, 1, "", Held)
	s.offer(6, 1, "f", Held)
	s.expect("a", "b")
	s.offer(3, 1, "c", Released)
	s.expect("c", "d", "f")
	s.offer(3, 1, "c again", Late)
	if got := s.table.Expected(key); got != 7 {
		t.Errorf("expects %d, want 7", got)
	}
}

func TestLearnsFromTheFirstFrame(t *testing.T) {
	s := newScript(t, config(Refuse))
	s.offer(9, 8, "i", Held)
	s.offer(8, 8, "h", Released)
	s.expect("h", "i")
	s.offer(20, 20, "given up 10-19", Released)
	s.expect("given up 10-19")
	s.offer(22, 20, "v", Held)
	s.offer(24, 22, "x", Held)
	s.expect("v")
	if got := s.table.Expected(key); got != 23 {
		t.Errorf("expects %d, want 23", got)
	}
}

func TestFailureTakesTheSessionBack(t *testing.T) {
	s := newScript(t, config(Refuse))
	for i, item := range []string{"a", "b", "c"} {
		s.offer(uint64(i+1), 1, item, Released)
	}
	s.released = nil
	s.table.Fail(s.tickets["b"])
	if !s.tickets["a"].Valid() || s.tickets["c"].Valid() {
		t.Error("what was released behind a failure may still run, or what was released before it may not")
	}
	if got := s.tickets["c"].Expected(); got != 2 {
		t.Errorf("expects %d, want 2", got)
	}
	s.table.Fail(s.tickets["c"])
	s.offer(3, 2, "c", Held)
	s.offer(2, 2, "b", Released)
	s.expect("b", "c")
	if !s.tickets["c"].Valid() {
		t.Error("what was released after the failure may not run")
	}
	s.table.Fail(s.tickets["a"])
	if s.tickets["c"].Valid() || s.tickets["b"].Valid() || s.table.Expected(key) != 1 {
		t.Error("a failure further back did not take the session back")
	}
}

func TestRefusedReleaseIsAFailure(t *testing.T) {
	s := newScript(t, config(Refuse))
	s.refuse = "b"
	s.offer(1, 1, "a", Released)
	s.offer(3, 1, "c", Held)
	s.offer(2, 1, "b", Released)
	s.expect("a")
	if !s.tickets["a"].Valid() {
		t.Error("a refusal touched what was released before it")
	}
	s.refuse = ""
	s.offer(2, 1, "b", Released)
	s.expect("b", "c")
}

func TestGapOutlastsTheWait(t *testing.T) {
	s := newScript(t, config(Refuse))
	s.offer(1, 1, "a", Released)
	s.offer(3, 1, "c", Held)
	s.offer(4, 1, "", Held)
	s.offer(5, 1, "e", Held)
	if gaps := s.sweep(49 * time.Millisecond); len(gaps) > 0 {
		t.Errorf("too early: %v", gaps)
	}
	if gaps := s.sweep(time.Millisecond); !slices.Equal(gaps, []string{"c:2", "e:2"}) {
		t.Errorf("gaps %v", gaps)
	}
	s.expect("a")
	s.offer(2, 1, "b", Released)
	s.expect("b")

	s = newScript(t, config(Deliver))
	s.offer(1, 1, "a", Released)
	s.offer(3, 1, "c", Held)
	s.offer(5, 1, "e", Held)
	if gaps := s.sweep(50 * time.Millisecond); len(gaps) > 0 {
		t.Errorf("gaps %v", gaps)
	}
	s.expect("a", "c")
	s.sweep(50 * time.Millisecond)
	s.expect("e")
	s.offer(2, 1, "b", Late)
}

func TestBounds(t *testing.T) {
	s := newScript(t, config(Refuse))
	for seq := uint64(2); seq <= 5; seq++ {
		s.offer(seq, 1, "x", Held)
	}
	s.offer(6, 1, "over the window", Gap)
	big := Key{"bob", "s", "alice"}
	if got := s.table.Offer(big, 2, 1, "x", 961, s.now, s.release); got != Gap {
		t.Errorf("over the byte bound: verdict %d", got)
	}
	for i := range 10 {
		s.table.Offer(Key{"u", fmt.Sprint(i), "v"}, 1, 1, "y", 10, s.now, s.release)
	}
	if n, _ := s.table.Sessions(); n > 3 {
		t.Errorf("%d sessions, bound is 3", n)
	}
	if s.table.Expected(key) != 1 {
		t.Error("a session with held messages was forgotten")
	}
	s.sweep(time.Second)
	s.sweep(2 * time.Minute)
	if n, held := s.table.Sessions(); n != 0 || held != 0 {
		t.Errorf("%d sessions, %d bytes after all is over", n, held)
	}
}

// TestOrderHolds sends one session over a network that loses, doubles, delays and a store that fails, with a client that
// sends again what was not stored. Whatever happens, what is stored first is stored in order, and everything is in the end.
func TestOrderHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const messages = 12
		now := start
		table := New(Config{Policy: Refuse, Window: 8, HeldBytesMax: 1 << 20, Wait: 50 * time.Millisecond, SessionsMax: 10, Idle: time.Hour})
		var queue []released
		var stored []uint64
		known := map[uint64]bool{}
		release := func(item any, tk Ticket) bool {
			if rapid.IntRange(0, 9).Draw(t, "full") == 0 {
				return false
			}
			queue = append(queue, released{item.(uint64), tk})
			return true
		}
		low := func() uint64 {
			for seq := uint64(1); seq <= messages; seq++ {
				if !known[seq] {
					return seq
				}
			}
			return messages + 1
		}
		commit := func(n int) {
			for ; n > 0 && len(queue) > 0; n-- {
				r := queue[0]
				queue = queue[1:]
				switch {
				case known[r.seq] || !r.tk.Valid():
				case rapid.IntRange(0, 4).Draw(t, "store fails") == 0:
					table.Fail(r.tk)
				default:
					stored = append(stored, r.seq)
					known[r.seq] = true
				}
			}
		}
		sent := uint64(0)
		for step := 0; len(stored) < messages; step++ {
			if step > 5000 {
				t.Fatalf("no progress: stored %v, expects %d, low %d", stored, table.Expected(key), low())
			}
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0:
				sent = min(sent+1, messages)
				table.Offer(key, sent, low(), sent, 10, now, release)
			case 1: // a resend, or a late copy
				if sent > 0 {
					seq := rapid.Uint64Range(1, sent).Draw(t, "resend")
					table.Offer(key, seq, min(seq, low()), seq, 10, now, release)
				}
			case 2:
				table.Offer(key, low(), low(), low(), 10, now, release)
				sent = max(sent, min(low(), messages))
			case 3:
				commit(rapid.IntRange(1, 5).Draw(t, "commit"))
			case 4:
				now = now.Add(20 * time.Millisecond)
				table.Sweep(now, release, func(any, uint64) {})
			}
		}
		if !slices.IsSorted(stored) {
			t.Fatalf("stored in the order %v", stored)
		}
	})
}

type released struct {
	seq uint64
	tk  Ticket
}
