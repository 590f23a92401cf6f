// Package heraldtest is the harness of Herald's tests: a Postgres and a Redis of the test's own, run by the code that the product
// runs them with, and what tests wait, log and compare with.
//
//	func TestMain(m *testing.M) { heraldtest.Main(m) }
//
//	url := heraldtest.Postgres(t, store.Migrate)            // a migrated database, dropped with the test
//	redis := heraldtest.Redis(t)                            // an empty Redis, stopped with the test
//	var log heraldtest.Log                                  // log.Logger(slog.LevelInfo), log.Count("text")
//	heraldtest.Await(t, "the row is queued", func() bool {…}) // at most 30 s, and never a sleep
//	heraldtest.Equal(t, "the job that was read", got, want) // what differs, and a sentence
//
// There is one cluster for the test process, started by the first test that asks and stopped by Main; if the process dies instead,
// the kernel ends the server, and the next run of any test removes the folder. Nothing is ever downloaded from here: `make test`
// does that first (embedded.Fetch). Chains are started by internal/devnet/devnettest: they would link go-ethereum into every test.
//
// The state of the package is the process' one cluster; that is what the package is for, and it is behind one mutex.
package heraldtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"reflect"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/embedded"
	"github.com/agentherald/herald/internal/secret"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

// RequireVariable, and CI, turn a skip for want of binaries into a failure.
const RequireVariable = "HERALD_REQUIRE_SERVICES"

const (
	// migrateTimeout bounds one run of the migrations, opTimeout everything else.
	migrateTimeout = 2 * time.Minute
	opTimeout      = 30 * time.Second
)

// cluster is the one of this process.
type cluster struct {
	mu        sync.Mutex
	main      bool // Main runs: somebody will stop what is started
	postgres  *embedded.Postgres
	failed    error              // why there is none: asked once
	templates map[uintptr]string // database by migrate function
	made      int
}

var shared cluster

// migration is what makes a template: a function, and the address of its code.
type migration struct {
	key uintptr
	run func(ctx context.Context, url string) error
}

// Main runs the tests, stops what they started and looks for goroutines that they left (goleak, with its options). It
// does not return:
//
//	func TestMain(m *testing.M) { heraldtest.Main(m) }
func Main(m *testing.M, options ...goleak.Option) {
	goleak.VerifyTestMain(run{m, options}, options...)
}

// RunAtOnce makes a package run n parallel tests per core, unless go test was given -parallel. It is for packages whose
// tests wait more than they compute. TestMain calls it before Main.
func RunAtOnce(n int) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(n*runtime.GOMAXPROCS(0))) // a number is no error
	}
}

type run struct {
	m       *testing.M
	options []goleak.Option
}

func (r run) Run() int {
	shared.mu.Lock()
	shared.main = true
	shared.mu.Unlock()
	// A panic in a test ends the process; then the kernel ends the server.
	code := r.m.Run()
	if err := shared.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "heraldtest: stop Postgres:", err)
		return max(code, 1)
	}
	if code == 0 {
		awaitGoroutines(r.options)
	}
	return code
}

// awaitGoroutines waits until the tests' goroutines have ended. Goleak itself waits for half a second, which on a busy
// machine is too little for those that are about to.
func awaitGoroutines(options []goleak.Option) {
	for end := time.Now().Add(waitLimit); goleak.Find(options...) != nil && time.Now().Before(end); {
	}
}

// Postgres returns the URL of a database of the test's own, dropped when the test ends, connections or not. It is a
// copy, made in about 20 ms, of a database that migrate, which is store.Migrate, was run on once in this process. Functions
// are told apart by their code, so two closures of one literal over different values would share the first one's
// template: pass a named function.
//
// The test is skipped when the machine has no Postgres, or when this is root, as whom Postgres refuses to run, and there
// is no other user; with CI or HERALD_REQUIRE_SERVICES set it fails instead.
func Postgres[R any](t testing.TB, migrate func(ctx context.Context, url secret.Secret) (R, error)) string {
	t.Helper()
	return createDatabase(t, &migration{reflect.ValueOf(migrate).Pointer(), func(ctx context.Context, url string) error {
		_, err := migrate(ctx, secret.New(url))
		return err
	}})
}

// EmptyPostgres is Postgres without a migration.
func EmptyPostgres(t testing.TB) string {
	t.Helper()
	return createDatabase(t, nil)
}

func createDatabase(t testing.TB, migrate *migration) string {
	t.Helper()
	database, err := shared.createDatabase(migrate)
	switch {
	case notHere(err) && !required():
		t.Skipf("no database: %v", err)
	case err != nil:
		t.Fatalf("heraldtest: %v", err)
	}
	t.Cleanup(func() {
		if err := shared.exec("DROP DATABASE " + database + " WITH (FORCE)"); err != nil {
			t.Errorf("heraldtest: drop the test's database: %v", err)
		}
	})
	return shared.url(database)
}

