package postgres

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestMigrateAtOnce: four processes migrate an empty database concurrently. Their URL has an option of the pool.
func TestMigrateAtOnce(t *testing.T) {
	t.Parallel()
	url := secret.New(heraldtest.EmptyPostgres(t) + "&pool_max_conns=2")
	var wg sync.WaitGroup
	var mu sync.Mutex
	applied := 0
	for range 4 {
		wg.Go(func() {
			done, err := Migrate(t.Context(), url)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			applied += len(done)
			mu.Unlock()
		})
	}
	wg.Wait()
	all, err := Migrations(t.Context(), url)
	if err != nil || len(all) == 0 || applied != len(all) {
		t.Fatalf("%d applied of %d, %v", applied, len(all), err)
	}
	for _, m := range all {
		if m.AppliedAt.IsZero() || m.Name == "" {
			t.Errorf("%+v", m)
		}
	}
	if done, err := Migrate(t.Context(), url); err != nil || len(done) != 0 {
		t.Error(done, err)
	}
}

// TestMigrateAbroad: the partitions begin at midnight UTC, and the list has the right times, although the database has
// another time zone and another format of dates. Postgres reads the CST of that format as the one of Chicago.
func TestMigrateAbroad(t *testing.T) {
	t.Parallel()
	p := openPool(t, heraldtest.EmptyPostgres(t))
	for _, set := range []string{"timezone = 'Asia/Shanghai'", "datestyle = 'SQL, DMY'"} {
		exec(t, p, "ALTER DATABASE "+p.Conns.Config().ConnConfig.Database+" SET "+set)
	}
	url := secret.New(p.Conns.Config().ConnString())
	_, err := Migrate(t.Context(), url)
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "partitions", count(t, p, `SELECT count(*) FROM pg_class WHERE relkind = 'r' AND
		pg_get_expr(relpartbound, oid) LIKE 'FOR VALUES FROM (''____-__-__ 00:00:00+00'')%'`), 5)
	all, err := Migrations(t.Context(), url)
	if err != nil || time.Since(all[0].AppliedAt).Abs() > time.Hour {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestMigrated: a database is migrated if it has the schema and every migration.
func TestMigrated(t *testing.T) {
	t.Parallel()
	empty, whole := openPool(t, heraldtest.EmptyPostgres(t)), openPool(t, heraldtest.Postgres(t, Migrate))
	if yes, err := empty.Migrated(t.Context()); yes || err != nil {
		t.Errorf("without the schema: %t, %v", yes, err)
	}
	if yes, err := whole.Migrated(t.Context()); !yes || err != nil {
		t.Errorf("with everything: %t, %v", yes, err)
	}
	exec(t, whole, `DELETE FROM herald.migrations WHERE version_id > 0`)
	if yes, err := whole.Migrated(t.Context()); yes || err != nil {
		t.Errorf("with pending migrations: %t, %v", yes, err)
	}
}

// TestCheckOwner: a role that may only read and write rows is refused, because it cannot create partitions. The owner
// and its members are not.
func TestCheckOwner(t *testing.T) {
	t.Parallel()
	url := heraldtest.Postgres(t, Migrate)
	owner := openPool(t, url)
	role := owner.Conns.Config().ConnConfig.Database + "_app"
	exec(t, owner, `CREATE ROLE `+role)
	defer exec(t, owner, `DROP OWNED BY `+role+`; DROP ROLE `+role)
	exec(t, owner, `GRANT USAGE ON SCHEMA herald TO `+role)
	app := openPool(t, url+"&options=-c%20role%3D"+role)
	if err := app.CheckOwner(t.Context()); err == nil || !strings.Contains(err.Error(), "role "+role+" may not create the next partitions") {
		t.Error(err)
	}
	exec(t, owner, `GRANT CREATE ON SCHEMA herald TO `+role)
	if err := app.CheckOwner(t.Context()); err == nil {
		t.Error("a role that does not own the table may not attach partitions")
	}
	exec(t, owner, `GRANT `+owner.Conns.Config().ConnConfig.User+` TO `+role)
	for name, p := range map[string]*Pool{"a member": app, "the owner": owner} {
		if err := p.CheckOwner(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestUnreleasedSchema: a schema of a Herald before the first release is refused and stays as it is. A table that such a
// Herald created later, in a database of this version, changes nothing.
func TestUnreleasedSchema(t *testing.T) {
	t.Parallel()
	p := openPool(t, heraldtest.EmptyPostgres(t))
	exec(t, p, `CREATE SCHEMA herald`)
	exec(t, p, `CREATE TABLE herald.goose_db_version (version_id bigint)`)
	url := p.Conns.Config().ConnString()
	if done, err := Migrate(t.Context(), secret.New(url)); !errors.Is(err, errUnreleased) || len(done) != 0 {
		t.Error(done, err)
	}
	if _, err := Migrations(t.Context(), secret.New(url)); !errors.Is(err, errUnreleased) {
		t.Error(err)
	}
	if n := count(t, p, `SELECT count(*) FROM pg_class WHERE relnamespace = 'herald'::regnamespace`); n != 1 {
		t.Errorf("the schema has %d relations, want 1", n)
	}

	p = openPool(t, heraldtest.Postgres(t, Migrate))
	exec(t, p, `CREATE TABLE herald.goose_db_version (version_id bigint)`)
	if done, err := Migrate(t.Context(), secret.New(p.Conns.Config().ConnString())); err != nil || len(done) != 0 {
		t.Error(done, err)
	}
}

// TestOtherEncoding: a database that is not in UTF-8 is refused, also if it was migrated by an earlier Herald. Otherwise
// an agent's answer with the escape \u00e9 could never be recorded.
func TestOtherEncoding(t *testing.T) {
	t.Parallel()
	config := openPool(t, heraldtest.EmptyPostgres(t)).Conns.Config()
	name := config.ConnConfig.Database
	for _, sql := range []string{"DROP DATABASE " + name + " WITH (FORCE)",
		"CREATE DATABASE " + name + " TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'"} {
		exec(t, openPool(t, strings.Replace(config.ConnString(), "/"+name+"?", "/postgres?", 1)), sql)
	}
	p := openPool(t, config.ConnString())
	for _, before := range []string{
		`SELECT 1`, `CREATE SCHEMA herald`, `CREATE TABLE herald.migrations AS SELECT n AS version_id, true AS is_applied FROM generate_series(0, 99) n`} {
		exec(t, p, before)
		if yes, err := p.Migrated(t.Context()); yes || err != nil {
			t.Errorf("after %s: counts as migrated: %t, %v", before, yes, err)
		}
		if done, err := Migrate(t.Context(), secret.New(config.ConnString())); err == nil || !strings.Contains(err.Error(), "its encoding is SQL_ASCII") || len(done) != 0 {
			t.Errorf("after %s: %v, %v", before, done, err)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{{}, {URL: secret.New("postgres://h/d"), MaxConns: 1}, {URL: secret.New("postgres://h/d"), MaxConns: -1}} {
		if s, err := Open(cfg); err == nil {
			s.Close()
			t.Errorf("%+v was taken", cfg)
		}
	}
}
