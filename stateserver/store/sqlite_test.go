package store

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
)

func TestSQLiteFileHasOneOwner(t *testing.T) {
	dsn := "sqlite://" + filepath.Join(t.TempDir(), "a file?with #odd%20 name.db")
	first, err := Open(t.Context(), dsn, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), dsn, Options{}); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "odd") {
		t.Errorf("second: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := Open(t.Context(), dsn, Options{})
	if err != nil {
		t.Fatalf("after the first is gone: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

func TestSQLiteEndsTheLeasesOfTheLastRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l.db")
	open := func() *Database {
		db, err := openSQLite(t.Context(), path, withDefaults(Options{}), sameConnector)
		if err != nil {
			t.Fatal(err)
		}
		return db
	}
	db := open()
	before := lease(t, db)
	_ = db.Close()
	db = open()
	defer func() { _ = db.Close() }()
	if after := lease(t, db); after.Node != before.Node {
		t.Errorf("node %d after a restart, was %d", after.Node, before.Node)
	}
}

func TestSQLiteDiskFull(t *testing.T) {
	db, err := openSQLite(t.Context(), filepath.Join(t.TempDir(), "f.db"), withDefaults(Options{}), sameConnector)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	s := &ids{}
	l := lease(t, db)
	mustAppend(t, db, l, s, message(s, "a", "b", "1", "x"))
	var limit int
	if err := db.w.QueryRow("PRAGMA max_page_count = 1").Scan(&limit); err != nil {
		t.Fatal(err)
	}
	big := message(s, "a", "b", "2", strings.Repeat("x", 60_000))
	if _, err := db.Append(t.Context(), &Batch{Messages: []Message{big}, NewID: s.draw, Lease: l}); err == nil || errors.Is(err, ErrUnknown) {
		t.Errorf("on a full disk: %v, want a definite error", err)
	}
	if n := len(stored(t, db, "u:a:b")); n != 1 {
		t.Errorf("%d rows, want 1: reads go on", n)
	}
	if err := db.w.QueryRow("PRAGMA max_page_count = 1000000").Scan(&limit); err != nil {
		t.Fatal(err)
	}
	if r := mustAppend(t, db, l, s, big)[0]; r.Seq != 2 {
		t.Errorf("%+v", r)
	}
}

func TestSQLiteIsDurableAtEachCommit(t *testing.T) {
	db, err := openSQLite(t.Context(), filepath.Join(t.TempDir(), "d.db"), withDefaults(Options{}), sameConnector)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	var mode string
	var level int
	if err := errors.Join(db.w.QueryRow("PRAGMA journal_mode").Scan(&mode), db.w.QueryRow("PRAGMA synchronous").Scan(&level)); err != nil {
		t.Fatal(err)
	}
	if mode != "wal" || level != 2 {
		t.Errorf("journal_mode %s, synchronous %d; want wal and 2 (FULL)", mode, level)
	}
	if _, err := db.r.Exec("UPDATE im_node SET owner = 'x'"); err == nil {
		t.Error("a reader wrote")
	}
}

func TestOpenRefusesOtherDSNs(t *testing.T) {
	for _, dsn := range []string{"", "sqlite", "sqlite://", "postgres://x", "mysql://", "mysql://root@tcp(127.0.0.1:1)/", "/tmp/x.db"} {
		if ValidDSN(dsn) == nil {
			t.Errorf("%q passes", dsn)
		}
		if _, err := Open(t.Context(), dsn, Options{}); err == nil {
			t.Errorf("%q was opened", dsn)
		}
	}
	if _, err := Open(t.Context(), "sqlite:///no/such/directory/x.db", Options{}); err == nil || !strings.Contains(err.Error(), "/no/such/directory") {
		t.Errorf("%v", err)
	}
	if _, err := Open(t.Context(), "mysql://root@tcp(127.0.0.1:1)/x", Options{}); err == nil || strings.Contains(err.Error(), "root") {
		t.Errorf("%v", err)
	}
}
