package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/config"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/secret"
)

// Config shapes a Server.
type Config struct {
	Listen string        // host:port; port 0 takes a free one
	Token  secret.Secret // HERALD_API_TOKEN, with every scope; needed off loopback

	// Identify looks up who carries another token; operator.ErrUnknownToken: nobody. nil: there are no others.
	Identify func(ctx context.Context, token secret.Secret) (operator.Caller, error)
	// KnownTokens loads which tokens there are; needed with Identify.
	KnownTokens func(ctx context.Context) (isKnown func(secret.Secret) bool, err error)

	// Ready tells what the service is waiting for, by name, and why; none means ready. degraded is what it works
	// without. It is asked for each /readyz, must answer at once, and gives its maps away.
	Ready func() (waiting, degraded map[string]string)

	Metrics http.Handler // /metrics

	// Settings is what /settings tells as JSON, to whoever may see the other pages. It holds no secret.
	Settings map[string]string

	Logger *slog.Logger // default slog.Default()
}

// Route is one thing that can be asked for.
type Route struct {
	Method     string // "": every one
	Path       string // as http.ServeMux takes it
	Scope      operator.Scope
	Form       bool // it is a page's form, and has to bring the page's token
	BearerOnly bool // it is part of the API: what a browser sends by itself is not taken
	Open       bool // it is for everybody, without a token and under any name, like the health checks
	Handle     func(http.ResponseWriter, *http.Request, Visitor)
}

// pattern is the route as http.ServeMux takes it.
func (r Route) pattern() string { return strings.TrimSpace(r.Method + " " + r.Path) }

// Visitor is who asks.
type Visitor struct {
	operator.Caller
	FormToken string // for the forms of the page that is shown (FormField)
	// Anonymous: it looks on loopback without a token, and is asked for one by its first change.
	Anonymous bool
	// StillMay tells whether the token is still good. Who streams asks now and then: the guard asked once.
	StillMay func(ctx context.Context) bool
}

// ErrRevoked is the cause of the end of WhileAllowed's context.
var ErrRevoked = errors.New("the token was revoked, or has expired")

// WhileAllowed returns a context for a stream, which ends with ErrRevoked within seconds after the token was revoked. Call
// stop when the stream has ended.
func (v Visitor) WhileAllowed(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var checking sync.WaitGroup
	checking.Go(func() {
		tick := time.NewTicker(TokenCache)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if !v.StillMay(ctx) && ctx.Err() == nil {
				cancel(ErrRevoked)
				return
			}
		}
	})
	return ctx, func() {
		cancel(nil)
		checking.Wait()
	}
}

// Server listens from New on, so that health can be asked for while the rest is still starting.
type Server struct {
	cfg     Config
	ln      net.Listener
	srv     *http.Server
	public  bool // listens off loopback
	callers *callers
	formKey []byte
	handler atomic.Pointer[http.Handler]
	stop    context.CancelFunc // ends the contexts of requests: streams would go on for ever
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
	base, stop := context.WithCancel(context.Background())
	s := &Server{cfg: cfg, ln: ln, public: !config.IsLoopback(parseHostname(cfg.Listen)), stop: stop,
		done: make(chan struct{}), callers: newCallers(cfg.Token, cfg.Identify, cfg.KnownTokens), formKey: newFormKey(cfg.Token)}
	s.Mount(nil, nil)
	s.srv = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			(*s.handler.Load()).ServeHTTP(w, r)
		}),
		BaseContext:       func(net.Listener) context.Context { return base },
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

// Mount serves the routes of API and pages, and the asynq web UI under MonitorRoot; until then they answer 503.
func (s *Server) Mount(monitor http.Handler, routes []Route) {
	open := http.NewServeMux()
	open.HandleFunc("GET /healthz", s.serveHealth)
	open.HandleFunc("GET /readyz", s.serveReady)
	for _, r := range s.Routes(monitor, routes) {
		if r.Open {
			open.HandleFunc(r.pattern(), func(w http.ResponseWriter, req *http.Request) { r.Handle(w, req, Visitor{}) })
			continue
		}
		open.Handle(r.pattern(), s.guard(r))
	}
	var handler http.Handler = open
	s.handler.Store(&handler)
}

