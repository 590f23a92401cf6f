package server

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

const token = "correct horse battery staple"

// start starts a server. away contains the reasons for which it is not ready.
func start(t testing.TB, listen, token string, away map[string]string) *Server {
	t.Helper()
	return serve(t, listen, token, func() (waiting, degraded map[string]string) { return maps.Clone(away), nil })
}

func serve(t testing.TB, listen, token string, ready func() (waiting, degraded map[string]string)) *Server {
	t.Helper()
	s, err := New(Config{Listen: listen, Token: secret.New(token), Logger: slog.New(slog.DiscardHandler), Ready: ready,
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "metrics here") })})
	heraldtest.Must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

// ask sends a request over a new connection and follows no redirect.
func ask(t testing.TB, s *Server, method, path string, header map[string]string) (*http.Response, string) {
	t.Helper()
	_, port, err := net.SplitHostPort(s.Addr())
	heraldtest.Must(t, err)
	r, err := http.NewRequestWithContext(t.Context(), method, "http://127.0.0.1:"+port+path, nil)
	heraldtest.Must(t, err)
	for name, value := range header {
		if name == "Host" {
			r.Host = value
			continue
		}
		r.Header.Set(name, value)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(r)
	heraldtest.Must(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	heraldtest.Must(t, err)
	return res, string(body)
}

func basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

func TestGuard(t *testing.T) {
	t.Parallel()
	ui := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, `{"ui":true}`) })
	loopback := start(t, "127.0.0.1:0", "", nil)
	guarded := start(t, "127.0.0.1:0", token, nil)
	public := start(t, "0.0.0.0:0", token, nil)
	for _, s := range []*Server{loopback, guarded, public} {
		s.Mount(ui, nil)
	}
	port := func(s *Server) string { return s.Addr()[strings.LastIndex(s.Addr(), ":")+1:] }
	for name, c := range map[string]struct {
		s      *Server
		path   string
		header map[string]string
		want   int
	}{
		"loopback is open":                     {loopback, "/metrics", nil, 200},
		"loopback, the monitor":                {loopback, "/monitor/", nil, 200},
		"by the name localhost":                {loopback, "/monitor/", map[string]string{"Host": "localhost:" + port(loopback)}, 200},
		"by IPv6":                              {loopback, "/monitor/", map[string]string{"Host": "[::1]:" + port(loopback)}, 200},
		"a rebound name":                       {loopback, "/monitor/", map[string]string{"Host": "evil.example:" + port(loopback)}, 403},
		"a name that begins like loopback":     {loopback, "/metrics", map[string]string{"Host": "127.0.0.1.evil.example"}, 403},
		"an empty Host":                        {loopback, "/metrics", map[string]string{"Host": "."}, 403},
		"a page of another origin":             {loopback, "/monitor/api/queues", map[string]string{"Origin": "https://evil.example"}, 403},
		"a page of another port":               {loopback, "/monitor/api/queues", map[string]string{"Origin": "http://127.0.0.1:1"}, 403},
		"a sandboxed page":                     {loopback, "/monitor/api/queues", map[string]string{"Origin": "null"}, 403},
		"a page of its own":                    {loopback, "/monitor/api/queues", map[string]string{"Origin": "http://127.0.0.1:" + port(loopback)}, 200},
		"a token on loopback is asked for":     {guarded, "/metrics", nil, 401},
		"off loopback without token":           {public, "/metrics", nil, 401},
		"the monitor off loopback":             {public, "/monitor/", nil, 401},
		"an unknown page tells nothing":        {public, "/secret", nil, 401},
		"wrong bearer":                         {public, "/metrics", map[string]string{"Authorization": "Bearer wrong"}, 401},
		"empty bearer":                         {public, "/metrics", map[string]string{"Authorization": "Bearer "}, 401},
		"another scheme":                       {public, "/metrics", map[string]string{"Authorization": "Digest " + token}, 401},
		"bearer":                               {public, "/metrics", map[string]string{"Authorization": "Bearer " + token}, 200},
		"bearer, lower case":                   {public, "/metrics", map[string]string{"Authorization": "bearer " + token}, 200},
		"Basic with the token as password":     {public, "/monitor/", map[string]string{"Authorization": basic("anyone", token)}, 200},
		"Basic with the token as user":         {public, "/monitor/", map[string]string{"Authorization": basic(token, "")}, 401},
		"off loopback any Host goes":           {public, "/metrics", map[string]string{"Authorization": "Bearer " + token, "Host": "herald.example"}, 200},
		"health is open":                       {public, "/healthz", nil, 200},
		"readiness is open":                    {public, "/readyz", nil, 200},
		"health is open behind a rebound name": {loopback, "/healthz", map[string]string{"Host": "evil.example"}, 200},
		"the bare path leads to the UI":        {loopback, "/monitor", nil, 307},
		"an unknown page":                      {loopback, "/nothing", nil, 404},
	} {
		res, body := ask(t, c.s, http.MethodGet, c.path, c.header)
		if res.StatusCode != c.want {
			t.Errorf("%s: %d, want %d: %s", name, res.StatusCode, c.want, body)
		}
		if strings.Contains(body, token) {
			t.Errorf("%s: the answer holds the token", name)
		}
		if c.want == 401 && !strings.HasPrefix(res.Header.Get("WWW-Authenticate"), "Basic ") {
			t.Errorf("%s: a browser is not asked", name)
		}
		if c.want >= 400 {
			var e struct {
				Error struct{ Code, Message string }
			}
			if json.Unmarshal([]byte(body), &e) != nil || e.Error.Code == "" || e.Error.Message == "" {
				t.Errorf("%s: no error of the API: %s", name, body)
			}
		}
	}
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	away := map[string]string{"postgres": "dial tcp 10.9.8.7:5432: connection refused", "chain 1": "the node answered 502"}
	for name, c := range map[string]struct {
		listen, token string
		header        map[string]string
		why           bool
	}{
		"loopback":                 {"127.0.0.1:0", "", nil, true},
		"loopback, a rebound name": {"127.0.0.1:0", "", map[string]string{"Host": "evil.example"}, false},
		"off loopback":             {"0.0.0.0:0", token, nil, false},
		"off loopback, with token": {"0.0.0.0:0", token, map[string]string{"Authorization": "Bearer " + token}, true},
	} {
		s := start(t, c.listen, c.token, away)
		res, body := ask(t, s, http.MethodGet, "/readyz", c.header)
		if res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, `"postgres"`) || !strings.Contains(body, `"chain 1"`) {
			t.Errorf("%s: %d %s", name, res.StatusCode, body)
		}
		if strings.Contains(body, "10.9.8.7") != c.why {
			t.Errorf("%s: %s", name, body)
		}
		if res, _ := ask(t, s, http.MethodGet, "/healthz", nil); res.StatusCode != http.StatusOK {
			t.Errorf("%s: /healthz %d", name, res.StatusCode)
		}
		if res, _ := ask(t, s, http.MethodGet, "/monitor/", c.header); res.StatusCode == http.StatusOK {
			t.Errorf("%s: the monitor is served before there is one", name)
		}
	}
}

