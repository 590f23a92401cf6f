package legacy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

// everywhere runs a test on a real Redis and on miniredis.
func everywhere(t *testing.T, test func(t *testing.T, rdb redis.Cmdable)) {
	heraldtest.EachRedis(t, func(t *testing.T, url string) { test(t, newClient(t, url)) })
}

// newClient returns a client with the service's settings.
func newClient(t testing.TB, url string) redis.Cmdable {
	t.Helper()
	q, err := queue.Open(queue.Config{URL: secret.New(url), Logger: slog.New(slog.DiscardHandler)})
	heraldtest.Must(t, err)
	c := q.Client(5 * time.Second)
	t.Cleanup(func() { _ = errors.Join(c.Close(), q.Close()) })
	return c
}

// jobList is an Acceptor that counts how often each element was committed.
type jobList struct {
	mu        sync.Mutex
	committed map[string]int
	order     []string
	fail      func() error // called before a commit; nil: the commit succeeds
}

func newLedger() *jobList { return &jobList{committed: map[string]int{}} }

func (l *jobList) FromList(_ context.Context, elements []intake.Element) ([]intake.Answer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		if err := l.fail(); err != nil {
			return nil, err
		}
	}
	taken := make([]intake.Answer, len(elements))
	for i, e := range elements {
		taken[i].Verdict = ledger.Accepted
		if l.committed[string(e.Body)]++; l.committed[string(e.Body)] > 1 {
			taken[i].Verdict = ledger.Known
		}
		l.order = append(l.order, string(e.Body))
	}
	return taken, nil
}

func (l *jobList) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.committed)
}

const listOfJobs = "action_jobs"

func newConsumer(t testing.TB, rdb redis.Cmdable, l Acceptor, adapt ...func(*Config)) *Consumer {
	t.Helper()
	metrics, err := NewMetrics(prometheus.NewRegistry())
	heraldtest.Must(t, err)
	cfg := Config{Client: rdb, Acceptor: l, List: listOfJobs, Metrics: metrics,
		PollInterval: time.Millisecond, Logger: slog.New(slog.DiscardHandler)}
	for _, a := range adapt {
		a(&cfg)
	}
	c, err := New(cfg)
	heraldtest.Must(t, err)
	return c
}

// run runs consumers until the test ends or stop is called.
func run(t testing.TB, consumers ...*Consumer) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for _, c := range consumers {
		all.Go(func() { c.Run(ctx) })
	}
	stop = func() {
		cancel()
		all.Wait()
	}
	t.Cleanup(stop)
	return stop
}

func push(t testing.TB, rdb redis.Cmdable, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		heraldtest.Must(t, rdb.LPush(t.Context(), listOfJobs, fmt.Sprintf("job %05d", i)).Err())
	}
}

// keysOf returns the keys in Redis.
func keysOf(t testing.TB, rdb redis.Cmdable) []string {
	t.Helper()
	keys, err := rdb.Keys(t.Context(), "*").Result()
	heraldtest.Must(t, err)
	return keys
}
