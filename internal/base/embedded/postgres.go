package embedded

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// role is the name of the superuser and of the database in the private cluster.
	role = "herald"
	// startTimeout bounds initdb and the start, which replays the log after a crash.
	startTimeout = 2 * time.Minute
)

// VersionError reports that the existing data needs another major version than the available binaries.
type VersionError struct {
	Dir   string
	Major int
	Found []string
}

func (e *VersionError) Error() string {
	found := cmp.Or(strings.Join(e.Found, "; "), "no other version was found")
	return fmt.Sprintf("the data in %s was written by Postgres %d and needs that version (%s): "+
		"install it, or choose another HERALD_DATA", e.Dir, e.Major, found)
}

// StartPostgres starts a private cluster and creates it if Dir has none. It returns when the server accepts
// connections. Errors that an operator can act on: *NoBinariesError, *InUseError, *UnreachableError, *AccountError,
// *VersionError.
func StartPostgres(ctx context.Context, cfg Config) (*Server, error) {
	s := &Server{name: "postgres", ask: syscall.SIGINT, insist: syscall.SIGQUIT}
	err := cfg.checkOptions()
	if err == nil {
		err = s.lockAndStart(ctx, cfg.withLogger(), s.startPostgres)
	}
	if err != nil {
		return nil, fmt.Errorf("embedded Postgres: %w", err)
	}
	return s, nil
}

// startPostgres starts the cluster in the locked folder.
func (s *Server) startPostgres(ctx context.Context, cfg Config) error {
	major, owner, err := clusterOf(s.data)
	if err != nil {
		return err
	}
	acct, err := pickAccount(owner)
	if err != nil {
		return err
	}
	if err := s.restrictTo(acct); err != nil {
		return err
	}
	if s.installed, err = choosePostgres(ctx, cfg, s.data, major, s.acct); err != nil {
		return err
	}
	s.logger.Info("postgres: using", "version", s.installed.version, "binaries", s.installed.dir, "user",
		s.acct.String())
	if major == 0 {
		err = s.initCluster(ctx, cfg)
	} else {
		err = s.removePIDFile()
	}
	if err == nil {
		s.sockets, s.tempSock, err = socketFolder(s.base, s.acct)
	}
	if err != nil {
		return err
	}
	return s.startServer(ctx, cfg)
}

// removePIDFile removes the postmaster.pid of a killed server, which ended before the lock was acquired. The file would
// prevent the start if another program of this user has the same process id by now, as happens in containers.
func (s *Server) removePIDFile() error {
	path := filepath.Join(s.data, "postmaster.pid")
	if pid := readPID(path); pid == 0 || pid != readPID(filepath.Join(s.base, serverName)) {
		return nil // a server of an earlier version, without the lock, may still run
	}
	return os.Remove(path)
}

// HasCluster reports whether the data folder contains a Postgres cluster. It creates nothing.
func HasCluster(dir string) (bool, error) {
	major, _, err := clusterOf(filepath.Join(dir, "postgres", "data"))
	return major != 0, err
}

// clusterOf returns the major version and the owner of the cluster in a folder; 0 and -1 if it has none.
func clusterOf(data string) (major, owner int, err error) {
	b, err := readSmall(filepath.Join(data, "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, -1, nil
	}
	if err != nil {
		return 0, -1, fmt.Errorf("read the version of the cluster: %w", err)
	}
	if major, err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil || major <= 0 {
		return 0, -1, fmt.Errorf("%s/PG_VERSION is not what Postgres writes", data)
	}
	info, err := os.Lstat(data)
	if err != nil {
		return 0, -1, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, -1, fmt.Errorf("%s: no owner known", data)
	}
	return major, int(stat.Uid), nil
}

// choosePostgres finds binaries. If none are found and cfg allows it, it fetches some.
func choosePostgres(ctx context.Context, cfg Config, data string, major int, acct account) (installation, error) {
	found, err := findPostgres(ctx, cfg.CacheDir, major, acct, cfg.Logger)
	none, ok := errors.AsType[*NoBinariesError](err)
	if ok && cfg.Fetch {
		if none.Fetch = fetchPrograms(ctx, cfg, acct); none.Fetch == nil {
			found, err = findPostgres(ctx, cfg.CacheDir, major, acct, cfg.Logger)
			none, ok = errors.AsType[*NoBinariesError](err)
		}
	}
	if ok && major != 0 && len(none.Passed) > 0 {
		return installation{}, &VersionError{Dir: data, Major: major, Found: none.Passed}
	}
	return found, err
}

// initCluster creates the cluster in a neighbouring folder and renames it when it is complete, so that a killed initdb
// leaves nothing that looks like data.
func (s *Server) initCluster(ctx context.Context, cfg Config) error {
	began := time.Now()
	ctx, cancel := withTimeout(ctx, startTimeout)
	defer cancel()
	if entries, err := os.ReadDir(s.data); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s has files but is no Postgres cluster: move it away", s.data)
	}
	fresh := s.data + ".new"
	if err := freshDir(fresh, s.acct); err != nil {
		return fmt.Errorf("make the data folder: %w", err)
	}
	fill := s.runInitdb
	if cfg.Test {
		fill = s.copyCluster
	}
	if err := fill(ctx, cfg, fresh); err != nil {
		return err
	}
	if err := os.Remove(s.data); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(fresh, s.data); err != nil {
		return err
	}
	if !cfg.Test && !cfg.Ephemeral {
		if err := syncDir(s.base); err != nil {
			return err
		}
	}
	s.logger.Info("postgres: made a new cluster", "dir", s.data, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// runInitdb makes the cluster in an empty folder.
func (s *Server) runInitdb(ctx context.Context, cfg Config, dir string) error {
	how := "--data-checksums"
	if cfg.Test || cfg.Ephemeral {
		how = "--no-sync"
	}
	args := []string{"-D", dir, "-U", role, "-A", "trust", "-E", "UTF8", "--no-locale", "--no-instructions", how}
	if cfg.Test {
		args = append(args, "--wal-segsize=1") // MiB, all of which a new cluster's copy contains
	}
	tool := program{name: "initdb", path: filepath.Join(s.installed.dir, "initdb"), args: args, libs: s.installed.libs,
		acct: s.acct, onDeath: syscall.SIGKILL, lock: s.lock, logger: s.logger}
	if out, err := tool.run(ctx); err != nil {
		t := &tail{kept: []byte(out)}
		return fmt.Errorf("initdb: %w: %s", s.acct.explainStart(err), t.lastLines())
	}
	return nil
}

// copyCluster fills dir with a copy of the cluster in the cache, which the first test of this version and user makes.
// A copy takes a sixth of initdb's time, and every package of tests needs a cluster.
func (s *Server) copyCluster(ctx context.Context, cfg Config, dir string) error {
	cache := cacheDirs(cfg.CacheDir)[0]
	key := sha256.Sum256(fmt.Appendf(nil, "1 MiB %s %d", s.installed.version, s.acct.uid))
	made := filepath.Join(cache, fmt.Sprintf("cluster-%x", key[:8]))
	if _, err := os.Stat(made); err == nil {
		return s.copyFiles(ctx, made, dir)
	}
	if err := s.runInitdb(ctx, cfg, dir); err != nil {
		return err
	}
	// Without a copy in the cache, the next test runs initdb too.
	err := ensureDir(cache)
	part, failed := os.MkdirTemp(cache, "part-")
	if err = errors.Join(err, failed); err == nil {
		err = s.copyFiles(ctx, dir, part)
	}
	if err == nil {
		err = os.Rename(part, made)
	}
	if err != nil {
		s.logger.Debug("postgres: the new cluster is not in the cache", "err", errors.Join(err, os.RemoveAll(part)))
	}
	return nil
}

// copyFiles copies the contents of a folder, its owner and modes into an existing one.
func (s *Server) copyFiles(ctx context.Context, from, to string) error {
	tool := program{path: "/bin/cp", args: []string{"-a", from + "/.", to}, acct: account{uid: uint32(os.Geteuid())},
		onDeath: syscall.SIGKILL, lock: s.lock}
	if out, err := tool.run(ctx); err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, out)
	}
	return nil
}

