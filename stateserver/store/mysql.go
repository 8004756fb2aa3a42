package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/pressly/goose/v3"
)

const (
	// mysqlParallel is how many transactions at once share a flush of the redo log: InnoDB groups what waits for it.
	mysqlParallel = 8
	// mysqlReaders bounds the connections for reading; with the writers it stays far below the default of 151 for a few
	// StateServers on one database.
	mysqlReaders = 16
	// mysqlOthers are the writing connections beside those of the committers: leases, marks, positions, groups.
	mysqlOthers = 4
	// mysqlIO bounds one answer of the server; a connection silent for longer is given up and its outcome is unknown.
	mysqlIO = 5 * time.Second
	// mysqlDial bounds connecting.
	mysqlDial = 2 * time.Second
	// mysqlIdle is shorter than any usual wait_timeout, so that the server is never the one to close.
	mysqlIdle = 3 * time.Minute
	// migrateWait bounds how long one StateServer waits for another that migrates the schema.
	migrateWait = 60 * time.Second
)

// Error numbers of the server.
const (
	erLockWait = 1205
	erDeadlock = 1213
)

func mysqlDialect() dialect {
	return dialect{
		goose:       goose.DialectMySQL,
		dir:         "mysql",
		keepOld:     " ON DUPLICATE KEY UPDATE msg_id = msg_id",
		insertGroup: "INSERT INTO im_conversation (conv_id, max_seq, changed_at) VALUES (?, 0, ?) ON DUPLICATE KEY UPDATE conv_id = conv_id",
		onConflict:  func(string) string { return " ON DUPLICATE KEY UPDATE " },
		excluded:    func(c string) string { return "VALUES(" + c + ")" },
		greatest:    "GREATEST",
		now:         "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)",
		forUpdate:   " FOR UPDATE",
		forShare:    " LOCK IN SHARE MODE",
		// One round trip for many rows, and few enough that the packet stays far below max_allowed_packet (16 MiB).
		rowsMax:  64,
		parallel: mysqlParallel,
		fenced:   true,
		again: func(err error) bool {
			var e *mysql.MySQLError
			return errors.As(err, &e) && e.Number == erDeadlock
		},
		settle: func(context.Context, *Database) error { return nil },
	}
}

func parseMySQL(dsn string) (*mysql.Config, error) {
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, fmt.Errorf("mysql DSN: %w", err)
	}
	if c.DBName == "" {
		return nil, errors.New("mysql DSN names no database")
	}
	// Zero affected rows must mean "was there already".
	c.ClientFoundRows = false
	c.Collation = "utf8mb4_bin"
	c.InterpolateParams = true // one round trip a statement; safe since the connection speaks utf8mb4
	c.Timeout, c.ReadTimeout, c.WriteTimeout = mysqlDial, mysqlIO, mysqlIO
	c.Logger = &mysql.NopLogger{} // its lines repeat the errors that it returns
	c.RejectReadOnly = true
	if c.Params == nil {
		c.Params = map[string]string{}
	}
	// Too long is an error, never a cut; a row lock is waited for 1 s, the smallest value there is.
	c.Params["sql_mode"] = "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'"
	c.Params["innodb_lock_wait_timeout"] = "1"
	return c, nil
}

func openMySQL(ctx context.Context, dsn string, o Options, wrap connectorWrap) (*Database, error) {
	cfg, err := parseMySQL(dsn)
	if err != nil {
		return nil, err
	}
	c, err := mysql.NewConnector(cfg)
	if err != nil {
		return nil, fmt.Errorf("mysql DSN: %w", err)
	}
	db := &Database{d: mysqlDialect(), log: o.Log, fail: o.Failpoint}
	db.w = mysqlPool(wrap(readCommitted{c}), mysqlParallel+mysqlOthers)
	db.r = mysqlPool(wrap(readCommitted{c}), mysqlReaders)
	if err := db.startMySQL(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open mysql store at %s: %w", cfg.Addr, err), db.Close())
	}
	return db, nil
}

func mysqlPool(c driver.Connector, size int) *sql.DB {
	db := sql.OpenDB(c)
	db.SetMaxOpenConns(size)
	db.SetMaxIdleConns(size)
	db.SetConnMaxIdleTime(mysqlIdle)
	return db
}

// readCommitted sets the isolation of each new connection: repeatable read would lock gaps, and would hide from a
// transaction the duplicate that the unique key has just told it of.
type readCommitted struct{ driver.Connector }

func (c readCommitted) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	x, ok := conn.(driver.ExecerContext)
	if !ok {
		return nil, errors.Join(errors.New("mysql driver: no ExecContext"), conn.Close())
	}
	if _, err := x.ExecContext(ctx, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", nil); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

func (db *Database) startMySQL(ctx context.Context) error {
	var flush int
	if err := db.w.QueryRowContext(ctx, "SELECT @@innodb_flush_log_at_trx_commit").Scan(&flush); err != nil {
		return err
	}
	if flush != 1 {
		return fmt.Errorf("innodb_flush_log_at_trx_commit is %d; it must be 1, or a commit is not durable", flush)
	}
	var logBin, syncBinlog int
	if err := db.w.QueryRowContext(ctx, "SELECT @@log_bin, @@sync_binlog").Scan(&logBin, &syncBinlog); err != nil {
		return err
	}
	if logBin == 1 && syncBinlog != 1 {
		db.log.Warn("sync_binlog is not 1: after a power loss the replicas may lack committed messages", "sync_binlog", syncBinlog)
	}
	return db.migrate(ctx, namedLock{})
}

// namedLock keeps two StateServers from migrating at once.
type namedLock struct{}

func (namedLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	var got sql.NullInt64
	if err := conn.QueryRowContext(ctx, "SELECT GET_LOCK('sluice_migrate', ?)", int(migrateWait.Seconds())).Scan(&got); err != nil {
		return fmt.Errorf("lock schema: %w", err)
	}
	if got.Int64 != 1 {
		return errors.New("lock schema: another process is migrating it")
	}
	return nil
}

func (namedLock) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	if _, err := conn.ExecContext(ctx, "SELECT RELEASE_LOCK('sluice_migrate')"); err != nil {
		return fmt.Errorf("unlock schema: %w", err)
	}
	return nil
}
