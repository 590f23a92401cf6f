package embedded

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

func startRedis(t *testing.T, cfg RedisConfig) *Redis {
	t.Helper()
	cfg.Logger = testLogger(t)
	r, err := StartRedis(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Stop(context.Background()) })
	return r
}

func stopRedis(t *testing.T, r *Redis) {
	t.Helper()
	if err := r.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	<-r.Done()
}

// connect opens a client the way asynq would.
func connect(t *testing.T, address string) *redis.Client {
	t.Helper()
	opt, err := asynq.ParseRedisURI(address)
	if err != nil {
		t.Fatal(err)
	}
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
	if err := connect(t, address).Set(t.Context(), key, value, 0).Err(); err != nil {
		t.Fatal(err)
	}
}

// TestRedisKeepsData is about both kinds: a proper stop, then kill -9 of the process that owns it.
func TestRedisKeepsData(t *testing.T) {
	for _, mode := range []RedisMode{RedisServer, RedisMini} {
		t.Run(string(mode), func(t *testing.T) {
			if mode == RedisServer {
				needRedis(t)
			}
			dir := openTemp(t)
			r := startRedis(t, RedisConfig{Dir: dir, Mode: mode})
			set(t, r.URL(), "kept", "yes")
			var inUse *InUseError
			if _, err := StartRedis(t.Context(), RedisConfig{Dir: dir, Mode: mode}); !errors.As(err, &inUse) {
				t.Errorf("a second start on the folder: %v", err)
			}
			if u, err := url.Parse(r.URL()); err != nil || strings.Contains(r.Describe(), "://") {
				t.Errorf("%v, describe: %s", err, r.Describe())
			} else if password, ok := u.User.Password(); ok && strings.Contains(r.Describe(), password) {
				t.Error("Describe tells the password")
			}
			stopRedis(t, r)

			h := startHelper(t, string(mode), dir, 0)
			if h.said.Error != "" {
				t.Fatal(h.said.Error)
			}
			if got := get(t, h.said.URL, "kept"); got != "yes" {
				t.Errorf("after a restart: %q", got)
			}
			set(t, h.said.URL, "late", "yes")
			if mode == RedisMini {
				path := filepath.Join(dir, "redis", snapshotName)
				eventually(t, "a snapshot with the late key", func() bool {
					f, err := os.Open(path)
					if err != nil {
						return false
					}
					defer f.Close()
					s, err := readSnapshot(f)
					return err == nil && slices.ContainsFunc(s.entries, func(e entry) bool { return string(e.Key) == "late" })
				})
			}
			pid := h.said.PID
			h.kill()
			if pid != 0 {
				eventually(t, "the server is gone", func() bool { return !alive(pid) })
			}
			r = startRedis(t, RedisConfig{Dir: dir, Mode: mode})
			for _, key := range []string{"kept", "late"} {
				if got := get(t, r.URL(), key); got != "yes" {
					t.Errorf("%s after kill -9: %q", key, got)
				}
			}
		})
	}
}

