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

// location is a folder that may contain a server's program.
type location struct {
	dir    string
	server string   // the program: "postgres", "redis-server" or "valkey-server"
	libs   []string // folders of its libraries
	bundle bool     // in a cache folder: root or this user must own it
}

func (p location) programPath() string { return filepath.Join(p.dir, p.server) }

// installation is a server's program that runs on this machine.
type installation struct {
	location
	version      string // as printed: "15.18 (Debian 15.18-0+deb12u1)", "7.0.15"
	major, minor int
}

// kind is a kind of server that is searched for.
type kind struct {
	servers  []string // names of its program, the preferred one first
	needs    []string // other programs in the same folder
	dirs     []string // searched after PATH
	inBundle string   // folder of the program in a bundle
	version  *regexp.Regexp
}

func postgresKind() kind {
	return kind{servers: []string{"postgres"}, needs: []string{"initdb"}, dirs: postgresDirs,
		inBundle: "usr/lib/postgresql/*/bin",
		version:  regexp.MustCompile(`^postgres \(PostgreSQL\) (([0-9]+)(?:\.([0-9]+))?.*)$`)}
}

func redisKind() kind {
	return kind{servers: []string{"redis-server", "valkey-server"}, dirs: redisDirs, inBundle: "usr/bin",
		version: regexp.MustCompile(`\bv=(([0-9]+)\.([0-9]+)\S*)`)}
}

// listLocations returns candidates in the order of preference: PATH, system folders, bundles; newest first within each.
func (k kind) listLocations(cache string) (out []location) {
	for _, server := range k.servers {
		if path, err := exec.LookPath(server); err == nil {
			if real, err := filepath.EvalSymlinks(path); err == nil && filepath.Base(real) == server {
				path = real // Debian's redis-server is a link to a program with another name
			}
			out = append(out, location{dir: filepath.Dir(path), server: server})
		}
		for _, dir := range k.dirs {
			for _, path := range globNewest(filepath.Join(dir, server)) {
				out = append(out, location{dir: filepath.Dir(path), server: server})
			}
		}
	}
	for _, c := range cacheDirs(cache) {
		out = append(out, k.listBundled(c)...)
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(out, func(p location) bool {
		was := seen[p.programPath()]
		seen[p.programPath()] = true
		return was
	})
}

// listBundled returns the programs in the bundles of a cache folder, with the library folders of their bundles.
func (k kind) listBundled(cache string) (out []location) {
	bundles := filepath.Join(cache, bundlesName)
	for _, server := range k.servers {
		for _, path := range globNewest(filepath.Join(bundles, "*", k.inBundle, server)) {
			p := location{dir: filepath.Dir(path), server: server, bundle: true}
			name, _, _ := strings.Cut(path[len(bundles)+1:], string(filepath.Separator))
			for _, pattern := range []string{"usr/lib/*-linux-gnu*", "lib/*-linux-gnu*", "usr/lib64"} {
				libs, _ := filepath.Glob(filepath.Join(bundles, name, pattern)) // fails only for a malformed pattern
				p.libs = append(p.libs, libs...)
			}
			out = append(out, p)
		}
	}
	return out
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
func (p location) checkUsable(path string, acct account) error {
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

// findPostgres returns the first usable binaries of the given major version (0: any supported one). Without any it
// returns a *NoBinariesError. An *AccountError is final, because no other folder would help.
func findPostgres(ctx context.Context, cache string, major int, acct account,
	log *slog.Logger) (installation, error) {
	found, passed, err := postgresKind().findUsable(ctx, cache, acct, log, func(b installation) string {
		switch {
		case b.major < oldestPostgres:
			return fmt.Sprintf("%s has version %d, older than %d", b.dir, b.major, oldestPostgres)
		case major != 0 && b.major != major:
			return fmt.Sprintf("%s has version %d", b.dir, b.major)
		}
		return ""
	})
	if err == nil && found.server == "" {
		err = &NoBinariesError{Passed: passed}
	}
	return found, err
}

// ErrNoRedis: no usable server program was found.
var ErrNoRedis = errors.New("no usable redis-server or valkey-server on this machine")

// findRedis returns the first usable server. asynq's archive requires 6.2. Without any it returns ErrNoRedis, with the
// reasons why programs were rejected.
func findRedis(ctx context.Context, cache string, acct account, log *slog.Logger) (installation, error) {
	found, passed, err := redisKind().findUsable(ctx, cache, acct, log, func(b installation) string {
		if cmp.Or(cmp.Compare(b.major, 6), cmp.Compare(b.minor, 2)) < 0 {
			return fmt.Sprintf("%s has version %d.%d, older than 6.2", b.programPath(), b.major, b.minor)
		}
		return ""
	})
	if _, ok := errors.AsType[*AccountError](err); ok {
		passed, err = append(passed, err.Error()), nil
	}
	switch {
	case err != nil || found.server != "":
		return found, err
	case len(passed) == 0:
		return found, ErrNoRedis
	}
	return found, fmt.Errorf("%w (%s)", ErrNoRedis, strings.Join(passed, "; "))
}

// findUsable returns the first usable program that reject has no reason against, and the reasons why others were
// rejected.
func (k kind) findUsable(ctx context.Context, cache string, acct account, log *slog.Logger,
	reject func(installation) string) (_ installation, passed []string, err error) {
	for _, p := range k.listLocations(cache) {
		b, err := k.probeLocation(ctx, p, acct, log)
		if ctx.Err() != nil {
			return installation{}, nil, context.Cause(ctx)
		}
		if _, wrongAccount := errors.AsType[*AccountError](err); wrongAccount {
			return installation{}, passed, err
		}
		why := ""
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			why = err.Error()
		default:
			why = reject(b)
		}
		if why == "" {
			return b, passed, nil
		}
		passed = append(passed, why)
	}
	return installation{}, passed, nil
}

// probeLocation runs the program to learn its version, as the account that will run the server.
func (k kind) probeLocation(ctx context.Context, p location, acct account, log *slog.Logger) (installation, error) {
	for _, name := range append(k.needs, p.server) {
		if err := p.checkUsable(filepath.Join(p.dir, name), acct); err != nil {
			return installation{}, err
		}
	}
	out, err := askVersion(ctx, p.programPath(), p.libs, acct, log)
	if err != nil {
		return installation{}, err
	}
	m := k.version.FindStringSubmatch(out)
	if m == nil {
		return installation{}, fmt.Errorf("%s does not report its version", p.programPath())
	}
	major, err := strconv.Atoi(m[2])
	minor, _ := strconv.Atoi(m[3]) // a test version of Postgres has none
	return installation{location: p, version: m[1], major: major, minor: minor}, err
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
		if errors.Is(err, fs.ErrNotExist) { // as an fs.ErrNotExist, it would say that there is no program (findUsable)
			return "", fmt.Errorf("%s does not run here: its loader is missing", path)
		}
		return "", fmt.Errorf("%s does not run here: %w", path, acct.explainStart(err))
	}
	return line, nil
}
