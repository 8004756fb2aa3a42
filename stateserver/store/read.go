package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/sluice-im/sluice/api/ident"
)

const (
	selectByKey   = "SELECT from_uid, client_msg_id, msg_id, conv_id, seq, server_at, hash FROM im_message WHERE from_uid = ? AND client_msg_id = ?"
	selectMessage = "SELECT msg_id, conv_id, seq, from_uid, client_msg_id, msg_type, content, body, hash, server_at FROM im_message "
)

type scanner interface{ Scan(dest ...any) error }

func scanResult(row scanner) (Key, Result, error) {
	var k Key
	var hash int64
	r := Result{Outcome: Duplicate}
	err := row.Scan(&k.FromUID, &k.UUID, &r.MsgID, &r.ConvID, &r.Seq, &r.ServerAt, &hash)
	r.Hash = uint64(hash)
	return k, r, err
}

func scanMessage(row scanner, m *Message) error {
	var hash int64
	if err := row.Scan(&m.MsgID, &m.ConvID, &m.Seq, &m.FromUID, &m.UUID, &m.Type, &m.Content, &m.Body, &hash, &m.ServerAt); err != nil {
		return err
	}
	m.Hash = uint64(hash)
	m.ReceiverID = receiver(m.ConvID, m.FromUID)
	return nil
}

// receiver is the other side of a message: it is not stored, since the conversation says it.
func receiver(conv, from string) string {
	lower, higher, ok := ident.Users(conv)
	switch {
	case !ok:
		return conv
	case lower == from:
		return higher
	default:
		return lower
	}
}

// Find implements Reader.
func (db *Database) Find(ctx context.Context, keys []Key) (map[Key]Result, error) {
	return db.find(ctx, keys, "")
}

// Resolve implements Appender. A locking read waits for a transaction that still holds the row, so that "absent" means
// "will never be there"; the lock wait is bounded by the database, and then the outcome stays unknown.
func (db *Database) Resolve(ctx context.Context, keys []Key) (map[Key]Result, error) {
	if err := db.d.settle(ctx, db); err != nil {
		return nil, err
	}
	return db.find(ctx, keys, db.d.forShare)
}

func (db *Database) find(ctx context.Context, keys []Key, lock string) (map[Key]Result, error) {
	found := make(map[Key]Result, len(keys))
	for some := range slices.Chunk(keys, lookupPairsMax) {
		args := make([]any, 0, 2*len(some))
		for _, k := range some {
			args = append(args, k.FromUID, k.UUID)
		}
		query := "SELECT from_uid, client_msg_id, msg_id, conv_id, seq, server_at, hash FROM im_message WHERE " +
			anyOf(len(some), "from_uid", "client_msg_id") + lock
		err := each(ctx, db.r, query, args, func(rows *sql.Rows) error {
			k, r, err := scanResult(rows)
			found[k] = r
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("find %d messages: %w", len(keys), err)
		}
	}
	return found, nil
}

// Load implements Reader.
func (db *Database) Load(ctx context.Context, msgIDs []int64) ([]Message, error) {
	found := make([]Message, 0, len(msgIDs))
	for some := range slices.Chunk(msgIDs, lookupPairsMax) {
		args := make([]any, len(some))
		for i, id := range some {
			args[i] = id
		}
		if err := each(ctx, db.r, selectMessage+"WHERE msg_id IN "+marks(1, len(some)), args, collect(&found)); err != nil {
			return nil, fmt.Errorf("load %d messages: %w", len(msgIDs), err)
		}
	}
	return found, nil
}

// Above implements Reader.
func (db *Database) Above(ctx context.Context, node int, after int64, limit int) ([]Message, error) {
	var found []Message
	query := selectMessage + "WHERE node_id = ? AND msg_id > ? ORDER BY msg_id LIMIT ?"
	if err := each(ctx, db.r, query, []any{node, after, limit}, collect(&found)); err != nil {
		return nil, fmt.Errorf("messages of node %d above %d: %w", node, after, err)
	}
	return found, nil
}

// Entitled implements Reader.
func (db *Database) Entitled(ctx context.Context, group string, seq int64, limit int) ([]string, error) {
	var out []string
	query := "SELECT uid FROM im_member WHERE conv_id = ? AND active = 1 AND floor_seq < ? ORDER BY uid LIMIT ?"
	err := each(ctx, db.r, query, []any{group, seq, limit}, func(rows *sql.Rows) error {
		var uid string
		err := rows.Scan(&uid)
		out = append(out, uid)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("who may have number %d of %s: %w", seq, group, err)
	}
	return out, nil
}

func collect(to *[]Message) func(*sql.Rows) error {
	return func(rows *sql.Rows) error {
		var m Message
		if err := scanMessage(rows, &m); err != nil {
			return err
		}
		*to = append(*to, m)
		return nil
	}
}

// Scan implements Reader.
func (db *Database) Scan(ctx context.Context, conv string, after int64, limit int, take func(*Message) bool) error {
	rows, err := db.r.QueryContext(ctx, selectMessage+"WHERE conv_id = ? AND seq > ? ORDER BY seq LIMIT ?", conv, after, limit)
	if err != nil {
		return fmt.Errorf("scan %s: %w", conv, err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var m Message
		if err := scanMessage(rows, &m); err != nil {
			return fmt.Errorf("scan %s: %w", conv, err)
		}
		if !take(&m) {
			return nil
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("scan %s: %w", conv, err)
	}
	return nil
}
