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

// OldTable is the table agent_mcp_tokens (agent_id, token) in the database of the old backend.
type OldTable struct {
	URL    secret.Secret
	Schema string // of the table
}

// oldTableTimeout bounds the reading of the table.
const oldTableTimeout = time.Minute

// readTokens calls add for each row of the table, within a read-only transaction.
func (t OldTable) readTokens(ctx context.Context, add func(agentID, token string) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, oldTableTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, t.URL.Reveal())
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
		table := pgx.Identifier{t.Schema, "agent_mcp_tokens"}
		// One row more than can be imported, so that addRow reports that there are more.
		rows, _ := tx.Query(ctx,
			fmt.Sprintf("SELECT agent_id::text, coalesce(token, '') FROM %s ORDER BY agent_id LIMIT %d",
				table.Sanitize(), maxImported+1))
		var agentID, token string
		_, err := pgx.ForEachRow(rows, []any{&agentID, &token}, func() error {
			return add(strings.Clone(agentID), strings.Clone(token))
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
