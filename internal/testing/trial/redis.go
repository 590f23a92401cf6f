package trial

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/agentherald/herald/internal/base/embedded"
	"github.com/redis/go-redis/v9"
)

// Redis is a redis-server for the trial on a unix socket, with an append-only file that is flushed every second. A
// kill -9 loses no acknowledged write, because the operating system has the data.
type Redis struct {
	dir    string
	log    *slog.Logger
	server *embedded.Server // nil while it is stopped
	url    string
	pid    int
	client *redis.Client
}

func startRedis(ctx context.Context, dir string, log *slog.Logger) (*Redis, error) {
	r := &Redis{dir: dir, log: log}
	return r, r.Start(ctx)
}

// URL returns the address that workers use.
func (r *Redis) URL() string { return r.url }

// Client returns the trial's own client. It reconnects automatically.
func (r *Redis) Client() *redis.Client { return r.client }

// Start starts Redis with the data of its append-only file.
func (r *Redis) Start(ctx context.Context) error {
	server, err := embedded.StartRedis(ctx, embedded.Config{Dir: r.dir, Mode: embedded.RedisServer, Logger: r.log})
	if err != nil {
		return err
	}
	r.server = server
	if r.url == "" {
		r.url = server.URL()
		u, err := url.Parse(r.url)
		if err != nil {
			return err
		}
		r.client = redis.NewClient(&redis.Options{Network: "unix", Addr: u.Path, ContextTimeoutEnabled: true})
	}
	if server.URL() != r.url {
		return fmt.Errorf("Redis came back at %s, not at %s", server.URL(), r.url)
	}
	return Until(ctx, pollQuick, "Redis to tell its process id", func() (bool, error) {
		info := r.client.InfoMap(ctx, "server")
		if info.Err() != nil {
			return false, info.Err() // a connection of the previous server
		}
		r.pid, err = strconv.Atoi(info.Item("Server", "process_id"))
		return err == nil, err
	})
}

// StartEmpty starts Redis without data.
func (r *Redis) StartEmpty(ctx context.Context) error {
	if r.server != nil {
		return errors.New("Redis runs: kill it first")
	}
	if err := os.RemoveAll(filepath.Join(r.dir, "redis", "data")); err != nil {
		return err
	}
	return r.Start(ctx)
}

// Kill kills Redis (SIGKILL) and waits until it ended.
func (r *Redis) Kill(ctx context.Context) error {
	if err := syscall.Kill(r.pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill Redis: %w", err)
	}
	return r.Stop(ctx)
}

// Stop shuts Redis down. Its data is on disk.
func (r *Redis) Stop(ctx context.Context) error {
	if r.server == nil {
		return nil
	}
	err := r.server.Stop(ctx)
	r.server = nil
	return err
}

// Freeze stops Redis (SIGSTOP): connections stay open and get no answer.
func (r *Redis) Freeze(context.Context) error { return r.signal(syscall.SIGSTOP) }

// Thaw continues Redis after Freeze.
func (r *Redis) Thaw(context.Context) error { return r.signal(syscall.SIGCONT) }

func (r *Redis) signal(s syscall.Signal) error {
	if r.server == nil {
		return errors.New("Redis does not run")
	}
	if err := syscall.Kill(r.pid, s); err != nil {
		return fmt.Errorf("send %s to Redis: %w", s, err)
	}
	return nil
}

func (r *Redis) close(ctx context.Context) error {
	if r.server != nil {
		_ = r.Thaw(ctx) // a frozen server would ignore the request to shut down
	}
	err := r.Stop(ctx)
	if r.client != nil {
		err = errors.Join(err, r.client.Close())
	}
	return err
}