// Redis returns the URL (as asynq parses it) of an empty Redis of the test's own, stopped when the test ends: a
// redis-server or valkey-server where there is one (ready in about 10 ms), else miniredis. A server of its own, and not
// a numbered database of a shared one: asynq cancels tasks by pub/sub, which ignores the database's number.
func Redis(t testing.TB) string {
	t.Helper()
	return startRedis(t, embedded.RedisAuto)
}

// RealRedis is Redis that never is miniredis: skipped or failed like Postgres when there is no server.
func RealRedis(t testing.TB) string {
	t.Helper()
	return startRedis(t, embedded.RedisServer)
}

// MiniRedis is Redis that always is miniredis.
func MiniRedis(t testing.TB) string {
	t.Helper()
	return startRedis(t, embedded.RedisMini)
}

func startRedis(t testing.TB, mode embedded.RedisMode) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
	defer cancel()
	r, err := embedded.StartRedis(ctx, embedded.RedisConfig{Ephemeral: true, Mode: mode})
	switch {
	case errors.Is(err, embedded.ErrNoRedis) && !required():
		t.Skipf("no Redis: %v", err)
	case err != nil:
		t.Fatalf("heraldtest: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
		defer cancel()
		if err := r.Stop(ctx); err != nil {
			t.Errorf("heraldtest: %v", err)
		}
	})
	return r.URL()
}

// notHere says whether the machine, and not the code, is why there is no Postgres.
func notHere(err error) bool {
	var (
		none        *embedded.NoBinariesError
		account     *embedded.AccountError
		unreachable *embedded.UnreachableError
	)
	return errors.As(err, &none) || errors.As(err, &account) || errors.As(err, &unreachable)
}

func required() bool { return os.Getenv(RequireVariable) != "" || os.Getenv("CI") != "" }

// createDatabase makes a database for a test, and before that what it needs.
func (c *cluster) createDatabase(migrate *migration) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.start(); err != nil {
		return "", err
	}
	template, err := c.prepareTemplate(migrate)
	if err != nil {
		return "", err
	}
	c.made++
	name := fmt.Sprintf("test_%d", c.made)
	// Under the mutex: Postgres refuses to copy a database that somebody is connected to.
	if err := c.exec("CREATE DATABASE " + name + " TEMPLATE " + template); err != nil {
		return "", fmt.Errorf("copy the migrated database: %w", err)
	}
	return name, nil
}

func (c *cluster) start() error {
	if c.postgres != nil || c.failed != nil {
		return c.failed
	}
	if !c.main {
		return errors.New("this package's TestMain must call heraldtest.Main, or nothing would stop the database server")
	}
	ctx, cancel := context.WithTimeout(context.Background(), migrateTimeout)
	defer cancel()
	c.postgres, c.failed = embedded.StartPostgres(ctx, embedded.PostgresConfig{Ephemeral: true, Test: true})
	return c.failed
}

// prepareTemplate returns the database that migrate was run on.
func (c *cluster) prepareTemplate(migrate *migration) (string, error) {
	if migrate == nil {
		return "template0", nil
	}
	if name, ok := c.templates[migrate.key]; ok {
		return name, nil
	}
	name := fmt.Sprintf("template_%d", len(c.templates)+2)
	if err := c.exec("CREATE DATABASE " + name); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), migrateTimeout)
	defer cancel()
	if err := migrate.run(ctx, c.url(name)); err != nil {
		return "", errors.Join(fmt.Errorf("migrate: %w", err), c.exec("DROP DATABASE "+name+" WITH (FORCE)"))
	}
	// A pool that migrate forgot to close would make every copy fail.
	if err := c.exec("ALTER DATABASE " + name + " ALLOW_CONNECTIONS false"); err != nil {
		return "", err
	}
	if err := c.exec("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '" + name + "'"); err != nil {
		return "", err
	}
	if c.templates == nil {
		c.templates = map[uintptr]string{}
	}
	c.templates[migrate.key] = name
	return name, nil
}

// exec runs a statement in the cluster's own database, on a connection of its own: that costs 3 ms and holds nothing.
func (c *cluster) exec(sql string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, c.postgres.URL())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	_, err = conn.Exec(ctx, sql)
	return err
}

func (c *cluster) url(database string) string {
	u, err := url.Parse(c.postgres.URL())
	if err != nil {
		panic(err) // it is made by url.URL.String
	}
	u.Path = "/" + database
	return u.String()
}

func (c *cluster) stop() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.postgres == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), opTimeout)
	defer cancel()
	err := c.postgres.Stop(ctx)
	c.postgres, c.failed = nil, errors.New("the tests have ended")
	return err
}
