package queue

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// parseURL parses REDIS_URL into asynq's connection options. It accepts asynq's schemes redis, rediss, redis-socket and
// redis-sentinel (completeSentinels). For a Redis cluster, it accepts
// redis-cluster://[user:password@]host1[:port],host2, and redis-clusters:// for TLS. Errors do not contain the URL,
// because the URL may contain a password.
func parseURL(raw secret.Secret) (asynq.RedisConnOpt, error) {
	text := raw.Reveal()
	scheme, _, ok := strings.Cut(text, "://")
	if !ok {
		return nil, errors.New("REDIS_URL is not a URL: expected redis://host:6379/0, rediss://, " +
			"redis-socket:///path, redis-sentinel:// or redis-cluster://host1,host2")
	}
	if scheme == "redis-cluster" || scheme == "redis-clusters" {
		return parseCluster(text, scheme == "redis-clusters")
	}
	opt, err := asynq.ParseRedisURI(text)
	if err != nil {
		return nil, fmt.Errorf("REDIS_URL with scheme %q cannot be read: check host, port and database number", scheme)
	}
	u, _ := url.Parse(text) // does not fail, because ParseRedisURI calls it too
	switch opt := opt.(type) {
	case asynq.RedisFailoverClientOpt:
		return completeSentinels(opt, u)
	case asynq.RedisClientOpt:
		opt.Username = u.User.Username() // asynq drops it, and Redis needs it for its access control
		if opt.Network != "unix" {
			opt.Addr = addPort(opt.Addr, "6379")
		}
		return opt, nil
	}
	return opt, nil
}

// completeSentinels adds to opt the parts of redis-sentinel://[user:password@]host1[:port],host2[/db]?master=NAME that
// asynq ignores: the credentials and the database number of Redis. Sentinels get the same password, or the value of
// sentinel_password. A Sentinel or Redis without a password accepts any.
func completeSentinels(opt asynq.RedisFailoverClientOpt, u *url.URL) (_ asynq.RedisConnOpt, err error) {
	if db := strings.Trim(u.Path, "/"); db != "" {
		opt.DB, err = strconv.Atoi(db)
	}
	if err != nil || opt.MasterName == "" {
		return nil, errors.New("REDIS_URL: expected redis-sentinel://user:password@host1,host2/0?master=NAME")
	}
	opt.Username, opt.Password = u.User.Username(), opt.SentinelPassword
	opt.SentinelPassword = cmp.Or(u.Query().Get("sentinel_password"), opt.Password)
	for i, host := range opt.SentinelAddrs {
		opt.SentinelAddrs[i] = addPort(host, "26379")
	}
	return opt, nil
}

// addPort returns host with port, unless it has a port. An IPv6 address is in brackets.
func addPort(host, port string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), port)
}

// parseCluster parses the URL of a Redis cluster, which asynq.ParseRedisURI does not support. withTLS selects TLS.
func parseCluster(text string, withTLS bool) (asynq.RedisConnOpt, error) {
	_, rest, _ := strings.Cut(text, "://")
	var opt asynq.RedisClusterClientOpt
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		user, password, _ := strings.Cut(rest[:at], ":")
		var err1, err2 error
		opt.Username, err1 = url.PathUnescape(user)
		opt.Password, err2 = url.PathUnescape(password)
		if err1 != nil || err2 != nil {
			return nil, errors.New("REDIS_URL: user or password is not percent-encoded correctly")
		}
		rest = rest[at+1:]
	}
	for _, host := range strings.Split(strings.TrimSuffix(rest, "/"), ",") {
		if host == "" {
			return nil, errors.New("REDIS_URL: redis-cluster:// needs host1:port,host2:port")
		}
		opt.Addrs = append(opt.Addrs, addPort(host, "6379"))
	}
	if withTLS {
		host, _, _ := net.SplitHostPort(opt.Addrs[0])
		opt.TLSConfig = &tls.Config{ServerName: host}
	}
	return opt, nil
}

// LogDriver sends the messages of the Redis driver to log, at level debug, instead of to standard error. The driver
// writes a line for each failed connection, and the callers log the same errors with more context. All Redis clients of
// a process share one logger, so main calls LogDriver before it starts anything else.
func LogDriver(log *slog.Logger) { redis.SetLogger(driverLogger{log}) }

// driverLogger implements the logger of the Redis driver.
type driverLogger struct{ log *slog.Logger }

func (l driverLogger) Printf(ctx context.Context, format string, args ...any) {
	l.log.DebugContext(ctx, fmt.Sprintf(format, args...), "from", "redis")
}

// UnfitError is the error of CheckServer for a Redis server that Herald must not use: it is too old, or it may evict
// keys and so lose tasks.
type UnfitError struct{ Why string }

func (e *UnfitError) Error() string { return e.Why }