// Routes are all routes but the health checks, which are open: those given and the server's own.
func (s *Server) Routes(monitor http.Handler, mounted []Route) []Route {
	own := []Route{
		{Method: "GET", Path: "/metrics", Handle: withoutVisitor(s.cfg.Metrics)},
		{Method: "GET", Path: config.SettingsPath, Handle: func(w http.ResponseWriter, _ *http.Request, _ Visitor) {
			WriteJSON(w, http.StatusOK, s.cfg.Settings)
		}},
		{Path: MonitorRoot + "/", Handle: withoutVisitor(serveMonitor(monitor))},
		{Path: MonitorRoot, Handle: withoutVisitor(http.RedirectHandler(MonitorRoot+"/", http.StatusTemporaryRedirect))},
		{Path: "/", Handle: withoutVisitor(serveRest(monitor != nil))},
	}
	for i := range own {
		own[i].Scope = operator.ScopeRead
	}
	return append(own, mounted...)
}

// Shutdown stops listening, ends streams, and waits for running requests until ctx ends.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stop()
	err := s.srv.Shutdown(ctx)
	if err != nil {
		_ = s.srv.Close()
	}
	<-s.done
	return err
}

func withoutVisitor(h http.Handler) func(http.ResponseWriter, *http.Request, Visitor) {
	return func(w http.ResponseWriter, r *http.Request, _ Visitor) { h.ServeHTTP(w, r) }
}

// serveRest answers what nothing else does.
func serveRest(mounted bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !mounted {
			AnswerError(w, http.StatusServiceUnavailable, "not_ready", "the service is still starting: /readyz says what it waits for")
			return
		}
		AnswerError(w, http.StatusNotFound, "not_found", "there is nothing here; the overview is at /, the API's description at /v1/openapi.json")
	})
}

// serveMonitor serves the asynq web UI; nil: it is not there yet.
func serveMonitor(monitor http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if monitor == nil {
			AnswerError(w, http.StatusServiceUnavailable, "not_ready", "the queue is not connected yet")
			return
		}
		h := w.Header()
		// The page's scripts are partly inline; its two links to a font service are not followed.
		h.Set("Content-Security-Policy", "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "+
			"img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		monitor.ServeHTTP(typedWriter{w, r}, r)
	})
}

func (s *Server) serveHealth(w http.ResponseWriter, _ *http.Request) {
	WriteJSON(w, http.StatusOK, map[string]any{"status": "alive"})
}

// serveReady names what is waited for, and what is done without, to everybody, and says why to those who may see the
// rest: errors name inner hosts.
func (s *Server) serveReady(w http.ResponseWriter, r *http.Request) {
	waiting, degraded := s.cfg.Ready()
	if !s.isTrusted(r) || !s.public && !config.IsLoopback(parseHostname(r.Host)) {
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
	WriteJSON(w, code, answer)
}

// Problem is why something was not done (DESIGN §10).
type Problem struct {
	Code    string `json:"code"`            // for programs: one of few words
	Message string `json:"message"`         // for people
	Field   string `json:"field,omitempty"` // the parameter, or the path in the body, that is wrong
}

// AnswerProblem answers with the error shape of the API.
func AnswerProblem(w http.ResponseWriter, status int, p Problem) {
	WriteJSON(w, status, map[string]Problem{"error": p})
}

// AnswerError is AnswerProblem for what is not about one field.
func AnswerError(w http.ResponseWriter, status int, code, message string) {
	AnswerProblem(w, status, Problem{Code: code, Message: message})
}

// WriteJSON answers with v.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client is gone, or not
}
