package queue

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// options are the options of the Redis clients of a Queue. They implement asynq.RedisConnOpt.
type options struct{ redis.UniversalOptions }

// MakeRedisClient returns a new client of a server, of a cluster, or of the master that the Sentinels name.
func (o options) MakeRedisClient() any { return redis.NewUniversalClient(&o.UniversalOptions) }

// parseURL parses REDIS_URL. It accepts these forms:
//
//	redis://[user:password@]host[:port][/db]     rediss:// with TLS
//	redis-socket://[user:password@]/path[?db=N]
//	redis-sentinel://[user:password@]host1[:port],host2[/db]?master=NAME     rediss-sentinel:// with TLS
//	redis-cluster://[user:password@]host1[:port],host2     redis-clusters:// with TLS
//
// Sentinels get the same password as Redis, or the value of the parameter sentinel_password. A Sentinel or Redis
// without a password accepts any. The parameters of TLS are those of newTLSConfig. Errors do not contain the URL,
// because the URL may contain a password.
func parseURL(raw secret.Secret) (o options, _ error) {
	scheme, rest, ok := strings.Cut(raw.Reveal(), "://")
	if !ok {
		return o, errors.New("REDIS_URL is not a URL: expected redis://host:6379/0, rediss://, redis-socket:///path, " +
			"redis-sentinel://host1,host2/0?master=NAME or redis-cluster://host1,host2")
	}
	refusal := fmt.Errorf("REDIS_URL with scheme %q cannot be read: check host, port and database number, "+
		"the percent-encoding of user and password, and ?master=NAME of Sentinels", scheme)
	o.IsClusterMode = scheme == "redis-cluster" || scheme == "redis-clusters"
	end := 0
	if o.IsClusterMode {
		end = strings.LastIndexByte(rest, '@') + 1
	}
	end += strings.IndexAny(rest[end:]+"/", "/?#")
	begin := strings.LastIndexByte(rest[:end], '@') + 1
	hosts := strings.Split(rest[begin:end], ",")
	user, password, _ := strings.Cut(strings.TrimSuffix(rest[:begin], "@"), ":")
	var errs [2]error
	o.Username, errs[0] = url.PathUnescape(user)
	o.Password, errs[1] = url.PathUnescape(password)
	u, err := url.Parse(scheme + "://" + rest[end:]) // with the scheme, a path that begins with // names no host
	var query url.Values
	if err = cmp.Or(err, errs[0], errs[1]); err == nil {
		query, err = url.ParseQuery(u.RawQuery)
	}
	if err != nil || u.Fragment != "" {
		return o, refusal
	}

	db, port, isTLS, known := cmp.Or(strings.Trim(u.Path, "/"), query.Get("db")), "6379", false, []string{"db"}
	switch scheme {
	case "redis", "redis-cluster":
	case "rediss", "redis-clusters":
		isTLS = true
	case "redis-socket":
		hosts, o.Addrs, db = nil, []string{u.Path}, query.Get("db")
	case "redis-sentinel", "rediss-sentinel":
		port, o.MasterName, isTLS = "26379", query.Get("master"), scheme == "rediss-sentinel"
		o.SentinelPassword = cmp.Or(query.Get("sentinel_password"), o.Password)
		known = append(known, "master", "sentinel_password")
	default:
		return o, refusal
	}
	if isTLS {
		known = append(known, "sslrootcert", "sslcert", "sslkey")
	}
	for name := range query {
		if !slices.Contains(known, name) { // the error does not name it: it may be a part of the password
			return o, fmt.Errorf("REDIS_URL has an unknown parameter: with scheme %q, known are %s. "+
				"Write a ? in user or password as %%3F", scheme, strings.Join(known, ", "))
		}
	}
	for _, host := range hosts {
		h, err := url.Parse("redis://" + host)
		if err != nil || h.Path != "" || host == "" && o.IsClusterMode {
			return o, refusal
		}
		o.Addrs = append(o.Addrs, net.JoinHostPort(h.Hostname(), cmp.Or(h.Port(), port)))
	}
	if db != "" {
		o.DB, err = strconv.Atoi(db)
	}
	if err != nil || o.Addrs[0] == "" || strings.HasSuffix(scheme, "-sentinel") && o.MasterName == "" ||
		len(o.Addrs) > 1 && !o.IsClusterMode && o.MasterName == "" || o.IsClusterMode && o.DB != 0 {
		return o, refusal
	}
	if isTLS {
		o.TLSConfig, err = newTLSConfig(query)
	}
	if isTLS && err == nil && o.MasterName == "" { // a Sentinel names another host; then the dialled host counts
		o.TLSConfig.ServerName, _, _ = net.SplitHostPort(o.Addrs[0])
	}
	return o, err
}

// newTLSConfig returns the TLS settings of the parameters sslrootcert, sslcert and sslkey, which have the names and the
// meaning of those in DATABASE_URL: files with the certificates of authorities to trust instead of the system's, with
// the client's certificate, and with its key. The client's files are read again for each connection, so that they can
// be replaced.
func newTLSConfig(query url.Values) (*tls.Config, error) {
	c := &tls.Config{}
	if file := query.Get("sslrootcert"); file != "" {
		pem, err := os.ReadFile(file)
		c.RootCAs = x509.NewCertPool()
		if err == nil && !c.RootCAs.AppendCertsFromPEM(pem) {
			err = fmt.Errorf("%s contains no certificate in PEM", file)
		}
		if err != nil {
			return nil, fmt.Errorf("REDIS_URL: sslrootcert: %w", err)
		}
	}
	certificate, key := query.Get("sslcert"), query.Get("sslkey")
	if certificate == "" && key == "" {
		return c, nil
	}
	if _, err := tls.LoadX509KeyPair(certificate, key); err != nil {
		return nil, fmt.Errorf("REDIS_URL: sslcert and sslkey: %w", err)
	}
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(certificate, key)
		return &pair, err
	}
	return c, nil
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

// UnfitError is the error of CheckServer for a Redis server that Herald must not use: it is too old, it may evict keys
// and so lose tasks, or it refuses commands.
type UnfitError struct{ Why string }

func (e *UnfitError) Error() string { return e.Why }

// CheckServer returns an *UnfitError if the Redis server is older than 6.2, which asynq requires, if its
// maxmemory-policy allows it to evict keys, or if it refuses a command that Herald needs. Any other error means that
// Redis did not answer.
func (q *Queue) CheckServer(ctx context.Context) error {
	info, err := q.rdb.Info(ctx, "server").Result()
	if refusal := findRefusal("info", err); refusal != nil {
		return refusal
	}
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
	return q.checkRights(ctx)
}

// Clock returns the time of the Redis server. In a cluster, it is that of any node.
func (q *Queue) Clock(ctx context.Context) (time.Time, error) { return q.rdb.Time(ctx).Result() }

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
