package oauth

import (
	"errors"
	"net/http"
	"time"
)

// Bounds of what a server may answer.
const (
	maxMetadata  = 256 << 10 // bytes of one metadata document
	maxAnswer    = 64 << 10  // bytes of one answer of a token or registration endpoint
	maxDepth     = 16        // levels of JSON
	maxIssuers   = 32        // authorization servers of one resource
	maxNames     = 256       // scopes, methods and other names in one list
	maxName      = 256       // bytes of one of them
	maxURL       = 2048      // bytes of an endpoint, issuer or resource
	maxScope     = 4096      // bytes of a scope parameter
	maxRetry     = time.Hour // that an answer may ask for
	maxLife      = 400 * 24 * time.Hour
	maxSecret    = 16 << 10 // bytes of a token, client secret or key
	maxClientID  = 2048     // bytes; it may be a URL
	maxText      = 300      // bytes of foreign words in an error
	maxParameter = 8 << 10  // bytes of a value in a callback
)

// Config makes a Client.
type Config struct {
	// HTTP dials through the guard: guard.Client(limits, 0). Its redirect rule and cookie jar are not used: no
	// redirect is followed.
	HTTP    *http.Client
	Now     func() time.Time // default time.Now
	Timeout time.Duration    // of one request with its answer; default 10 s
}

// Client asks resources and authorization servers. It keeps nothing. Safe for concurrent use.
type Client struct {
	http    *http.Client
	now     func() time.Time
	timeout time.Duration
}

// New checks the configuration.
func New(cfg Config) (*Client, error) {
	if cfg.HTTP == nil || cfg.HTTP.Transport == nil {
		return nil, errors.New("oauth: a client needs an HTTP client that dials through the guard")
	}
	c := &Client{now: cfg.Now, timeout: cfg.Timeout}
	if c.now == nil {
		c.now = time.Now
	}
	if c.timeout <= 0 {
		c.timeout = 10 * time.Second
	}
	c.http = &http.Client{
		Transport:     cfg.HTTP.Transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}
