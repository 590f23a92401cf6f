package oauth

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestMain(m *testing.M) { heraldtest.Main(m) }

// epoch is the fixed time of the clocks in the tests.
var epoch = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// newClient returns a client whose guard allows loopback.
func newClient(t testing.TB, adapt ...func(*Config)) *Client {
	t.Helper()
	return newGuardedClient(t, netguard.Config{AllowNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, adapt...)
}

func newGuardedClient(t testing.TB, allow netguard.Config, adapt ...func(*Config)) *Client {
	t.Helper()
	guard, err := netguard.New(allow)
	heraldtest.Must(t, err)
	cfg := Config{HTTP: guard.Client(netguard.Limits{}, 0), Now: func() time.Time { return epoch }}
	t.Cleanup(cfg.HTTP.CloseIdleConnections)
	for _, a := range adapt {
		a(&cfg)
	}
	c, err := New(cfg)
	heraldtest.Must(t, err)
	return c
}

func shortenTimeout(c *Config) { c.Timeout = 2 * time.Second }

// site is a server with the test's handlers. It answers 404 to all other paths.
type site struct {
	*httptest.Server
	mu    sync.Mutex
	paths []string
}

func newSite(t testing.TB, routes map[string]http.HandlerFunc) *site {
	t.Helper()
	s := &site{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.paths = append(s.paths, r.URL.RequestURI())
		s.mu.Unlock()
		if h := routes[r.URL.Path]; h != nil {
			h(w, r)
			return
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// askedPaths returns the requested paths, in order.
func (s *site) askedPaths() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.paths, " ")
}

// answerWith returns a handler with a fixed answer, in which $ is replaced by the server's own origin. Headers are
// pairs of name and value.
func answerWith(status int, body string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], insertOrigin(headers[i+1], "http://"+r.Host))
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(insertOrigin(body, "http://"+r.Host)))
	}
}

func insertOrigin(text, origin string) string { return strings.ReplaceAll(text, "$", origin) }

// answerEndlessly writes until the client disconnects.
func answerEndlessly(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusOK)
	for piece := []byte(strings.Repeat(`{"a":`, 1<<10)); ; {
		if _, err := w.Write(piece); err != nil {
			return
		}
	}
}

// neverAnswer blocks until the client disconnects.
func neverAnswer(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // the server detects a disconnected client only after the body was read
	<-r.Context().Done()
}

// breakOff closes the connection in the middle of the answer.
func breakOff(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "1000")
	_, _ = w.Write([]byte(`{"issuer":`))
	panic(http.ErrAbortHandler)
}

func nestLists(levels int) string {
	return strings.Repeat("[", levels) + strings.Repeat("]", levels)
}

// describe returns the type of an error, and the values that callers read from it.
func describe(err error) string {
	var refused *RefusedError
	var unavailable *UnavailableError
	var metadata *MetadataError
	var issuer *IssuerError
	switch {
	case err == nil:
		return ""
	case errors.Is(err, ErrState):
		return "state"
	case errors.As(err, &refused):
		return strings.TrimSpace("refused " + refused.Code)
	case errors.As(err, &unavailable):
		return fmt.Sprint("unavailable ", unavailable.RetryAfter)
	case errors.As(err, &issuer):
		return fmt.Sprint("issuer ", issuer.Pinned, " ", len(issuer.Named))
	case errors.As(err, &metadata):
		return strings.TrimSpace("metadata " + map[bool]string{true: "missing"}[metadata.Missing] + map[bool]string{true: "denied"}[metadata.Denied])
	}
	return err.Error()
}

// wantFailure checks what describe says about an error, and a part of its text.
func wantFailure(t *testing.T, what string, err error, description, says string) {
	t.Helper()
	heraldtest.Equal(t, fmt.Sprintf("%s: %v", what, err), describe(err), description)
	heraldtest.Contains(t, what, fmt.Sprint(err), says)
}

// wantFault checks that an error is a *MetadataError.
func wantFault(t *testing.T, what string, err error) {
	t.Helper()
	wantFailure(t, what, err, "metadata", "")
}

// wantNoSecrets checks that no format of an error contains one of the secrets.
func wantNoSecrets(t *testing.T, err error, secrets ...string) {
	t.Helper()
	heraldtest.Lacks(t, "the error", fmt.Sprintf("%v %+v", err, err), secrets...)
}
