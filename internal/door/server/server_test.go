package server

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
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

// start starts a server that is ready.
func start(t testing.TB, listen, token string) *Server {
	t.Helper()
	return serve(t, listen, token, func() (waiting, degraded map[string]string) { return nil, nil })
}

func serve(t testing.TB, listen, token string, ready func() (waiting, degraded map[string]string)) *Server {
	t.Helper()
	s, err := New(Config{Listen: listen, Token: secret.New(token), Logger: slog.New(slog.DiscardHandler), Ready: ready, Settings: map[string]string{"HERALD_CONCURRENCY": "7"},
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "metrics here") })})
	heraldtest.Must(t, err)
	t.Cleanup(func() { heraldtest.Must(t, s.Shutdown(heraldtest.Within(t, 30*time.Second))) })
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
	loopback := start(t, "127.0.0.1:0", "")
	guarded := start(t, "127.0.0.1:0", token)
	public := start(t, "0.0.0.0:0", token)
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
		"the settings, without token":          {guarded, config.SettingsPath, nil, 401},
		"the settings, by another name":        {guarded, config.SettingsPath, map[string]string{"Authorization": "Bearer " + token, "Host": "evil.example"}, 403},
		"the settings, from another page":      {guarded, config.SettingsPath, map[string]string{"Authorization": "Bearer " + token, "Origin": "https://evil.example"}, 403},
		"the settings":                         {guarded, config.SettingsPath, map[string]string{"Authorization": "Bearer " + token}, 200},
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
		heraldtest.Equal(t, name, res.StatusCode, c.want)
		heraldtest.Lacks(t, name, body, token)
		heraldtest.Equal(t, name+": shows settings", strings.Contains(body, `{"HERALD_CONCURRENCY":"7"}`), name == "the settings")
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
			code := map[int]string{401: "unauthorized", 403: "wrong_host", 404: "not_found"}[c.want]
			if c.header["Origin"] != "" {
				code = "wrong_origin"
			}
			heraldtest.Equal(t, name+": the code", e.Error.Code, code)
		}
	}
}

// TestRefusalPage checks that a browser gets refusals as pages, and a client of the API as JSON.
func TestRefusalPage(t *testing.T) {
	t.Parallel()
	s := start(t, "127.0.0.1:0", token)
	s.Mount(nil, nil)
	const browser = "text/html,application/xhtml+xml,*/*;q=0.8"
	for name, header := range map[string]map[string]string{
		"401 Unauthorized":        {},
		"403 Forbidden":           {"Host": "evil.example"},
		"503 Service Unavailable": {"Authorization": "Bearer " + token},
	} {
		header["Accept"] = browser
		res, body := ask(t, s, http.MethodGet, "/nothing", header)
		heraldtest.Equal(t, "the status", res.Status, name)
		heraldtest.Equal(t, name, res.Header.Get("Content-Type"), "text/html; charset=utf-8")
		heraldtest.Contains(t, name, body, "<title>"+name[4:]+" – Herald</title>", `<a href="/">`)
		heraldtest.Lacks(t, name+": loads nothing, for which a browser would ask again", body, "src=", "<link")
		heraldtest.Equal(t, name+": asks for a token", res.Header.Get("WWW-Authenticate") != "", res.StatusCode == 401)

		header["Accept"] = "text/html, image/gif, image/jpeg, */*; q=0.2" // the default of Java's HttpURLConnection
		_, body = ask(t, s, http.MethodGet, "/v1/nothing", header)
		heraldtest.Contains(t, name+" of the API", body, `{"error":{"code":`)
	}
}

// TestHeaderBound checks that a request may have the headers of a browser, but not so many that a flood without a token
// fills the memory.
func TestHeaderBound(t *testing.T) {
	t.Parallel()
	s := start(t, "127.0.0.1:0", "")
	for size, want := range map[int]int{14 << 10: http.StatusOK, 24 << 10: http.StatusRequestHeaderFieldsTooLarge} {
		res, _ := ask(t, s, http.MethodGet, "/healthz", map[string]string{"Cookie": strings.Repeat("c", size)})
		heraldtest.Equal(t, fmt.Sprintf("a header of %d bytes", size), res.StatusCode, want)
	}
}

