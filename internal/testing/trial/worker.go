package trial

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/agentherald/herald/scripts/script"
)

// WorkerConfig configures a Worker.
type WorkerConfig struct {
	Name        string
	Concurrency int      // concurrent deliveries; default 16
	Env         []string // overrides the trial's settings
}

// Worker is a worker process that can be killed and started again.
type Worker struct {
	*Process // the current process
	site     *Site
	cfg      WorkerConfig
}

// dbSpare is the number of connections beyond the concurrency: for the reconciler, the health check and the gauges.
const dbSpare = 4

// Worker starts a worker. Ready waits until it accepts tasks.
func (s *Site) Worker(cfg WorkerConfig) (*Worker, error) {
	if cfg.Concurrency == 0 {
		cfg.Concurrency = 16
	}
	w := &Worker{site: s, cfg: cfg}
	return w, w.Start()
}

// Start starts a new process after the previous one ended, with a new log.
func (w *Worker) Start() error {
	env := []string{"HERALD_CONCURRENCY=" + strconv.Itoa(w.cfg.Concurrency), "HERALD_DB_POOL=" + strconv.Itoa(w.cfg.Concurrency+dbSpare)}
	p, err := w.site.start(Program{Name: w.cfg.Name, Path: w.site.Programs.worker(), Env: w.site.environment(append(env, w.cfg.Env...)...)})
	if err == nil {
		w.Process = p
	}
	return err
}

// Ready waits until /readyz returns 200.
func (w *Worker) Ready(ctx context.Context) error {
	err := w.Await(ctx, pollQuick, w.cfg.Name+" to be ready", func() (bool, error) {
		status, _, err := w.requestPath(ctx, "/readyz")
		return status == http.StatusOK, err
	})
	if err != nil {
		return fmt.Errorf("%w (%s)", err, w.Log())
	}
	return nil
}

// Metrics returns /metrics as text.
func (w *Worker) Metrics(ctx context.Context) (string, error) {
	_, text, err := w.requestPath(ctx, "/metrics")
	return text, err
}

// requestPath requests a path of its HTTP server.
func (w *Worker) requestPath(ctx context.Context, path string) (status int, body string, err error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	err = script.Try(func() {
		req := script.Must(http.NewRequestWithContext(ctx, http.MethodGet, script.Must(w.Address())+path, nil))
		res := script.Must(client.Do(req))
		defer script.Close(res.Body.Close)
		status, body = res.StatusCode, string(script.Must(io.ReadAll(res.Body)))
	})
	return status, body, err
}

// Address returns the address of its HTTP server, which it reads from the log.
func (w *Worker) Address() (string, error) {
	for l, err := range w.Lines() {
		if err != nil {
			return "", err
		}
		if l.Message == "HTTP server listens" {
			return l.Address, nil
		}
	}
	return "", fmt.Errorf("%s has not said where it listens", w.cfg.Name)
}

// LogLine is one line of a worker's log, with the fields that trials use.
type LogLine struct {
	Level    string         `json:"level"`
	Message  string         `json:"msg"`
	Address  string         `json:"address"`
	Delivery string         `json:"delivery"`
	Agent    string         `json:"agent"`
	Error    string         `json:"error"`
	AheadOf  string         `json:"ahead_of"`
	Reasons  map[string]int `json:"reasons"` // of "deliveries put off"
}

// Lines reads the log of the current process. Lines that are not JSON (a panic) have only a Message.
func (p *Process) Lines() func(yield func(LogLine, error) bool) {
	return func(yield func(LogLine, error) bool) {
		f, err := os.Open(p.log)
		if err != nil {
			yield(LogLine{}, err)
			return
		}
		defer func() { _ = f.Close() }()
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var l LogLine
			if json.Unmarshal(lines.Bytes(), &l) != nil {
				l = LogLine{Message: lines.Text()}
			}
			if !yield(l, nil) {
				return
			}
		}
		if err := lines.Err(); err != nil {
			yield(LogLine{}, err)
		}
	}
}
