package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/config"
	"github.com/agentherald/herald/internal/delivery"
	"github.com/agentherald/herald/internal/devnet/devnettest"
	"github.com/agentherald/herald/internal/embedded/embeddedtest"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store"
)

func TestMain(m *testing.M) {
	queue.LogDriver(slog.New(slog.DiscardHandler))
	embeddedtest.Main(m, devnettest.Leftovers()...)
}

func migrate(ctx context.Context, url string) error {
	_, err := store.Migrate(ctx, secret.New(url))
	return err
}

// running is a service in this process.
type running struct {
	t       testing.TB
	cancel  context.CancelFunc
	ended   chan error
	worker  chan *Worker
	listen  string
	log     *syncBuffer
	mu      sync.Mutex
	steps   []delivery.Step
	outcome error
	stopped bool
}

// run starts a service with this environment; it is stopped with the test at the latest.
func run(t testing.TB, ephemeral bool, env ...string) *running {
	t.Helper()
	r := &running{t: t, ended: make(chan error, 1), worker: make(chan *Worker, 1), listen: embeddedtest.Address(t), log: &syncBuffer{}}
	cfg := load(t, append(env, "HERALD_LISTEN="+r.listen, "HERALD_ALLOW_NETWORKS=127.0.0.0/8", "IPFS_GATEWAYS=http://127.0.0.1:1")...)
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() {
		r.ended <- Run(ctx, cfg, Options{Ephemeral: ephemeral, Logger: slog.New(slog.NewTextHandler(r.log, nil)),
			Running: func(w *Worker) { r.worker <- w },
			Trace: func(s delivery.Step) {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.steps = append(r.steps, s)
			}})
	}()
	t.Cleanup(func() { _ = r.stop() })
	return r
}

// stop asks for an orderly stop, as SIGTERM does, and waits for it.
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

// up waits until it takes tasks.
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

// readiness asks /readyz.
func (r *running) readiness() (status int, waiting map[string]string) {
	status, waiting, _ = r.askReady()
	return status, waiting
}

func (r *running) askReady() (status int, waiting, degraded map[string]string) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	res, err := client.Get("http://" + r.listen + "/readyz")
	if err != nil {
		return 0, nil, nil
	}
	defer res.Body.Close()
	var body struct{ For, Degraded map[string]string }
	_ = json.NewDecoder(res.Body).Decode(&body)
	return res.StatusCode, body.For, body.Degraded
}

// untilReadyWithout waits until /readyz says 200 and names exactly these as what is away.
func (r *running) untilReadyWithout(names ...string) (degraded map[string]string) {
	r.t.Helper()
	var code int
	var waiting map[string]string
	eventually(r.t, func() bool {
		code, waiting, degraded = r.askReady()
		for _, name := range names {
			if degraded[name] == "" {
				return false
			}
		}
		return code == http.StatusOK && len(degraded) == len(names)
	}, func() string {
		return fmt.Sprintf("/readyz says %d, waiting %v, degraded %v, want %v", code, waiting, degraded, names)
	})
	return degraded
}

func (r *running) untilWaitingFor(names ...string) map[string]string {
	r.t.Helper()
	var code int
	var waiting map[string]string
	eventually(r.t, func() bool {
		code, waiting = r.readiness()
		for _, name := range names {
			if waiting[name] == "" {
				return false
			}
		}
		return code == http.StatusServiceUnavailable
	}, func() string { return fmt.Sprintf("/readyz says %d %v, want %v", code, waiting, names) })
	return waiting
}

func (r *running) get(path string) string {
	r.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	res, err := client.Get("http://" + r.listen + path)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		r.t.Fatalf("%s: %d %v %s", path, res.StatusCode, err, b)
	}
	return string(b)
}

