package pgerror

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/jackc/pgx/v5/pgconn"
)

// TestAway: errors that pass without a change of the request are those of a server that cannot be used now.
func TestAway(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{"08006": true, "25006": true, "53100": true, "53300": true, "53400": false, "57P01": true, "22P05": false, "40001": false, "42501": false} {
		heraldtest.Equal(t, code, Away(fmt.Errorf("list: %w", &pgconn.PgError{Code: code})), want)
	}
	heraldtest.Equal(t, "another error", Away(errors.New("53300")), false)

	cfg, err := pgconn.ParseConfig("postgres://db.example/herald")
	heraldtest.Must(t, err)
	for _, cause := range []error{errors.New("x509: certificate has expired"), &pgconn.PgError{Code: "28P01"}} {
		cfg.DialFunc = func(context.Context, string, string) (net.Conn, error) { return nil, cause }
		cfg.LookupFunc = func(context.Context, string) ([]string, error) { return []string{"192.0.2.1"}, nil }
		_, err := pgconn.ConnectConfig(t.Context(), cfg)
		heraldtest.Equal(t, cause.Error(), Away(fmt.Errorf("list: %w", Explain(err))), true)
	}
}
