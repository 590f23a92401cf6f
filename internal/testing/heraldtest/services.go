// Package heraldtest is the harness of Herald's tests. It starts a Postgres and a Redis for the test, with the code
// that the product uses for them, and contains helpers for waiting, logging and comparing.
//
//	func TestMain(m *testing.M) { heraldtest.Main(m) }
//
//	url := heraldtest.Postgres(t, postgres.Migrate)         // a migrated database, dropped with the test
//	redis := heraldtest.Redis(t)                            // an empty Redis of the test's own
//	pooler := heraldtest.StartPooler(t, url)                // a PgBouncer for that database, killed with the test (Linux)
//	heraldtest.EachRedis(t, func(t *testing.T, url string) {…}) // a real one, and miniredis
//	clock := heraldtest.NewClock(start)                     // stands still until clock.Advance
//	var log heraldtest.Log                                  // log.Logger(slog.LevelInfo), log.Count("text")
//	heraldtest.Await(t, "the row is queued", func() bool {…}) // at most 30 s, and never a sleep
//	heraldtest.Equal(t, "the job that was read", got, want) // what differs, and a sentence
//
// All tests of a process share one cluster. The first test that needs it starts it, and Main stops it. A Redis serves
// one test after another. If the process dies, the kernel kills the servers, and the next run of any test removes the
// folders. This package downloads nothing: `make test` does that first (embedded.Fetch). Package
// internal/testing/devnet/devnettest starts chains, because this package would otherwise link go-ethereum into every
// test.
//
// The package has state, the servers of the process, because sharing them is the package's purpose. A mutex protects
// them.
package heraldtest

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/embedded"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

// RequireVariable, like CI, makes a test fail instead of being skipped if binaries are missing.
const RequireVariable = "HERALD_REQUIRE_SERVICES"

// SoakVariable set to 1 makes tests as large as make soak has them.
const SoakVariable = "HERALD_SOAK"

// Soaks reports whether tests run in make soak.
func Soaks() bool { return os.Getenv(SoakVariable) == "1" }

const (
	// migrateTimeout bounds one run of the migrations. opTimeout bounds every other operation.
	migrateTimeout = 2 * time.Minute
	opTimeout      = 30 * time.Second
)

// cluster is the Postgres cluster of this process.
type cluster struct {
	mu       sync.Mutex
	main     bool // Main is running and will stop the cluster
	postgres *embedded.Server
	admin    *pgx.Conn // to the cluster's own database; nil or closed: connect again
	failed   error     // why the start failed, so that it is tried only once
	template string    // name of the migrated database, if it exists
	made     int
	idle     []*embedded.Server // emptied servers, which no test has now
}

var shared cluster

// migration prepares the database from which those of the tests are copied.
type migration func(ctx context.Context, url string) error

// Main silences the Redis driver, runs the tests, stops the services that they started, and fails if goroutines are left
// (goleak, with its options). It does not return:
//
//	func TestMain(m *testing.M) { heraldtest.Main(m) }
func Main(m *testing.M, options ...goleak.Option) {
	MainWith(m, func() error { return nil }, options...)
}

// MainWith is Main for a package whose tests share more services, which stop stops.
func MainWith(m *testing.M, stop func() error, options ...goleak.Option) {
	redis.SetLogger(silence{})
	goleak.VerifyTestMain(run{m, stop, options}, options...)
}

type run struct {
	m       *testing.M
	stop    func() error
	options []goleak.Option
}

func (r run) Run() int {
	shared.mu.Lock()
	shared.main = true
	shared.mu.Unlock()
	// A panic in a test ends the process; then the kernel kills the server.
	code := r.m.Run()
	if err := errors.Join(r.stop(), shared.stop()); err != nil {
		fmt.Fprintln(os.Stderr, "heraldtest: stop the servers:", err)
		return max(code, 1)
	}
	if code == 0 {
		awaitGoroutines(r.options)
	}
	return code
}

