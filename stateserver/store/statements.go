package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-im/sluice/api/ident"
)

// statements are prepared once on the SQLite connection; on MySQL they are nil and the text is sent.
type statements struct {
	insert, byKey, conversation, advance *sql.Stmt
}

func (db *Database) prepare(ctx context.Context) error {
	var err error
	prepared := func(query string) *sql.Stmt {
		if err != nil {
			return nil
		}
		var s *sql.Stmt
		s, err = db.w.PrepareContext(ctx, query)
		return s
	}
	db.stmts = statements{
		insert:       prepared(insertMessage + marks(1, messageFields) + db.d.keepOld),
		byKey:        prepared(selectByKey),
		conversation: prepared("SELECT max_seq, roster FROM im_conversation WHERE conv_id = ?"),
		advance:      prepared(db.advanceQuery(1)),
	}
	if err != nil {
		return fmt.Errorf("prepare statements: %w", err)
	}
	return nil
}

func (a *appending) byKey(ctx context.Context, tx *sql.Tx, m *Message) (*Result, error) {
	var row *sql.Row
	if s := a.db.stmts.byKey; s != nil {
		row = tx.StmtContext(ctx, s).QueryRowContext(ctx, m.FromUID, m.UUID)
	} else {
		row = tx.QueryRowContext(ctx, selectByKey, m.FromUID, m.UUID)
	}
	_, r, err := scanResult(row)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if r.Hash != m.Hash {
		r.Outcome = Reused
	}
	return &r, nil
}

func (a *appending) row(args []any, m *Message, r *Result) []any {
	body := m.Body
	if body == nil {
		body = []byte{}
	}
	return append(args, r.MsgID, m.ConvID, r.Seq, m.FromUID, m.UUID, m.Type, m.Content, body, int64(m.Hash), r.ServerAt, a.b.Lease.Node)
}

func (a *appending) exec(ctx context.Context, tx *sql.Tx, rows int, args []any) (int64, error) {
	var res sql.Result
	var err error
	if s := a.db.stmts.insert; s != nil {
		res, err = tx.StmtContext(ctx, s).ExecContext(ctx, args...)
	} else {
		res, err = tx.ExecContext(ctx, insertMessage+marks(rows, messageFields)+a.db.d.keepOld, args...)
	}
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (db *Database) advanceQuery(rows int) string {
	d := &db.d
	return "INSERT INTO im_conversation (conv_id, max_seq, changed_at) VALUES " + marks(rows, 3) + d.onConflict("conv_id") +
		"max_seq = " + d.excluded("max_seq") + ", changed_at = " + d.greatest + "(changed_at, " + d.excluded("changed_at") + ")"
}

// advance writes the last numbers of the conversations that took one.
func (a *appending) advance(ctx context.Context, tx *sql.Tx) error {
	changed := make(map[string]int64, len(a.last))
	for _, i := range a.rows {
		if r := &a.results[i]; r.Outcome == Stored {
			changed[r.ConvID] = max(changed[r.ConvID], r.ServerAt)
		}
	}
	convs := slices.Sorted(maps.Keys(changed))
	for some := range slices.Chunk(convs, a.db.d.rowsMax) {
		args := make([]any, 0, 3*len(some))
		for _, c := range some {
			args = append(args, c, a.last[c], changed[c])
		}
		var err error
		if s := a.db.stmts.advance; s != nil {
			_, err = tx.StmtContext(ctx, s).ExecContext(ctx, args...)
		} else {
			_, err = tx.ExecContext(ctx, a.db.advanceQuery(len(some)), args...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// makeConversations inserts conversations between two users, and their members.
func (db *Database) makeConversations(ctx context.Context, tx *sql.Tx, convs []string, at int64) error {
	for some := range slices.Chunk(convs, 64) {
		var heads, members []any
		for _, c := range some {
			lower, higher, ok := ident.Users(c)
			if !ok {
				return fmt.Errorf("conversation id %q: not of two users", c)
			}
			heads = append(heads, c, 0, at)
			members = append(members, lower, c, higher, 1, 0, 0, 0, at)
			if lower != higher {
				members = append(members, higher, c, lower, 1, 0, 0, 0, at)
			}
		}
		keep := db.d.onConflict("conv_id") + "conv_id = im_conversation.conv_id"
		if _, err := tx.ExecContext(ctx, "INSERT INTO im_conversation (conv_id, max_seq, changed_at) VALUES "+marks(len(heads)/3, 3)+keep, heads...); err != nil {
			return err
		}
		keep = db.d.onConflict("uid, conv_id") + "conv_id = im_member.conv_id"
		if _, err := tx.ExecContext(ctx, insertMember+marks(len(members)/memberFields, memberFields)+keep, members...); err != nil {
			return err
		}
	}
	return nil
}

func texts(ss []string) []any {
	args := make([]any, len(ss))
	for i, s := range ss {
		args[i] = s
	}
	return args
}

// each runs a query and hands every row to take.
func each(ctx context.Context, q interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}, query string, args []any, take func(*sql.Rows) error) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := take(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
