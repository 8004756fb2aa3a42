package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// NodesMax bounds node ids: a message id has ten bits for them.
const NodesMax = 1024

// leaseAttemptsMax bounds the races that one LeaseNode may lose against other StateServers that start at the same time.
const leaseAttemptsMax = 16

// aboveMark says that node n has messages whose delivery is not known to be seen to.
const aboveMark = "EXISTS (SELECT 1 FROM im_message m WHERE m.node_id = n.node_id AND m.msg_id > n.mark)"

// LeaseNode implements Nodes.
func (db *Database) LeaseNode(ctx context.Context, owner string, life time.Duration) (NodeLease, error) {
	for range leaseAttemptsMax {
		l, ok, err := db.leaseOnce(ctx, owner, life)
		if err != nil {
			return NodeLease{}, fmt.Errorf("lease a node id: %w", err)
		}
		if ok {
			return l, nil
		}
	}
	return NodeLease{}, errors.New("lease a node id: others were faster every time")
}

func (db *Database) leaseOnce(ctx context.Context, owner string, life time.Duration) (NodeLease, bool, error) {
	var node int
	free := "SELECT n.node_id FROM im_node n WHERE n.lease_until < " + db.d.now + " AND NOT " + aboveMark
	err := db.w.QueryRowContext(ctx, free+" AND n.id_ms < "+db.d.now+" ORDER BY n.node_id LIMIT 1").Scan(&node)
	if err == nil {
		return db.seizeClean(ctx, node, owner, life)
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return NodeLease{}, false, err
	}
	if err := db.w.QueryRowContext(ctx, "SELECT COALESCE(MAX(node_id) + 1, 0) FROM im_node").Scan(&node); err != nil {
		return NodeLease{}, false, err
	}
	if node >= NodesMax {
		// Better ids ahead of the clock than none.
		err := db.w.QueryRowContext(ctx, free+" ORDER BY n.id_ms LIMIT 1").Scan(&node)
		if errors.Is(err, sql.ErrNoRows) {
			err = fmt.Errorf("all %d node ids are leased", NodesMax)
		}
		if err != nil {
			return NodeLease{}, false, err
		}
		return db.seizeClean(ctx, node, owner, life)
	}
	keep := db.d.onConflict("node_id") + "node_id = im_node.node_id"
	if _, err := db.w.ExecContext(ctx, "INSERT INTO im_node (node_id, owner, lease_until, mark, id_ms) VALUES (?, '', 0, 0, 0)"+keep, node); err != nil {
		return NodeLease{}, false, err
	}
	return db.seizeClean(ctx, node, owner, life)
}

// seizeClean takes a node and gives it back when messages are above its mark: a process that had been paused for longer
// than its lease may have committed between the look and the taking.
func (db *Database) seizeClean(ctx context.Context, node int, owner string, life time.Duration) (NodeLease, bool, error) {
	l, ok, err := db.seize(ctx, node, owner, life)
	if err != nil || !ok {
		return NodeLease{}, false, err
	}
	var n int
	err = db.w.QueryRowContext(ctx, "SELECT COUNT(*) FROM im_node n WHERE n.node_id = ? AND "+aboveMark, node).Scan(&n)
	if err != nil || n == 0 {
		return l, err == nil, err
	}
	return NodeLease{}, false, db.ReleaseNode(ctx, l, l.IDsUntil)
}

// seize takes a node whose lease has ended; ok is false when somebody else was faster.
func (db *Database) seize(ctx context.Context, node int, owner string, life time.Duration) (NodeLease, bool, error) {
	res, err := db.w.ExecContext(ctx, "UPDATE im_node SET owner = ?, lease_until = "+db.d.now+" + ? WHERE node_id = ? AND lease_until < "+db.d.now,
		owner, life.Milliseconds(), node)
	if err != nil {
		return NodeLease{}, false, err
	}
	n, err := res.RowsAffected()
	if err != nil || n == 0 {
		return NodeLease{}, false, err
	}
	l := NodeLease{Node: node, Owner: owner}
	err = db.w.QueryRowContext(ctx, "SELECT mark, id_ms FROM im_node WHERE node_id = ? AND owner = ?", node, owner).Scan(&l.Mark, &l.IDsUntil)
	return l, err == nil, err
}

// RenewNode implements Nodes.
func (db *Database) RenewNode(ctx context.Context, l NodeLease, life time.Duration, idsUntil int64) error {
	return db.ofOwner(ctx, "renew", l, "lease_until = "+db.d.now+" + ?, id_ms = "+db.d.greatest+"(id_ms, ?)", life.Milliseconds(), idsUntil)
}

// SaveMark implements Nodes.
func (db *Database) SaveMark(ctx context.Context, l NodeLease, mark int64) error {
	return db.ofOwner(ctx, "save mark of", l, "mark = "+db.d.greatest+"(mark, ?)", mark)
}

// ReleaseNode implements Nodes.
func (db *Database) ReleaseNode(ctx context.Context, l NodeLease, idsUntil int64) error {
	err := db.ofOwner(ctx, "release", l, "lease_until = 0, id_ms = ?, owner = ''", idsUntil)
	if errors.Is(err, ErrLeaseLost) {
		return nil
	}
	return err
}

func (db *Database) ofOwner(ctx context.Context, op string, l NodeLease, set string, args ...any) error {
	res, err := db.w.ExecContext(ctx, "UPDATE im_node SET "+set+" WHERE node_id = ? AND owner = ?", append(args, l.Node, l.Owner)...)
	if err != nil {
		return fmt.Errorf("%s node %d: %w", op, l.Node, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return fmt.Errorf("%s node %d: %w", op, l.Node, err)
	}
	if n == 1 {
		return nil
	}
	// MySQL counts rows that changed: a row that has the values already is not a lost lease.
	var owner string
	err = db.w.QueryRowContext(ctx, "SELECT owner FROM im_node WHERE node_id = ?", l.Node).Scan(&owner)
	if err == nil && owner != l.Owner || errors.Is(err, sql.ErrNoRows) {
		err = ErrLeaseLost
	}
	if err != nil {
		return fmt.Errorf("%s node %d: %w", op, l.Node, err)
	}
	return nil
}

// TakeOver implements Nodes.
func (db *Database) TakeOver(ctx context.Context, owner string, life time.Duration) (NodeLease, bool, error) {
	var node int
	// Not the own node, even when its renewal is late: it is not abandoned.
	err := db.r.QueryRowContext(ctx, "SELECT n.node_id FROM im_node n WHERE n.owner <> ? AND n.lease_until < "+db.d.now+
		" AND "+aboveMark+" ORDER BY n.node_id LIMIT 1", owner).Scan(&node)
	if errors.Is(err, sql.ErrNoRows) {
		return NodeLease{}, false, nil
	}
	if err != nil {
		return NodeLease{}, false, fmt.Errorf("look for an abandoned node: %w", err)
	}
	l, ok, err := db.seize(ctx, node, owner, life)
	if err != nil {
		return NodeLease{}, false, fmt.Errorf("take over node %d: %w", node, err)
	}
	return l, ok, nil
}
