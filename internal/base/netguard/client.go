package netguard

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"time"
)

// dialTimeout bounds name resolution and connecting together. If the first nameserver is down, Go asks the second one
// after 5 s. If addresses of a name are down, Go tries the next one after 2 s. tlsTimeout bounds a TLS handshake.
const dialTimeout, tlsTimeout = 6 * time.Second, 3 * time.Second

// Limits bound one client of the guard. Zero values select the defaults.
type Limits struct {
	// Header bounds the wait for the response headers after the request was written. The default is 5 s. A negative
	// value means that only the request's context bounds it, for servers that compute before they answer.
	Header time.Duration
	// Idle is how long an unused connection is kept. The default is 60 s.
	Idle time.Duration
	// Total bounds a whole exchange including redirects and body. It applies only to Client. The default 0 means that
	// only the request's context bounds it.
	Total time.Duration
	// IdlePerHost is how many idle connections are kept per host. The default is 4.
	IdlePerHost int
	// IdleConns is how many idle connections are kept in total. The default is 256. Each needs two goroutines and
	// buffers, about 35 KB without TLS.
	IdleConns int
}

func (l Limits) withDefaults() Limits {
	l.Header = max(cmp.Or(l.Header, 5*time.Second), 0) // 0 means no bound in net/http
	l.Idle = cmp.Or(l.Idle, time.Minute)
	l.IdlePerHost = cmp.Or(l.IdlePerHost, 4)
	l.IdleConns = cmp.Or(l.IdleConns, 256)
	return l
}

// Transport returns a new transport that passes every connection through the guard. It checks addresses, not URLs:
// callers with an untrusted URL must call CheckURL first, or use Client, which does. The caller owns the transport
// and must close its idle connections. A TLSClientConfig that is set before the first use is honoured.
func (g *Guard) Transport(l Limits) *http.Transport {
	l = l.withDefaults()
	t := &http.Transport{
		Proxy:                  nil, // with a proxy, the guard would see only the proxy's address
		DisableCompression:     true,
		MaxResponseHeaderBytes: 32 << 10,
		ResponseHeaderTimeout:  l.Header,
		TLSHandshakeTimeout:    tlsTimeout,
		IdleConnTimeout:        l.Idle,
		MaxIdleConns:           l.IdleConns,
		MaxIdleConnsPerHost:    l.IdlePerHost,
		ExpectContinueTimeout:  time.Second,
		TLSClientConfig:        &tls.Config{RootCAs: g.roots, MinVersion: tls.VersionTLS12},
	}
	// There are two dial functions, because the rule for plain http depends on the scheme.
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		return g.dial(ctx, "http", network, address, dialTimeout)
	}
	t.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := g.dial(ctx, "https", network, address, dialTimeout)
		if err != nil {
			return nil, err
		}
		cfg := t.TLSClientConfig.Clone()
		if cfg == nil {
			cfg = &tls.Config{RootCAs: g.roots, MinVersion: tls.VersionTLS12}
		}
		cfg.NextProtos = []string{"http/1.1"}
		if cfg.ServerName == "" {
			if cfg.ServerName, _, err = net.SplitHostPort(address); err != nil {
				return nil, errors.Join(err, conn.Close())
			}
		}
		brief, cancel := context.WithTimeout(ctx, tlsTimeout)
		defer cancel()
		tc := tls.Client(conn, cfg)
		if err := tc.HandshakeContext(brief); err != nil {
			_ = conn.Close() // the handshake's error is the one to report
			return nil, explainHandshake(ctx, address, tlsTimeout, err)
		}
		return tc, nil
	}
	return t
}

// explainHandshake describes a failed TLS handshake. A timeout is that of the handshake, which has less time than the
// whole exchange.
func explainHandshake(ctx context.Context, address string, timeout time.Duration, err error) error {
	what := "no TLS connection to " + address + ": "
	if ctx.Err() == nil && isTimeout(err) {
		return &FailureError{Text: what + "the handshake did not end " + describeTime(timeout), Cause: err}
	}
	return &FailureError{Text: what + Explain("the server", 0, err).Error(), Cause: err}
}

// Client returns a new client with its own Transport. If redirects is 0, the client returns a redirect as the answer.
// Otherwise it follows at most redirects redirects, checks each hop, escapes its query (EscapeQuery), and removes
// Referer, credentials and conditions; one more redirect is a *RedirectError. The caller owns the client and must call
// CloseIdleConnections after use.
func (g *Guard) Client(l Limits, redirects int) *http.Client {
	return &http.Client{
		Transport: &checkedTransport{guard: g, next: g.Transport(l)},
		Timeout:   l.Total,
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if redirects <= 0 {
				return http.ErrUseLastResponse
			}
			if len(via) > redirects {
				return &RedirectError{Max: redirects}
			}
			// The next host must not receive credentials for the previous one, nor the condition of another URL.
			for _, h := range []string{"Referer", "Authorization", "Cookie", "Proxy-Authorization",
				"If-None-Match", "If-Modified-Since"} {
				req.Header.Del(h)
			}
			req.URL.RawQuery = EscapeQuery(req.URL.RawQuery)
			return nil
		},
	}
}

// checkedTransport calls CheckURL for every request, including redirects.
type checkedTransport struct {
	guard *Guard
	next  *http.Transport
}

func (c *checkedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := c.guard.CheckURL(req.URL); err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // a RoundTripper must close the body even on error
		}
		return nil, err
	}
	return c.next.RoundTrip(req)
}

// CloseIdleConnections closes idle connections. http.Client.CloseIdleConnections calls it.
func (c *checkedTransport) CloseIdleConnections() { c.next.CloseIdleConnections() }
