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

// send sends a request to a host, and returns the status of the answer.
func send(t testing.TB, method, host, address string) (status int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, address, nil)
	if err != nil {
		t.Error(err)
		return 0
	}
	req.Host = host
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
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
			heraldtest.Equal(t, address, send(t, http.MethodGet, "", address), want)
		}
		for host, method := range map[string]string{"evil.example": http.MethodGet, "": http.MethodPost} {
			if got := send(t, method, host, c.redirectURL()+"?state=right&code=forged"); got != 404 && got != 405 {
				t.Errorf("%s %s: %d", method, host, got)
			}
		}
		heraldtest.Equal(t, "the callback", send(t, http.MethodGet, "", c.redirectURL()+"?state=right&code=good"), 200)
	}()
	values, err := c.awaitBrowser(t.Context(), "right")
	<-asked
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "the code", values.Get("code"), "good")

	c, err = listenForCallback(t.Context(), "127.0.0.1:0")
	heraldtest.Must(t, err)
	var shown screen
	f := &sourceFinder{Tokens: Tokens{operator.New(operator.Config{Person: &shown})}}
	_, err = f.awaitLogin(t.Context(), c, "https://as.example/?state=right&x=\x1b", time.Millisecond)
	heraldtest.Fails(t, "awaitLogin", err, "no address")
	if _, err := f.awaitLogin(t.Context(), c, "https://as.example/?state=right", time.Millisecond); err == nil || err.Error() != "no browser came back within 1ms" ||
		!strings.Contains(shown.String(), "\n\nhttps://as.example/?state=right\n\n") {
		t.Errorf("%v: %s", err, shown.String())
	}

	if c, err = listenForCallback(t.Context(), "127.0.0.2:0"); err != nil || !strings.HasPrefix(c.redirectURL(), "http://127.0.0.2:") {
		t.Fatalf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.awaitBrowser(ctx, "right")
	heraldtest.Fails(t, "a cancelled wait", err)
	for _, bad := range []string{"0.0.0.0:0", "example.org:80", "10.0.0.1:0", "127.0.0.1", ":0", "[::]:0", "localhost:0", "[::1%lo]:0", "[::ffff:127.0.0.1]:0", "127.0.0.1:x"} {
		if onLoopback(bad) {
			t.Errorf("%s", bad)
		}
	}
}
