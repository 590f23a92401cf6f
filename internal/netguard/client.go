package netguard

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"time"
)

// Limits bound one client of the guard. Zero values take the defaults.
type Limits struct {
	// Dial bounds name resolution and connecting together. Default 3 s.
	Dial time.Duration
	// TLS bounds the handshake. Default 3 s.
	TLS time.Duration
	// Header bounds the wait for response headers once the request is written.
	// Default 5 s. Negative: no bound but the request's context, for callers
	// whose servers think before they answer.
	Header time.Duration
	// Idle is how long an unused connection is kept. Default 60 s.
	Idle time.Duration
	// Total bounds a whole exchange with its redirects and body, for Client
	// only. Default 0: the request's context decides alone.
	Total time.Duration
	// HeaderBytes bounds the response headers. Default 32 KiB.
	HeaderBytes int64
	// IdlePerHost is how many idle connections are kept per host. Default 4.
	IdlePerHost int
	// IdleConns is how many are kept in all. Default 256; each costs two goroutines and its buffers, some 35 KB
	// without TLS.
	IdleConns int
	// ConnsPerHost bounds connections per host, busy ones included; requests
	// beyond it wait. Default 0: no bound.
	ConnsPerHost int
}

func (l Limits) withDefaults() Limits {
	if l.Dial <= 0 {
		l.Dial = 3 * time.Second
	}
	if l.TLS <= 0 {
		l.TLS = 3 * time.Second
	}
	switch {
	case l.Header == 0:
		l.Header = 5 * time.Second
	case l.Header < 0:
		l.Header = 0 // net/http's word for no bound
	}
	if l.Idle <= 0 {
		l.Idle = time.Minute
	}
	if l.HeaderBytes <= 0 {
		l.HeaderBytes = 32 << 10
	}
	if l.IdlePerHost <= 0 {
		l.IdlePerHost = 4
	}
	if l.IdleConns <= 0 {
		l.IdleConns = 256
	}
	return l
}

// Transport returns a new transport whose every connection passed the guard.
// It checks addresses, not URLs: callers that take a URL from a stranger ask
// CheckURL first, or use Client, which does. The caller owns it and closes its
// idle connections. A TLSClientConfig set before first use is honoured.
func (g *Guard) Transport(l Limits) *http.Transport {
	l = l.withDefaults()
	t := &http.Transport{
		Proxy:                  nil, // with a proxy the guard would see the proxy's address only
		DisableCompression:     true,
		MaxResponseHeaderBytes: l.HeaderBytes,
		ResponseHeaderTimeout:  l.Header,
		TLSHandshakeTimeout:    l.TLS,
		IdleConnTimeout:        l.Idle,
		MaxIdleConns:           l.IdleConns,
		MaxIdleConnsPerHost:    l.IdlePerHost,
		MaxConnsPerHost:        l.ConnsPerHost,
		ExpectContinueTimeout:  time.Second,
		TLSClientConfig:        &tls.Config{RootCAs: g.roots, MinVersion: tls.VersionTLS12},
	}
	// Two dial functions, because the rule for plain http needs to know what
	// the connection is for.
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		return g.dial(ctx, "http", network, address, l.Dial)
	}
	t.DialTLSContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := g.dial(ctx, "https", network, address, l.Dial)
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
		brief, cancel := context.WithTimeout(ctx, l.TLS)
		defer cancel()
		tc := tls.Client(conn, cfg)
		if err := tc.HandshakeContext(brief); err != nil {
			_ = conn.Close() // the handshake's error is the one to tell
			return nil, explainHandshake(ctx, address, l.TLS, err)
		}
		return tc, nil
	}
	return t
}

// explainHandshake words a TLS handshake that failed. Silence is that of this handshake, which has less time than the
// whole exchange.
func explainHandshake(ctx context.Context, address string, timeout time.Duration, err error) error {
	what := "no TLS connection to " + address + ": "
	if ctx.Err() == nil && isTimeout(err) {
		return &FailureError{Text: what + "the handshake did not end " + describeTime(timeout), Cause: err}
	}
	return &FailureError{Text: what + Explain("the server", 0, err).Error(), Cause: err}
}

// Client returns a new client over a Transport of its own. With redirects 0 a
// redirect is handed to the caller as the answer; otherwise at most that many
// are followed, each hop checked, without Referer and credentials, and one more
// is *RedirectError. The caller owns the client and calls CloseIdleConnections
// when done with it.
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
			// The next host is a stranger to the last one.
			for _, h := range []string{"Referer", "Authorization", "Cookie", "Proxy-Authorization"} {
				req.Header.Del(h)
			}
			return nil
		},
	}
}

// checkedTransport asks CheckURL for every request, redirect hops included.
type checkedTransport struct {
	guard *Guard
	next  *http.Transport
}

func (c *checkedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := c.guard.CheckURL(req.URL); err != nil {
		if req.Body != nil {
			_ = req.Body.Close() // a RoundTripper closes the body also on error
		}
		return nil, err
	}
	return c.next.RoundTrip(req)
}

// CloseIdleConnections is what http.Client.CloseIdleConnections looks for.
func (c *checkedTransport) CloseIdleConnections() { c.next.CloseIdleConnections() }
