package trial

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// WorkerConfig makes a Worker.
type WorkerConfig struct {
	Name        string
	Concurrency int      // deliveries at a time; default 16
	Programs    Programs // default the site's; another commit's may take part
	Env         []string // outweighs the trial's settings
	// Application names its connections to Postgres (application_name), for whoever wants to cut them.
	Application string
}

// Worker is one worker process after the other: it can be killed and started again.
type Worker struct {
	*Process // the present one
	site     *Site
	cfg      WorkerConfig
}

// dbSpare are connections beyond the concurrency: the sweeper's, health's, the gauges'.
const dbSpare = 4

// Worker starts a worker; Ready waits until it takes tasks.
func (s *Site) Worker(cfg WorkerConfig) (*Worker, error) {
	if cfg.Concurrency == 0 {
		cfg.Concurrency = 16
	}
	if cfg.Programs.dir == "" {
		cfg.Programs = s.programs
	}
	w := &Worker{site: s, cfg: cfg}
	return w, w.Start()
}

// Start runs it anew after it has ended, with a log of its own.
func (w *Worker) Start() error {
	env := []string{"HERALD_CONCURRENCY=" + strconv.Itoa(w.cfg.Concurrency), "HERALD_DB_POOL=" + strconv.Itoa(w.cfg.Concurrency+dbSpare)}
	if w.cfg.Application != "" {
		env = append(env, "DATABASE_URL="+w.site.address+"&application_name="+w.cfg.Application)
	}
	p, err := w.site.start(program{name: w.cfg.Name, path: w.cfg.Programs.worker(), env: w.site.environment(append(env, w.cfg.Env...)...)})
	if err == nil {
		w.Process = p
	}
	return err
}

// Ready waits until /readyz says so.
func (w *Worker) Ready(ctx context.Context) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	err := Until(ctx, pollQuick, w.cfg.Name+" to be ready", func() (bool, error) {
		select {
		case <-w.Done():
			return false, fmt.Errorf("it has ended: %s", tail(w.Log()))
		default:
		}
		addr, err := w.Address()
		if err != nil {
			return false, err
		}
		res, err := client.Get(addr + "/readyz")
		if err != nil {
			return false, err
		}
		defer func() { _ = res.Body.Close() }()
		return res.StatusCode == http.StatusOK, nil
	})
	if err != nil {
		return fmt.Errorf("%w (%s)", err, w.Log())
	}
	return nil
}

// Metrics reads /metrics as text.
func (w *Worker) Metrics(ctx context.Context) (string, error) {
	addr, err := w.Address()
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, addr+"/metrics", nil)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	var text strings.Builder
	_, err = bufio.NewReader(res.Body).WriteTo(&text)
	return text.String(), err
}

// Address is where its HTTP server listens, as its log tells.
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

// LogLine is one line of a worker's log, as far as trials look at it.
type LogLine struct {
	Level       string `json:"level"`
	Message     string `json:"msg"`
	Address     string `json:"address"`
	Delivery    string `json:"delivery"`
	Status      string `json:"status"`
	Reason      string `json:"reason"`
	Error       string `json:"error"`
	NotRecorded string `json:"not_recorded"`
	AheadOf     string `json:"ahead_of"`
}

// Lines reads the log of the present process. Lines that are no JSON (a panic) have only a Message.
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
