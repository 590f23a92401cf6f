package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/config"
)

// Config configures a Server.
type Config struct {
	Listen string        // host:port; port 0 chooses a free one
	Token  secret.Secret // HERALD_API_TOKEN, which has every scope; required off loopback

	// LoadCallers loads the callers of other tokens. nil: there are no other tokens.
	LoadCallers func(ctx context.Context) (operator.FindCaller, error)

	// Ready returns the services that the worker waits for, by name with the reason, and those that it works without
	// (degraded). Empty waiting means ready. It is called for each /readyz, must return at once, and its maps belong to
	// the caller.
	Ready func() (waiting, degraded map[string]string)

	Metrics http.Handler // /metrics

	// Settings is served as JSON at /settings to callers that may read. It contains no secret.
	Settings map[string]string

	Logger *slog.Logger // default slog.Default()
}

// Route is one endpoint of the server.
type Route struct {
	Method     string // empty: every method
	Path       string // a pattern of http.ServeMux
	Scope      operator.Scope
	Form       bool // a form of a page, which must contain the page's token
	BearerOnly bool // part of the API: credentials that browsers send automatically are not accepted
	InOutages  bool // a token that was known before is valid while Postgres does not answer (findKnown)
	Open       bool // without a token and under any host name, like the health checks
	Handle     func(http.ResponseWriter, *http.Request, Visitor)
}

// pattern returns the route's pattern for http.ServeMux.
func (r Route) pattern() string { return strings.TrimSpace(r.Method + " " + r.Path) }

// Visitor is the authenticated author of a request.
type Visitor struct {
	operator.Caller
	FormToken string // for the forms of the rendered page (FormField)
	// Anonymous: the visitor reads on loopback without a token. The first change asks for one.
	Anonymous bool
	// StillMay reports whether the token is still valid. Streams call it repeatedly, because the guard checks only
	// once.
	StillMay func(ctx context.Context) bool
}

// ErrRevoked is the cause with which WhileAllowed cancels a context.
var ErrRevoked = errors.New("the token was revoked, or has expired")

// WhileAllowed returns a context for a stream. It is cancelled with ErrRevoked within seconds after the token was
// revoked. The caller must call stop when the stream ends.
func (v Visitor) WhileAllowed(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	var checking sync.WaitGroup
	checking.Go(func() {
		for range loop.Every(ctx, TokenCache) {
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

// Server listens as soon as New returns, so that health checks work while the rest is starting.
type Server struct {
	cfg         Config
	ln          net.Listener
	srv         *http.Server
	public      bool // it listens off loopback
	callers     *callers
	connections *connections
	formKey     []byte
	handler     atomic.Pointer[http.Handler]
	stop        context.CancelFunc // cancels the contexts of requests, so that streams end
	done        chan struct{}
}

// MonitorRoot is the path of the asynq web UI. The path without a slash redirects there.
const MonitorRoot = "/monitor"

// New listens on cfg.Listen and serves the health checks and the server's own routes.
func New(cfg Config) (*Server, error) {
	if cfg.Ready == nil || cfg.Metrics == nil {
		return nil, errors.New("server: readiness and metrics are needed")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if err := config.CheckListen(cfg.Listen, cfg.Token); err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on HERALD_LISTEN %s: %w", cfg.Listen, err)
	}
	base, stop := context.WithCancel(context.Background())
	s := &Server{cfg: cfg, ln: ln, public: !config.IsLoopback(parseHostname(cfg.Listen)), stop: stop,
		done: make(chan struct{}), callers: &callers{own: cfg.Token, load: cfg.LoadCallers},
		connections: &connections{max: maxConnections, idle: map[net.Conn]bool{}},
		formKey:     newFormKey(cfg.Token)}
	s.Mount(nil, nil)
	s.srv = &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			(*s.handler.Load()).ServeHTTP(w, r)
		}),
		ConnState:         s.connections.noteState,
		BaseContext:       func(net.Listener) context.Context { return base },
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		WriteTimeout:      60 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
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

// Addr returns the address that the server listens on.
func (s *Server) Addr() string { return s.ln.Addr().String() }

// Mount adds the routes of the API and the pages, and the asynq web UI under MonitorRoot. Before that they answer 503.
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

// Routes returns the given routes and the server's own, without the health checks, which are open.
func (s *Server) Routes(monitor http.Handler, mounted []Route) []Route {
	own := []Route{
		{Method: "GET", Path: "/metrics", InOutages: true, Handle: withoutVisitor(s.cfg.Metrics)},
		{Method: "GET", Path: config.SettingsPath, Handle: func(w http.ResponseWriter, _ *http.Request, _ Visitor) {
			WriteJSON(w, http.StatusOK, s.cfg.Settings)
		}},
		{Path: MonitorRoot + "/", Handle: withoutVisitor(serveMonitor(monitor))},
		{Path: MonitorRoot,
			Handle: withoutVisitor(http.RedirectHandler(MonitorRoot+"/", http.StatusTemporaryRedirect))},
		{Path: "/", Handle: withoutVisitor(serveRest(monitor != nil))},
	}
	for i := range own {
		own[i].Scope = operator.ScopeRead
	}
	return append(own, mounted...)
}

// Shutdown stops listening, cancels streams, and waits for running requests until ctx ends.
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

// serveRest answers requests that no other route serves.
func serveRest(mounted bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !mounted {
			refuseRequest(w, r, http.StatusServiceUnavailable, "not_ready",
				"the service is still starting: /readyz names the cause")
			return
		}
		refuseRequest(w, r, http.StatusNotFound, "not_found",
			"there is nothing here; the overview is at /, the API's description at /v1/openapi.json")
	})
}

// serveMonitor serves the asynq web UI. If monitor is nil, it answers that the queue is not connected.
func serveMonitor(monitor http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if monitor == nil {
			refuseRequest(w, r, http.StatusServiceUnavailable, "not_ready", "the queue is not connected yet")
			return
		}
		h := w.Header()
		// Some of the UI's scripts are inline. Its two links to a font service stay blocked.
		h.Set("Content-Security-Policy",
			"default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "+
				"img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		monitor.ServeHTTP(typedWriter{w, r}, r)
	})
}

