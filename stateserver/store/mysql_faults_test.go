package store

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/sluice-im/sluice/internal/testenv"
)

func openDSN(t *testing.T, dsn string) *Database {
	t.Helper()
	db, err := openMySQL(t.Context(), dsn, withDefaults(Options{}), sameConnector)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func TestMariaDBFaults(t *testing.T) {
	server := testenv.MariaDB(t)
	db, s := openDSN(t, server.DSN()), &ids{}
	l := lease(t, db)
	mustAppend(t, db, l, s, message(s, "a", "b", "first", "x"))

	t.Run("a lock that somebody holds", func(t *testing.T) { lockHeld(t, db, l, s) })
	t.Run("resolve waits for a transaction that is open", func(t *testing.T) { resolveWaits(t, db, l, s) })
	t.Run("connection cut during commit", func(t *testing.T) { cutAtCommit(t, server, l, s) })
	t.Run("no more connections", func(t *testing.T) { noConnections(t, server, db, l, s) })
	t.Run("read only", func(t *testing.T) { readOnly(t, server, db, l, s) })
	t.Run("killed under load", func(t *testing.T) { killed(t, server, db, l, s) })
}

func TestMariaDBMustBeDurable(t *testing.T) {
	server := testenv.MariaDB(t, "--innodb-flush-log-at-trx-commit=2")
	_, err := Open(t.Context(), "mysql://"+server.DSN(), Options{})
	if err == nil || !strings.Contains(err.Error(), "innodb_flush_log_at_trx_commit") {
		t.Errorf("%v", err)
	}
}

func lockHeld(t *testing.T, db *Database, l NodeLease, s *ids) {
	tx, err := db.w.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	var last int64
	if err := tx.QueryRow("SELECT max_seq FROM im_conversation WHERE conv_id = 'u:a:b' FOR UPDATE").Scan(&last); err != nil {
		t.Fatal(err)
	}
	_, err = db.Append(t.Context(), &Batch{Messages: []Message{message(s, "a", "b", "locked-out", "x")}, NewID: s.draw, Lease: l})
	var e *mysql.MySQLError
	if !errors.As(err, &e) || e.Number != erLockWait || errors.Is(err, ErrUnknown) {
		t.Errorf("%v, want a lock wait that is a definite no", err)
	}
	mustAppend(t, db, l, s, message(s, "a", "c", "another-conversation", "x"))
}

func resolveWaits(t *testing.T, db *Database, l NodeLease, s *ids) {
	tx, err := db.w.Begin()
	if err != nil {
		t.Fatal(err)
	}
	m := message(s, "a", "b", "open", "x")
	if _, err := tx.Exec(insertMessage+marks(1, messageFields), m.MsgID, m.ConvID, 1000, m.FromUID, m.UUID, 1, "", "", 0, m.ServerAt, l.Node); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Resolve(t.Context(), []Key{{"a", "open"}}); err == nil {
		t.Error("resolved while the transaction was open")
	}
	got := make(chan map[Key]Result, 1)
	go func() {
		found, _ := db.Resolve(context.Background(), []Key{{"a", "open"}})
		got <- found
	}()
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if found := <-got; len(found) != 0 {
		t.Errorf("found %+v", found)
	}
}

// proxy forwards to a database. When it sees a COMMIT while armed it cuts the connection, before or after forwarding it.
type proxy struct {
	net.Listener
	to    string
	armed atomic.Int32
	wg    sync.WaitGroup
}

const (
	cutBefore int32 = iota + 1
	cutAfter
)

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: l, to: to}
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	d, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer func() { _ = d.Close() }()
	var mute atomic.Bool
	p.wg.Go(func() {
		defer func() { _ = c.Close() }()
		buf := make([]byte, 1<<16)
		for {
			n, err := d.Read(buf)
			if err != nil {
				return
			}
			if mute.Load() {
				return // the answer to COMMIT is lost
			}
			if _, err := c.Write(buf[:n]); err != nil {
				return
			}
		}
	})
	buf := make([]byte, 1<<16)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		if bytes.Contains(buf[:n], []byte("\x03COMMIT")) {
			switch p.armed.Swap(0) {
			case cutBefore:
				return
			case cutAfter:
				mute.Store(true)
			}
		}
		if _, err := d.Write(buf[:n]); err != nil {
			return
		}
	}
}

