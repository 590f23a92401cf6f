package embedded

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
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

// PostgresConfig configures a private cluster.
type PostgresConfig struct {
	// Dir is the data folder (HERALD_DATA); the cluster is in Dir/postgres. Required unless Ephemeral.
	Dir string
	// Ephemeral keeps the data in a temporary folder that Stop removes.
	Ephemeral bool
	// Test trades safety for speed: fsync is off, a new cluster is a copy of one in the cache, and an Ephemeral cluster
	// is kept in memory if there is enough. A crash loses the last commits, and a power failure destroys the data.
	Test bool
	// Fetch allows downloading binaries into CacheDir if none are found (see Fetch).
	Fetch bool
	// CacheDir contains fetched binaries. Default DefaultCacheDir().
	CacheDir string
	// Logger receives one line per step. Default: nothing is logged.
	Logger *slog.Logger
}

// tempParent returns the parent of temporary data folders; "" is the system's default.
func (cfg PostgresConfig) tempParent() string {
	if cfg.Test {
		return memoryDir()
	}
	return ""
}

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

// Postgres is a running private cluster. It belongs to this process and ends with it.
type Postgres struct {
	server
	binaries postgresBinaries
	logger   *slog.Logger

	stop    sync.Once
	stopErr error
}

// StartPostgres starts a private cluster and creates it if Dir has none. It returns when the server accepts
// connections. Errors that an operator can act on: *NoBinariesError, *InUseError, *UnreachableError, *AccountError,
// *VersionError.
func StartPostgres(ctx context.Context, cfg PostgresConfig) (_ *Postgres, err error) {
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	p := &Postgres{logger: log}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.release(context.Background(), syscall.SIGINT, syscall.SIGQUIT))
			err = fmt.Errorf("embedded Postgres: %w", err)
		}
	}()
	if err := checkFolder(cfg.Dir, cfg.Ephemeral); err != nil {
		return nil, err
	}
	if err := p.lockFolder(ctx, "postgres", cfg.Dir, cfg.Ephemeral, cfg.tempParent(), log); err != nil {
		return nil, err
	}
	major, owner, err := clusterOf(p.data)
	if err != nil {
		return nil, err
	}
	acct, err := pickAccount(owner)
	if err != nil {
		return nil, err
	}
	if err := p.restrictTo(acct); err != nil {
		return nil, err
	}
	if p.binaries, err = choosePostgres(ctx, cfg, p.data, major, p.acct, log); err != nil {
		return nil, err
	}
	log.Info("postgres: using", "version", p.binaries.version, "binaries", p.binaries.dir, "user", p.acct.String())
	if major == 0 {
		err = p.initCluster(ctx, cfg)
	} else {
		err = clearLeftover(ctx, p.data, log)
	}
	if err != nil {
		return nil, err
	}
	if p.sockets, p.tempSock, err = socketFolder(p.base, p.acct); err != nil {
		return nil, err
	}
	return p, p.startServer(ctx, cfg)
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
func choosePostgres(ctx context.Context, cfg PostgresConfig, data string, major int, acct account,
	log *slog.Logger) (postgresBinaries, error) {
	found, passed, err := findPostgres(ctx, cfg.CacheDir, major, acct, log)
	var none *NoBinariesError
	if err == nil || !errors.As(err, &none) {
		return found, err
	}
	if cfg.Fetch {
		if none.Fetch = fetchPrograms(ctx, FetchConfig{CacheDir: cfg.CacheDir, Logger: log}, acct,
			log); none.Fetch == nil {
			found, passed, err = findPostgres(ctx, cfg.CacheDir, major, acct, log)
			if err == nil || !errors.As(err, &none) {
				return found, err
			}
		}
	}
	if major != 0 && len(passed) > 0 {
		return postgresBinaries{}, &VersionError{Dir: data, Major: major, Found: passed}
	}
	return postgresBinaries{}, none
}

