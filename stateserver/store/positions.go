package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

const (
	insertMember = "INSERT INTO im_member (uid, conv_id, peer, active, floor_seq, delivered_seq, read_seq, changed_at) VALUES "
	memberFields = 8
)

// Advance implements Positions.
func (db *Database) Advance(ctx context.Context, ps []Position, at int64) ([]Advanced, error) {
	out := make([]Advanced, len(ps))
	err := db.inTx(ctx, func(tx *sql.Tx) error {
		clear(out)
		for from := 0; from < len(ps); from += lookupPairsMax {
			to := min(from+lookupPairsMax, len(ps))
			if err := db.advancePositions(ctx, tx, ps[from:to], out[from:to], at); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("advance %d positions: %w", len(ps), err)
	}
	return out, nil
}

func (db *Database) advancePositions(ctx context.Context, tx *sql.Tx, ps []Position, out []Advanced, at int64) error {
	type member struct{ uid, conv string }
	index := make(map[member]int, len(ps))
	args := make([]any, 0, 2*len(ps))
	for i, p := range ps {
		index[member{p.UID, p.ConvID}] = i
		args = append(args, p.UID, p.ConvID)
	}
	// Read without a lock: a position only grows, and the write below compares once more.
	query := "SELECT m.uid, m.conv_id, m.peer, m.floor_seq, m.delivered_seq, m.read_seq, c.max_seq FROM im_member m JOIN im_conversation c ON c.conv_id = m.conv_id WHERE m.active = 1 AND " +
		anyOf(len(ps), "m.uid", "m.conv_id")
	var writes []any
	err := each(ctx, tx, query, args, func(rows *sql.Rows) error {
		var p Position
		var peer string
		var floor, last int64
		if err := rows.Scan(&p.UID, &p.ConvID, &peer, &floor, &p.Delivered, &p.Read, &last); err != nil {
			return err
		}
		i := index[member{p.UID, p.ConvID}]
		after := p
		after.Read = max(p.Read, min(ps[i].Read, last))
		after.Delivered = max(p.Delivered, min(ps[i].Delivered, last), after.Read)
		out[i] = Advanced{Member: true, Before: p, After: after}
		if after != p {
			writes = append(writes, p.UID, p.ConvID, peer, 1, floor, after.Delivered, after.Read, at)
		}
		return nil
	})
	if err != nil || len(writes) == 0 {
		return err
	}
	d := &db.d
	grow := func(c string) string { return c + " = " + d.greatest + "(" + c + ", " + d.excluded(c) + ")" }
	set := d.onConflict("uid, conv_id") + grow("delivered_seq") + ", " + grow("read_seq") + ", " + grow("changed_at")
	_, err = tx.ExecContext(ctx, insertMember+marks(len(writes)/memberFields, memberFields)+set, writes...)
	return err
}

// Member implements Positions.
func (db *Database) Member(ctx context.Context, uid, conv string) (Conversation, error) {
	c := Conversation{ConvID: conv}
	err := db.r.QueryRowContext(ctx, "SELECT c.max_seq, m.floor_seq, m.read_seq, m.delivered_seq FROM im_member m JOIN im_conversation c ON c.conv_id = m.conv_id"+
		" WHERE m.uid = ? AND m.conv_id = ? AND m.active = 1", uid, conv).Scan(&c.MaxSeq, &c.FloorSeq, &c.ReadSeq, &c.Delivered)
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNotMember
	}
	if err != nil {
		return Conversation{}, fmt.Errorf("%s in %s: %w", uid, conv, err)
	}
	return c, nil
}

// Conversations implements Positions. A conversation changed when it got a message, or when one of its two positions moved.
func (db *Database) Conversations(ctx context.Context, q SyncQuery) ([]Conversation, error) {
	var out []Conversation
	// Numbers are dense, so a range of UnreadMax numbers bounds what is counted.
	read := db.d.greatest + "(m.read_seq, m.floor_seq)"
	unread := "(SELECT COUNT(*) FROM im_message x WHERE x.conv_id = m.conv_id AND x.seq > " + read + " AND x.seq <= " + read + " + ? AND x.from_uid <> m.uid)"
	query := "SELECT c.conv_id, c.max_seq, m.floor_seq, m.read_seq, m.delivered_seq, c.changed_at, COALESCE(p.delivered_seq, 0), COALESCE(p.read_seq, 0), COALESCE(p.changed_at, 0), " + unread +
		" FROM im_member m JOIN im_conversation c ON c.conv_id = m.conv_id LEFT JOIN im_member p ON p.uid = m.peer AND p.conv_id = m.conv_id" +
		" WHERE m.uid = ? AND m.active = 1 AND m.conv_id > ? AND (c.changed_at >= ? OR m.changed_at >= ? OR p.changed_at >= ?) ORDER BY m.conv_id LIMIT ?"
	err := each(ctx, db.r, query, []any{UnreadMax, q.UID, q.After, q.Since, q.Since, q.Since, q.Limit}, func(rows *sql.Rows) error {
		var c Conversation
		err := rows.Scan(&c.ConvID, &c.MaxSeq, &c.FloorSeq, &c.ReadSeq, &c.Delivered, &c.ChangedAt, &c.PeerDelivered, &c.PeerRead, &c.PeerChangedAt, &c.Unread)
		out = append(out, c)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("conversations of %s: %w", q.UID, err)
	}
	return out, nil
}
