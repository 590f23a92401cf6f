package oauth

import (
	"errors"
	"net/http"
	"time"
)

// Bounds of the answers of servers and of stored values.
const (
	maxMetadata  = 256 << 10 // bytes of one metadata document
	maxAnswer    = 64 << 10  // bytes of one answer of a token or registration endpoint
	maxDepth     = 16        // nesting levels of JSON
	maxIssuers   = 32        // authorization servers of one resource
	maxNames     = 256       // scopes, methods and other names in one list
	maxName      = 256       // bytes of one such name
	maxURL       = 2048      // bytes of an endpoint, issuer or resource
	maxScope     = 4096      // bytes of a scope parameter
	maxRetry     = time.Hour // maximum delay that an answer may request
	maxLife      = 400 * 24 * time.Hour
	maxSecret    = 16 << 10 // bytes of a token, client secret or key
	maxClientID  = 2048     // bytes; it may be a URL
	maxText      = 300      // bytes of a server's text in an error
	maxParameter = 8 << 10  // bytes of one parameter of a callback
)

// Config configures a Client.
type Config struct {
	// HTTP must dial through the guard: guard.Client(limits, 0). Only its Transport is used; its redirect policy and
	// cookie jar are not. Redirects are not followed.
	HTTP    *http.Client
	Now     func() time.Time // default time.Now
	Timeout time.Duration    // of one request including its answer; default 10 s
}

// Client sends requests to resources and authorization servers. It caches nothing. It is safe for concurrent use.
type Client struct{ Config }

// New validates cfg and returns a Client.
func New(cfg Config) (*Client, error) {
	if cfg.HTTP == nil || cfg.HTTP.Transport == nil {
		return nil, errors.New("oauth: a client needs an HTTP client that dials through the guard")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Timeout <= 0 {
		cfg.Timeout = 10 * time.Second
	}
	cfg.HTTP = &http.Client{
		Transport:     cfg.HTTP.Transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return &Client{cfg}, nil
}
