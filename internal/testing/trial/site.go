package trial

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentherald/herald/scripts/script"
)

const (
	pollQuick = 10 * time.Millisecond  // for states that change quickly
	pollSlow  = 250 * time.Millisecond // for states that are expensive to read
	closeTime = 60 * time.Second       // time for stopping everything
)

// Config configures a Site.
type Config struct {
	Programs Programs
	// Postgres is the cluster in which the site creates its database.
	Postgres *Postgres
	// Database is that database's name: lower-case letters, digits and underscores. An existing database is dropped
	// first.
	Database string
	// Logs is the folder for the output of the processes. It is created and kept.
	Logs string
	// Env ("NAME=value") is set for all programs of Herald and overrides the trial's settings.
	Env []string
}

// Site is one installation of Herald with its services, without the agents.
type Site struct {
	Config
	Redis *Redis

	address string        // the database's URL
	conns   *pgxpool.Pool // to the database; nil before it exists
	dir     string        // folder of Redis's data
	logFile *os.File
	keyset  string

	mu        sync.Mutex
	starts    map[string]int // number of starts by process name, for the names of log files
	processes []*Process
}

// Open creates the database, migrates it and starts Redis. Close stops everything except Postgres.
func Open(ctx context.Context, cfg Config) (*Site, error) {
	s := &Site{Config: cfg, starts: map[string]int{}}
	err := script.Try(func() { s.open(ctx) })
	if err != nil {
		err = errors.Join(err, s.Close())
	}
	return s, err
}

func (s *Site) open(ctx context.Context) {
	script.Check(os.MkdirAll(s.Logs, 0o755))
	s.logFile = script.Must(os.Create(filepath.Join(s.Logs, "redis.log")))
	s.dir = script.Must(os.MkdirTemp("", "herald-trial-"))
	// If this process is root, the servers run as another user, which must be able to traverse the folder.
	script.Check(os.Chmod(s.dir, 0o711))
	s.address = script.Must(s.Postgres.Database(s.Database))
	for _, sql := range []string{"DROP DATABASE IF EXISTS " + s.Database + " WITH (FORCE)", "CREATE DATABASE " + s.Database} {
		script.Check(s.Postgres.Exec(ctx, sql))
	}
	s.conns = script.Must(openPool(s.address))
	var err error
	s.Redis, err = startRedis(ctx, s.dir, slog.New(slog.NewTextHandler(s.logFile, nil))) // to be closed also after an error
	script.Check(err)
	s.keyset = strings.TrimSpace(script.Must(s.Run(ctx, "keys", "init", "--cleartext")))
	script.Must(s.Run(ctx, "migrate"))
}

// Close stops all processes, restores Postgres, drops the database and removes Redis's data. It keeps the logs.
func (s *Site) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	s.mu.Lock()
	running := s.processes
	s.mu.Unlock()
	var errs []error
	for _, p := range running {
		errs = append(errs, p.Kill())
	}
	if s.conns != nil {
		defer s.conns.Close() // after the end of its connections to a frozen server
	}
	if s.Redis != nil {
		errs = append(errs, s.Redis.close(ctx))
	}
	errs = append(errs, s.Postgres.Restore(ctx), s.Postgres.Exec(ctx, "DROP DATABASE IF EXISTS "+s.Database+" WITH (FORCE)"))
	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	if s.logFile != nil {
		errs = append(errs, s.logFile.Close())
	}
	return errors.Join(errs...)
}

// environment returns the environment of Herald's programs. Later variables override earlier ones.
func (s *Site) environment(more ...string) []string {
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.dir,
		"DATABASE_URL=" + s.address, "REDIS_URL=" + s.Redis.URL(), "HERALD_DATA=" + filepath.Join(s.dir, "none"),
		"HERALD_VERIFY_EVENT=off", "HERALD_BINDING=off", "HERALD_CALL_TIMEOUT=2s", "HERALD_LEASE_MARGIN=5s", "HERALD_LEASE=10s",
		"HERALD_ALLOW_NETWORKS=127.0.0.0/8", "HERALD_LISTEN=127.0.0.1:0", "HERALD_LOG_FORMAT=json"}
	if s.keyset != "" {
		env = append(env, "HERALD_KEYSET="+s.keyset)
	}
	return append(append(env, s.Env...), more...)
}

