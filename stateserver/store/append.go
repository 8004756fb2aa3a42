package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-im/sluice/api/ident"
)

// A batch becomes one transaction, in this order:
//
//  0. ids are of their alphabets (the caller has checked; a key must never be cut or padded by the database)
//  1. dedupe     the same (from_uid, uuid) twice in one batch is decided here
//  2. fence      the node lease still holds (shared lock until the end)
//  3. lock       the rows of all conversations, in the order of their ids, so that transactions never wait in a circle
//  4. insert     with tentative numbers, many rows a statement; the unique key is the arbiter
//  5. one by one only when fewer rows went in than were sent: the transaction is rolled back and run again row by row,
//                and only a row that went in takes a number
//  6. advance    the conversations' last numbers

const (
	insertMessage = "INSERT INTO im_message (msg_id, conv_id, seq, from_uid, client_msg_id, msg_type, content, body, hash, server_at, node_id) VALUES "
	messageFields = 11
	// lookupPairsMax bounds the pairs of one query: SQLite's expression depth is 1,000.
	lookupPairsMax = 100
)

// errDuplicates ends the fast attempt: some rows hit a unique key.
var errDuplicates = errors.New("batch has duplicates")

// errNumbering: a number was taken by a row that the conversation's last number does not cover. The table was changed by
// hand; nothing can be stored in that conversation until it is mended.
var errNumbering = errors.New("conversation's last number is below its messages'")

// Append implements Appender.
func (db *Database) Append(ctx context.Context, b *Batch) ([]Result, error) {
	if len(b.Messages) == 0 {
		return nil, nil
	}
	for i := range b.Messages {
		m := &b.Messages[i]
		if !ident.ValidUID(m.FromUID) || !ident.ValidUUID(m.UUID) || ident.Conversation(m.FromUID, m.ReceiverID) != m.ConvID {
			return nil, fmt.Errorf("append: message %d: sender %q, uuid %q, conversation %q: %w", m.MsgID, m.FromUID, m.UUID, m.ConvID, ErrInvalid)
		}
	}
	a := &appending{db: db, b: b, results: make([]Result, len(b.Messages))}
	a.dedupe()
	err := db.inTx(ctx, func(tx *sql.Tx) error { return a.run(ctx, tx, a.insertMany) })
	if errors.Is(err, errDuplicates) {
		err = db.inTx(ctx, func(tx *sql.Tx) error { return a.run(ctx, tx, a.insertEach) })
	}
	if err != nil {
		return nil, fmt.Errorf("append %d messages: %w", len(b.Messages), err)
	}
	for i, first := range a.copies {
		a.results[i] = a.again(i, first)
	}
	return a.results, nil
}

// appending is one Append.
type appending struct {
	db      *Database
	b       *Batch
	results []Result
	// rows are the indexes of messages that are the first with their key; copies maps the others to the first one.
	rows   []int
	copies map[int]int
	// last is the last number of each conversation of the batch; -1 = a group that does not exist.
	last   map[string]int64
	roster map[string]int64
}

func (a *appending) dedupe() {
	seen := make(map[Key]int, len(a.b.Messages))
	for i := range a.b.Messages {
		m := &a.b.Messages[i]
		k := Key{m.FromUID, m.UUID}
		if first, ok := seen[k]; ok {
			if a.copies == nil {
				a.copies = make(map[int]int)
			}
			a.copies[i] = first
			continue
		}
		seen[k] = i
		a.rows = append(a.rows, i)
	}
}

// again is the result of message i, which has the key of message first of the same batch.
func (a *appending) again(i, first int) Result {
	r := a.results[first]
	r.Collided = false
	switch {
	case r.Outcome == NoGroup, r.Outcome == Moved:
	case r.Hash != a.b.Messages[i].Hash:
		r.Outcome = Reused
	default:
		r.Outcome = Duplicate
	}
	return r
}

func (a *appending) run(ctx context.Context, tx *sql.Tx, insert func(context.Context, *sql.Tx) error) error {
	if err := a.fence(ctx, tx); err != nil {
		return err
	}
	if err := a.lock(ctx, tx); err != nil {
		return err
	}
	if err := insert(ctx, tx); err != nil {
		return err
	}
	a.db.fail(failpointInserted)
	if err := a.advance(ctx, tx); err != nil {
		return err
	}
	a.db.fail(failpointCommit)
	return nil
}

func (a *appending) fence(ctx context.Context, tx *sql.Tx) error {
	if !a.db.d.fenced {
		return nil
	}
	var owner string
	err := tx.QueryRowContext(ctx, "SELECT owner FROM im_node WHERE node_id = ?"+a.db.d.forShare, a.b.Lease.Node).Scan(&owner)
	if errors.Is(err, sql.ErrNoRows) || (err == nil && owner != a.b.Lease.Owner) {
		return fmt.Errorf("node %d: %w", a.b.Lease.Node, ErrLeaseLost)
	}
	return err
}

