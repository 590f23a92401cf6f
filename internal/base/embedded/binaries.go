package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// oldestPostgres is the oldest major version that the migrations are tested with (that of Debian 12).
const oldestPostgres = 15

// postgresDirs are folders that may contain initdb and postgres, searched after PATH. Debian does not add them to PATH.
var postgresDirs = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/usr/local/pgsql/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// redisDirs are searched after PATH. cron and sudo often omit some of them from PATH, and launchd omits Homebrew's.
var redisDirs = []string{"/usr/bin", "/usr/local/bin", "/opt/homebrew/bin"}

// postgresBinaries is one installation of Postgres.
type postgresBinaries struct {
	dir     string
	version string // as printed: "15.18 (Debian 15.18-0+deb12u1)"
	major   int
	libs    []string
}

// NoBinariesError reports that this machine has no usable server programs.
type NoBinariesError struct {
	Passed []string // programs that were found, with the reason why each is unusable
	Fetch  error    // why fetching failed; nil: it was not tried
}

func (e *NoBinariesError) Error() string {
	var b strings.Builder
	b.WriteString("no usable Postgres was found on this machine")
	if len(e.Passed) > 0 {
		fmt.Fprintf(&b, " (%s)", strings.Join(e.Passed, "; "))
	}
	if e.Fetch != nil {
		fmt.Fprintf(&b, " and none could be fetched (%s)", e.Fetch)
	}
	fmt.Fprintf(&b, ": install Postgres %d or newer (apt-get install postgresql), set DATABASE_URL and REDIS_URL, "+
		"or run all of Herald in containers (docs/operator/start.md)", oldestPostgres)
	return b.String()
}

func (e *NoBinariesError) Unwrap() error { return e.Fetch }

// binaryPath is a folder that may contain binaries.
type binaryPath struct {
	dir    string
	libs   []string
	bundle bool // in a cache folder: root or this user must own it
}

// cacheDirs returns the folders to search for fetched bundles: the given one, and the one that root fills for all
// users.
func cacheDirs(dir string) []string {
	if dir == "" {
		dir = DefaultCacheDir()
	}
	if dir == "" || dir == systemCacheDir {
		return []string{systemCacheDir}
	}
	return []string{dir, systemCacheDir}
}

// postgresPaths returns candidates in the order of preference: PATH, system folders, bundles; newest first within each.
func postgresPaths(cache string) []binaryPath {
	var out []binaryPath
	if path, err := exec.LookPath("initdb"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			out = append(out, binaryPath{dir: filepath.Dir(real)})
		}
	}
	for _, pattern := range postgresDirs {
		for _, dir := range globNewest(pattern) {
			out = append(out, binaryPath{dir: dir})
		}
	}
	for _, c := range cacheDirs(cache) {
		for _, dir := range globNewest(filepath.Join(c, bundlesName, "*", "usr/lib/postgresql/*/bin")) {
			out = append(out, bundlePath(c, dir))
		}
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(out, func(p binaryPath) bool {
		was := seen[p.dir]
		seen[p.dir] = true
		return was
	})
}

// bundlePath returns dir with the library folders of its bundle.
func bundlePath(cache, dir string) binaryPath {
	rest, err := filepath.Rel(filepath.Join(cache, bundlesName), dir)
	p := binaryPath{dir: dir, bundle: true}
	if err != nil {
		return p
	}
	name, _, _ := strings.Cut(rest, string(filepath.Separator))
	root := filepath.Join(cache, bundlesName, name)
	for _, pattern := range []string{"usr/lib/*-linux-gnu*", "lib/*-linux-gnu*", "usr/lib64"} {
		libs, err := filepath.Glob(filepath.Join(root, pattern))
		if err == nil {
			p.libs = append(p.libs, libs...)
		}
	}
	return p
}

var numbers = regexp.MustCompile(`[0-9]+`)

// globNewest returns the matches of pattern, sorted by the numbers in them in descending order.
func globNewest(pattern string) []string {
	found, err := filepath.Glob(pattern)
	if err != nil {
		return nil
	}
	key := func(s string) []int {
		var k []int
		for _, n := range numbers.FindAllString(s, -1) {
			i, err := strconv.Atoi(n)
			if err != nil {
				i = 0
			}
			k = append(k, i)
		}
		return k
	}
	slices.SortStableFunc(found, func(a, b string) int { return slices.Compare(key(b), key(a)) })
	return found
}

// checkUsable returns why the account cannot run the program at path. It does not run the program.
func (p binaryPath) checkUsable(path string, acct account) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("%s is not a program", path)
	}
	for _, lib := range p.libs {
		if strings.ContainsRune(lib, ':') {
			return fmt.Errorf("%s: a path with a colon cannot be searched for libraries", lib)
		}
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); p.bundle && ok && stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to uid %d", path, stat.Uid)
	}
	return acct.checkPassage(filepath.Dir(path))
}

var postgresVersion = regexp.MustCompile(`^postgres \(PostgreSQL\) (([0-9]+)\S*.*)$`)

