package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/config"
	"github.com/agentherald/herald/internal/secret"
)

// Config shapes a Server.
type Config struct {
	Listen string        // host:port; port 0 takes a free one
	Token  secret.Secret // needed off loopback; on loopback it is asked for when set

	// Ready tells what the service is waiting for, by name, and why; none means ready. degraded is what it works
	// without. It is asked for each /readyz, must answer at once, and gives its maps away.
	Ready func() (waiting, degraded map[string]string)

	Metrics http.Handler // /metrics

	// Settings is what /settings tells as JSON, to whoever may see the other pages. It holds no secret.
	Settings map[string]string

	Logger *slog.Logger // default slog.Default()
}

// Server listens from New on, so that health can be asked for while the rest is still starting.
type Server struct {
	cfg     Config
	ln      net.Listener
	srv     *http.Server
	public  bool // listens off loopback
	monitor atomic.Pointer[http.Handler]
	done    chan struct{}
}

// MonitorRoot is where the asynq web UI lives; the bare path leads there.
const MonitorRoot = "/monitor"

// New listens and serves.
func New(cfg Config) (*Server, error) {
	if cfg.Ready == nil || cfg.Metrics == nil {
		return nil, errors.New("server: readiness and metrics are needed")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if err := config.CheckListen(cfg.Listen, cfg.Token); err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on HERALD_LISTEN %s: %w", cfg.Listen, err)
	}
	s := &Server{cfg: cfg, ln: ln, public: !config.IsLoopback(parseHostname(cfg.Listen)), done: make(chan struct{})}
	s.srv = &http.Server{
		Handler:           s.routes(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      60 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
	}
	go func() {
		defer close(s.done)
		if err := s.srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			cfg.Logger.Error("the HTTP server ended", "error", err)
		}
	}()
	return s, nil
}

// Addr is the address it listens on.
func (s *Server) Addr() string { return s.ln.Addr().String() }

// Mount puts the asynq web UI under MonitorRoot; until then it answers 503.
func (s *Server) Mount(monitor http.Handler) { s.monitor.Store(&monitor) }

// Shutdown stops listening and waits for running requests until ctx ends.
func (s *Server) Shutdown(ctx context.Context) error {
	err := s.srv.Shutdown(ctx)
	if err != nil {
		_ = s.srv.Close()
	}
	<-s.done
	return err
}

func (s *Server) routes() http.Handler {
	open := http.NewServeMux()
	open.HandleFunc("GET /healthz", s.serveHealth)
	open.HandleFunc("GET /readyz", s.serveReady)

	closed := http.NewServeMux()
	closed.Handle("GET /metrics", s.cfg.Metrics)
	closed.HandleFunc("GET "+config.SettingsPath,
		func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, s.cfg.Settings) })
	closed.HandleFunc(MonitorRoot+"/", s.serveMonitor)
	closed.Handle(MonitorRoot, http.RedirectHandler(MonitorRoot+"/", http.StatusTemporaryRedirect))
	closed.Handle("GET /{$}", http.RedirectHandler(MonitorRoot+"/", http.StatusTemporaryRedirect))
	closed.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		answerError(w, http.StatusNotFound, "not_found", "there is nothing here; the web UI is at "+MonitorRoot+"/")
	})

	guarded := s.authenticate(closed)
	if !s.public {
		guarded = sameHost(guarded)
	}
	open.Handle("/", guarded)
	return open
}

func (s *Server) serveMonitor(w http.ResponseWriter, r *http.Request) {
	m := s.monitor.Load()
	if m == nil {
		answerError(w, http.StatusServiceUnavailable, "not_ready", "the queue is not connected yet")
		return
	}
	h := w.Header()
	// The page's scripts are partly inline; its two links to a font service are not followed.
	h.Set("Content-Security-Policy", "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	(*m).ServeHTTP(typedWriter{w, r}, r)
}

func (s *Server) serveHealth(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"status": "alive"})
}

// serveReady names what is waited for, and what is done without, to everybody, and says why to those who may see the
// rest: errors name inner hosts.
func (s *Server) serveReady(w http.ResponseWriter, r *http.Request) {
	waiting, degraded := s.cfg.Ready()
	if !s.isAuthentic(r) || !s.public && !config.IsLoopback(parseHostname(r.Host)) {
		for _, reasons := range []map[string]string{waiting, degraded} {
			for name := range reasons {
				reasons[name] = "not available; with the token this says why"
			}
		}
	}
	code, answer := http.StatusOK, map[string]any{"status": "ready"}
	if len(waiting) > 0 {
		code, answer = http.StatusServiceUnavailable, map[string]any{"status": "waiting", "for": waiting}
	}
	if len(degraded) > 0 {
		answer["degraded"] = degraded
	}
	writeJSON(w, code, answer)
}

// answerError answers with the error shape of the API (DESIGN §10).
func answerError(w http.ResponseWriter, status int, code, message string) {
	writeJSON(w, status, map[string]any{"error": map[string]any{"code": code, "message": message}})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client is gone, or not
}
