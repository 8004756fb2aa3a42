package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// StartHook implements Hooks.
func (db *Database) StartHook(ctx context.Context, hook string, l NodeLease) (told int64, err error) {
	keep := db.d.onConflict("hook, node_id") + "node_id = im_hook.node_id"
	_, err = db.w.ExecContext(ctx, "INSERT INTO im_hook (hook, node_id, told, owner, lease_until) VALUES (?, ?, ?, '', 0)"+keep, hook, l.Node, l.Mark)
	if err == nil {
		err = db.w.QueryRowContext(ctx, "SELECT told FROM im_hook WHERE hook = ? AND node_id = ?", hook, l.Node).Scan(&told)
	}
	if err != nil {
		return 0, fmt.Errorf("start hook %s of node %d: %w", hook, l.Node, err)
	}
	return told, nil
}

// DropHook implements Hooks.
func (db *Database) DropHook(ctx context.Context, hook string, node int) error {
	if _, err := db.w.ExecContext(ctx, "DELETE FROM im_hook WHERE hook = ? AND node_id = ?", hook, node); err != nil {
		return fmt.Errorf("drop hook %s of node %d: %w", hook, node, err)
	}
	return nil
}

// SaveHook implements Hooks.
func (db *Database) SaveHook(ctx context.Context, hook string, node int, told int64) error {
	_, err := db.w.ExecContext(ctx, "UPDATE im_hook SET told = "+db.d.greatest+"(told, ?) WHERE hook = ? AND node_id = ?", told, hook, node)
	if err != nil {
		return fmt.Errorf("save hook %s of node %d: %w", hook, node, err)
	}
	return nil
}

// ClaimHook implements Hooks.
func (db *Database) ClaimHook(ctx context.Context, hook, owner string, life time.Duration) (HookCursor, bool, error) {
	c := HookCursor{}
	free := "(h.lease_until < " + db.d.now + " OR h.owner = ?)"
	err := db.r.QueryRowContext(ctx, "SELECT h.node_id, h.told, n.mark FROM im_hook h JOIN im_node n ON n.node_id = h.node_id WHERE h.hook = ? AND n.lease_until < "+
		db.d.now+" AND n.mark > h.told AND "+free+" ORDER BY h.node_id LIMIT 1", hook, owner).Scan(&c.Node, &c.Told, &c.Mark)
	if errors.Is(err, sql.ErrNoRows) {
		return HookCursor{}, false, nil
	}
	if err != nil {
		return HookCursor{}, false, fmt.Errorf("look for what hook %s was not told: %w", hook, err)
	}
	// In MySQL a row counts only when it changed: the same owner twice within a millisecond looks like a claim that was lost,
	// and the next look claims it.
	res, err := db.w.ExecContext(ctx, "UPDATE im_hook SET owner = ?, lease_until = "+db.d.now+" + ? WHERE hook = ? AND node_id = ? AND (lease_until < "+
		db.d.now+" OR owner = ?)", owner, life.Milliseconds(), hook, c.Node, owner)
	if err != nil {
		return HookCursor{}, false, fmt.Errorf("claim hook %s of node %d: %w", hook, c.Node, err)
	}
	n, err := res.RowsAffected()
	return c, err == nil && n == 1, err
}
