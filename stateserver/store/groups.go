package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
)

// CreateGroup implements Groups.
func (db *Database) CreateGroup(ctx context.Context, group string, members []string, at int64) error {
	err := db.inTx(ctx, func(tx *sql.Tx) error {
		// Two that create it at once meet at the key: the later one's insert changes nothing.
		res, err := tx.ExecContext(ctx, db.d.insertGroup, group, at)
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n != 1 {
			return errors.Join(err, ErrGroupExists)
		}
		_, err = db.join(ctx, tx, group, members, 0, at)
		return err
	})
	if err != nil {
		return fmt.Errorf("create group %s: %w", group, err)
	}
	return nil
}

// AddMembers implements Groups.
func (db *Database) AddMembers(ctx context.Context, group string, members []string, at int64) (int, error) {
	added := 0
	err := db.inTx(ctx, func(tx *sql.Tx) error {
		last, err := db.lockGroup(ctx, tx, group)
		if err != nil {
			return err
		}
		added, err = db.join(ctx, tx, group, members, last, at)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("add to group %s: %w", group, err)
	}
	return added, nil
}

// lockGroup reads the group's last number and keeps it until the transaction ends, so that a member's floor is exact.
func (db *Database) lockGroup(ctx context.Context, tx *sql.Tx, group string) (last int64, err error) {
	err = tx.QueryRowContext(ctx, "SELECT max_seq FROM im_conversation WHERE conv_id = ?"+db.d.forUpdate, group).Scan(&last)
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNoSuchGroup
	}
	return last, err
}

// join makes members of those who are none; who comes back starts anew at the floor.
func (db *Database) join(ctx context.Context, tx *sql.Tx, group string, members []string, floor, at int64) (int, error) {
	there, err := db.among(ctx, tx, group, members)
	if err != nil {
		return 0, err
	}
	var args []any
	added := 0
	for _, uid := range slices.Compact(slices.Sorted(slices.Values(members))) {
		if !there[uid] {
			args = append(args, uid, group, "", 1, floor, floor, floor, at)
			added++
		}
	}
	d := &db.d
	set := d.onConflict("uid, conv_id")
	for i, c := range []string{"active", "floor_seq", "delivered_seq", "read_seq", "changed_at"} {
		if i > 0 {
			set += ", "
		}
		set += c + " = " + d.excluded(c)
	}
	for some := range slices.Chunk(args, 64*memberFields) {
		if _, err := tx.ExecContext(ctx, insertMember+marks(len(some)/memberFields, memberFields)+set, some...); err != nil {
			return 0, err
		}
	}
	return added, changed(ctx, tx, group, added)
}

// changed moves the group's roster on when n members came or went.
func changed(ctx context.Context, tx *sql.Tx, group string, n int) error {
	if n == 0 {
		return nil
	}
	_, err := tx.ExecContext(ctx, "UPDATE im_conversation SET roster = roster + 1 WHERE conv_id = ?", group)
	return err
}

// Roster implements Groups.
func (db *Database) Roster(ctx context.Context, group string) (roster int64, err error) {
	err = db.r.QueryRowContext(ctx, "SELECT roster FROM im_conversation WHERE conv_id = ?", group).Scan(&roster)
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNoSuchGroup
	}
	if err != nil {
		return 0, fmt.Errorf("roster of %s: %w", group, err)
	}
	return roster, nil
}

// among says who of uids is a member now.
func (db *Database) among(ctx context.Context, tx *sql.Tx, group string, uids []string) (map[string]bool, error) {
	there := make(map[string]bool, len(uids))
	for some := range slices.Chunk(uids, lookupPairsMax) {
		query := "SELECT uid FROM im_member WHERE conv_id = ? AND active = 1 AND uid IN " + marks(1, len(some))
		err := each(ctx, tx, query, append([]any{group}, texts(some)...), func(rows *sql.Rows) error {
			var uid string
			err := rows.Scan(&uid)
			there[uid] = true
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return there, nil
}

// RemoveMembers implements Groups.
func (db *Database) RemoveMembers(ctx context.Context, group string, members []string, at int64) (int, error) {
	removed := 0
	err := db.inTx(ctx, func(tx *sql.Tx) error {
		if _, err := db.lockGroup(ctx, tx, group); err != nil {
			return err
		}
		removed = 0
		for some := range slices.Chunk(members, lookupPairsMax) {
			args := append([]any{at, group}, texts(some)...)
			res, err := tx.ExecContext(ctx, "UPDATE im_member SET active = 0, changed_at = ? WHERE conv_id = ? AND active = 1 AND uid IN "+marks(1, len(some)), args...)
			if err != nil {
				return err
			}
			n, err := res.RowsAffected()
			if err != nil {
				return err
			}
			removed += int(n)
		}
		return changed(ctx, tx, group, removed)
	})
	if err != nil {
		return 0, fmt.Errorf("remove from group %s: %w", group, err)
	}
	return removed, nil
}

// Members implements Groups.
func (db *Database) Members(ctx context.Context, group, after string, limit int) ([]string, error) {
	var out []string
	err := each(ctx, db.r, "SELECT uid FROM im_member WHERE conv_id = ? AND uid > ? AND active = 1 ORDER BY uid LIMIT ?", []any{group, after, limit}, func(rows *sql.Rows) error {
		var uid string
		err := rows.Scan(&uid)
		out = append(out, uid)
		return err
	})
	if err == nil && len(out) == 0 {
		var last int64
		err = db.r.QueryRowContext(ctx, "SELECT max_seq FROM im_conversation WHERE conv_id = ?", group).Scan(&last)
		if errors.Is(err, sql.ErrNoRows) {
			err = ErrNoSuchGroup
		}
	}
	if err != nil {
		return nil, fmt.Errorf("members of %s: %w", group, err)
	}
	return out, nil
}