// awaitGoroutines waits until the tests' goroutines have ended. Goleak itself waits only half a second, which is too
// short for ending goroutines on a busy machine.
func awaitGoroutines(options []goleak.Option) {
	for end := time.Now().Add(waitLimit); goleak.Find(options...) != nil && time.Now().Before(end); {
	}
}

// Postgres returns the URL of a new database. When the test ends, it is dropped even if there are connections. The
// database is a copy, made in about 20 ms, of a template on which migrate, usually postgres.Migrate, ran once in this
// process. So all tests of a process pass the same function. Tests may also write the view herald.deliveries.
//
// The test is skipped if the machine has no Postgres, or if the tests run as root, which Postgres refuses, and there
// is no other user. If CI or HERALD_REQUIRE_SERVICES is set, the test fails instead.
func Postgres[R any](t testing.TB, migrate func(ctx context.Context, url secret.Secret) (R, error)) string {
	t.Helper()
	return createDatabase(t, func(ctx context.Context, url string) error {
		if _, err := migrate(ctx, secret.New(url)); err != nil {
			return err
		}
		return makeWritable(ctx, url)
	})
}

// writableDeliveries makes the view herald.deliveries writable.
//
//go:embed writable.sql
var writableDeliveries string

func makeWritable(ctx context.Context, url string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var has bool
	if err := conn.QueryRow(ctx, `SELECT to_regclass('herald.deliveries') IS NOT NULL`).Scan(&has); err != nil || !has {
		return err
	}
	_, err = conn.PgConn().Exec(ctx, writableDeliveries).ReadAll()
	return err
}

// EmptyPostgres is Postgres without a migration.
func EmptyPostgres(t testing.TB) string {
	t.Helper()
	return createDatabase(t, nil)
}

// createDatabase creates a database for a test. Before that, it starts the cluster and prepares the template if
// needed.
func createDatabase(t testing.TB, migrate migration) string {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	MustHave(t, shared.start())
	template := "template0"
	if migrate != nil {
		template = shared.prepareTemplate(t, migrate)
	}
	shared.made++
	database := fmt.Sprintf("test_%d", shared.made)
	// A copy of the files takes half the time of the default, a copy through the log.
	Must(t, shared.exec("CREATE DATABASE "+database+" TEMPLATE "+template+" STRATEGY FILE_COPY"))
	t.Cleanup(func() {
		shared.mu.Lock()
		defer shared.mu.Unlock()
		Must(t, shared.exec("DROP DATABASE "+database+" WITH (FORCE)"))
	})
	return shared.url(database)
}

// Connect returns a connection to a database. It is closed when the test ends.
func Connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	Must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// Exec executes one or more statements in a database.
func Exec(t testing.TB, url, sql string) {
	t.Helper()
	_, err := Connect(t, url).Exec(t.Context(), sql)
	Must(t, err)
}

// Redis returns the URL (in asynq's format) of an empty Redis that no other test uses. It is a redis-server or
// valkey-server if the machine has one (ready in about 10 ms), otherwise miniredis. When the test ends, the server is
// emptied, for the next test. Each test has a server and not a numbered database, because asynq cancels tasks by pub/sub,
// which ignores the database's number. Do not change the server's settings.
func Redis(t testing.TB) string {
	t.Helper()
	return takeRedis(t, embedded.RedisAuto)
}

// RealRedis is Redis, but never miniredis. Without a server, the test is skipped or fails as with Postgres.
func RealRedis(t testing.TB) string {
	t.Helper()
	return takeRedis(t, embedded.RedisServer)
}

func takeRedis(t testing.TB, mode embedded.RedisMode) string {
	t.Helper()
	r := shared.takeRedis(mode)
	if r == nil {
		ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
		defer cancel()
		var err error
		r, err = embedded.StartRedis(ctx, embedded.Config{Ephemeral: true, Mode: mode})
		MustHave(t, err)
	}
	t.Cleanup(func() { Must(t, shared.returnRedis(r)) })
	return r.URL()
}

