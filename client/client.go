// Package client is the Go client of Herald's HTTP API (docs/reference/api.md). It uses only the standard library.
//
// An indexer sends jobs: [Client.Enqueue] sends one, [Client.EnqueueMany] and [Client.EnqueueStream] send many. A job
// is any value whose JSON has the form of docs/reference/jobs.md; Herald validates it. Enqueueing the same job again
// changes nothing, because Herald recognises it. Therefore a call that failed can always be repeated.
//
// [Client.Get] and [Client.Deliveries] read deliveries, [Client.Wait] waits for the end of one, and [Client.Events]
// follows all changes. [Client.Replay] and [Client.Cancel] change one delivery, [Client.ReplayAll] and
// [Client.CancelAll] all deliveries of a [Selection]. [Client.Agents] reads agents; [Client.DisableAgent] holds an
// agent's deliveries, and [Client.EnableAgent] releases them.
//
// A failed call returns an [*Error] if Herald answered. [Error.Temporary] reports whether the same call may succeed
// later.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Config configures a Client.
type Config struct {
	// URL is the base URL of a worker's HTTP server, such as http://127.0.0.1:8080. Required.
	URL string
	// Token is an API token (worker api-token create). Required. It needs the scope enqueue to send jobs, direct for
	// jobs with their own endpoint, read to read, and operate to change deliveries and agents.
	Token string

	HTTP *http.Client // default: a client without a timeout; contexts bound the calls
}

// Client calls the HTTP API. It is safe for concurrent use.
type Client struct {
	base  string
	token string
	http  *http.Client
}

// New validates cfg and returns a Client. It does not connect.
func New(cfg Config) (*Client, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("herald: %q is not an http or https URL", cfg.URL)
	}
	if cfg.Token == "" {
		return nil, errors.New("herald: a token is needed (worker api-token create)")
	}
	if cfg.HTTP == nil {
		cfg.HTTP = &http.Client{}
	}
	return &Client{base: strings.TrimRight(cfg.URL, "/"), token: cfg.Token, http: cfg.HTTP}, nil
}

// Problem explains why a request failed.
type Problem struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Field   string `json:"field"` // path in the job, or parameter, that is wrong
}

// Error is an answer that reports a failure.
type Error struct {
	Problem
	Status     int           // HTTP status
	RetryAfter time.Duration // with 429 and 503: the delay before a retry
}

func (e *Error) Error() string {
	if e.Field != "" {
		return fmt.Sprintf("herald: %s: %s (%s, HTTP %d)", e.Field, e.Message, e.Code, e.Status)
	}
	return fmt.Sprintf("herald: %s (%s, HTTP %d)", e.Message, e.Code, e.Status)
}

// Temporary reports whether the same call may succeed later.
func (e *Error) Temporary() bool { return e.Status == http.StatusTooManyRequests || e.Status >= 500 }

// send makes one request with the client's token.
func (c *Client) send(ctx context.Context, method, path, mediaType string, body io.Reader) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, fmt.Errorf("herald: %w", err)
	}
	r.Header.Set("Authorization", "Bearer "+c.token)
	if mediaType != "" {
		r.Header.Set("Content-Type", mediaType)
	}
	res, err := c.http.Do(r)
	if err != nil {
		return nil, fmt.Errorf("herald: %w", err)
	}
	return res, nil
}

// call makes one request with a JSON body, if in is not nil, and decodes the answer into out.
func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	mediaType := ""
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("herald: encode the request: %w", err)
		}
		body, mediaType = bytes.NewReader(raw), "application/json"
	}
	res, err := c.send(ctx, method, path, mediaType, body)
	if err != nil {
		return err
	}
	defer drain(res)
	raw, err := readAnswer(res)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return newError(res, raw)
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("herald: read the answer to %s %s: %w", method, path, err)
	}
	return nil
}

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 8 << 20

func readAnswer(res *http.Response) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("herald: read the answer: %w", err)
	}
	return raw, nil
}

// drain reads and closes the body, so that the connection can be reused.
func drain(res *http.Response) {
	_, _ = io.CopyN(io.Discard, res.Body, 64<<10)
	_ = res.Body.Close()
}

func newError(res *http.Response, raw []byte) error {
	var answer struct{ Error Problem }
	if json.Unmarshal(raw, &answer) != nil || answer.Error.Code == "" {
		answer.Error = Problem{Code: "no_answer", Message: "this is no answer of Herald's: " + res.Status}
	}
	e := &Error{Problem: answer.Error, Status: res.StatusCode}
	if seconds, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil {
		e.RetryAfter = time.Duration(seconds) * time.Second
	}
	return e
}