// initCluster creates the cluster in a neighbouring folder and renames it when it is complete, so that a killed initdb
// leaves nothing that looks like data.
func (p *Postgres) initCluster(ctx context.Context, cfg PostgresConfig) error {
	began := time.Now()
	ctx, cancel := withTimeout(ctx, startTimeout)
	defer cancel()
	if entries, err := os.ReadDir(p.data); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s has files but is no Postgres cluster: move it away", p.data)
	}
	fresh := p.data + ".new"
	if err := freshDir(fresh, p.acct); err != nil {
		return fmt.Errorf("make the data folder: %w", err)
	}
	fill := p.runInitdb
	if cfg.Test {
		fill = p.copyCluster
	}
	if err := fill(ctx, cfg, fresh); err != nil {
		return err
	}
	if err := os.Remove(p.data); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(fresh, p.data); err != nil {
		return err
	}
	if !cfg.Test && !cfg.Ephemeral {
		if err := syncDir(p.base); err != nil {
			return err
		}
	}
	p.logger.Info("postgres: made a new cluster", "dir", p.data, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// runInitdb makes the cluster in an empty folder.
func (p *Postgres) runInitdb(ctx context.Context, cfg PostgresConfig, dir string) error {
	how := "--data-checksums"
	if cfg.Test || cfg.Ephemeral {
		how = "--no-sync"
	}
	args := []string{"-D", dir, "-U", role, "-A", "trust", "-E", "UTF8", "--no-locale", "--no-instructions", how}
	if cfg.Test {
		args = append(args, "--wal-segsize=1") // MiB, all of which a new cluster's copy contains
	}
	tool := program{name: "initdb", path: filepath.Join(p.binaries.dir, "initdb"), args: args, libs: p.binaries.libs,
		acct: p.acct, onDeath: syscall.SIGKILL, logger: p.logger}
	if out, err := tool.run(ctx); err != nil {
		t := &tail{kept: []byte(out)}
		return fmt.Errorf("initdb: %w: %s", p.acct.explainStart(err), t.lastLines())
	}
	return nil
}

// copyCluster fills dir with a copy of the cluster in the cache, which the first test of this version and user makes.
// A copy takes a sixth of initdb's time, and every package of tests needs a cluster.
func (p *Postgres) copyCluster(ctx context.Context, cfg PostgresConfig, dir string) error {
	cache := cacheDirs(cfg.CacheDir)[0]
	key := sha256.Sum256(fmt.Appendf(nil, "1 MiB %s %d", p.binaries.version, p.acct.uid))
	made := filepath.Join(cache, fmt.Sprintf("cluster-%x", key[:8]))
	if _, err := os.Stat(made); err == nil {
		return copyFiles(ctx, made, dir)
	}
	if err := p.runInitdb(ctx, cfg, dir); err != nil {
		return err
	}
	// Without a copy in the cache, the next test runs initdb too.
	err := ensureDir(cache)
	part, failed := os.MkdirTemp(cache, "part-")
	if err = errors.Join(err, failed); err == nil {
		err = copyFiles(ctx, dir, part)
	}
	if err == nil {
		err = os.Rename(part, made)
	}
	if err != nil {
		p.logger.Debug("postgres: the new cluster is not in the cache", "err", errors.Join(err, os.RemoveAll(part)))
	}
	return nil
}

// copyFiles copies the contents of a folder, its owner and modes into an existing one.
func copyFiles(ctx context.Context, from, to string) error {
	if out, err := exec.CommandContext(ctx, "cp", "-a", from+"/.", to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, out)
	}
	return nil
}

// serverArgs returns the server's command line. The server trusts every user that can reach its socket, so
// restrictFolder keeps others out of its folders, and TCP is off. With log level "log" failed statements are not
// logged, because they may contain secret values.
func (p *Postgres) serverArgs(cfg PostgresConfig) []string {
	set := []string{
		"listen_addresses=",
		"port=5432",
		"unix_socket_directories=" + quoteList(p.sockets),
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
	args := []string{"-D", p.data}
	for _, s := range set {
		args = append(args, "-c", s)
	}
	return args
}

// quoteList quotes s as one element of a setting that is a comma-separated list.
func quoteList(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// startServer starts the server and waits until its database accepts connections.
func (p *Postgres) startServer(ctx context.Context, cfg PostgresConfig) error {
	began := time.Now()
	ctx, cancel := withTimeout(ctx, startTimeout)
	defer cancel()
	program := program{name: "postgres", path: filepath.Join(p.binaries.dir, "postgres"), args: p.serverArgs(cfg),
		libs: p.binaries.libs, onDeath: syscall.SIGINT, logger: p.logger}
	if err := p.launch(ctx, program, func() (bool, error) { return p.tryConnect(ctx) }); err != nil {
		return err
	}
	p.logger.Info("postgres: ready", "socket", p.sockets, "took", time.Since(began).Round(time.Millisecond))
	return nil
}

// SQLSTATEs of a server that is starting, and of a missing database.
const (
	cannotConnectNow   = "57P03"
	invalidCatalogName = "3D000"
)

// tryConnect connects once. It, not initdb's caller, creates the database, so a kill between the two breaks nothing.
func (p *Postgres) tryConnect(ctx context.Context) (bool, error) {
	ctx, cancel := withTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.URL())
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
	if conn, err = pgx.Connect(ctx, socketURL(p.sockets, "postgres")); err != nil {
		return false, err
	}
	_, err = conn.Exec(ctx, "CREATE DATABASE "+role)
	return false, errors.Join(err, conn.Close(ctx))
}

// URL returns a pgx connection URL. It contains no password: the socket's folder protects the server.
func (p *Postgres) URL() string { return socketURL(p.sockets, role) }

func socketURL(dir, database string) string {
	// pgx reads a plus sign literally, as libpq does.
	query := strings.ReplaceAll(url.Values{"host": {dir}, "port": {"5432"}}.Encode(), "+", "%20")
	u := url.URL{Scheme: "postgres", User: url.User(role), Path: "/" + database, RawQuery: query}
	return u.String()
}

// Stop stops the server and disconnects its clients. It waits until ctx ends, or 30 s if ctx has no deadline, then
// kills the server. The next start then only replays the log. Further calls return the result of the first one.
func (p *Postgres) Stop(ctx context.Context) error {
	p.stop.Do(func() {
		began := time.Now()
		ask := syscall.SIGINT
		if p.ephemeral != nil { // its data is not worth a checkpoint
			ask = syscall.SIGQUIT
		}
		p.stopErr = p.release(ctx, ask, syscall.SIGQUIT)
		p.logger.Info("postgres: stopped", "took", time.Since(began).Round(time.Millisecond))
	})
	return p.stopErr
}
