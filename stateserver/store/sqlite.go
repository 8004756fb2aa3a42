package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"runtime"

	"github.com/pressly/goose/v3"
	"golang.org/x/sys/unix"
	"modernc.org/sqlite"
)

// busyTimeoutMS bounds how long a statement waits for a lock inside the file: only this process has it, so the wait is
// for a checkpoint or for the other connections of the pool.
const busyTimeoutMS = 5000

// writerOptions: each transaction takes the write lock when it begins, so that it never fails for it half-way; 32 MiB of
// pages stay in memory, where the indexes on uuid and conversation are hit at random; the log is moved into the file every
// 16 MiB rather than 4, since each time costs two syncs.
const writerOptions = "&_txlock=immediate&_pragma=journal_mode(WAL)&_pragma=cache_size(-32768)&_pragma=wal_autocheckpoint(4000)"

func sqliteDialect() dialect {
	return dialect{
		goose:       goose.DialectSQLite3,
		dir:         "sqlite",
		keepOld:     " ON CONFLICT DO NOTHING",
		insertGroup: "INSERT INTO im_conversation (conv_id, max_seq, changed_at) VALUES (?, 0, ?) ON CONFLICT DO NOTHING",
		onConflict:  func(key string) string { return " ON CONFLICT (" + key + ") DO UPDATE SET " },
		excluded:    func(c string) string { return "excluded." + c },
		greatest:    "MAX",
		now:         "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
		// One row a statement is as fast as many: there is no round trip to save, and the statement stays prepared.
		rowsMax:  1,
		parallel: 1,
		again:    func(error) bool { return false },
		settle:   settleSQLite,
	}
}

type connectorWrap func(driver.Connector) driver.Connector

func sameConnector(c driver.Connector) driver.Connector { return c }

func openSQLite(ctx context.Context, path string, o Options, wrap connectorWrap) (*Database, error) {
	owner, err := ownFile(path)
	if err != nil {
		return nil, err
	}
	// fdatasync is as durable as fsync and spares the journal of the file system; the driver has one switch a process.
	if _, err := sqlite.Fdatasync(true); err != nil && !errors.Is(err, sqlite.ErrFdatasyncUnavailable) {
		return nil, errors.Join(fmt.Errorf("switch to fdatasync: %w", err), owner.Close())
	}
	db := &Database{d: sqliteDialect(), log: o.Log, fail: o.Failpoint, release: owner}
	if db.w, err = sqlitePool(path, writerOptions, 1, wrap); err == nil {
		// query_only keeps a reader from ever becoming a second writer.
		db.r, err = sqlitePool(path, "&_pragma=query_only(1)", max(2, runtime.GOMAXPROCS(0)), wrap)
	}
	if err != nil {
		return nil, errors.Join(err, owner.Close())
	}
	if err := db.startSQLite(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), db.Close())
	}
	return db, nil
}

func (db *Database) startSQLite(ctx context.Context) error {
	if err := db.migrate(ctx, nil); err != nil {
		return err
	}
	if err := db.prepare(ctx); err != nil {
		return err
	}
	// The file lock proves that whoever held a lease is gone.
	for _, table := range []string{"im_node", "im_hook"} {
		if _, err := db.w.ExecContext(ctx, "UPDATE "+table+" SET lease_until = 0"); err != nil {
			return fmt.Errorf("end leases of the last run: %w", err)
		}
	}
	return nil
}

// sqlitePool opens connections that are durable at each commit: WAL with synchronous=FULL syncs before COMMIT returns,
// which synchronous=NORMAL does not.
func sqlitePool(path, options string, size int, wrap connectorWrap) (*sql.DB, error) {
	dsn := "file:" + (&url.URL{Path: path}).EscapedPath() +
		fmt.Sprintf("?_pragma=busy_timeout(%d)&_pragma=synchronous(FULL)", busyTimeoutMS) + options
	c, err := sqlite.NewConnector(dsn)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	db := sql.OpenDB(wrap(c))
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size)
	return db, nil
}

// ownFile takes the lock beside the database file. The lock goes with the process, however it ends.
func ownFile(path string) (io.Closer, error) {
	f, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock store: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrInUse
		}
		return nil, errors.Join(fmt.Errorf("lock store %s: %w", path, err), f.Close())
	}
	return f, nil
}

// settleSQLite runs after a COMMIT that failed, for example because a sync failed. The pages may be in the log, seen by
// every reader and yet not on the disk, and syncing the same pages again proves nothing. So the connection is given up, and
// a full checkpoint on a new one writes them into the database file and syncs that: if it succeeds, all that can be read
// is durable.
func settleSQLite(ctx context.Context, db *Database) error {
	conn, err := db.w.Conn(ctx)
	if err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	if err := conn.Raw(func(any) error { return driver.ErrBadConn }); !errors.Is(err, driver.ErrBadConn) {
		return fmt.Errorf("settle: drop connection: %w", err)
	}
	_ = conn.Close() // the connection is gone already
	var busy, log, moved int
	if err := db.w.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &log, &moved); err != nil {
		return fmt.Errorf("settle: checkpoint: %w", err)
	}
	if busy != 0 {
		return errors.New("settle: checkpoint: kept from finishing by a reader")
	}
	return nil
}
