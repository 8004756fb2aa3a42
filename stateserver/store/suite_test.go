package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-im/sluice/api/ident"
	"github.com/sluice-im/sluice/internal/testenv"
)

// fixture is one empty database of one kind.
type fixture struct {
	// open opens it, again too; the test closes it.
	open func(t *testing.T, o Options, wrap connectorWrap) *Database
	// shared says that two processes may have it open at once.
	shared bool
}

func (f fixture) must(t *testing.T) *Database {
	t.Helper()
	db := f.open(t, Options{}, sameConnector)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func TestSQLite(t *testing.T) {
	suite(t, func(t *testing.T) fixture {
		path := filepath.Join(t.TempDir(), "sluice.db")
		return fixture{open: func(t *testing.T, o Options, wrap connectorWrap) *Database {
			t.Helper()
			db, err := openSQLite(t.Context(), path, withDefaults(o), wrap)
			if err != nil {
				t.Fatal(err)
			}
			return db
		}}
	})
}

func TestMariaDB(t *testing.T) {
	server := testenv.MariaDB(t)
	n := 0
	suite(t, func(t *testing.T) fixture {
		n++
		name := fmt.Sprintf("sluice_%d", n)
		root, err := sql.Open("mysql", server.DSN())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = root.Close() }()
		if _, err := root.Exec("CREATE DATABASE " + name + " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"); err != nil {
			t.Fatal(err)
		}
		dsn := strings.TrimSuffix(server.DSN(), "sluice") + name
		return fixture{shared: true, open: func(t *testing.T, o Options, wrap connectorWrap) *Database {
			t.Helper()
			db, err := openMySQL(t.Context(), dsn, withDefaults(o), wrap)
			if err != nil {
				t.Fatal(err)
			}
			return db
		}}
	})
}

func withDefaults(o Options) Options {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Failpoint == nil {
		o.Failpoint = func(string) {}
	}
	return o
}

// suite is what both databases must hold.
func suite(t *testing.T, fresh func(*testing.T) fixture) {
	for name, test := range map[string]func(*testing.T, fixture){
		"numbers are dense per conversation":           denseNumbers,
		"a duplicate takes no number":                  duplicates,
		"the same uuid with another payload":           reused,
		"concurrent duplicates":                        concurrentDuplicates,
		"ids that collide":                             collisions,
		"ids are compared byte by byte":                exactIDs,
		"unknown outcome of commit":                    unknownCommit,
		"a failed transaction stores nothing":          failedTransaction,
		"scan, load, above":                            reads,
		"node leases":                                  nodeLeases,
		"positions only grow and are clamped":          positions,
		"conversations for sync":                       conversations,
		"groups":                                       groups,
		"rosters":                                      rosters,
		"cursors of hooks":                             hookCursors,
		"messages of a group that does not exist":      noGroup,
		"what was stored is there after a new opening": reopened,
	} {
		t.Run(name, func(t *testing.T) { test(t, fresh(t)) })
	}
}

// ids draws ids for tests; the store takes them as they come.
type ids struct {
	mu   sync.Mutex
	next int64
}

func (s *ids) draw() (int64, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	return s.next, 1_000_000 + s.next, nil
}

func message(s *ids, from, to, uuid, text string) Message {
	id, at, _ := s.draw()
	m := Message{MsgID: id, ServerAt: at, FromUID: from, UUID: uuid, ReceiverID: to, ConvID: ident.Conversation(from, to), Type: 1, Content: text}
	m.Hash = HashOf(&m)
	return m
}

