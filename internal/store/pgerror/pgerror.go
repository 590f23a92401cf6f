// Package pgerror explains in one sentence why Postgres is unreachable, and distinguishes that from errors that
// Postgres returns.
package pgerror

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/jackc/pgx/v5/pgconn"
)

// Explain shortens an error that means that Postgres is unreachable. The result names one cause, and for a
// *pgconn.ConnectError also the host. It omits the connection string and the list of tries that pgx puts into its
// error. Other errors are returned unchanged.
func Explain(err error) error {
	var ce *pgconn.ConnectError
	var network net.Error
	switch {
	case errors.As(err, &ce):
	case errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return netguard.Explain("Postgres", 0, err)
	default:
		return err
	}
	cause := ce.Unwrap()
	var answer *pgconn.PgError
	var errno syscall.Errno
	switch {
	case errors.As(cause, &answer) && strings.HasPrefix(answer.Message, "unsupported startup parameter"):
		cause = fmt.Errorf("%w: this is a pooler, so set HERALD_LEADER_DATABASE_URL to the address of Postgres itself "+
			"(docs/operator/scaling.md)", answer)
	case errors.As(cause, &answer):
		cause = answer
	case errors.As(cause, &errno):
		cause = errno
	default:
		cause = netguard.Explain("it", 0, cause)
	}
	return fmt.Errorf("connect to %s: %w", describeHost(ce), cause)
}

func describeHost(ce *pgconn.ConnectError) string {
	if ce.Config == nil {
		return "Postgres"
	}
	if strings.HasPrefix(ce.Config.Host, "/") {
		return "the Postgres socket in " + ce.Config.Host
	}
	return fmt.Sprintf("Postgres at %s:%d", ce.Config.Host, ce.Config.Port)
}

// Away reports whether err means that Postgres is unreachable, shuts down, or does not answer in time.
func Away(err error) bool {
	var connect *pgconn.ConnectError
	var pg *pgconn.PgError
	var network net.Error
	switch {
	case errors.As(err, &pg):
		// 08: connection exceptions. 57P: the server is shutting down, restarting or has crashed.
		return strings.HasPrefix(pg.Code, "08") || strings.HasPrefix(pg.Code, "57P")
	case errors.As(err, &connect), errors.As(err, &network), errors.Is(err, io.EOF),
		errors.Is(err, io.ErrUnexpectedEOF):
		return true
	}
	return pgconn.SafeToRetry(err) || pgconn.Timeout(err)
}
