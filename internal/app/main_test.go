package app

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/delivery"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

func TestMain(m *testing.M) {
	if os.Getenv(helperVariable) != "" {
		runHelper()
	}
	queue.LogDriver(slog.New(slog.DiscardHandler))
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))) // the tests wait more than they compute
	}
	heraldtest.Main(m)
}

// running is a service that runs in this process.
type running struct {
	t       testing.TB
	cancel  context.CancelFunc
	ended   chan error
	worker  chan *Worker
	listen  string
	log     *heraldtest.Log
	mu      sync.Mutex
	steps   []delivery.Step
	outcome error
	stopped bool
}

// run starts a service with this environment. It is stopped at the end of the test, if not before.
func run(t testing.TB, ephemeral bool, env ...string) *running {
	t.Helper()
	return runWith(t, Options{Ephemeral: ephemeral}, env...)
}

// runWith is run with options of the test's own.
func runWith(t testing.TB, o Options, env ...string) *running {
	t.Helper()
	r := &running{t: t, ended: make(chan error, 1), worker: make(chan *Worker, 1), listen: heraldtest.Address(t), log: &heraldtest.Log{}}
	cfg := load(t, append(env, "HERALD_LISTEN="+r.listen, "HERALD_ALLOW_NETWORKS=127.0.0.0/8", "IPFS_GATEWAYS=http://127.0.0.1:1")...)
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	o.Logger, o.ChainLook = slog.New(slog.NewTextHandler(r.log, nil)), 200*time.Millisecond
	o.Running = func(w *Worker) { r.worker <- w }
	o.Trace = func(s delivery.Step) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.steps = append(r.steps, s)
	}
	go func() { r.ended <- Run(ctx, cfg, o) }()
	t.Cleanup(func() { _ = r.stop() })
	return r
}

// stop requests an orderly stop, as SIGTERM does, and waits for it.
func (r *running) stop() error {
	r.cancel()
	return r.wait()
}

func (r *running) wait() error {
	r.t.Helper()
	if !r.stopped {
		r.stopped = true
		select {
		case r.outcome = <-r.ended:
		case <-time.After(60 * time.Second):
			r.t.Fatalf("the service does not end; it said:\n%s", r.log)
		}
	}
	return r.outcome
}

// up waits until the service processes tasks.
func (r *running) up() *Worker {
	r.t.Helper()
	select {
	case w := <-r.worker:
		return w
	case err := <-r.ended:
		r.stopped, r.outcome = true, err
		r.t.Fatalf("the service ended: %v; it said:\n%s", err, r.log)
	case <-time.After(60 * time.Second):
		r.t.Fatalf("the service does not begin; it said:\n%s", r.log)
	}
	return nil
}

// untilReadyz waits until /readyz answers as a test wants it. w and d are the waiting and the degraded services.
func (r *running) untilReadyz(is func(status int, waiting, degraded map[string]string) bool) (w, d map[string]string) {
	r.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	status := 0
	heraldtest.AwaitState(r.t, func() bool {
		res, err := client.Get("http://" + r.listen + "/readyz")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		var body struct{ For, Degraded map[string]string }
		_ = json.NewDecoder(res.Body).Decode(&body)
		status, w, d = res.StatusCode, body.For, body.Degraded
		return is(status, w, d)
	}, func() string {
		return fmt.Sprintf("/readyz says %d, waiting %v, degraded %v; the log:\n%s", status, w, d, r.log)
	})
	return w, d
}

// untilReadyWithout waits until /readyz returns 200 and reports exactly these services as degraded.
func (r *running) untilReadyWithout(names ...string) (degraded map[string]string) {
	r.t.Helper()
	_, degraded = r.untilReadyz(func(status int, _, degraded map[string]string) bool {
		return status == http.StatusOK && len(degraded) == len(names) && namesEach(degraded, names)
	})
	return degraded
}