// takeRedis returns a server that an ended test left, or nil.
func (c *cluster) takeRedis(mode embedded.RedisMode) *embedded.Server {
	c.mu.Lock()
	defer c.mu.Unlock()
	if mode == embedded.RedisMini || len(c.idle) == 0 {
		return nil
	}
	r := c.idle[len(c.idle)-1]
	c.idle = c.idle[:len(c.idle)-1]
	return r
}

// returnRedis empties a server for the next test. It stops one that Main would not stop, and miniredis, which starts at
// once.
func (c *cluster) returnRedis(r *embedded.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
	defer cancel()
	c.mu.Lock()
	keep := c.main && strings.HasPrefix(r.URL(), "redis-socket:")
	c.mu.Unlock()
	if !keep {
		return r.Stop(ctx)
	}
	if err := emptyRedis(ctx, r.URL()); err != nil {
		return errors.Join(fmt.Errorf("empty the Redis of a test: %w", err), r.Stop(ctx))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = append(c.idle, r)
	return nil
}

// MustHave ends the test if err is not nil. It skips the test if err says that the machine has no Postgres or no Redis,
// or that this user cannot run Postgres, unless RequireVariable or CI is set.
func MustHave(t testing.TB, err error) {
	t.Helper()
	_, none := errors.AsType[*embedded.NoBinariesError](err)
	_, account := errors.AsType[*embedded.AccountError](err)
	_, unreachable := errors.AsType[*embedded.UnreachableError](err)
	if (none || account || unreachable || errors.Is(err, embedded.ErrNoRedis)) && !required() {
		t.Skip(err)
	}
	Must(t, err)
}

func required() bool { return os.Getenv(RequireVariable) != "" || os.Getenv("CI") != "" }

// start starts the cluster, unless it runs. A failed start is not repeated.
func (c *cluster) start() error {
	if c.postgres != nil || c.failed != nil {
		return c.failed
	}
	if !c.main {
		return errors.New("this package's TestMain must call heraldtest.Main, or nothing would stop the database server")
	}
	ctx, cancel := context.WithTimeout(context.Background(), migrateTimeout)
	defer cancel()
	c.postgres, c.failed = embedded.StartPostgres(ctx, embedded.Config{Ephemeral: true, Test: true})
	return c.failed
}

// prepareTemplate returns the name of a database on which migrate ran. It creates the database if needed.
func (c *cluster) prepareTemplate(t testing.TB, migrate migration) string {
	t.Helper()
	if c.template != "" {
		return c.template
	}
	const name = "migrated"
	Must(t, c.exec("CREATE DATABASE "+name))
	ctx, cancel := context.WithTimeout(context.Background(), migrateTimeout)
	defer cancel()
	if err := migrate(ctx, c.url(name)); err != nil {
		t.Fatal("migrate:", errors.Join(err, c.exec("DROP DATABASE "+name+" WITH (FORCE)")))
	}
	// A connection that migrate did not close would make every copy fail.
	Must(t, c.exec("ALTER DATABASE "+name+" ALLOW_CONNECTIONS false"))
	Must(t, c.exec("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '"+name+"'"))
	c.template = name
	return name
}

// exec runs a statement in the cluster's own database. The caller holds the mutex.
func (c *cluster) exec(sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
	defer cancel()
	if c.admin == nil || c.admin.IsClosed() {
		var err error
		if c.admin, err = pgx.Connect(ctx, c.postgres.URL()); err != nil {
			return err
		}
	}
	_, err := c.admin.Exec(ctx, sql)
	return err
}

func (c *cluster) url(database string) string {
	u, err := url.Parse(c.postgres.URL())
	if err != nil {
		panic(err) // url.URL.String made this URL
	}
	u.Path = "/" + database
	return u.String()
}

func (c *cluster) stop() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
	defer cancel()
	var err error
	for _, r := range c.idle {
		err = errors.Join(err, r.Stop(ctx))
	}
	c.idle = nil
	if c.postgres == nil {
		return err
	}
	if c.admin != nil {
		err = errors.Join(err, c.admin.Close(ctx))
	}
	err = errors.Join(err, c.postgres.Stop(ctx))
	c.postgres, c.failed = nil, errors.New("the tests have ended")
	return err
}