// TestReadyWithoutAChain: a degraded worker is still ready. The reasons are shown to the same clients as those of a
// worker that is not ready.
func TestReadyWithoutAChain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		listen, token string
		waiting       map[string]string
		want          int
		why           bool
	}{
		"ready":         {"127.0.0.1:0", "", nil, http.StatusOK, true},
		"off loopback":  {"0.0.0.0:0", token, nil, http.StatusOK, false},
		"waiting, both": {"127.0.0.1:0", "", map[string]string{"redis": "away"}, http.StatusServiceUnavailable, true},
	} {
		s := serve(t, c.listen, c.token, func() (waiting, degraded map[string]string) {
			return maps.Clone(c.waiting), map[string]string{"chain 1": "10.9.8.7 answered 502"}
		})
		res, body := ask(t, s, http.MethodGet, "/readyz", nil)
		var answer struct{ For, Degraded map[string]string }
		heraldtest.Must(t, json.Unmarshal([]byte(body), &answer))
		if res.StatusCode != c.want || len(answer.For) != len(c.waiting) || answer.Degraded["chain 1"] == "" || strings.Contains(body, "10.9.8.7") != c.why {
			t.Errorf("%s: %d %s", name, res.StatusCode, body)
		}
	}
}

// TestSettings: only clients that may see the worker's pages get its settings.
func TestSettings(t *testing.T) {
	s, err := New(Config{Listen: "127.0.0.1:0", Token: secret.New(token), Logger: slog.New(slog.DiscardHandler), Ready: func() (waiting, degraded map[string]string) { return nil, nil },
		Metrics: http.NotFoundHandler(), Settings: map[string]string{"HERALD_CONCURRENCY": "7"}})
	heraldtest.Must(t, err)
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		_ = s.Shutdown(ctx)
	}()
	for name, c := range map[string]struct {
		header map[string]string
		status int
		body   string
	}{
		"with the token":    {map[string]string{"Authorization": "Bearer " + token}, http.StatusOK, `{"HERALD_CONCURRENCY":"7"}`},
		"without":           {nil, http.StatusUnauthorized, "unauthorized"},
		"by another name":   {map[string]string{"Authorization": "Bearer " + token, "Host": "evil.example"}, http.StatusForbidden, "wrong_host"},
		"from another page": {map[string]string{"Authorization": "Bearer " + token, "Origin": "https://evil.example"}, http.StatusForbidden, "wrong_origin"},
	} {
		if resp, body := ask(t, s, http.MethodGet, config.SettingsPath, c.header); resp.StatusCode != c.status || !strings.Contains(body, c.body) {
			t.Errorf("%s: %d %s", name, resp.StatusCode, body)
		}
	}
}