func (s *Server) serveHealth(w http.ResponseWriter, _ *http.Request) {
	WriteJSON(w, http.StatusOK, map[string]any{"status": "alive"})
}

// serveReady lists to everybody which services are missing. It gives the reasons only to trusted requests, because
// errors contain names of internal hosts.
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

// Problem is the reason why a request failed.
type Problem struct {
	Code    string `json:"code"`            // for programs: one of a few words
	Message string `json:"message"`         // for people
	Field   string `json:"field,omitempty"` // the invalid parameter, or the path in the body
}

// AnswerProblem answers with an error in the form of the API.
func AnswerProblem(w http.ResponseWriter, status int, p Problem) {
	if status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "5")
	}
	WriteJSON(w, status, map[string]Problem{"error": p})
}

// AnswerError is AnswerProblem for an error that is not about one field.
func AnswerError(w http.ResponseWriter, status int, code, message string) {
	AnswerProblem(w, status, Problem{Code: code, Message: message})
}

// refusalPage is the page of a refusal. It uses no style sheet, because that needs a token too.
var refusalPage = template.Must(template.New("refusal").Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{{.Title}} – Herald</title>
</head>
<body>
<main>
<h1>{{.Title}}</h1>
<p>Herald answers: {{.Message}}.</p>
<p><a href="/">Overview</a></p>
</main>
</body>
</html>
`))

// refuseRequest answers a browser with a page, and others as AnswerError does. The API answers only JSON, because some
// of its clients also accept text/html by default, such as Java's HttpURLConnection.
func refuseRequest(w http.ResponseWriter, r *http.Request, status int, code, message string) {
	isAPI := strings.HasPrefix(r.URL.Path, "/v1/") || strings.HasPrefix(r.URL.Path, "/mcp/")
	if isAPI || !strings.Contains(r.Header.Get("Accept"), "text/html") {
		AnswerError(w, status, code, message)
		return
	}
	h := w.Header()
	if status == http.StatusServiceUnavailable {
		h.Set("Retry-After", "5")
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; base-uri 'none'")
	w.WriteHeader(status)
	_ = refusalPage.Execute(w, struct{ Title, Message string }{http.StatusText(status), message}) // or disconnected
}

// WriteJSON answers with v as JSON.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // an error means that the client has disconnected
}
