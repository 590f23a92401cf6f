package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// bundlesName is the subfolder of the cache that contains unpacked bundles. A bundle is renamed into it when complete.
const bundlesName = "bundles"

// fetchTimeout bounds a whole fetch.
const fetchTimeout = 10 * time.Minute

// Fetch downloads server binaries that this machine lacks. It does not change the system: on Debian and Ubuntu it
// unpacks the packages of Postgres and Redis, verified by apt, into the cache folder. A lock makes a second process
// wait. A Redis that cannot be fetched is not an error, because miniredis replaces it. A Postgres that cannot be
// fetched is a *NoBinariesError.
func Fetch(ctx context.Context, cfg Config) error {
	acct, err := pickAccount(-1)
	if err != nil {
		return fmt.Errorf("fetch Postgres: %w", err)
	}
	err = fetchPrograms(ctx, cfg.withLogger(), acct)
	var account *AccountError
	if err == nil || errors.As(err, &account) {
		return err
	}
	return &NoBinariesError{Fetch: err}
}

func fetchPrograms(ctx context.Context, cfg Config, acct account) error {
	ctx, cancel := withTimeout(ctx, fetchTimeout)
	defer cancel()
	log := cfg.Logger
	f := &fetcher{cache: cmp.Or(cfg.CacheDir, DefaultCacheDir()), acct: acct, log: log}
	if f.cache == "" {
		return errors.New("there is no cache folder: set XDG_CACHE_HOME or HOME")
	}
	missing := func() (postgres, redis bool, err error) {
		if cfg.Again {
			return true, true, nil
		}
		_, err = findPostgres(ctx, f.cache, 0, acct, log)
		if _, ok := errors.AsType[*AccountError](err); ok {
			return false, false, err
		}
		redisAcct := acct
		redisAcct.mapped = false
		_, redisErr := findRedis(ctx, f.cache, redisAcct, log)
		return err != nil, redisErr != nil, nil
	}
	if postgres, redis, err := missing(); err != nil || !postgres && !redis {
		return err
	}
	if err := f.prepareCache(); err != nil {
		return err
	}
	lock, err := f.lockCache(ctx)
	if err != nil {
		return err
	}
	defer lock.Release()
	postgres, redis, err := missing() // another process may have fetched them while this one waited
	if err != nil {
		return err
	}
	if postgres {
		if err := f.fetchPostgres(ctx); err != nil {
			return err
		}
	}
	if redis {
		if err := f.fetchRedis(ctx); err != nil {
			log.Warn("fetch: no Redis could be fetched; miniredis will take its place", "err", err)
		}
	}
	return ctx.Err()
}

type fetcher struct {
	cache string
	acct  account
	log   *slog.Logger
}

// prepareCache creates the cache folder so that the servers' user can read it.
func (f *fetcher) prepareCache() error {
	var err error
	if f.cache, err = filepath.Abs(f.cache); err != nil {
		return err
	}
	if strings.ContainsRune(f.cache, ':') {
		return fmt.Errorf("the cache folder %s has a colon in its name, at which library paths are split", f.cache)
	}
	if err := os.MkdirAll(filepath.Join(f.cache, bundlesName), 0o755); err != nil {
		return fmt.Errorf("make the cache folder: %w", err)
	}
	if os.Geteuid() == 0 {
		for _, dir := range []string{f.cache, filepath.Join(f.cache, bundlesName)} {
			if err := os.Chmod(dir, 0o755); err != nil {
				return err
			}
		}
	}
	return f.acct.checkPassage(filepath.Join(f.cache, bundlesName))
}

// lockCache locks the cache for this process.
func (f *fetcher) lockCache(ctx context.Context) (*Lock, error) {
	path := filepath.Join(f.cache, "fetch.lock")
	lock, err := tryLock(path, f.cache)
	var inUse *InUseError
	if err == nil || !errors.As(err, &inUse) {
		return lock, err
	}
	f.log.Info("fetch: waiting for another process that fetches", "pid", inUse.PID)
	return waitLock(ctx, path, f.cache)
}

// fetchPostgres fetches Debian's packages of Postgres.
func (f *fetcher) fetchPostgres(ctx context.Context) error {
	return f.fetchPackages(ctx, "PostgreSQL", "postgresql")
}

// fetchRedis fetches Debian's packages of Redis, else of Valkey.
func (f *fetcher) fetchRedis(ctx context.Context) error {
	err := f.fetchPackages(ctx, "Redis", "redis-server")
	if err != nil && f.fetchPackages(ctx, "Valkey", "valkey-server") == nil {
		return nil
	}
	return err
}

// makeStaging creates a folder in the cache, so that a rename into bundles stays on one file system. It first removes
// the staging folders of killed processes, which is safe because the caller holds the lock.
func (f *fetcher) makeStaging() (string, error) {
	old, err := filepath.Glob(filepath.Join(f.cache, "fetching-*"))
	if err != nil {
		return "", err
	}
	for _, dir := range old {
		if err := os.RemoveAll(dir); err != nil {
			return "", err
		}
	}
	dir, err := os.MkdirTemp(f.cache, "fetching-")
	if err != nil {
		return "", err
	}
	// apt's own download user, if the system has one, must be able to pass.
	return dir, os.Chmod(dir, 0o755)
}

// publishBundle moves an unpacked bundle to its final path.
func (f *fetcher) publishBundle(root, name string) error {
	if err := os.Chmod(root, 0o755); err != nil {
		return err
	}
	to := filepath.Join(f.cache, bundlesName, name)
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if err := os.Rename(root, to); err != nil {
		return err
	}
	return syncDir(filepath.Dir(to))
}

// checkBundle runs the unpacked programs while they are still in the staging folder, which has the layout of a cache.
func (f *fetcher) checkBundle(ctx context.Context, stage string) error {
	k, acct := postgresKind(), f.acct
	found := k.listBundled(stage)
	if len(found) == 0 {
		k, acct.mapped = redisKind(), false
		found = k.listBundled(stage)
	}
	if len(found) == 0 {
		return errors.New("the packages hold no server program")
	}
	p := found[0]
	_, err := k.probeLocation(ctx, p, acct, f.log)
	for _, name := range k.needs { // initdb has libraries of its own
		if err == nil {
			_, err = askVersion(ctx, filepath.Join(p.dir, name), p.libs, acct, f.log)
		}
	}
	return err
}

// runTool runs a package manager in dir, and returns its standard output.
func runTool(ctx context.Context, dir, name string, args ...string) (string, error) {
	stdout := &strings.Builder{}
	p := program{path: name, args: args, dir: dir, env: toolEnvironment(os.Environ()), stdout: stdout,
		acct: account{uid: uint32(os.Geteuid())}, onDeath: syscall.SIGKILL}
	said, err := p.run(ctx)
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err != nil {
		t := &tail{kept: []byte(said)}
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(name), args[0], err, withoutCredentials(t.lastLines()))
	}
	return stdout.String(), nil
}

// toolEnvironment returns the variables for paths, proxies, certificates and apt's own settings. It omits all others,
// because they may be secret.
func toolEnvironment(environ []string) []string {
	pass := strings.Fields("PATH HOME USER LOGNAME TMPDIR XDG_CONFIG_HOME SSL_CERT_FILE SSL_CERT_DIR APT_CONFIG " +
		"http_proxy https_proxy ftp_proxy all_proxy no_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY")
	keep := []string{"LC_ALL=C", "DEBIAN_FRONTEND=noninteractive"}
	for _, e := range environ {
		if name, _, _ := strings.Cut(e, "="); slices.Contains(pass, name) {
			keep = append(keep, e)
		}
	}
	return keep
}