// CheckServer returns an *UnfitError if the Redis server is older than 6.2, which asynq requires, or if its
// maxmemory-policy allows it to evict keys. Any other error means that Redis did not answer.
func (q *Queue) CheckServer(ctx context.Context) error {
	info, err := q.rdb.Info(ctx, "server").Result()
	if err != nil {
		return fmt.Errorf("ask Redis for its version: %w", err)
	}
	if v := infoField(info, "redis_version"); v != "" && olderThan(v, 6, 2) {
		return &UnfitError{fmt.Sprintf("Redis %s is too old: Herald needs 6.2 or newer", v)}
	}
	memory, err := q.rdb.Info(ctx, "memory").Result()
	if err != nil {
		return fmt.Errorf("ask Redis for its memory policy: %w", err)
	}
	if p := infoField(memory, "maxmemory_policy"); p != "" && p != "noeviction" {
		return &UnfitError{fmt.Sprintf("Redis may evict keys (maxmemory-policy %s), and with them queued work: "+
			"set maxmemory-policy noeviction", p)}
	}
	return nil
}

// AppendOnly reports whether Redis writes an append-only file: "yes", "no", or "" if the server does not report it.
func (q *Queue) AppendOnly(ctx context.Context) (string, error) {
	info, err := q.rdb.Info(ctx, "persistence").Result()
	if err != nil {
		return "", fmt.Errorf("ask Redis for its append-only file: %w", err)
	}
	switch infoField(info, "aof_enabled") {
	case "1":
		return "yes", nil
	case "0":
		return "no", nil
	}
	return "", nil
}

// infoField returns the value of a field in the answer to the command INFO. It returns "" if info does not contain the
// field.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// olderThan reports whether version, such as "7.2.4", is below major.minor. It returns false for a version that it
// cannot parse.
func olderThan(version string, major, minor int) bool {
	parts := strings.SplitN(version, ".", 3)
	got := [2]int{}
	for i := range min(len(parts), 2) {
		n, err := strconv.Atoi(parts[i])
		if err != nil {
			return false
		}
		got[i] = n
	}
	return got[0] < major || got[0] == major && got[1] < minor
}

// Redis runs commands in Redis.
//
// It, inspector and putTask hide the types redis.Client and asynq.Task. A package that mentions a struct with one of
// these types inside compiles hundreds of go-redis' methods once more, because redis.Client contains a
// weak.Pointer[Client]. That takes two seconds.
type Redis interface {
	redis.Cmdable
	Close() error
}

// inspector is the part of asynq.Inspector that a Queue uses.
type inspector interface {
	Queues() ([]string, error)
	Servers() ([]*asynq.ServerInfo, error)
	GetQueueInfo(lane string) (*asynq.QueueInfo, error)
	GetTaskInfo(lane, id string) (*asynq.TaskInfo, error)
	DeleteTask(lane, id string) error
	ListPendingTasks(lane string, opts ...asynq.ListOption) ([]*asynq.TaskInfo, error)
	ListActiveTasks(lane string, opts ...asynq.ListOption) ([]*asynq.TaskInfo, error)
	ListScheduledTasks(lane string, opts ...asynq.ListOption) ([]*asynq.TaskInfo, error)
	ListRetryTasks(lane string, opts ...asynq.ListOption) ([]*asynq.TaskInfo, error)
	ListArchivedTasks(lane string, opts ...asynq.ListOption) ([]*asynq.TaskInfo, error)
}

// putTask puts a task of a kind into Redis.
type putTask func(ctx context.Context, kind string, body []byte, headers map[string]string, opts ...asynq.Option) error

func newPutTask(rdb redis.UniversalClient) putTask {
	client := asynq.NewClientFromRedisClient(rdb)
	return func(ctx context.Context, kind string, body []byte, headers map[string]string, opts ...asynq.Option) error {
		_, err := client.EnqueueContext(ctx, asynq.NewTaskWithHeaders(kind, body, headers, opts...))
		return err
	}
}

// redisClient returns a Redis client for asynq's connection options. With a single server, a call ends at the deadline
// of its context, and dialOnce has an effect (Config.DialOnce). With a cluster or with sentinels, neither is the case.
func redisClient(opt asynq.RedisConnOpt, dialOnce bool) (redis.UniversalClient, error) {
	c, ok := opt.MakeRedisClient().(redis.UniversalClient)
	if !ok {
		return nil, fmt.Errorf("queue: connection option %T is not supported", opt)
	}
	if _, single := opt.(asynq.RedisClientOpt); !single {
		return c, nil // the options of these clients cannot be changed afterwards
	}
	o := withoutPush(*c.(*redis.Client).Options())
	o.ContextTimeoutEnabled = true // without it, a call to a frozen Redis ignores the deadline of its context
	if dialOnce {
		o.DialerRetries = 1
	}
	_ = c.Close()
	return redis.NewClient(&o), nil
}

// withoutPush returns o with RESP2 instead of RESP3, the newer protocol of Redis. RESP3 adds push messages and
// maintenance notifications, which Herald does not use. Checking for them costs one more read per command.
func withoutPush(o redis.Options) redis.Options {
	o.Protocol, o.PushNotificationProcessor = 2, nil
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return o
}