// lock reads the last number of each conversation under a lock, making those that are not there yet.
func (a *appending) lock(ctx context.Context, tx *sql.Tx) error {
	a.last, a.roster = make(map[string]int64), make(map[string]int64)
	var convs []string
	for _, i := range a.rows {
		c := a.b.Messages[i].ConvID
		if _, ok := a.last[c]; !ok {
			a.last[c] = -1
			convs = append(convs, c)
		}
	}
	slices.Sort(convs)
	if err := a.readLast(ctx, tx, convs); err != nil {
		return err
	}
	var missing []string
	for _, c := range convs {
		if a.last[c] < 0 && !ident.ValidGroup(c) {
			missing = append(missing, c)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := a.db.makeConversations(ctx, tx, missing, a.b.Messages[0].ServerAt); err != nil {
		return err
	}
	return a.readLast(ctx, tx, missing)
}

func (a *appending) readLast(ctx context.Context, tx *sql.Tx, convs []string) error {
	if s := a.db.stmts.conversation; s != nil {
		for _, c := range convs {
			var last, roster int64
			switch err := tx.StmtContext(ctx, s).QueryRowContext(ctx, c).Scan(&last, &roster); {
			case err == nil:
				a.last[c], a.roster[c] = last, roster
			case !errors.Is(err, sql.ErrNoRows):
				return err
			}
		}
		return nil
	}
	query := "SELECT conv_id, max_seq, roster FROM im_conversation WHERE conv_id IN " + marks(1, len(convs)) + " ORDER BY conv_id" + a.db.d.forUpdate
	return each(ctx, tx, query, texts(convs), func(rows *sql.Rows) error {
		var c string
		var last, roster int64
		if err := rows.Scan(&c, &last, &roster); err != nil {
			return err
		}
		a.last[c], a.roster[c] = last, roster
		return nil
	})
}

// insertMany sends the rows with the numbers they have if none is a duplicate.
func (a *appending) insertMany(ctx context.Context, tx *sql.Tx) error {
	for rows := range slices.Chunk(a.rows, a.db.d.rowsMax) {
		args := make([]any, 0, len(rows)*messageFields)
		sent := int64(0)
		for _, i := range rows {
			m := &a.b.Messages[i]
			last := a.last[m.ConvID]
			if a.outside(i, last) {
				continue
			}
			a.take(i, m.MsgID, last+1, m.ServerAt)
			args = a.row(args, m, &a.results[i])
			sent++
		}
		if sent == 0 {
			continue
		}
		n, err := a.exec(ctx, tx, int(sent), args)
		if err != nil {
			return err
		}
		if n == sent {
			continue
		}
		if a.db.d.rowsMax == 1 {
			// A statement a row: which one was refused is known, so nothing has to be run again.
			if err := a.refused(ctx, tx, rows[0]); err != nil {
				return err
			}
			continue
		}
		return errDuplicates
	}
	return nil
}

// insertEach sends one row a statement, so that the arbiter's word is known for each before the next takes a number.
func (a *appending) insertEach(ctx context.Context, tx *sql.Tx) error {
	for _, i := range a.rows {
		m := &a.b.Messages[i]
		last := a.last[m.ConvID]
		if a.outside(i, last) {
			continue
		}
		a.take(i, m.MsgID, last+1, m.ServerAt)
		n, err := a.exec(ctx, tx, 1, a.row(nil, m, &a.results[i]))
		if err != nil {
			return err
		}
		if n == 1 {
			continue
		}
		if err := a.refused(ctx, tx, i); err != nil {
			return err
		}
	}
	return nil
}

// outside says that message i is not inserted, for its group's sake: there is none, or its members changed after they were
// looked up. The conversation's row is locked, as it is for a change of members, so the word holds until the end.
func (a *appending) outside(i int, last int64) bool {
	m := &a.b.Messages[i]
	switch {
	case last < 0:
		a.results[i] = Result{Outcome: NoGroup, ConvID: m.ConvID}
	case m.Roster != 0 && m.Roster != a.roster[m.ConvID]:
		a.results[i] = Result{Outcome: Moved, ConvID: m.ConvID}
	default:
		return false
	}
	return true
}

// take gives message i the next number of its conversation.
func (a *appending) take(i int, id, seq, at int64) {
	m := &a.b.Messages[i]
	a.results[i] = Result{Outcome: Stored, MsgID: id, ConvID: m.ConvID, Seq: seq, ServerAt: at, Hash: m.Hash, Collided: a.results[i].Collided}
	a.last[m.ConvID] = seq
}

// refused looks why a row did not go in, and gives its number back: it is a duplicate, or, when no row has its key, its
// id collided, and it is tried once more with another one.
func (a *appending) refused(ctx context.Context, tx *sql.Tx, i int) error {
	m := &a.b.Messages[i]
	seq := a.results[i].Seq
	a.last[m.ConvID] = seq - 1
	found, err := a.byKey(ctx, tx, m)
	if err != nil {
		return err
	}
	if found != nil {
		a.results[i] = *found
		return nil
	}
	id, at, err := a.b.NewID()
	if err != nil {
		return err
	}
	a.db.log.Error("message id collided, another one was drawn", "msg_id", m.MsgID, "new_msg_id", id)
	a.take(i, id, seq, at)
	a.results[i].Collided = true
	n, err := a.exec(ctx, tx, 1, a.row(nil, m, &a.results[i]))
	if err == nil && n != 1 {
		err = fmt.Errorf("%s: %w", m.ConvID, errNumbering)
	}
	return err
}