func load(t testing.TB, env ...string) *config.Config {
	t.Helper()
	cfg, err := config.Load(env)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func keyset(t testing.TB) string {
	t.Helper()
	k, err := secret.Create()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := k.Write(&b); err != nil {
		t.Fatal(err)
	}
	return "HERALD_KEYSET=" + b.String()
}

// dataFolder is a HERALD_DATA that the user whom root gives the database to can pass through.
func dataFolder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "herald-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if os.Geteuid() == 0 {
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// gate is an address at which nobody is until it is opened; then it is somebody else's.
type gate struct {
	t        testing.TB
	address  string
	network  string
	target   string
	mu       sync.Mutex
	listener net.Listener
	conns    []net.Conn
	wg       sync.WaitGroup
}

func newGate(t testing.TB, network, target string) *gate {
	g := &gate{t: t, address: embeddedtest.Address(t), network: network, target: target}
	t.Cleanup(g.close)
	return g
}

// gates for what embeddedtest gives.
func postgresGate(t testing.TB, migrate func(context.Context, string) error) (*gate, string) {
	t.Helper()
	u, err := url.Parse(embeddedtest.Postgres(t, migrate))
	if err != nil {
		t.Fatal(err)
	}
	g := newGate(t, "tcp", u.Host)
	if dir := u.Query().Get("host"); strings.HasPrefix(dir, "/") {
		g.network, g.target = "unix", dir+"/.s.PGSQL."+u.Query().Get("port")
	}
	u.Host, u.RawQuery = g.address, "sslmode=disable"
	return g, u.String()
}

func redisGate(t testing.TB) (*gate, string) {
	t.Helper()
	raw := embeddedtest.Redis(t)
	if path, ok := strings.CutPrefix(raw, "redis-socket://"); ok {
		g := newGate(t, "unix", path)
		return g, "redis://" + g.address
	}
	u, err := url.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	g := newGate(t, "tcp", u.Host)
	u.Host = g.address
	return g, u.String()
}

func (g *gate) open() {
	g.t.Helper()
	l, err := net.Listen("tcp", g.address)
	if err != nil {
		g.t.Fatal(err)
	}
	g.mu.Lock()
	g.listener = l
	g.mu.Unlock()
	g.wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial(g.network, g.target)
			if err != nil {
				_ = in.Close()
				continue
			}
			g.mu.Lock()
			g.conns = append(g.conns, in, out)
			g.mu.Unlock()
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				g.wg.Go(func() {
					_, _ = io.Copy(way[0], way[1])
					_ = way[0].Close()
				})
			}
		}
	})
}

// close drops whoever is connected.
func (g *gate) close() {
	g.mu.Lock()
	l, conns := g.listener, g.conns
	g.listener, g.conns = nil, nil
	g.mu.Unlock()
	if l != nil {
		_ = l.Close()
	}
	for _, c := range conns {
		_ = c.Close()
	}
	g.wg.Wait()
}

// agent takes feedback; hold, when set, keeps each call until it is closed.
type agent struct {
	*httptest.Server
	begun chan bool
	hold  chan bool
	mu    sync.Mutex
	calls int
}

func newAgent(t testing.TB) *agent {
	t.Helper()
	a := &agent{begun: make(chan bool, 100), hold: make(chan bool)}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Server.Close)
	return a
}

func (a *agent) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.calls
}

func (a *agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req struct {
		ID     json.RawMessage
		Method string
	}
	if r.URL.Path == "/.well-known/agent-registration.json" {
		http.NotFound(w, r)
		return
	}
	if r.Method == http.MethodPost {
		_ = json.NewDecoder(r.Body).Decode(&req)
	}
	answer := func(result string) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, req.ID, result)
	}
	switch req.Method {
	case "initialize":
		answer(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"a","version":"1"}}`)
	case "tools/list":
		answer(`{"tools":[{"name":"agent.receiveFeedback","inputSchema":{"type":"object"}}]}`)
	case "tools/call":
		a.mu.Lock()
		a.calls++
		a.mu.Unlock()
		a.begun <- true
		<-a.hold
		answer(`{"content":[{"type":"text","text":"thank you"}]}`)
	case "":
		w.WriteHeader(http.StatusMethodNotAllowed)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// eventually polls until ok; state says where things are when they are not.
func eventually(t testing.TB, ok func() bool, state func() string) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatal("not within 30 s: " + state())
		}
	}
}

func receive[T any](t testing.TB, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(30 * time.Second):
		t.Fatal("not within 30 s: " + what)
		panic("unreachable")
	}
}

var errStop = errors.New("stop")

func fileNames(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
