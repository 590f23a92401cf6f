package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// CheckPooler checks the pooler to which Config.URL leads. It returns an error if the pooler's sessions lack settings
// that Herald needs, or if Config.LeaderURL leads to another database or through a pooler in transaction mode. It
// checks nothing if Config.LeaderURL is empty or Config.Locks is set.
func (p *Pool) CheckPooler(ctx context.Context) (err error) {
	if p.direct == nil {
		return nil
	}
	ctx, end := p.StartCall(ctx, &err, "check the pooler of DATABASE_URL")
	defer end()
	commands, err := p.listMissing(ctx)
	if err != nil {
		return err
	}
	if len(commands) > 0 {
		return fmt.Errorf("its sessions lack settings: run these statements in Postgres, then RECONNECT in the "+
			"pooler's console: %s", strings.Join(commands, " "))
	}
	return p.checkLeader(ctx)
}

// listMissing returns the SQL statements that an operator must run so that the pooler's sessions have the settings that
// they lack.
func (p *Pool) listMissing(ctx context.Context) (commands []string, err error) {
	for range 2 { // two connections: a pooler that keeps no prepared statements fails on the second one (42P05)
		conn, err := p.Conns.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		defer conn.Release()
		rows, _ := conn.Query(ctx, `
			SELECT format('ALTER ROLE %I IN DATABASE %I SET %I = %L;', 
			              session_user, current_database(), s.name, n.value)
			  FROM jsonb_each_text($1) n(name, value) JOIN pg_settings s USING (name)
			 WHERE CASE WHEN s.unit = 'ms' THEN s.setting::bigint NOT BETWEEN 1 AND n.value::bigint
			            ELSE s.setting <> n.value END
			 ORDER BY 1`, p.needed)
		var answer *pgconn.PgError
		commands, err = pgx.CollectRows(rows, pgx.RowTo[string])
		if errors.As(err, &answer) && answer.Code == "42P05" { // the statement exists already
			err = fmt.Errorf("it keeps no prepared statements: take default_query_exec_mode out of the URL (%w)",
				answer)
		}
		if err != nil {
			return nil, err
		}
	}
	return commands, nil
}

// checkLeader returns an error if Config.LeaderURL leads to another database or through a pooler in transaction mode.
// Without such a pooler, each connection to Config.LeaderURL has a Postgres session of its own. With such a pooler, two
// connections run statements in the same session, or one connection runs them in different sessions.
func (p *Pool) checkLeader(ctx context.Context) error {
	type session struct {
		database string
		pid      int
	}
	look := func(db interface {
		QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	}) (is session, err error) {
		err = db.QueryRow(ctx, `SELECT current_database() || ' since ' || pg_postmaster_start_time() AT TIME ZONE 'UTC',
			pg_backend_pid()`, pgx.QueryExecModeExec).Scan(&is.database, &is.pid)
		return is, err
	}
	pooled, err := look(p.Conns)
	if err != nil {
		return err
	}
	conn, err := p.direct.Conns.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	before, err := look(conn)
	if err != nil {
		return err
	}
	var other, after session
	err = pgx.BeginFunc(ctx, p.direct.Conns, func(tx pgx.Tx) (err error) {
		if other, err = look(tx); err == nil {
			after, err = look(conn)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case pooled.database != before.database:
		return fmt.Errorf("HERALD_LEADER_DATABASE_URL leads to another database: %s, not %s", before.database,
			pooled.database)
	case before.pid == other.pid || before.pid != after.pid:
		return errors.New("HERALD_LEADER_DATABASE_URL leads through a pooler in transaction mode: set it to the " +
			"address of Postgres itself")
	}
	return nil
}