func TestRedisServer(t *testing.T) {
	needRedis(t)
	t.Run("settings", func(t *testing.T) {
		r := startRedis(t, RedisConfig{Dir: openTemp(t)})
		s, ok := r.engine.(*redisServer)
		if !ok {
			t.Fatalf("auto chose %T although a server is here", r.engine)
		}
		c := connect(t, r.URL())
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
		dir := openTemp(t)
		r := startRedis(t, RedisConfig{Dir: dir, Mode: RedisServer})
		set(t, r.URL(), "kept", "yes")
		s := r.engine.(*redisServer)
		s.child.setServing(false)
		if err := r.lock.Release(); err != nil {
			t.Fatal(err)
		}
		again := startRedis(t, RedisConfig{Dir: dir, Mode: RedisServer})
		<-r.Done()
		if got := get(t, again.URL(), "kept"); got != "yes" {
			t.Errorf("kept %q", got)
		}
	})
	t.Run("long path, ephemeral", func(t *testing.T) {
		r := startRedis(t, RedisConfig{Dir: filepath.Join(openTemp(t), strings.Repeat("long-name-", 12)), Mode: RedisServer})
		set(t, r.URL(), "k", "v")
		stopRedis(t, r)
		e := startRedis(t, RedisConfig{Ephemeral: true, Mode: RedisServer})
		set(t, e.URL(), "k", "v")
		stopRedis(t, e)
		if _, err := os.Stat(e.ephemeral.dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v", err)
		}
	})
	t.Run("does not start", func(t *testing.T) {
		dir := openTemp(t)
		r := startRedis(t, RedisConfig{Dir: dir, Mode: RedisServer})
		set(t, r.URL(), "kept", "yes")
		stopRedis(t, r)
		manifest, err := filepath.Glob(filepath.Join(dir, "redis/data/appendonly*/*.manifest"))
		if err != nil || len(manifest) == 0 {
			t.Fatal("no append-only manifest", err)
		}
		if err := os.WriteFile(manifest[0], []byte("nonsense\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := StartRedis(t.Context(), RedisConfig{Dir: dir, Mode: RedisServer}); err == nil || !strings.Contains(err.Error(), "ended while starting") {
			t.Errorf("%v", err)
		}
		r = startRedis(t, RedisConfig{Dir: dir})
		if _, ok := r.engine.(*mini); !ok {
			t.Errorf("auto gave %T", r.engine)
		}
	})
}

func TestRedisConfigRefused(t *testing.T) {
	for name, cfg := range map[string]RedisConfig{
		"no folder": {}, "both": {Dir: "/x", Ephemeral: true}, "mode": {Ephemeral: true, Mode: "x"}, "interval": {Ephemeral: true, SnapshotEvery: -1},
	} {
		if _, err := StartRedis(t.Context(), cfg); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestMiniSnapshot holds every type that asynq uses, with bytes that are no text, lifetimes, and more elements than go into one
// command.
func TestMiniSnapshot(t *testing.T) {
	ctx := t.Context()
	dir := openTemp(t)
	r := startRedis(t, RedisConfig{Dir: dir, Mode: RedisMini})
	c := connect(t, r.URL())
	odd := "\x00\xff\xfe\r\n\"π"
	var many []any
	for i := range 2500 {
		many = append(many, fmt.Sprint(i))
	}
	pipe := c.Pipeline()
	pipe.Set(ctx, odd, odd, 0)
	pipe.Set(ctx, "empty", "", 0)
	pipe.Set(ctx, "lives", "v", time.Hour)
	pipe.Set(ctx, "dies", "v", 40*time.Millisecond)
	pipe.RPush(ctx, "list", many...)
	pipe.SAdd(ctx, "set", "a", odd)
	pipe.ZAdd(ctx, "zset", redis.Z{Score: 1.5, Member: odd}, redis.Z{Score: 1770000000, Member: "b"}, redis.Z{Score: -1e300, Member: "c"})
	pipe.HSet(ctx, "hash", odd, odd, "n", 1)
	if _, err := pipe.Exec(ctx); err != nil {
		t.Fatal(err)
	}
	stopRedis(t, r)
	if info, err := os.Stat(filepath.Join(dir, "redis", snapshotName)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	eventually(t, "time to pass", func() bool { return time.Since(modTime(t, dir)) > 50*time.Millisecond })

	r = startRedis(t, RedisConfig{Dir: dir, Mode: RedisMini})
	c = connect(t, r.URL())
	check := func(what string, got any, err error, want any) {
		t.Helper()
		if err != nil || fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
			t.Errorf("%s: %q %v", what, got, err)
		}
	}
	got, err := c.Get(ctx, odd).Result()
	check("string", got, err, odd)
	got, err = c.Get(ctx, "empty").Result()
	check("empty string", got, err, "")
	n, err := c.Exists(ctx, "dies").Result()
	check("key that died meanwhile", n, err, int64(0))
	if left, err := c.PTTL(ctx, "lives").Result(); err != nil || left > time.Hour-30*time.Millisecond || left < 50*time.Minute {
		t.Errorf("lifetime %v %v", left, err)
	}
	if left, err := c.PTTL(ctx, "list").Result(); err != nil || left != -1 {
		t.Errorf("lifetime of what lives for ever: %v %v", left, err)
	}
	list, err := c.LRange(ctx, "list", 0, -1).Result()
	if err != nil || len(list) != 2500 || list[0] != "0" || list[2499] != "2499" {
		t.Errorf("list: %d %v", len(list), err)
	}
	members, err := c.SMembers(ctx, "set").Result()
	slices.Sort(members)
	check("set", members, err, []string{odd, "a"})
	scores, err := c.ZRangeWithScores(ctx, "zset", 0, -1).Result()
	if err != nil || len(scores) != 3 || scores[0].Score != -1e300 || scores[1].Score != 1.5 || scores[1].Member != odd || scores[2].Score != 1770000000 {
		t.Errorf("zset: %v %v", scores, err)
	}
	hash, err := c.HGetAll(ctx, "hash").Result()
	if err != nil || !maps.Equal(hash, map[string]string{odd: odd, "n": "1"}) {
		t.Errorf("hash: %v %v", hash, err)
	}
}

func modTime(t *testing.T, dir string) time.Time {
	info, err := os.Stat(filepath.Join(dir, "redis", snapshotName))
	if err != nil {
		t.Fatal(err)
	}
	return info.ModTime()
}

// TestMiniQueue lets asynq itself find its tasks again.
func TestMiniQueue(t *testing.T) {
	dir := openTemp(t)
	r := startRedis(t, RedisConfig{Dir: dir, Mode: RedisMini})
	open := func() asynq.RedisConnOpt {
		opt, err := asynq.ParseRedisURI(r.URL())
		if err != nil {
			t.Fatal(err)
		}
		return opt
	}
	client := asynq.NewClient(open())
	const tasks = 20
	for i := range tasks {
		if _, err := client.Enqueue(asynq.NewTask("t", []byte(fmt.Sprint(i))), asynq.TaskID(fmt.Sprint(i)), asynq.Unique(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	stopRedis(t, r)
	r = startRedis(t, RedisConfig{Dir: dir, Mode: RedisMini})
	done := make(chan struct{}, tasks)
	server := asynq.NewServer(open(), asynq.Config{Concurrency: 2, LogLevel: asynq.FatalLevel, TaskCheckInterval: 20 * time.Millisecond})
	if err := server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { done <- struct{}{}; return nil })); err != nil {
		t.Fatal(err)
	}
	defer server.Shutdown()
	for i := range tasks {
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatalf("%d of %d tasks were run", i, tasks)
		}
	}
}

func TestMiniLifetimes(t *testing.T) {
	r := startRedis(t, RedisConfig{Ephemeral: true, Mode: RedisMini})
	c := connect(t, r.URL())
	if err := c.Set(t.Context(), "short", "v", 300*time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the key dies", func() bool { return c.Exists(t.Context(), "short").Val() == 0 })
	// Nobody without the password gets in.
	u, err := url.Parse(r.URL())
	if err != nil {
		t.Fatal(err)
	}
	stranger := redis.NewClient(&redis.Options{Addr: u.Host, MaxRetries: -1})
	defer stranger.Close()
	if err := stranger.Get(t.Context(), "short").Err(); err == nil || !strings.Contains(err.Error(), "NOAUTH") {
		t.Errorf("%v", err)
	}
}

func TestMiniUnreadableSnapshot(t *testing.T) {
	for name, content := range map[string]string{
		"empty":       "",
		"other":       "hello",
		"cut":         `{"format":"herald-miniredis-1","taken":"2026-11-21T00:00:00Z","keys":2}` + "\n" + `{"k":"YQ==","t":"string","ttl":-1,"v":["Yg=="]}` + "\n",
		"wrong type":  `{"format":"herald-miniredis-1","taken":"2026-11-21T00:00:00Z","keys":1}` + "\n" + `{"k":"YQ==","t":"stream","ttl":-1,"v":["Yg=="]}` + "\n",
		"wrong score": `{"format":"herald-miniredis-1","taken":"2026-11-21T00:00:00Z","keys":1}` + "\n" + `{"k":"YQ==","t":"zset","ttl":-1,"v":["Yg==","Yg=="]}` + "\n",
		"same key as two types": `{"format":"herald-miniredis-1","taken":"2026-11-21T00:00:00Z","keys":2}` + "\n" +
			`{"k":"YQ==","t":"string","ttl":-1,"v":["Yg=="]}` + "\n" + `{"k":"YQ==","t":"list","ttl":-1,"v":["Yg=="]}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			dir := openTemp(t)
			path := filepath.Join(dir, "redis", snapshotName)
			if err := ensureDir(filepath.Dir(path)); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			r := startRedis(t, RedisConfig{Dir: dir, Mode: RedisMini})
			if n, err := connect(t, r.URL()).DBSize(t.Context()).Result(); err != nil || n != 0 {
				t.Errorf("%d keys, %v", n, err)
			}
			if b, err := os.ReadFile(path + ".unreadable"); err != nil || string(b) != content {
				t.Errorf("not set aside: %v", err)
			}
		})
	}
}

func FuzzReadSnapshot(f *testing.F) {
	var b bytes.Buffer
	err := snapshot{taken: time.Unix(1770000000, 0), entries: []entry{
		{Key: []byte("k"), Type: "zset", TTL: -1, Values: [][]byte{[]byte("m"), []byte("1.5")}},
		{Key: []byte("h"), Type: "hash", TTL: 5, Values: [][]byte{[]byte("f"), []byte("v")}},
	}}.write(&b)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte(`{"format":"herald-miniredis-1","keys":-1}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		s, err := readSnapshot(bytes.NewReader(in))
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := s.write(&out); err != nil {
			t.Skip() // a year that JSON cannot write
		}
		again, err := readSnapshot(&out)
		if err != nil || len(again.entries) != len(s.entries) {
			t.Fatalf("what was read does not survive: %v", err)
		}
	})
}

// TestMiniSnapshotFails: a folder that cannot be written to is told, not hidden.
func TestMiniSnapshotFails(t *testing.T) {
	dir := openTemp(t)
	r := startRedis(t, RedisConfig{Dir: dir, Mode: RedisMini})
	if err := os.RemoveAll(filepath.Join(dir, "redis")); err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(context.Background()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	<-r.Done()
}

// TestRedisNotFound: no server anywhere gives miniredis.
func TestRedisNotFound(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	acct, err := redisAccount("")
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = findRedis(t.Context(), openTemp(t), acct, slog.New(slog.DiscardHandler))
	if err == nil {
		return // this machine has one in a fixed place
	}
	r := startRedis(t, RedisConfig{Dir: openTemp(t), CacheDir: openTemp(t)})
	if _, ok := r.engine.(*mini); !ok {
		t.Errorf("%T", r.engine)
	}
}
