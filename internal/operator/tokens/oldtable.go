package tokens

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/store/pgerror"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// oldTableTimeout bounds the reading of the table.
const oldTableTimeout = time.Minute

// readTable reads the table agent_mcp_tokens (agent_id, token) in the database of the old backend, within a read-only
// transaction. The database's URL contains a password, so it is not on the command line.
func (i *Import) readTable(ctx context.Context, o Tokens) error {
	address := o.databaseURL(i.ask.From, i.ask.Environ)
	switch {
	case i.ask.File != "":
		return operator.NewMisuse("--from and FILE exclude each other")
	case address.IsZero():
		return operator.NewMisuse("--from takes the name of an environment variable that holds the old database's " +
			"URL, and the variable is not set, or empty: export OLD_DATABASE_URL=…, and give " +
			"--from OLD_DATABASE_URL")
	}
	ctx, cancel := context.WithTimeout(ctx, oldTableTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, address.Reveal())
	var unreadable *pgconn.ParseConfigError
	switch {
	case errors.As(err, &unreadable): // the error quotes the URL
		return operator.NewMisuse(
			"the old database's address is not a URL: expected postgres://user:password@host/database")
	case err != nil:
		return fmt.Errorf("read the old table of tokens: %w", pgerror.Explain(err))
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		table := pgx.Identifier{i.ask.Schema, "agent_mcp_tokens"}
		// One row more than can be imported, so that addRow reports that there are more.
		rows, _ := tx.Query(ctx,
			fmt.Sprintf("SELECT agent_id::text, coalesce(token, '') FROM %s ORDER BY agent_id LIMIT %d",
				table.Sanitize(), maxImported+1))
		var agentID, token string
		_, err := pgx.ForEachRow(rows, []any{&agentID, &token}, func() error {
			return i.addRow(o, len(i.Rows)+1, strings.Clone(agentID), strings.Clone(token))
		})
		var answer *pgconn.PgError
		const undefinedTable, undefinedColumn = "42P01", "42703"
		if errors.As(err, &answer) && (answer.Code == undefinedTable || answer.Code == undefinedColumn) {
			return operator.NewMisuse("that database has no table %s with agent_id and token: "+
				"name its database, or its schema with --schema", strings.Join(table, "."))
		}
		return err
	})
}

// databaseURL returns the value of an environment variable, or zero if it is empty. DATABASE_URL may come from a file.
func (o Tokens) databaseURL(variable string, environ []string) (found secret.Secret) {
	if variable == "DATABASE_URL" {
		if !o.Settings.LeaderURL.IsZero() { // the old table is read with prepared statements
			return o.Settings.LeaderURL
		}
		return o.Settings.DatabaseURL
	}
	for _, kv := range environ { // the last one counts, as for settings
		if name, value, _ := strings.Cut(kv, "="); name == variable {
			found = secret.New(value)
		}
	}
	return found
}
