package heraldtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/agentherald/herald/internal/base/embedded"
	"github.com/jackc/pgx/v5"
)

// Pooler is a PgBouncer in transaction mode.
type Pooler struct {
	URL string // of the database, through the pooler

	t       testing.TB
	program string
	dir     string // of its configuration and its socket
	uid     uint32
	gid     uint32
	process *os.Process
	done    chan error // receives the result of the process
}

// StartPooler starts a PgBouncer for the Postgres at databaseURL, which must have a Unix socket. It is killed when the
// test ends. The program is the machine's, or that of `make services`. Without one, the test is skipped or fails as
// with Postgres. More lines of the section [pgbouncer] may be given.
func StartPooler(t testing.TB, databaseURL string, lines ...string) *Pooler {
	t.Helper()
	p := &Pooler{t: t, program: findPooler(t)}
	server, err := pgx.ParseConfig(databaseURL)
	Must(t, err)
	// The server admits only its own user, and PgBouncer refuses to run as root.
	info, err := os.Stat(filepath.Join(server.Host, fmt.Sprintf(".s.PGSQL.%d", server.Port)))
	Must(t, err)
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatalf("the owner of %s is unknown", info.Name())
	}
	p.uid, p.gid = owner.Uid, owner.Gid
	p.dir, err = os.MkdirTemp("", "herald-pooler-") // short, because it contains a socket
	Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(p.dir) })
	config := fmt.Sprintf("[databases]\n* = host=%s port=%d user=%s\n[pgbouncer]\npool_mode=transaction\nauth_type=any\n"+
		"unix_socket_dir=%s\nlisten_port=6432\nserver_login_retry=0.1\n%s\n", server.Host, server.Port, server.User, p.dir, strings.Join(lines, "\n"))
	Must(t, os.WriteFile(filepath.Join(p.dir, "ini"), []byte(config), 0o644))
	Must(t, os.Chown(p.dir, int(p.uid), int(p.gid)))
	p.URL = fmt.Sprintf("postgres://%s@/%s?host=%s&port=6432", server.User, server.Database, url.QueryEscape(p.dir))
	p.Start()
	t.Cleanup(p.Kill)
	return p
}

// Start starts the pooler at the same address and waits until a query passes.
func (p *Pooler) Start() {
	p.t.Helper()
	cmd := exec.Command(p.program, "-q", filepath.Join(p.dir, "ini"))
	cmd.Env = []string{"LD_LIBRARY_PATH=" + filepath.Dir(p.program)}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: p.uid, Gid: p.gid}
	}
	started := make(chan error, 1)
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the kernel sends Pdeathsig when the thread ends
		err := cmd.Start()
		started <- err
		if err == nil {
			done <- cmd.Wait()
		}
	}()
	Must(p.t, <-started)
	p.process, p.done = cmd.Process, done
	var last error
	AwaitState(p.t, func() bool {
		select {
		case err := <-done:
			p.t.Fatalf("PgBouncer has ended: %v", err)
		default:
		}
		last = p.queryThrough()
		return last == nil
	}, func() string { return fmt.Sprintf("a query passes through PgBouncer: %v", last) })
}

// queryThrough runs one query through PgBouncer, on a connection of its own.
func (p *Pooler) queryThrough() error {
	ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
	defer cancel()
	c, err := pgx.Connect(ctx, p.URL)
	if err != nil {
		return err
	}
	_, err = c.Exec(ctx, "SELECT 1", pgx.QueryExecModeExec)
	return errors.Join(err, c.Close(ctx))
}

// Kill kills the pooler, which closes its connections to Postgres and to its clients. It does nothing if the pooler
// does not run.
func (p *Pooler) Kill() {
	if p.process == nil {
		return
	}
	_ = p.process.Kill()
	<-p.done
	p.process = nil
}

// findPooler returns the path of PgBouncer.
func findPooler(t testing.TB) string {
	t.Helper()
	for _, path := range []string{"pgbouncer", "/usr/sbin/pgbouncer",
		filepath.Join(embedded.DefaultCacheDir(), "programs/pgbouncer/pgbouncer")} {
		if found, err := exec.LookPath(path); err == nil {
			return found
		}
	}
	if required() {
		t.Fatal("no PgBouncer was found: run `make services`, or install it")
	}
	t.Skip("no PgBouncer was found")
	return ""
}
