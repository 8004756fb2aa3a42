package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"sync/atomic"
	"testing"
)

// lying wraps a driver so that the next COMMIT fails: with effect (the answer is lost) or without it.
type lying struct {
	driver.Connector
	next *atomic.Int32
}

const (
	commitHonest int32 = iota
	commitDoneButFails
	commitNotDone
)

var errLost = errors.New("connection lost during commit")

func (l lying) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := l.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &lyingConn{Conn: c, next: l.next}, nil
}

type lyingConn struct {
	driver.Conn
	next *atomic.Int32
}

func (c *lyingConn) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	tx, err := c.Conn.(driver.ConnBeginTx).BeginTx(ctx, o)
	if err != nil {
		return nil, err
	}
	return &lyingTx{Tx: tx, next: c.next}, nil
}

func (c *lyingConn) ExecContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Result, error) {
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, q, args)
}

func (c *lyingConn) QueryContext(ctx context.Context, q string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, q, args)
}

func (c *lyingConn) PrepareContext(ctx context.Context, q string) (driver.Stmt, error) {
	return c.Conn.(driver.ConnPrepareContext).PrepareContext(ctx, q)
}

func (c *lyingConn) CheckNamedValue(v *driver.NamedValue) error {
	if k, ok := c.Conn.(driver.NamedValueChecker); ok {
		return k.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

type lyingTx struct {
	driver.Tx
	next *atomic.Int32
}

func (t *lyingTx) Commit() error {
	switch t.next.Swap(commitHonest) {
	case commitDoneButFails:
		return errors.Join(errLost, t.Tx.Commit())
	case commitNotDone:
		return errors.Join(errLost, t.Tx.Rollback())
	}
	return t.Tx.Commit()
}

func unknownCommit(t *testing.T, f fixture) {
	var next atomic.Int32
	db := f.open(t, Options{}, func(c driver.Connector) driver.Connector { return lying{c, &next} })
	defer func() { _ = db.Close() }()
	s := &ids{}
	l := lease(t, db)
	mustAppend(t, db, l, s, message(s, "a", "b", "0", "x"))
	for _, step := range []struct {
		uuid string
		lie  int32
		want bool
	}{{"1", commitDoneButFails, true}, {"2", commitNotDone, false}} {
		m := message(s, "a", "b", step.uuid, "x")
		next.Store(step.lie)
		if _, err := db.Append(t.Context(), &Batch{Messages: []Message{m}, NewID: s.draw, Lease: l}); !errors.Is(err, ErrUnknown) || !errors.Is(err, errLost) {
			t.Fatalf("uuid %s: %v, want an unknown outcome", step.uuid, err)
		}
		found, err := db.Resolve(t.Context(), []Key{{"a", step.uuid}, {"a", "0"}})
		if err != nil {
			t.Fatal(err)
		}
		r, ok := found[Key{"a", step.uuid}]
		if ok != step.want || (ok && (r.MsgID != m.MsgID || r.Seq != 2)) {
			t.Errorf("uuid %s: resolved to %+v, %v; want stored = %v", step.uuid, r, ok, step.want)
		}
		if _, ok := found[Key{"a", "0"}]; !ok {
			t.Error("an older message was not found")
		}
	}
	if r := mustAppend(t, db, l, s, message(s, "a", "b", "2", "x"))[0]; r.Outcome != Stored || r.Seq != 3 {
		t.Errorf("after it: %+v", r)
	}
}
