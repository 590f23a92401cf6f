package tokens

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// screen is an operator.Person. It records the lines.
type screen struct{ strings.Builder }

func (s *screen) Confirm(context.Context, string) (bool, error) { return false, operator.ErrNoPerson }
func (s *screen) Notify(line string)                            { s.WriteString(line + "\n") }

func get(t testing.TB, address string) (status int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Error(err)
		return 0
	}
	return send(t, req)
}

func send(t testing.TB, req *http.Request) (status int) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	res, err := transport.RoundTrip(req)
	if err != nil {
		t.Error(err)
		return 0
	}
	_ = res.Body.Close()
	if res.Header.Get("Referrer-Policy") != "no-referrer" || res.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%v", res.Header)
	}
	return res.StatusCode
}

// TestCallback checks that only a callback with the right state ends the wait, and only once. Any page in the browser
// can request the callback URL.
func TestCallback(t *testing.T) {
	t.Parallel()
	c, err := listenForCallback(t.Context(), "127.0.0.1:0")
	heraldtest.Must(t, err)
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		for address, want := range map[string]int{
			c.redirectURL(): 400, c.redirectURL() + "?code=x": 400, c.redirectURL() + "?state=": 400, c.redirectURL() + "?state=wrong&code=x": 400,
			c.redirectURL() + "?state=right&state=right": 400, c.redirectURL() + "?state=right;code=x": 400, "http://" + c.Addr().String() + "/?state=right": 404,
		} {
			heraldtest.Equal(t, address, get(t, address), want)
		}
		for host, method := range map[string]string{"evil.example": http.MethodGet, "": http.MethodPost} {
			req, err := http.NewRequestWithContext(t.Context(), method, c.redirectURL()+"?state=right&code=forged", nil)
			if err != nil {
				t.Error(err)
				return
			}
			req.Host = host
			if got := send(t, req); got != 404 && got != 405 {
				t.Errorf("%s %s: %d", method, host, got)
			}
		}
		if got := get(t, c.redirectURL()+"?state=right&code=good"); got != 200 {
			t.Errorf("%d", got)
		}
	}()
	values, err := c.awaitBrowser(t.Context(), "right")
	<-asked
	if err != nil || values.Get("code") != "good" {
		t.Errorf("%v %v", values, err)
	}

	c, err = listenForCallback(t.Context(), "127.0.0.1:0")
	heraldtest.Must(t, err)
	var shown screen
	f := &sourceFinder{Tokens: Tokens{operator.New(operator.Config{Person: &shown})}}
	if _, err := f.awaitLogin(t.Context(), c, "https://as.example/?state=right&x=\x1b", time.Millisecond); err == nil || !strings.Contains(err.Error(), "no address") {
		t.Errorf("%v", err)
	}
	if _, err := f.awaitLogin(t.Context(), c, "https://as.example/?state=right", time.Millisecond); err == nil || err.Error() != "no browser came back within 1ms" ||
		!strings.Contains(shown.String(), "\n\nhttps://as.example/?state=right\n\n") {
		t.Errorf("%v: %s", err, shown.String())
	}

	if c, err = listenForCallback(t.Context(), "127.0.0.2:0"); err != nil || !strings.HasPrefix(c.redirectURL(), "http://127.0.0.2:") {
		t.Fatalf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.awaitBrowser(ctx, "right"); err == nil {
		t.Error("nobody came")
	}
	for _, bad := range []string{"0.0.0.0:0", "example.org:80", "10.0.0.1:0", "127.0.0.1", ":0", "[::]:0", "localhost:0", "[::1%lo]:0", "[::ffff:127.0.0.1]:0", "127.0.0.1:x"} {
		if onLoopback(bad) {
			t.Errorf("%s", bad)
		}
	}
}
