package trial

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// outageTime bounds each test on a busy machine. On an idle one it takes ten seconds.
const outageTime = 6 * time.Minute

// TestOutageLogOfPostgres stops Postgres while a worker delivers. At level warn and above, the worker logs one line when
// an outage begins and one when it ends. It is not parallel, because a machine that is too busy for three seconds causes
// an outage too. make soak freezes Postgres too.
func TestOutageLogOfPostgres(t *testing.T) {
	w := newOutageWorld(t)
	w.outage("Postgres", w.Postgres.Stop, w.Postgres.Start)
	if heraldtest.Soaks() {
		w.outage("Postgres", w.Postgres.Freeze, w.Postgres.Thaw)
	}
	w.end()
}

// TestOutageLogOfRedis is TestOutageLogOfPostgres for a frozen Redis. make soak stops and empties it too.
func TestOutageLogOfRedis(t *testing.T) {
	w := newOutageWorld(t)
	w.outage("Redis", w.Redis.Freeze, w.Redis.Thaw)
	if heraldtest.Soaks() {
		w.outage("Redis", w.Redis.Stop, w.Redis.Start)
		w.outage("Redis", w.Redis.Kill, w.Redis.StartEmpty)
	}
	w.must(w.Redis.Client().FlushAll(w.ctx).Err())
	w.flow()
	w.end()
}

// outageWorld is a worker that delivers, and the expected lines of its log.
type outageWorld struct {
	*oneWorker
	serial int
	want   []string // beginnings of lines at level warn and above, in order
}

func newOutageWorld(t *testing.T) *outageWorld {
	t.Helper()
	w := &outageWorld{oneWorker: startOneWorker(t, "outage", outageTime, 6, 24, "HERALD_LEASE=60s")}
	w.agents.BehaveAll(Taking(100 * time.Millisecond))
	w.flow()
	return w
}

// end stops the worker and checks its log.
func (w *outageWorld) end() {
	w.t.Helper()
	w.must(w.worker.Terminate(w.ctx))
	w.check()
}

// oneWorker is a Herald with one ready worker, and agents that answer at once.
type oneWorker struct {
	*Site
	t      *testing.T
	ctx    context.Context
	agents *Agents
	worker *Worker
}

// startOneWorker starts everything for a test that takes at most within.
func startOneWorker(t *testing.T, name string, within time.Duration, agents, concurrency int, env ...string) *oneWorker {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	t.Cleanup(cancel)
	w := &oneWorker{t: t, ctx: ctx, Site: shared.Open(ctx, t, Config{Database: name, Logs: t.TempDir(), Env: env})}
	var err error
	w.agents, err = StartAgents(agents)
	w.must(err)
	t.Cleanup(w.agents.Close)
	w.worker, err = w.Worker(WorkerConfig{Name: "worker", Concurrency: concurrency})
	w.must(err)
	w.must(w.worker.Ready(ctx))
	return w
}

func (w *oneWorker) must(err error) {
	w.t.Helper()
	heraldtest.Must(w.t, err)
}

// flow enqueues deliveries and waits until the worker delivers them.
func (w *outageWorld) flow() {
	w.t.Helper()
	const deliveries = 120
	var lines strings.Builder
	for i := range deliveries {
		lines.WriteString(w.agents.Line(i%w.agents.Len(), w.serial))
		w.serial++
	}
	_, _, err := w.Enqueue(w.ctx, strings.NewReader(lines.String()))
	w.must(err)
	before := w.agents.Count()
	w.must(Until(w.ctx, pollQuick, "deliveries to flow", func() (bool, error) {
		return w.agents.Count() > before+20, nil
	}))
}

// outage stops a service, waits for the log line of the outage, starts the service again and waits for the line of its
// return.
func (w *outageWorld) outage(service string, begin, end func(context.Context) error) {
	w.t.Helper()
	w.must(begin(w.ctx))
	w.says(service + " is away: deliveries wait, nothing is lost. Check ")
	w.must(end(w.ctx))
	w.says(service + " answers again after ")
	w.flow()
}

// says waits for a log line that begins with line, after the earlier expected ones.
func (w *outageWorld) says(line string) {
	w.t.Helper()
	w.want = append(w.want, line)
	err := Until(w.ctx, pollSlow, "the log to say "+line, func() (bool, error) {
		seen := 0
		for l, err := range w.worker.Lines() {
			if err != nil {
				return false, err
			}
			if seen < len(w.want) && strings.HasPrefix(l.Message, w.want[seen]) {
				seen++
			}
		}
		return seen == len(w.want), nil
	})
	if err != nil {
		w.check()
		w.t.Fatal(err)
	}
}

// check compares the log at level warn and above with the expected lines.
func (w *outageWorld) check() {
	w.t.Helper()
	var got []LogLine
	strange := map[string]int{}
	for l, err := range w.worker.Lines() {
		w.must(err)
		switch l.Level {
		case "DEBUG", "INFO":
		case "WARN", "ERROR":
			got = append(got, l)
		default:
			strange[l.Message]++
		}
	}
	for message, n := range strange {
		w.t.Errorf("%d lines without a level: %s", n, message)
	}
	said := map[string]int{}
	for i, l := range got {
		if i >= len(w.want) || !strings.HasPrefix(l.Message, w.want[i]) {
			said[l.Level+" "+l.Message+" "+l.Error]++
		}
	}
	if len(got) != len(w.want) {
		w.t.Errorf("%d outages made %d lines at level warn and above, want %d", len(w.want)/2, len(got), len(w.want))
	}
	for line, n := range said {
		w.t.Errorf("%d × unasked: %.300s", n, line)
	}
}
