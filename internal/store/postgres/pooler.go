package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// CheckPooler checks the sessions to which Config.URL leads. It returns an error if they lack settings that Herald
// needs, because a pooler may drop the settings of a connection instead of refusing them. It also returns an error if
// Config.LeaderURL leads to another database or through a pooler in transaction mode, or if Config.LeaderURL is empty
// and Config.URL leads through such a pooler. It checks nothing if Config.Locks is set.
func (p *Pool) CheckPooler(ctx context.Context) (err error) {
	switch p.leaders.pool {
	case p:
		return p.checkDirect(ctx)
	case p.direct:
	default:
		return nil
	}
	ctx, end := p.StartCall(ctx, &err, "check the pooler of DATABASE_URL")
	defer end()
	if err := p.checkSettings(ctx); err != nil {
		return err
	}
	return p.checkLeader(ctx)
}

// checkSettings returns an error if the pool's sessions lack settings. It names the SQL statements that an operator
// must run so that the sessions have them.
func (p *Pool) checkSettings(ctx context.Context) error {
	commands, err := p.listMissing(ctx)
	if err == nil && len(commands) > 0 {
		err = fmt.Errorf("its sessions lack settings: run these statements in Postgres, then RECONNECT in the "+
			"pooler's console: %s", strings.Join(commands, " "))
	}
	return err
}

// listMissing returns the SQL statements of checkSettings.
func (p *Pool) listMissing(ctx context.Context) (commands []string, err error) {
	needed, err := json.Marshal(p.needed) // default_query_exec_mode=exec could not encode a map
	if err != nil {
		return nil, err
	}
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
			 ORDER BY 1`, string(needed))
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

// checkDirect returns an error if Config.URL leads through a pooler in transaction mode, which loses prepared
// statements and the locks of Lead, or if the sessions lack settings.
func (p *Pool) checkDirect(ctx context.Context) (err error) {
	ctx, end := p.StartCall(ctx, &err, "check the sessions of DATABASE_URL")
	defer end()
	_, pooled, err := p.inspectSessions(ctx)
	if pooled {
		return errors.New("it leads through a pooler in transaction mode: set HERALD_LEADER_DATABASE_URL to the " +
			"address of Postgres itself (docs/operator/scaling.md)")
	}
	if err == nil {
		err = p.checkSettings(ctx)
	}
	if _, isRefused := errors.AsType[*pgconn.ConnectError](err); isRefused {
		return nil // Postgres has no second connection to compare with, and a worker can begin with one
	}
	return err
}

// checkLeader returns an error if Config.LeaderURL leads to another database or through a pooler in transaction mode.
func (p *Pool) checkLeader(ctx context.Context) error {
	own, err := inspectSession(ctx, p.Conns)
	if err != nil {
		return err
	}
	leader, pooled, err := p.direct.inspectSessions(ctx)
	switch {
	case err != nil:
		return err
	case own.database != leader.database:
		return fmt.Errorf("HERALD_LEADER_DATABASE_URL leads to another database: %s, not %s", leader.database,
			own.database)
	case pooled:
		return errors.New("HERALD_LEADER_DATABASE_URL leads through a pooler in transaction mode: set it to the " +
			"address of Postgres itself")
	}
	return nil
}

// session is the session of Postgres in which a statement ran.
type session struct {
	database string // with the time at which Postgres started
	pid      int
}

func inspectSession(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) (is session, err error) {
	err = db.QueryRow(ctx, `SELECT current_database() || ' since ' || pg_postmaster_start_time() AT TIME ZONE 'UTC',
		pg_backend_pid()`, pgx.QueryExecModeExec).Scan(&is.database, &is.pid)
	return is, err
}

// inspectSessions returns a session of the pool, and whether the pool's connections lead through a pooler in
// transaction mode. Without such a pooler, each connection has a session of its own. With such a pooler, two
// connections run statements in the same session, or one connection runs them in different sessions.
func (p *Pool) inspectSessions(ctx context.Context) (before session, pooled bool, err error) {
	conn, err := p.Conns.Acquire(ctx)
	if err != nil {
		return before, false, err
	}
	defer conn.Release()
	if before, err = inspectSession(ctx, conn); err != nil {
		return before, false, err
	}
	var other, after session
	err = pgx.BeginFunc(ctx, p.Conns, func(tx pgx.Tx) (err error) {
		if other, err = inspectSession(ctx, tx); err == nil {
			after, err = inspectSession(ctx, conn)
		}
		return err
	})
	return before, err == nil && (before == other || before != after), err
}
