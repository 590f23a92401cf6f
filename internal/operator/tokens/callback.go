package tokens

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
)

// callbackPath is the path to which the browser is redirected. Clients that are registered beforehand name it in their
// redirect URI.
const callbackPath = "/callback"

// callback receives the redirect of a person's browser from an authorization server, on loopback (RFC 8252 §7.3).
// Every page in that browser can send requests to it too. It therefore ignores requests without the login's state.
type callback struct {
	net.Listener
	state secret.Secret
	came  chan url.Values
	taken atomic.Bool
}

// onLoopback reports whether address is a loopback IP address with a port. It accepts no names: localhost may resolve
// to either IP version, and another program may listen on the other one.
func onLoopback(address string) bool {
	at, err := netip.ParseAddrPort(address)
	return err == nil && at.Addr().IsLoopback() && !at.Addr().Is4In6() && at.Addr().Zone() == ""
}

// listenForCallback listens on ADDRESS:PORT on loopback. Port 0 chooses a free port.
func listenForCallback(ctx context.Context, address string) (*callback, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	return &callback{Listener: l, came: make(chan url.Values, 1)}, nil
}

// redirectURL returns the redirect URI for the authorization server.
func (c *callback) redirectURL() string { return "http://" + c.Addr().String() + callbackPath }

// awaitLogin shows the person the address of the authorization server's page. It then waits for the browser to come
// back, and returns the query of its request.
func (f *sourceFinder) awaitLogin(ctx context.Context, c *callback, page string,
	wait time.Duration) (url.Values, error) {
	u, err := url.Parse(page)
	if err != nil {
		return nil, errors.New("the authorization server's page has no address")
	}
	f.Notify("Open this address in a browser on this machine, and log in there within %s:\n\n%s\n\n"+
		"The browser comes back to %s; from another machine that needs a tunnel, as in ssh -L, with "+
		"--listen naming the port.",
		wait, text.Printable(page), c.redirectURL())
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	values, err := c.awaitBrowser(waiting, u.Query().Get("state"))
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, fmt.Errorf("no browser came back within %s", wait)
	}
	return values, err
}

// awaitBrowser waits for the browser's request with this state, and returns its query. It stops listening then, or when
// ctx ends.
func (c *callback) awaitBrowser(ctx context.Context, state string) (url.Values, error) {
	c.state = secret.New(state)
	server := &http.Server{Handler: c, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second,
		WriteTimeout: 5 * time.Second,
		IdleTimeout:  5 * time.Second, MaxHeaderBytes: 32 << 10, ErrorLog: log.New(io.Discard, "", 0)}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(c.Listener) }()
	select {
	case values := <-c.came:
		return values, c.shutDown(server, ended)
	case err := <-ended:
		return nil, fmt.Errorf("listen for the browser: %w", err)
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), c.shutDown(server, ended))
	}
}

// shutDown stops the server after the page is written.
func (c *callback) shutDown(server *http.Server, ended <-chan error) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		_ = server.Close() // browsers open connections that they do not use
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// ServeHTTP answers the browser. It checks only that the request belongs to this login.
func (c *callback) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Referrer-Policy", "no-referrer") // the address contains the code
	h.Set("Cache-Control", "no-store")
	say := func(status int, text string) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text+"\n")
	}
	values, err := url.ParseQuery(r.URL.RawQuery)
	switch {
	case r.Host != c.Addr().String() || r.URL.Path != callbackPath:
		say(http.StatusNotFound, "There is nothing here.")
	case r.Method != http.MethodGet:
		say(http.StatusMethodNotAllowed, "There is nothing here.")
	case err != nil || len(values["state"]) != 1 || c.state.IsZero() || !c.state.Compare(values["state"][0]):
		say(http.StatusBadRequest, "This is not the answer to the login that is waited for. "+
			"Begin again with the address that the terminal shows.")
	case c.taken.Swap(true):
		say(http.StatusConflict, "The answer has come already. The terminal says what became of it.")
	default:
		say(http.StatusOK, "Herald has the answer. The terminal says what became of it; this page can be closed.")
		c.came <- values
	}
}
