// Package pgerror explains in one sentence why Postgres is unreachable, and distinguishes that from errors that
// Postgres returns.
package pgerror

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
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
	tries, joined := ce.Unwrap().(interface{ Unwrap() []error })
	if joined && ce.Config != nil && slices.ContainsFunc(ce.Config.Fallbacks, func(f *pgconn.FallbackConfig) bool {
		return f.Host != ce.Config.Host || f.Port != ce.Config.Port
	}) {
		return connectError{explainTries(tries.Unwrap())}
	}
	return connectError{fmt.Errorf("connect to %s: %w", describeHost(ce), explainTry(ce.Unwrap()))}
}

// connectError is an error for which there is no connection to Postgres.
type connectError struct{ error }

func (e connectError) Unwrap() error { return e.error }

// explainTries returns an error that names each host of a URL with several, and why the connection to it failed.
func explainTries(tries []error) (all error) {
	for _, try := range tries {
		cause := explainTry(try)
		if host, _, isDialled := strings.Cut(try.Error(), "): "); isDialled { // "10.0.0.1:5432 (db1.example): …"
			cause = fmt.Errorf("%s): %w", host, cause)
		} // else the error of a look-up, which contains the host's name
		switch {
		case all == nil:
			all = fmt.Errorf("connect to Postgres: %w", cause)
		case !strings.Contains(all.Error(), cause.Error()): // each host is tried with TLS, and then without
			all = fmt.Errorf("%w; %w", all, cause)
		}
	}
	return all
}

// explainTry returns the cause of a failed connection without the text that pgx adds.
func explainTry(err error) error {
	var answer *pgconn.PgError
	var errno syscall.Errno
	switch {
	case errors.As(err, &answer) && strings.HasPrefix(answer.Message, "unsupported startup parameter"):
		return fmt.Errorf("%w: this is a pooler, so set HERALD_LEADER_DATABASE_URL to the address of Postgres itself "+
			"(docs/operator/scaling.md)", answer)
	case errors.As(err, &answer) && answer.Code == tooManyConnections:
		return fmt.Errorf("%w: lower HERALD_DB_POOL, or raise max_connections or the role's CONNECTION LIMIT "+
			"(docs/operator/scaling.md)", answer)
	case errors.As(err, &answer):
		return answer
	case errors.As(err, &errno):
		return errno
	case errors.Is(err, pgconn.ErrReadOnlyConnection), errors.Is(err, pgconn.ErrStandbyConnection):
		return errors.New("it is read-only, and target_session_attrs excludes it")
	}
	return netguard.Explain("it", 0, err)
}

func describeHost(ce *pgconn.ConnectError) string {
	if ce.Config == nil {
		return "Postgres"
	}
	if strings.HasPrefix(ce.Config.Host, "/") {
		return "the Postgres socket in " + ce.Config.Host
	}
	return "Postgres at " + net.JoinHostPort(ce.Config.Host, strconv.Itoa(int(ce.Config.Port)))
}

const tooManyConnections = "53300"

// Away reports whether err means that Postgres is unreachable, shuts down, does not answer in time, has no free
// connection, memory or disk, or takes no writes. Such an error passes without a change of the request.
func Away(err error) bool {
	var connect *pgconn.ConnectError
	var explained connectError
	var pg *pgconn.PgError
	var network net.Error
	switch {
	case errors.As(err, &connect), errors.As(err, &explained):
		return true // also after a refusal by Postgres, such as that of an old password
	case errors.As(err, &pg):
		// 08: connection exceptions. 25006: it is read-only. 53: insufficient resources, but 534 is a limit of one
		// statement (temp_file_limit). 57P: the server is shutting down, restarting or has crashed.
		return strings.HasPrefix(pg.Code, "08") || pg.Code == "25006" || strings.HasPrefix(pg.Code, "57P") ||
			strings.HasPrefix(pg.Code, "53") && !strings.HasPrefix(pg.Code, "534")
	case errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return true
	}
	return pgconn.SafeToRetry(err) || pgconn.Timeout(err)
}