func (r *running) untilWaitingFor(names ...string) (waiting map[string]string) {
	r.t.Helper()
	waiting, _ = r.untilReadyz(func(status int, waiting, _ map[string]string) bool {
		return status == http.StatusServiceUnavailable && namesEach(waiting, names)
	})
	return waiting
}

func namesEach(reasons map[string]string, names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return reasons[name] == "" })
}

// get returns the page at a path. token is the API token; "": none.
func (r *running) get(token, path string) string {
	r.t.Helper()
	status, body := r.ask(http.MethodGet, token, path, nil)
	if status != http.StatusOK {
		r.t.Fatalf("%s: %d %s", path, status, body)
	}
	return body
}

func (r *running) ask(method, token, path string, body any) (int, string) {
	r.t.Helper()
	raw, _ := json.Marshal(body)
	req, err := http.NewRequestWithContext(heraldtest.Within(r.t, 30*time.Second), method, "http://"+r.listen+path,
		bytes.NewReader(raw))
	heraldtest.Must(r.t, err)
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	heraldtest.Must(r.t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	heraldtest.Must(r.t, err)
	return res.StatusCode, string(b)
}

// servicesEnv returns the settings of a Postgres, a Redis and a keyset of the test's own, and more.
func servicesEnv(t testing.TB, more ...string) []string {
	t.Helper()
	return append([]string{"DATABASE_URL=" + heraldtest.Postgres(t, postgres.Migrate),
		"REDIS_URL=" + heraldtest.Redis(t), "HERALD_KEYSET=" + heraldtest.Keyset(t)}, more...)
}

// workerEnv is servicesEnv with the settings of a chain.
func workerEnv(t testing.TB, n *devnet.Net, more ...string) []string {
	t.Helper()
	return append(chainEnv(n, n.URL()), servicesEnv(t, more...)...)
}

func load(t testing.TB, env ...string) *config.Config {
	t.Helper()
	cfg, err := config.Load(env)
	heraldtest.Must(t, err)
	return cfg
}

// write replaces a file, so that a worker reads either the old or the new one.
func write(t testing.TB, path, content string) {
	t.Helper()
	heraldtest.Must(t, os.WriteFile(path+".new", []byte(content), 0o600))
	heraldtest.Must(t, os.Rename(path+".new", path))
}

// dataFolder returns a folder for HERALD_DATA that the account which runs Postgres for root can enter.
func dataFolder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "herald-test-")
	heraldtest.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if os.Geteuid() == 0 {
		heraldtest.Must(t, os.Chmod(dir, 0o711))
	}
	return dir
}

// agent accepts feedback. Each call blocks until hold is closed.
type agent struct {
	*httptest.Server
	http.Handler
	begun chan bool
	hold  chan bool
	calls atomic.Int32
}

// newAgent starts an agent, with a listener of the test's own if there is one.
func newAgent(t testing.TB, at ...net.Listener) *agent {
	t.Helper()
	a := &agent{begun: make(chan bool, 100), hold: make(chan bool)}
	tools := server.NewMCPServer("a", "1")
	tools.AddTool(mcp.NewTool("agent.receiveFeedback"), func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		a.calls.Add(1)
		a.begun <- true
		<-a.hold
		return mcp.NewToolResultText("thank you"), nil
	})
	mux := http.NewServeMux()
	mux.Handle("/", server.NewStreamableHTTPServer(tools, server.WithStateLess(true)))
	mux.Handle("/.well-known/", http.NotFoundHandler())
	a.Handler = mux
	a.Server = httptest.NewUnstartedServer(mux)
	if len(at) > 0 {
		a.Listener = at[0]
	}
	a.Start()
	t.Cleanup(a.Server.Close)
	return a
}

// openAgent starts an agent that answers each call at once.
func openAgent(t testing.TB) *agent {
	t.Helper()
	a := newAgent(t)
	close(a.hold)
	return a
}

func (a *agent) count() int { return int(a.calls.Load()) }