func TestMonitorHeaders(t *testing.T) {
	t.Parallel()
	s := start(t, "127.0.0.1:0", "", nil)
	if res, body := ask(t, s, http.MethodGet, "/monitor/", nil); res.StatusCode != 503 || !strings.Contains(body, "not_ready") {
		t.Errorf("before it is mounted: %d %s", res.StatusCode, body)
	}
	s.Mount(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "<svg/>")
	}), nil)
	for path, want := range map[string]string{
		"/monitor/api/queues": "application/json", "/monitor/static/logo.svg": "image/svg+xml",
		"/monitor/static/js/main.js": "text/javascript; charset=utf-8", "/monitor/manifest.json": "application/json",
		"/monitor/static/css/main.css": "text/css; charset=utf-8",
	} {
		res, _ := ask(t, s, http.MethodGet, path, nil)
		heraldtest.Equal(t, path, res.Header.Get("Content-Type"), want)
		csp := res.Header.Get("Content-Security-Policy")
		for _, part := range []string{"default-src 'self'", "script-src 'self' 'unsafe-inline'", "style-src 'self' 'unsafe-inline'", "frame-ancestors 'none'"} {
			if !strings.Contains(csp, part) {
				t.Errorf("%s: CSP %s lacks %s", path, csp, part)
			}
		}
		if res.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: may be sniffed", path)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	taken := start(t, "127.0.0.1:0", "", nil)
	for _, listen := range []string{"0.0.0.0:0", ":0", "192.0.2.1:0", "[::]:0", "herald.example:0", "no port", taken.Addr()} {
		s, err := New(Config{Listen: listen, Ready: func() (waiting, degraded map[string]string) { return nil, nil }, Metrics: http.NotFoundHandler()})
		if err == nil {
			t.Errorf("%s is taken", listen)
			_ = s.Shutdown(t.Context())
		} else if !strings.Contains(err.Error(), "HERALD_LISTEN") {
			t.Errorf("%s: %v", listen, err)
		}
	}
	if _, err := New(Config{Listen: "127.0.0.1:0"}); err == nil {
		t.Error("no readiness is taken")
	}
}
