package node

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
)

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{
		{URLs: []secret.Secret{secret.New("http://a")}}, {ChainID: 1}, {ChainID: 1, URLs: []secret.Secret{secret.New("a")}}, {ChainID: 1, URLs: []secret.Secret{secret.New("ftp://u:pw@a")}},
		{ChainID: 1, URLs: []secret.Secret{secret.New("http://a")}, Timeout: -1}, {ChainID: 1, URLs: []secret.Secret{secret.New("http://u:pw@\x7f")}},
	} {
		if _, err := New(cfg); err == nil || strings.Contains(err.Error(), "pw") {
			t.Errorf("%v: %v", cfg, err)
		}
	}
}

// TestErrorsHideTheURL: URLs of node providers contain keys, in the path or in the query. No error may show them.
func TestErrorsHideTheURL(t *testing.T) {
	t.Parallel()
	answers := map[string]http.HandlerFunc{
		"status": func(rw http.ResponseWriter, r *http.Request) {
			http.Error(rw, "key of "+r.URL.Path+" is over", http.StatusTooManyRequests)
		},
		"redirect": func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, "https://other.example"+r.URL.Path, http.StatusTemporaryRedirect)
		},
		"status line": func(rw http.ResponseWriter, r *http.Request) {
			answerRaw(rw, "503 key of "+r.URL.String()+strings.Repeat(" is over", 1000))
		},
		"redirect to no address": func(rw http.ResponseWriter, r *http.Request) {
			answerRaw(rw, "302 Found\r\nLocation: http://["+r.URL.String()+strings.Repeat("x", 10_000))
		},
		"html": func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "<html>") },
		"hangs": func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // otherwise the server does not notice that the client disconnects
			<-r.Context().Done()
		},
		"cut": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"error": func(rw http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(rw, `{"jsonrpc":"2.0","id":1,"error":{"code":-32005,"message":"`+strings.Repeat("m", 5000)+`"}}`)
		},
		"error with the address": func(rw http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(rw, `{"jsonrpc":"2.0","id":1,"error":{"code":-32005,"message":%q}}`, strings.Repeat("m", 260)+" "+r.URL.String()+" "+strings.ReplaceAll(r.URL.String(), "/", `\/`))
		},
		"error with the password": func(rw http.ResponseWriter, r *http.Request) {
			user, password, _ := r.BasicAuth()
			fmt.Fprintf(rw, `{"jsonrpc":"2.0","id":1,"error":{"code":-32005,"message":"no: %s, %s:%s"}}`, r.Header["Authorization"], user, password)
		},
		"id big": func(rw http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(rw, `{"jsonrpc":"2.0","id":1,"result":"0x1ffffffffffffffffff"}`)
		},
	}
	urls := map[string]string{"no listener": "http://user:KEY-of-ours@127.0.0.1:1/v3/KEY-of-ours?k=KEY-of-ours",
		"no listener, ws": "ws://127.0.0.1:1/v3/KEY-of-ours"}
	for name, h := range answers {
		server := httptest.NewServer(h)
		t.Cleanup(server.Close)
		urls[name] = strings.Replace(server.URL, "://", "://us:KEY9@", 1) + "/v3/KEY-of-ours?k=KEY-of-ours"
	}
	for name, url := range urls {
		c := newPool(t, Config{ChainID: 1, URLs: []secret.Secret{secret.New(url)}, Timeout: 300 * time.Millisecond})
		err := c.Ping(t.Context())
		if !errors.As(err, new(*UnavailableError)) && !errors.As(err, new(*WrongChainError)) {
			t.Errorf("%s: %v", name, err)
		} else if strings.Contains(err.Error(), "KEY") || strings.Contains(err.Error(), "dXM6S0VZOQ") || len(err.Error()) > 600 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// answerRaw answers with a status line and headers that net/http's server would not write.
func answerRaw(rw http.ResponseWriter, head string) {
	conn, _, err := http.NewResponseController(rw).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "HTTP/1.1 "+head+"\r\nContent-Length: 0\r\n\r\n")
}