func lease(t *testing.T, db *Database) NodeLease {
	t.Helper()
	l, err := db.LeaseNode(t.Context(), "owner-"+t.Name(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustAppend(t *testing.T, db *Database, l NodeLease, s *ids, ms ...Message) []Result {
	t.Helper()
	rs, err := db.Append(t.Context(), &Batch{Messages: ms, NewID: s.draw, Lease: l})
	if err != nil {
		t.Fatal(err)
	}
	if len(rs) != len(ms) {
		t.Fatalf("%d results for %d messages", len(rs), len(ms))
	}
	return rs
}

// stored reads a whole conversation and fails unless its numbers are dense from 1.
func stored(t *testing.T, db *Database, conv string) []Message {
	t.Helper()
	var out []Message
	err := db.Scan(t.Context(), conv, 0, 1<<30, func(m *Message) bool {
		out = append(out, *m)
		if m.Seq != int64(len(out)) {
			t.Fatalf("%s: message %d has number %d", conv, len(out), m.Seq)
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func denseNumbers(t *testing.T, f fixture) {
	db, s := f.must(t), &ids{}
	l := lease(t, db)
	var batch []Message
	for i := range 200 {
		batch = append(batch, message(s, fmt.Sprintf("u%d", i%3), "bob", fmt.Sprintf("a%d", i), "x"))
	}
	for i, r := range mustAppend(t, db, l, s, batch...) {
		if want := int64(i/3 + 1); r.Outcome != Stored || r.Seq != want || r.MsgID != batch[i].MsgID || r.ServerAt != batch[i].ServerAt || r.ConvID != batch[i].ConvID {
			t.Fatalf("message %d: %+v, want number %d", i, r, want)
		}
	}
	if r := mustAppend(t, db, l, s, message(s, "bob", "u0", "b", "y"))[0]; r.Seq != 68 {
		t.Errorf("the other side's message: %+v, want number 68", r)
	}
	if n := len(stored(t, db, "u:bob:u0")); n != 68 {
		t.Errorf("%d messages stored, want 68", n)
	}
}

func duplicates(t *testing.T, f fixture) {
	db, s := f.must(t), &ids{}
	l := lease(t, db)
	first := mustAppend(t, db, l, s, message(s, "a", "b", "1", "x"))[0]
	again := message(s, "a", "b", "2", "x")
	rs := mustAppend(t, db, l, s, message(s, "a", "b", "1", "x"), again, message(s, "a", "b", "1", "x"), again, message(s, "c", "b", "1", "x"))
	for _, i := range []int{0, 2} {
		if r := rs[i]; r.Outcome != Duplicate || r.MsgID != first.MsgID || r.Seq != 1 || r.ServerAt != first.ServerAt || r.ConvID != first.ConvID {
			t.Errorf("resend %d: %+v, want the first result %+v", i, r, first)
		}
	}
	if rs[1].Outcome != Stored || rs[1].Seq != 2 {
		t.Errorf("new message behind a duplicate: %+v, want number 2", rs[1])
	}
	if rs[3].Outcome != Duplicate || rs[3].Seq != 2 {
		t.Errorf("twice in one batch: %+v", rs[3])
	}
	if rs[4].Outcome != Stored || rs[4].Seq != 1 {
		t.Errorf("another sender's uuid: %+v", rs[4])
	}
	if n := len(stored(t, db, "u:a:b")); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
}

func reused(t *testing.T, f fixture) {
	db, s := f.must(t), &ids{}
	l := lease(t, db)
	mustAppend(t, db, l, s, message(s, "a", "b", "1", "x"))
	rs := mustAppend(t, db, l, s, message(s, "a", "b", "1", "other"), message(s, "a", "c", "1", "x"), message(s, "a", "c", "2", "x"), message(s, "a", "c", "2", "y"))
	want := []Outcome{Reused, Reused, Stored, Reused}
	for i, r := range rs {
		if r.Outcome != want[i] {
			t.Errorf("message %d: outcome %d, want %d", i, r.Outcome, want[i])
		}
	}
	if n := len(stored(t, db, "u:a:c")); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}

func concurrentDuplicates(t *testing.T, f fixture) {
	db, s := f.must(t), &ids{}
	l := lease(t, db)
	const goroutines, uuids = 8, 40
	var wg sync.WaitGroup
	results := make([][]Result, goroutines)
	for g := range goroutines {
		wg.Go(func() {
			for u := 0; u < uuids; u += 4 {
				var batch []Message
				for i := range 4 {
					batch = append(batch, message(s, "a", "b", fmt.Sprint(u+(i+g)%4), "x"), message(s, "a", fmt.Sprintf("c%d", g%3), fmt.Sprintf("%d-%d", g%3, u+i), "y"))
				}
				rs, err := db.Append(context.Background(), &Batch{Messages: batch, NewID: s.draw, Lease: l})
				if err != nil {
					t.Errorf("append: %v", err)
					return
				}
				results[g] = append(results[g], rs...)
			}
		})
	}
	wg.Wait()
	wins := 0
	for _, rs := range results {
		for _, r := range rs {
			if r.Outcome == Stored && r.ConvID == "u:a:b" {
				wins++
			}
		}
	}
	if rows := len(stored(t, db, "u:a:b")); rows != uuids || wins != uuids {
		t.Errorf("%d rows and %d times 'stored' for %d uuids", rows, wins, uuids)
	}
	for c := range 3 {
		if rows := len(stored(t, db, fmt.Sprintf("u:a:c%d", c))); rows != uuids {
			t.Errorf("c%d: %d rows, want %d", c, rows, uuids)
		}
	}
}

func collisions(t *testing.T, f fixture) {
	db, s := f.must(t), &ids{}
	l := lease(t, db)
	taken := message(s, "a", "b", "1", "x")
	mustAppend(t, db, l, s, taken)
	m := message(s, "a", "b", "2", "x")
	m.MsgID = taken.MsgID
	rs := mustAppend(t, db, l, s, message(s, "a", "b", "3", "x"), m, message(s, "a", "b", "4", "x"))
	if r := rs[1]; r.Outcome != Stored || !r.Collided || r.MsgID == taken.MsgID || r.Seq != 3 {
		t.Errorf("collided: %+v, want stored under another id with number 3", r)
	}
	if len(stored(t, db, "u:a:b")) != 4 {
		t.Error("not all stored")
	}
	m = message(s, "a", "b", "5", "x")
	m.MsgID = taken.MsgID
	same := func() (int64, int64, error) { return taken.MsgID, 1, nil }
	if _, err := db.Append(t.Context(), &Batch{Messages: []Message{m}, NewID: same, Lease: l}); !errors.Is(err, errNumbering) || errors.Is(err, ErrUnknown) {
		t.Errorf("collides twice: %v", err)
	}
}

func exactIDs(t *testing.T, f fixture) {
	db, s := f.must(t), &ids{}
	l := lease(t, db)
	long := strings.Repeat("x", ident.UUIDBytesMax)
	texts := []string{"it's \"quoted\"; --", "NUL \x00 inside", "four bytes 😀 \U0001F600", strings.Repeat("é", 20000), ""}
	var batch []Message
	for i, uuid := range []string{"a", "A", "a_", "'", long} {
		batch = append(batch, message(s, "U", "u", uuid, texts[i]))
	}
	batch = append(batch, message(s, "u", "U", "a", "mine"), message(s, "U.", "u", "a", "other sender"))
	batch[2].Body = []byte{0, 0xff, '\'', 0x80}
	for i, r := range mustAppend(t, db, l, s, batch...) {
		if r.Outcome != Stored {
			t.Errorf("uuid %q of %q: %+v", batch[i].UUID, batch[i].FromUID, r)
		}
	}
	for i, m := range stored(t, db, "u:U:u") {
		want := batch[i]
		if m.Content != want.Content || string(m.Body) != string(want.Body) || m.UUID != want.UUID || m.FromUID != want.FromUID || m.ReceiverID != want.ReceiverID || m.Hash != want.Hash {
			t.Errorf("message %d came back as %+v", i, m)
		}
	}
	tooLong := message(s, "u", "v", long+"x", "")
	if _, err := db.Append(t.Context(), &Batch{Messages: []Message{tooLong}, NewID: s.draw, Lease: l}); !errors.Is(err, ErrInvalid) {
		t.Error("a uuid over the limit was stored")
	}
}

func failedTransaction(t *testing.T, f fixture) {
	db, s := f.must(t), &ids{}
	l := lease(t, db)
	taken := message(s, "a", "b", "1", "x")
	mustAppend(t, db, l, s, taken)
	m, bad := message(s, "a", "b", "2", "x"), message(s, "a", "b", "3", "x")
	bad.MsgID = taken.MsgID
	same := func() (int64, int64, error) { return taken.MsgID, 1, nil }
	_, err := db.Append(t.Context(), &Batch{Messages: []Message{m, bad}, NewID: same, Lease: l})
	if err == nil || errors.Is(err, ErrUnknown) {
		t.Fatalf("a batch with a message that cannot be stored: %v, want a definite error", err)
	}
	if n := len(stored(t, db, "u:a:b")); n != 1 {
		t.Fatalf("%d rows after a failed batch, want 1", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := db.Append(ctx, &Batch{Messages: []Message{m}, NewID: s.draw, Lease: l}); !errors.Is(err, context.Canceled) {
		t.Fatalf("append after the end: %v", err)
	}
	if r := mustAppend(t, db, l, s, m)[0]; r.Outcome != Stored || r.Seq != 2 {
		t.Errorf("%+v, want number 2", r)
	}
}

func noGroup(t *testing.T, f fixture) {
	db, s := f.must(t), &ids{}
	l := lease(t, db)
	rs := mustAppend(t, db, l, s, message(s, "a", "g:none", "1", "x"), message(s, "a", "b", "2", "x"))
	if rs[0].Outcome != NoGroup || rs[1].Outcome != Stored {
		t.Errorf("%+v", rs)
	}
}

func reopened(t *testing.T, f fixture) {
	db, s := f.open(t, Options{}, sameConnector), &ids{}
	l := lease(t, db)
	mustAppend(t, db, l, s, message(s, "a", "b", "1", "x"), message(s, "b", "a", "1", "y"))
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = f.must(t)
	if n := len(stored(t, db, "u:a:b")); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
}