// ListAgents adds the agents to the servers file of programs that start from now on. Herald then records the results
// of calls for the agents. It records nothing about an agent whose endpoint is in the job.
func (s *Site) ListAgents(a *Agents) error {
	path := filepath.Join(s.dir, "servers.json")
	if variable := "HERALD_SERVERS_FILE=" + path; !slices.Contains(s.Env, variable) {
		s.Env = append(s.Env, variable)
	}
	return a.writeServersFile(path)
}

// start starts a program and registers it for Close.
func (s *Site) start(p Program) (*Process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.starts[p.Name]++
	p.own, p.Log = true, filepath.Join(s.Logs, p.Name+"."+strconv.Itoa(s.starts[p.Name])+".log")
	_ = os.Remove(p.Log) // an earlier trial's file would name the address of its process; without it, this fails
	proc, err := p.Start()
	if err == nil {
		s.processes = append(s.processes, proc)
	}
	return proc, err
}

// Run runs a command of the worker to its end and returns its output.
func (s *Site) Run(ctx context.Context, args ...string) (string, error) {
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	p, err := s.start(Program{Name: "command-" + args[0], Path: s.Programs.worker(), Args: args, Env: s.environment(),
		out: &out})
	if err != nil {
		return "", err
	}
	if err := p.Wait(ctx); err != nil {
		return out.String(), fmt.Errorf("worker %s: %w: %s", strings.Join(args, " "), err, tail(p.Log()))
	}
	return out.String(), nil
}

// Enqueue passes lines (see Agents.Line) to the enqueue program. It returns the ids of accepted deliveries, in order,
// and in known those of deliveries that existed already. It returns when the program has ended. A slow reader
// produces a steady load.
func (s *Site) Enqueue(ctx context.Context, lines io.Reader) (accepted, known []uuid.UUID, err error) {
	var out bytes.Buffer
	p, err := s.start(Program{Name: "enqueue", Path: s.Programs.enqueue(), Env: s.environment(), In: lines, out: &out})
	if err != nil {
		return nil, nil, err
	}
	if err := p.Wait(ctx); err != nil {
		return nil, nil, fmt.Errorf("%w: %s: %s", err, tail(p.Log()), out.String()[:min(out.Len(), 4000)])
	}
	for line := range strings.Lines(out.String()) {
		verdict, rest, _ := strings.Cut(line, " ")
		word, _, _ := strings.Cut(rest, " ")
		id, err := uuid.Parse(word)
		switch {
		case err == nil && verdict == "accepted":
			accepted = append(accepted, id)
		case err == nil && verdict == "known":
			known = append(known, id)
		default:
			return nil, nil, fmt.Errorf("enqueue answered %q", strings.TrimSpace(line))
		}
	}
	return accepted, known, nil
}

// StartEnqueue starts the enqueue program with a command that runs on (watch), so that the trial can kill it. Close
// stops it.
func (s *Site) StartEnqueue(name string, env []string, args ...string) (*Process, error) {
	return s.start(Program{Name: name, Path: s.Programs.enqueue(), Args: args, Env: s.environment(env...)})
}

// SQL runs f on a connection to the site's database.
func (s *Site) SQL(ctx context.Context, f func(ctx context.Context, c *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, statementTime)
	defer cancel()
	return s.conns.AcquireFunc(ctx, func(c *pgxpool.Conn) error { return f(ctx, c.Conn()) })
}

// openPool returns a pool of connections that asks each whether it still works, since none survives a restart of the
// server. It keeps no prepared statements, since a trial may change the schema.
func openPool(address string) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, err
	}
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeDescribeExec
	cfg.PrepareConn = func(ctx context.Context, c *pgx.Conn) (bool, error) { return c.Ping(ctx) == nil, nil }
	return pgxpool.NewWithConfig(context.Background(), cfg)
}

// tail returns the end of a log, for an error.
func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(b[max(0, len(b)-2000):]))
}
