package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"strings"

	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// Names of the failpoints inside a transaction that stores messages.
const (
	failpointInserted = "store.after_insert"
	failpointCommit   = "store.before_commit"
)

//go:embed migrations
var migrations embed.FS

// Options is what a store is opened with besides its DSN. The zero value is good.
type Options struct {
	// Log gets what an operator should know and nobody is told otherwise. Default: discarded.
	Log *slog.Logger
	// Failpoint is called at store.after_insert and store.before_commit, inside the transaction. Default: nothing.
	Failpoint func(name string)
}

// Open opens the store that a DSN names: sqlite://path (path is relative unless it starts with a slash) or
// mysql://user:password@tcp(host:port)/database, MariaDB included. It migrates the schema. The SQLite file belongs to one
// process: ErrInUse when another has it.
func Open(ctx context.Context, dsn string, o Options) (Store, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Failpoint == nil {
		o.Failpoint = func(string) {}
	}
	scheme, rest, ok := strings.Cut(dsn, "://")
	switch {
	case ok && rest != "" && scheme == "sqlite":
		return openSQLite(ctx, rest, o, sameConnector)
	case ok && rest != "" && scheme == "mysql":
		return openMySQL(ctx, rest, o, sameConnector)
	default:
		return nil, errors.New("store DSN must be sqlite://path or mysql://user:password@tcp(host:port)/database")
	}
}

// ValidDSN says what is wrong with the form of a DSN without opening anything.
func ValidDSN(dsn string) error {
	scheme, rest, ok := strings.Cut(dsn, "://")
	if !ok || rest == "" || (scheme != "sqlite" && scheme != "mysql") {
		return errors.New("must be sqlite://path or mysql://user:password@tcp(host:port)/database")
	}
	if scheme == "mysql" {
		_, err := parseMySQL(rest)
		return err
	}
	return nil
}

// dialect is where the two databases differ.
type dialect struct {
	goose goose.Dialect
	// dir is the folder of the migrations.
	dir string
	// keepOld ends an INSERT: a row that hits a unique key changes nothing and counts as zero affected rows.
	keepOld string
	// insertGroup makes a group's conversation; zero affected rows when it is there.
	insertGroup string
	// onConflict starts an upsert on the key given; excluded is the pattern of a new value inside it.
	onConflict func(key string) string
	excluded   func(column string) string
	// greatest is the function of the larger of two values.
	greatest string
	// now is the database host's clock in ms since 1970.
	now string
	// forUpdate and forShare end a locking read.
	forUpdate, forShare string
	// rowsMax bounds the rows of one INSERT.
	rowsMax int
	// parallel is how many transactions at once pay off.
	parallel int
	// fenced says that other processes may write, so the node lease is checked in each transaction.
	fenced bool
	// again says that a transaction was rolled back for no fault of its own (deadlock) and may be run once more.
	again func(error) bool
	// settle makes what the failed commit may have left durable, or fails; called before Resolve reads.
	settle func(ctx context.Context, db *Database) error
}

// Database is the Store on database/sql.
type Database struct {
	// Fixed after Open.
	d       dialect
	w, r    *sql.DB
	log     *slog.Logger
	fail    func(string)
	release io.Closer
	stmts   statements
}

var _ Store = (*Database)(nil)

// migrate brings the schema up to date.
func (db *Database) migrate(ctx context.Context, locker lock.SessionLocker) error {
	dir, err := fs.Sub(migrations, "migrations/"+db.d.dir)
	if err != nil {
		return fmt.Errorf("migrations: %w", err)
	}
	var opts []goose.ProviderOption
	if locker != nil {
		opts = append(opts, goose.WithSessionLocker(locker))
	}
	p, err := goose.NewProvider(db.d.goose, db.w, dir, opts...)
	if err != nil {
		return fmt.Errorf("migrate schema: %w", err)
	}
	applied, err := p.Up(ctx)
	if err != nil {
		return fmt.Errorf("migrate schema: %w", err)
	}
	for _, m := range applied {
		db.log.Info("schema migrated", "version", m.Source.Version)
	}
	return nil
}

// Close ends all connections and gives the file back.
func (db *Database) Close() error {
	err := errors.Join(db.r.Close(), db.w.Close())
	if db.release != nil {
		err = errors.Join(err, db.release.Close())
	}
	if err != nil {
		return fmt.Errorf("close store: %w", err)
	}
	return nil
}

// Parallel implements Appender.
func (db *Database) Parallel() int { return db.d.parallel }

// attemptsMax bounds how often a transaction that the database rolled back as a deadlock's victim is run again: two
// transactions that lock in the same order meet seldom, three times in a row means something else is wrong.
const attemptsMax = 3

// inTx runs do in a transaction. An error of do rolls back; one of COMMIT becomes ErrUnknown.
func (db *Database) inTx(ctx context.Context, do func(*sql.Tx) error) error {
	for attempt := 1; ; attempt++ {
		err := db.once(ctx, do)
		if err == nil || attempt == attemptsMax || errors.Is(err, ErrUnknown) || !db.d.again(err) {
			return err
		}
	}
}

func (db *Database) once(ctx context.Context, do func(*sql.Tx) error) error {
	// Once begun, a transaction ends by the database's word: cancelling in the middle would only make outcomes unknown.
	if err := ctx.Err(); err != nil {
		return err
	}
	tx, err := db.w.BeginTx(context.WithoutCancel(ctx), nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := do(tx); err != nil {
		// What a failed rollback leaves is rolled back when its connection ends, and database/sql ends it.
		_ = tx.Rollback()
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return nil
}

// marks is n groups of question marks: marks(2, 3) is (?,?,?),(?,?,?).
func marks(groups, each int) string {
	one := "(" + strings.Repeat("?,", each-1) + "?)"
	return strings.Repeat(one+",", groups-1) + one
}

// anyOf is a condition that holds for n pairs of values, written so that both databases use the key for each pair.
func anyOf(n int, a, b string) string {
	one := "(" + a + "=? AND " + b + "=?)"
	return "(" + strings.Repeat(one+" OR ", n-1) + one + ")"
}