// findPostgres returns the first usable binaries of the given major version (0: any supported one), and the reasons why
// others were rejected. An *AccountError is final, because no other folder would help.
func findPostgres(ctx context.Context, cache string, major int, acct account,
	log *slog.Logger) (postgresBinaries, []string, error) {
	var passed []string
	for _, p := range postgresPaths(cache) {
		b, err := p.probePostgres(ctx, acct, log)
		if ctx.Err() != nil {
			return postgresBinaries{}, nil, context.Cause(ctx)
		}
		var wrongAccount *AccountError
		switch {
		case errors.As(err, &wrongAccount):
			return postgresBinaries{}, passed, err
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			passed = append(passed, err.Error())
		case b.major < oldestPostgres:
			passed = append(passed, fmt.Sprintf("%s has version %d, older than %d", b.dir, b.major, oldestPostgres))
		case major != 0 && b.major != major:
			passed = append(passed, fmt.Sprintf("%s has version %d", b.dir, b.major))
		default:
			return b, passed, nil
		}
	}
	return postgresBinaries{}, passed, &NoBinariesError{Passed: passed}
}

// probePostgres runs the program to learn its version, as the account that will run the server.
func (p binaryPath) probePostgres(ctx context.Context, acct account, log *slog.Logger) (postgresBinaries, error) {
	server := filepath.Join(p.dir, "postgres")
	for _, path := range []string{filepath.Join(p.dir, "initdb"), server} {
		if err := p.checkUsable(path, acct); err != nil {
			return postgresBinaries{}, err
		}
	}
	out, err := askVersion(ctx, server, p.libs, acct, log)
	if err != nil {
		return postgresBinaries{}, err
	}
	m := postgresVersion.FindStringSubmatch(out)
	if m == nil {
		return postgresBinaries{}, fmt.Errorf("%s does not report its version", server)
	}
	major, err := strconv.Atoi(m[2])
	if err != nil {
		return postgresBinaries{}, fmt.Errorf("%s: version %q: %w", server, m[2], err)
	}
	return postgresBinaries{dir: p.dir, version: m[1], major: major, libs: p.libs}, nil
}

// askVersion returns the first line of the output of PATH --version.
func askVersion(ctx context.Context, path string, libs []string, acct account, log *slog.Logger) (string, error) {
	ctx, cancel := withTimeout(ctx, 10*time.Second)
	defer cancel()
	p := program{name: filepath.Base(path), path: path, args: []string{"--version"}, libs: libs, acct: acct,
		onDeath: syscall.SIGKILL, logger: log}
	out, err := p.run(ctx)
	line, _, _ := strings.Cut(strings.TrimSpace(out), "\n")
	if err != nil {
		if _, ok := errors.AsType[*exec.ExitError](err); ok && line != "" {
			return "", fmt.Errorf("%s does not run here: %s", path, line)
		}
		return "", fmt.Errorf("%s does not run here: %w", path, acct.explainStart(err))
	}
	return line, nil
}

// redisBinary is a redis-server or valkey-server.
type redisBinary struct {
	path    string
	version string // "7.0.15"
	name    string // "redis-server"
	libs    []string
}

var redisVersion = regexp.MustCompile(`\bv=([0-9]+)\.([0-9]+)(\.\S+)?`)

// ErrNoRedis: no usable server program was found.
var ErrNoRedis = errors.New("no usable redis-server or valkey-server on this machine")

// findRedis returns the first usable server in PATH, the system folders or a bundle. asynq's archive requires 6.2.
func findRedis(ctx context.Context, cache string, acct account, log *slog.Logger) (redisBinary, []string, error) {
	var places []binaryPath
	names := []string{"redis-server", "valkey-server"}
	for _, name := range names {
		var paths []string
		for _, dir := range redisDirs {
			paths = append(paths, filepath.Join(dir, name))
		}
		if path, err := exec.LookPath(name); err == nil && filepath.IsAbs(path) {
			paths = append([]string{path}, paths...)
		}
		for _, path := range paths {
			places = append(places, binaryPath{dir: path})
		}
	}
	for _, c := range cacheDirs(cache) {
		for _, name := range names {
			for _, path := range globNewest(filepath.Join(c, bundlesName, "*", "usr/bin", name)) {
				places = append(places, bundlePath(c, path))
			}
		}
	}
	var passed []string
	for _, p := range places {
		if err := p.checkUsable(p.dir, acct); err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				passed = append(passed, err.Error())
			}
			continue
		}
		out, err := askVersion(ctx, p.dir, p.libs, acct, log)
		if ctx.Err() != nil {
			return redisBinary{}, nil, context.Cause(ctx)
		}
		if err != nil {
			passed = append(passed, err.Error())
			continue
		}
		m := redisVersion.FindStringSubmatch(out)
		if m == nil {
			passed = append(passed, p.dir+" does not report its version")
			continue
		}
		major, err1 := strconv.Atoi(m[1])
		minor, err2 := strconv.Atoi(m[2])
		if err1 != nil || err2 != nil || cmp.Or(cmp.Compare(major, 6), cmp.Compare(minor, 2)) < 0 {
			passed = append(passed, fmt.Sprintf("%s has version %s.%s, older than 6.2", p.dir, m[1], m[2]))
			continue
		}
		return redisBinary{path: p.dir, version: m[1] + "." + m[2] + m[3], name: filepath.Base(p.dir), libs: p.libs},
			passed, nil
	}
	return redisBinary{}, passed, ErrNoRedis
}