// postgresArgs returns the server's command line. The server trusts every user that can reach its socket, so
// restrictFolder keeps others out of its folders, and TCP is off. With log level "log" failed statements are not
// logged, because they may contain secret values.
func (s *Server) postgresArgs(cfg Config) []string {
	set := []string{
		"listen_addresses=",
		"port=5432",
		"unix_socket_directories=" + quoteList(s.sockets),
		"unix_socket_permissions=0700",
		"logging_collector=off",
		"log_destination=stderr",
		"log_min_messages=log",
		"log_min_error_statement=panic",
		"timezone=GMT", // every build knows it, even without time zone data
		"log_timezone=GMT",
		"shared_buffers=64MB",
		"max_connections=" + map[bool]string{false: "100", true: "200"}[cfg.Test],
		"jit=off", // fetched bundles omit LLVM
		"wal_level=minimal",
		"max_wal_senders=0",
	}
	if cfg.Test {
		set = append(set, "fsync=off", "synchronous_commit=off", "full_page_writes=off", "autovacuum=off")
	}
	args := []string{"-D", s.data}
	for _, s := range set {
		args = append(args, "-c", s)
	}
	return args
}

// quoteList quotes s as one element of a setting that is a comma-separated list.
func quoteList(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// startServer starts the server and waits until its database accepts connections.
func (s *Server) startServer(ctx context.Context, cfg Config) error {
	ctx, cancel := withTimeout(ctx, startTimeout)
	defer cancel()
	s.url = socketURL(s.sockets, role)
	return s.launch(ctx, s.postgresArgs(cfg), func() (bool, error) { return s.tryConnect(ctx) })
}

// SQLSTATEs of a server that is starting, and of a missing database.
const (
	cannotConnectNow   = "57P03"
	invalidCatalogName = "3D000"
)

// tryConnect connects once. It, not initdb's caller, creates the database, so a kill between the two breaks nothing.
func (s *Server) tryConnect(ctx context.Context) (bool, error) {
	ctx, cancel := withTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.url)
	if err == nil {
		return true, conn.Close(ctx)
	}
	var pgErr *pgconn.PgError
	var unreadable *pgconn.ParseConfigError
	switch {
	case errors.As(err, &unreadable):
		return false, err
	case !errors.As(err, &pgErr) || pgErr.Code == cannotConnectNow:
		return false, nil // no socket yet, or starting
	case pgErr.Code != invalidCatalogName:
		return false, err
	}
	if conn, err = pgx.Connect(ctx, socketURL(s.sockets, "postgres")); err != nil {
		return false, err
	}
	_, err = conn.Exec(ctx, "CREATE DATABASE "+role)
	return false, errors.Join(err, conn.Close(ctx))
}

func socketURL(dir, database string) string {
	// pgx reads a plus sign literally, as libpq does.
	query := strings.ReplaceAll(url.Values{"host": {dir}, "port": {"5432"}}.Encode(), "+", "%20")
	u := url.URL{Scheme: "postgres", User: url.User(role), Path: "/" + database, RawQuery: query}
	return u.String()
}
