package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

func startRedis(t *testing.T, cfg Config) *Server {
	t.Helper()
	cfg.Logger = testLogger(t)
	r, err := StartRedis(t.Context(), cfg)
	must(t, err)
	t.Cleanup(func() { _ = r.Stop(context.Background()) })
	return r
}

func stopRedis(t *testing.T, r *Server) {
	t.Helper()
	must(t, r.Stop(context.Background()))
	<-ended(r)
}

// ended returns a channel that is closed when the server has ended.
func ended(r *Server) <-chan struct{} {
	if r.mini != nil {
		return r.mini.gone
	}
	return r.child.done
}

// connect returns a client with the options that asynq would use.
func connect(t *testing.T, address string) *redis.Client {
	t.Helper()
	opt, err := asynq.ParseRedisURI(address)
	must(t, err)
	c, ok := opt.MakeRedisClient().(*redis.Client)
	if !ok {
		t.Fatalf("%T", opt)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func get(t *testing.T, address, key string) string {
	t.Helper()
	v, err := connect(t, address).Get(t.Context(), key).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	return v
}

func set(t *testing.T, address, key, value string) {
	t.Helper()
	must(t, connect(t, address).Set(t.Context(), key, value, 0).Err())
}

// TestRedisKeepsData checks that data survives an orderly stop, and then SIGKILL of the process that owns the server.
func TestRedisKeepsData(t *testing.T) {
	t.Parallel()
	needRedis(t)
	dir := openTemp(t)
	r := startRedis(t, Config{Dir: dir, Mode: RedisServer})
	set(t, r.URL(), "kept", "yes")
	stopRedis(t, r)

	h := startHelper(t, "redis", dir, 0)
	equal(t, "the error", h.said.Error, "")
	equal(t, "after a restart", get(t, h.said.URL, "kept"), "yes")
	set(t, h.said.URL, "late", "yes")
	h.kill()
	// The next start succeeds in spite of the dying server.
	r = startRedis(t, Config{Dir: dir, Mode: RedisServer})
	if !hasEnded(h.said.PID) {
		t.Errorf("the old server %d still runs", h.said.PID)
	}
	for _, key := range []string{"kept", "late"} {
		equal(t, fmt.Sprintf("%s after kill -9", key), get(t, r.URL(), key), "yes")
	}
}

func TestRedisServer(t *testing.T) {
	t.Parallel()
	needRedis(t)
	t.Run("settings", func(t *testing.T) {
		t.Parallel()
		s := startRedis(t, Config{Dir: openTemp(t)})
		if s.mini != nil {
			t.Fatal("auto chose miniredis although a server is here")
		}
		c := connect(t, s.URL())
		for name, want := range map[string]string{"port": "0", "appendonly": "yes", "maxmemory-policy": "noeviction", "save": ""} {
			if got, err := c.ConfigGet(t.Context(), name).Result(); err != nil || got[name] != want {
				t.Errorf("%s: %v %v", name, got, err)
			}
		}
		if info, err := os.Stat(s.sockets); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%v %v", info, err)
		}
		var stat syscall.Stat_t
		if err := syscall.Stat(s.data, &stat); err != nil || stat.Uid == 0 {
			t.Errorf("the data belongs to %d (%v): the server runs as root", stat.Uid, err)
		}
	})
	t.Run("left running", func(t *testing.T) {
		t.Parallel()
		dir := openTemp(t)
		r := startRedis(t, Config{Dir: dir, Mode: RedisServer})
		set(t, r.URL(), "kept", "yes")
		leaveRunning(t, r)
		again := startRedis(t, Config{Dir: dir, Mode: RedisServer})
		<-ended(r)
		equal(t, "kept", get(t, again.URL(), "kept"), "yes")
	})
	t.Run("long path, ephemeral", func(t *testing.T) {
		t.Parallel()
		r := startRedis(t, Config{Dir: filepath.Join(openTemp(t), strings.Repeat("long-name-", 12)), Mode: RedisServer})
		set(t, r.URL(), "k", "v")
		stopRedis(t, r)
		e := startRedis(t, Config{Ephemeral: true, Mode: RedisServer})
		set(t, e.URL(), "k", "v")
		stopRedis(t, e)
		if _, err := os.Stat(e.ephemeral.dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v", err)
		}
	})
	t.Run("does not start", func(t *testing.T) {
		t.Parallel()
		dir := openTemp(t)
		r := startRedis(t, Config{Dir: dir, Mode: RedisServer})
		set(t, r.URL(), "kept", "yes")
		stopRedis(t, r)
		manifest, err := filepath.Glob(filepath.Join(dir, "redis/data/appendonly*/*.manifest"))
		if err != nil || len(manifest) == 0 {
			t.Fatal("no append-only manifest", err)
		}
		must(t, os.WriteFile(manifest[0], []byte("nonsense\n"), 0o644))
		if _, err := StartRedis(t.Context(), Config{Dir: dir, Mode: RedisServer}); err == nil || !strings.Contains(err.Error(), "ended while starting") {
			t.Errorf("%v", err)
		}
		r = startRedis(t, Config{Dir: dir})
		if r.mini == nil {
			t.Error("auto did not give miniredis")
		}
	})
}

func TestRedisConfigRefused(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{
		"no folder": {}, "both": {Dir: "/x", Ephemeral: true}, "mode": {Ephemeral: true, Mode: "x"},
	} {
		if _, err := StartRedis(t.Context(), cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestMiniLifetimes(t *testing.T) {
	t.Parallel()
	r := startRedis(t, Config{Ephemeral: true, Mode: RedisMini})
	c := connect(t, r.URL())
	must(t, c.Set(t.Context(), "short", "v", 300*time.Millisecond).Err())
	eventually(t, "the key dies", func() bool { return c.Exists(t.Context(), "short").Val() == 0 })
	// A client without the password is refused.
	u, err := url.Parse(r.URL())
	must(t, err)
	stranger := redis.NewClient(&redis.Options{Addr: u.Host, MaxRetries: -1})
	defer stranger.Close()
	if err := stranger.Get(t.Context(), "short").Err(); err == nil || !strings.Contains(err.Error(), "NOAUTH") {
		t.Errorf("%v", err)
	}
}

// TestRedisNotFound checks that miniredis is used if no server program is found.
func TestRedisNotFound(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	acct, err := redisAccount("")
	must(t, err)
	_, err = findRedis(t.Context(), openTemp(t), acct, slog.New(slog.DiscardHandler))
	if err == nil {
		return // this machine has a server in a fixed location
	}
	r := startRedis(t, Config{Dir: openTemp(t), CacheDir: openTemp(t)})
	if r.mini == nil {
		t.Error("it is not miniredis")
	}
}