// TestReadiness: a degraded worker is ready, and one that waits is not. Both show the reasons only to clients on
// loopback and with the token.
func TestReadiness(t *testing.T) {
	t.Parallel()
	away := map[string]string{"postgres": "dial tcp 10.9.8.7:5432: connection refused", "chain 2": "the node answered 502"}
	for name, c := range map[string]struct {
		listen, token   string
		header, waiting map[string]string
		why             bool
	}{
		"loopback":                 {"127.0.0.1:0", "", nil, away, true},
		"loopback, a rebound name": {"127.0.0.1:0", "", map[string]string{"Host": "evil.example"}, away, false},
		"off loopback":             {"0.0.0.0:0", token, nil, away, false},
		"off loopback, with token": {"0.0.0.0:0", token, map[string]string{"Authorization": "Bearer " + token}, away, true},
		"ready":                    {"127.0.0.1:0", "", nil, nil, true},
		"ready, off loopback":      {"0.0.0.0:0", token, nil, nil, false},
	} {
		s := serve(t, c.listen, c.token, func() (waiting, degraded map[string]string) {
			return maps.Clone(c.waiting), map[string]string{"chain 1": "10.9.8.7 answered 502"}
		})
		res, body := ask(t, s, http.MethodGet, "/readyz", c.header)
		var answer struct{ For, Degraded map[string]string }
		heraldtest.Must(t, json.Unmarshal([]byte(body), &answer))
		want := map[bool]int{true: http.StatusOK, false: http.StatusServiceUnavailable}[c.waiting == nil]
		if res.StatusCode != want || len(answer.For) != len(c.waiting) || answer.Degraded["chain 1"] == "" ||
			c.waiting != nil && answer.For["postgres"] == "" {
			t.Errorf("%s: %d %s", name, res.StatusCode, body)
		}
		heraldtest.Equal(t, name, strings.Contains(body, "10.9.8.7"), c.why)
		res, _ = ask(t, s, http.MethodGet, "/healthz", nil)
		heraldtest.Equal(t, name+": /healthz", res.StatusCode, http.StatusOK)
		if res, _ := ask(t, s, http.MethodGet, "/monitor/", c.header); res.StatusCode == http.StatusOK {
			t.Errorf("%s: the monitor is served before there is one", name)
		}
	}
}

func TestMonitorHeaders(t *testing.T) {
	t.Parallel()
	s := start(t, "127.0.0.1:0", "")
	if res, body := ask(t, s, http.MethodGet, "/monitor/", nil); res.StatusCode != 503 || !strings.Contains(body, "not_ready") ||
		res.Header.Get("Retry-After") != "5" {
		t.Errorf("before it is mounted: %d %v %s", res.StatusCode, res.Header, body)
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
		heraldtest.Contains(t, path, csp, "default-src 'self'", "script-src 'self' 'unsafe-inline'",
			"style-src 'self' 'unsafe-inline'", "frame-ancestors 'none'")
		heraldtest.Equal(t, path, res.Header.Get("X-Content-Type-Options"), "nosniff")
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	taken := start(t, "127.0.0.1:0", "")
	for _, listen := range []string{"0.0.0.0:0", ":0", "192.0.2.1:0", "[::]:0", "herald.example:0", "no port", taken.Addr()} {
		s, err := New(Config{Listen: listen, Ready: func() (waiting, degraded map[string]string) { return nil, nil }, Metrics: http.NotFoundHandler()})
		if err == nil {
			t.Errorf("%s is taken", listen)
			_ = s.Shutdown(t.Context())
		} else if !strings.Contains(err.Error(), "HERALD_LISTEN") {
			t.Errorf("%s: %v", listen, err)
		}
	}
	for name, cfg := range map[string]Config{"readiness": {Metrics: http.NotFoundHandler()},
		"metrics": {Ready: func() (waiting, degraded map[string]string) { return nil, nil }}} {
		cfg.Listen = "127.0.0.1:0"
		_, err := New(cfg)
		heraldtest.Fails(t, "without "+name, err, "are needed")
	}
}
