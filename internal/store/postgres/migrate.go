package postgres

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/migrations"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

// versionTable is the table in which goose records the applied migrations. unreleasedTable is the table that a Herald
// before the first release used instead; its migrations had other contents under the same numbers.
const (
	versionTable    = "herald.migrations"
	unreleasedTable = "herald.goose_db_version"
)

// undefinedTable is the SQLSTATE of a statement about a table, or a schema, that does not exist.
const undefinedTable = "42P01"

// errUnreleased is returned if a Herald before the first release created the schema.
var errUnreleased = errors.New("its schema is of a Herald before v0.1.0 and cannot be upgraded: " +
	"set DATABASE_URL to an empty database, or HERALD_DATA to an empty folder if the worker runs its own Postgres")

// Migration is one SQL file of the folder migrations, and when it was applied.
type Migration struct {
	Version   int64     `json:"version"`
	Name      string    `json:"name"`
	AppliedAt time.Time `json:"appliedAt,omitzero"` // zero: pending
}

// Migrate applies the pending migrations to the database at url and returns them. Several processes may call it at
// once: one applies them, and the others wait up to 5 minutes and then find none pending.
func Migrate(ctx context.Context, url secret.Secret) (done []Migration, err error) {
	defer WrapError(&err, "migrate the database")
	err = withProvider(ctx, url, func(p *goose.Provider) error {
		results, err := p.Up(ctx)
		for _, r := range results {
			done = append(done, Migration{Version: r.Source.Version, Name: r.Source.Path, AppliedAt: time.Now().UTC()})
		}
		return err
	})
	return done, err
}

// Migrations lists all migrations, applied and pending, oldest first.
func Migrations(ctx context.Context, url secret.Secret) (all []Migration, err error) {
	defer WrapError(&err, "read the state of the migrations")
	err = withProvider(ctx, url, func(p *goose.Provider) error {
		states, err := p.Status(ctx)
		for _, s := range states {
			all = append(all, Migration{Version: s.Source.Version, Name: s.Source.Path, AppliedAt: s.AppliedAt})
		}
		return err
	})
	return all, err
}

// Migrated reports whether every migration is applied, in a database that Herald can use (ensureSchema). It asks once,
// over the pool, and neither connects nor creates goose's table as Migrations does, so that a command can ask before
// its first statement.
func (p *Pool) Migrated(ctx context.Context) (yes bool, err error) {
	ctx, end := p.StartCall(ctx, &err, "read the state of the migrations")
	defer end()
	files, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil {
		return false, err
	}
	versions := make([]int64, len(files))
	for i, name := range files {
		if versions[i], err = goose.NumericComponent(name); err != nil {
			return false, err
		}
	}
	err = p.Conns.QueryRow(ctx, `SELECT cardinality($1::bigint[]) = count(DISTINCT version_id)
		AND getdatabaseencoding() = 'UTF8'
		FROM `+versionTable+` WHERE is_applied AND version_id = ANY($1)`, versions).Scan(&yes)
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == undefinedTable {
		return false, nil
	}
	return yes, err
}

// CheckOwner returns an error if the role of the pool does not own Herald's tables. Such a role can deliver until the
// partitions that the owner created are used up. From then on, each round of the retention fails at the next partition,
// before it expires or deletes anything.
func (p *Pool) CheckOwner(ctx context.Context) (err error) {
	ctx, end := p.StartCall(ctx, &err, "check the rights of the role")
	defer end()
	var role, owner string
	var owns bool
	err = p.Conns.QueryRow(ctx, `SELECT current_user::text, pg_get_userbyid(relowner)::text,
			pg_has_role(relowner, 'USAGE') AND has_schema_privilege('herald', 'CREATE')
		FROM pg_class WHERE oid = 'herald.attempts'::regclass`).Scan(&role, &owner, &owns)
	if err == nil && !owns {
		return fmt.Errorf("role %s may not create the next partitions of herald.attempts, which %s owns. "+
			"Without them, no delivery expires and no old data is deleted: connect as %[2]s", role, owner)
	}
	return err
}

// withProvider connects to url, creates the schema herald if it is missing, and calls do with a goose provider. url
// must not lead to a pooler in transaction mode, because goose takes a lock that belongs to a session. A migration has
// no statement_timeout.
func withProvider(ctx context.Context, url secret.Secret, do func(*goose.Provider) error) error {
	pool, err := pgxpool.ParseConfig(url.Reveal()) // as Open, so that it accepts the options of a pool
	if err != nil {
		return explainURL(err)
	}
	cfg := pool.ConnConfig
	cfg.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, defaultConnectTimeout)
	cfg.RuntimeParams["statement_timeout"] = "0"
	setFormats(cfg.RuntimeParams)
	db := stdlib.OpenDB(*cfg)
	defer db.Close()
	if err := ensureSchema(ctx, db); err != nil {
		return err
	}
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300)) // tries once a second, for 5 min
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, migrations.FS,
		goose.WithSessionLocker(locker), goose.WithTableName(versionTable))
	if err != nil {
		return err
	}
	return do(p)
}

// ensureSchema creates the schema herald if it does not exist, because goose's own table is in it. It returns
// errUnreleased if a Herald before the first release created the schema. It returns an error if the database's encoding
// is not UTF8, because others refuse \u00e9 in an agent's answer, so that the outcome could not be recorded. If two
// processes create the schema at once, one may fail in spite of IF NOT EXISTS; it then checks again.
func ensureSchema(ctx context.Context, db *sql.DB) (err error) {
	for range 2 {
		var have, unreleased bool
		var encoding string
		err = db.QueryRowContext(ctx, `SELECT to_regnamespace('herald') IS NOT NULL,
			to_regclass($1) IS NOT NULL AND to_regclass($2) IS NULL, getdatabaseencoding()`, unreleasedTable,
			versionTable).Scan(&have, &unreleased, &encoding)
		if err == nil && encoding != "UTF8" {
			return fmt.Errorf("its encoding is %s, and Herald needs UTF8: make a database with "+
				"createdb --encoding=UTF8 --template=template0", encoding)
		}
		if err == nil && unreleased {
			return errUnreleased
		}
		if err != nil || have {
			return err
		}
		if _, err = db.ExecContext(ctx, `CREATE SCHEMA IF NOT EXISTS herald`); err == nil {
			return nil
		}
	}
	return err
}