func cutAtCommit(t *testing.T, server *testenv.Server, l NodeLease, s *ids) {
	p := newProxy(t, server.Addr)
	db := openDSN(t, strings.Replace(server.DSN(), server.Addr, p.Addr().String(), 1))
	for _, c := range []struct {
		uuid string
		cut  int32
		want bool
	}{{"cut before", cutBefore, false}, {"cut after", cutAfter, true}} {
		uuid := strings.ReplaceAll(c.uuid, " ", "-")
		m := message(s, "a", "d", uuid, "x")
		p.armed.Store(c.cut)
		if _, err := db.Append(t.Context(), &Batch{Messages: []Message{m}, NewID: s.draw, Lease: l}); !errors.Is(err, ErrUnknown) {
			t.Fatalf("%s: %v, want an unknown outcome", c.uuid, err)
		}
		found, err := db.Resolve(t.Context(), []Key{{"a", uuid}})
		if r, ok := found[Key{"a", uuid}]; err != nil || ok != c.want || (ok && r.MsgID != m.MsgID) {
			t.Errorf("%s: %+v, %v", c.uuid, found, err)
		}
	}
	stored(t, db, "u:a:d")
}

func root(t *testing.T, server *testenv.Server, queries ...string) {
	t.Helper()
	db, err := sql.Open("mysql", server.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	for _, q := range queries {
		if _, err := db.Exec(q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
}

func noConnections(t *testing.T, server *testenv.Server, db *Database, l NodeLease, s *ids) {
	root(t, server, "CREATE USER few@'127.0.0.1'", "GRANT ALL ON sluice.* TO few@'127.0.0.1'", "ALTER USER few@'127.0.0.1' WITH MAX_USER_CONNECTIONS 2")
	small := openDSN(t, strings.Replace(server.DSN(), "root@", "few@", 1))
	var wg sync.WaitGroup
	var failed, done atomic.Int32
	for i := range 20 {
		m := message(s, "a", "few", fmt.Sprintf("few-%d", i), "x")
		wg.Go(func() {
			_, err := small.Append(context.Background(), &Batch{Messages: []Message{m}, NewID: s.draw, Lease: l})
			switch {
			case err == nil:
				done.Add(1)
			case errors.Is(err, ErrUnknown):
				t.Errorf("no connection is a definite no: %v", err)
			default:
				failed.Add(1)
			}
		})
	}
	wg.Wait()
	if n := len(stored(t, db, "u:a:few")); n != int(done.Load()) {
		t.Errorf("%d rows, %d reported, %d failed", n, done.Load(), failed.Load())
	}
	_ = small.Close()
}

func readOnly(t *testing.T, server *testenv.Server, db *Database, l NodeLease, s *ids) {
	root(t, server, "CREATE USER app@'127.0.0.1'", "GRANT ALL ON sluice.* TO app@'127.0.0.1'")
	app := openDSN(t, strings.Replace(server.DSN(), "root@", "app@", 1))
	root(t, server, "SET GLOBAL read_only = 1")
	m := message(s, "a", "b", "read-only", "x")
	if _, err := app.Append(t.Context(), &Batch{Messages: []Message{m}, NewID: s.draw, Lease: l}); err == nil || errors.Is(err, ErrUnknown) {
		t.Errorf("on a read-only server: %v", err)
	}
	if _, err := app.Find(t.Context(), []Key{{"a", "first"}}); err != nil {
		t.Errorf("reads must go on: %v", err)
	}
	root(t, server, "SET GLOBAL read_only = 0")
	mustAppend(t, app, l, s, m)
	_ = db
}

// killed ends the server under load. What was reported as stored is there after its restart.
func killed(t *testing.T, server *testenv.Server, db *Database, l NodeLease, s *ids) {
	var mu sync.Mutex
	acked := map[string]int64{}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				m := message(s, "a", fmt.Sprintf("k%d", w), fmt.Sprintf("%d-%d", w, i), "x")
				rs, err := db.Append(context.Background(), &Batch{Messages: []Message{m}, NewID: s.draw, Lease: l})
				if err != nil {
					return
				}
				mu.Lock()
				acked[m.UUID] = rs[0].Seq
				mu.Unlock()
			}
		})
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(acked)
	}
	for deadline := time.Now().Add(20 * time.Second); count() < 100 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond) // the pause between two looks at a condition with a deadline
	}
	server.Kill()
	close(stop)
	wg.Wait()
	server.Start()
	for deadline := time.Now().Add(30 * time.Second); ; {
		_, err := db.Find(t.Context(), []Key{{"a", "first"}})
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond) // the pause between two looks at a condition with a deadline
	}
	for w := range 4 {
		for _, m := range stored(t, db, fmt.Sprintf("u:a:k%d", w)) {
			if seq, ok := acked[m.UUID]; ok && seq != m.Seq {
				t.Errorf("%s was told number %d and has %d", m.UUID, seq, m.Seq)
			}
			delete(acked, m.UUID)
		}
	}
	if len(acked) > 0 {
		t.Errorf("told that they are stored, and lost: %v", acked)
	}
	mustAppend(t, db, l, s, message(s, "a", "b", "after", "x"))
}
