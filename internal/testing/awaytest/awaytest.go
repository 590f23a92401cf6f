// Package awaytest provides the ways in which a command can fail to reach its database, to test every command that
// connects.
package awaytest

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/agentherald/herald/internal/base/embedded"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// Password is part of every URL here. No command may print it.
const Password = "hunter2secret"

// Way is one cause of a failure.
type Way struct {
	Name    string
	Env     []string
	Timeout time.Duration // value of --timeout; set if the command waits for the whole timeout
	Says    []string      // texts that one line of the command's output must contain
	// Schema: only the schema is wrong. Commands that migrate it succeed.
	Schema bool
	// Queue: only the address of the queue is wrong. Commands that do not use Redis succeed.
	Queue bool
}

// Flag returns the --timeout option: the timeout of the way, else one that is long enough for a loaded machine.
func (w Way) Flag() string {
	if w.Timeout > 0 {
		return "--timeout=" + w.Timeout.String()
	}
	return "--timeout=60s"
}

// brief is the timeout of ways in which the command waits in vain.
const brief = 100 * time.Millisecond

// Ways sets up every cause of a failure until the test ends.
func Ways(t testing.TB) []Way {
	t.Helper()
	queue := "REDIS_URL=redis://127.0.0.1:1"
	keys := "HERALD_KEYSET=" + heraldtest.Keyset(t)
	own := func(databaseURL string) []string { return []string{"DATABASE_URL=" + databaseURL, queue, keys} }
	in := func(dir string) []string { return []string{"HERALD_DATA=" + dir} }
	at := func(address string) string { return "postgres://u:" + Password + "@" + address + "/d?sslmode=disable" }
	empty, migrated := heraldtest.EmptyPostgres(t), heraldtest.Postgres(t, postgres.Migrate)
	// Commands that make the table of versions at once wait for each other, a second each time.
	_, err := postgres.Migrations(t.Context(), secret.New(empty))
	heraldtest.Must(t, err)
	nothing := filepath.Join(t.TempDir(), "none")
	broken, ofOwn, lost := t.TempDir(), heldFolder(t), heldFolder(t)
	heraldtest.Must(t, os.WriteFile(filepath.Join(broken, "run.json"), []byte("not JSON"), 0o600))
	heraldtest.Must(t, embedded.WriteRunFile(ofOwn, embedded.RunFile{PID: os.Getpid(), Database: "herald@db.example:5432/herald"}))
	heraldtest.Must(t, embedded.WriteRunFile(lost, embedded.RunFile{PID: os.Getpid(),
		DatabaseURL: "postgres://herald@/herald?host=" + url.QueryEscape(nothing)}))
	nowhere, err := url.Parse(empty)
	heraldtest.Must(t, err)
	nowhere.Path = "/nowhere"

	return []Way{
		{Name: "Postgres is not running", Env: own(at("127.0.0.1:1")), Timeout: brief,
			Says: []string{"Postgres did not answer within 100ms", "check DATABASE_URL", "--timeout"}},
		{Name: "Postgres says nothing", Env: own(at(answering(t, nil))), Timeout: brief,
			Says: []string{"Postgres did not answer within 100ms: nothing came back", "check DATABASE_URL"}},
		{Name: "a wrong password", Env: own(at(answering(t, &pgproto3.ErrorResponse{Severity: "FATAL",
			SeverityUnlocalized: "FATAL", Code: "28P01", Message: `password authentication failed for user "u"`}))),
			Says: []string{"Postgres refuses the connection", "password authentication failed", "in DATABASE_URL"}},
		{Name: "no such database", Env: own(nowhere.String()),
			Says: []string{"Postgres refuses the connection", `database "nowhere" does not exist`, "in DATABASE_URL"}},
		{Name: "pending migrations", Env: own(empty), Says: []string{"the database lacks", "run `worker migrate`"}, Schema: true},
		{Name: "a REDIS_URL that names no database", Env: []string{"DATABASE_URL=" + migrated, "REDIS_URL=redis://:" + Password + "@127.0.0.1/none", keys},
			Says: []string{"REDIS_URL", "cannot be read", "check host, port and database number"}, Queue: true},
		{Name: "no worker ever ran here", Env: in(nothing), Says: []string{"there is no database", "no worker is running on " + nothing, "Set HERALD_DATA"}},
		{Name: "the data folder is held, or its worker is starting", Env: in(heldFolder(t)), Timeout: brief,
			Says: []string{fmt.Sprintf("is held by process %d", os.Getpid()), "within 100ms", "Try again later"}},
		{Name: "run.json is damaged", Env: in(broken), Says: []string{"run.json was not written by a worker: remove it"}},
		{Name: "the worker here has a database of its own", Env: in(ofOwn), Says: []string{"set DATABASE_URL to the same one (herald@db.example:5432/herald)"}},
		{Name: "the worker here lost its Postgres", Env: in(lost), Timeout: brief, Says: []string{"the Postgres of the worker on " + lost, "within 100ms", "restart it"}},
		{Name: "a cluster of another Postgres", Env: in(olderCluster(t)), Says: []string{"was written by Postgres 9", "HERALD_DATA"}},
	}
}

var goTrace = regexp.MustCompile(`(?m)^goroutine \d+ \[|^panic: |\.go:\d+ \+0x`)

// Complaint returns the fault in the output of a command that could not connect, or "" if there is no fault.
func (w Way) Complaint(code int, out, errs string) string {
	complaint := ""
	for line := range strings.Lines(errs) {
		if strings.Contains(line, w.Says[0]) {
			complaint = line
		}
	}
	for _, want := range w.Says {
		if !strings.Contains(complaint, want) {
			return fmt.Sprintf("no line says %q", want)
		}
	}
	switch {
	case code != 1:
		return fmt.Sprintf("exit code %d, want 1", code)
	case goTrace.MatchString(errs):
		return "a Go trace"
	case strings.Contains(out+errs, Password):
		return "the password is told"
	}
	return ""
}

// heldFolder returns a data folder that this process has locked, as a worker does.
func heldFolder(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	lock, err := embedded.LockDir(dir)
	heraldtest.Must(t, err)
	t.Cleanup(func() { _ = lock.Release() })
	return dir
}

// olderCluster returns a data folder that looks like a cluster of Postgres 9, which is not installed anywhere.
func olderCluster(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "herald-test-") // the user that runs Postgres for root must be able to enter it
	heraldtest.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	data := filepath.Join(dir, "postgres", "data")
	heraldtest.Must(t, os.MkdirAll(data, 0o755))
	heraldtest.Must(t, os.WriteFile(filepath.Join(data, "PG_VERSION"), []byte("9\n"), 0o600))
	if os.Geteuid() != 0 {
		return dir
	}
	const nobody = 65534
	heraldtest.Must(t, os.Chmod(dir, 0o711))
	heraldtest.Must(t, os.Chown(data, nobody, nobody))
	return dir
}

// answering accepts connections. It answers the first message of each with refusal. If refusal is nil, it never
// answers.
func answering(t testing.TB, refusal *pgproto3.ErrorResponse) string {
	t.Helper()
	return heraldtest.Listen(t, func(c net.Conn) {
		defer func() { _ = c.Close() }()
		server := pgproto3.NewBackend(c, c)
		if _, err := server.ReceiveStartupMessage(); err != nil {
			return
		}
		if refusal == nil {
			_, _ = io.Copy(io.Discard, c) // until the other side or the test closes the connection
			return
		}
		server.Send(refusal)
		_ = server.Flush() // the other side may have left
	})
}
