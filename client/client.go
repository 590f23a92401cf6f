// Package client sends jobs to Herald over HTTP and reads the state of their deliveries.
//
// It uses only the standard library. A job is any value whose JSON has the form of docs/reference/jobs.md; Herald validates it.
// Enqueueing the same job again changes nothing, because Herald recognises it. Therefore a call that failed can always
// be repeated.
package client

import (
	"bufio"
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
	"sync/atomic"
	"time"
)

// Config configures a Client.
type Config struct {
	// URL is the base URL of a worker's HTTP server, such as http://127.0.0.1:8080. Required.
	URL string
	// Token is an API token. It needs the scope enqueue to send jobs, direct for jobs with their own endpoint, and read
	// to read deliveries. Required.
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

// The values of Answer.Verdict.
const (
	Accepted  = "accepted"  // committed: the delivery will reach a final status
	Known     = "known"     // the same event was accepted before
	Conflict  = "conflict"  // the same event was accepted with another action or, without verification, another content
	Refused   = "refused"   // invalid; nothing was stored
	Refreshed = "refreshed" // AgentUpdated: the agent will be resolved again
)

// Answer is the result for one job.
type Answer struct {
	Line    int64    `json:"line"` // line of the stream, from 1
	Verdict string   `json:"verdict"`
	ID      string   `json:"id"` // id of the delivery
	Key     string   `json:"key"`
	Status  string   `json:"status"`
	Differs []string `json:"differs"` // for Known: the job's fields that differ from the event on the chain
	Error   *Problem `json:"error"`   // set for Conflict and Refused
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

// Enqueue sends one job. If Herald refuses the job or it is in conflict, Enqueue returns an Answer and no error.
func (c *Client) Enqueue(ctx context.Context, job any) (a Answer, err error) {
	body, err := json.Marshal(job)
	if err != nil {
		return a, fmt.Errorf("herald: encode the job: %w", err)
	}
	res, err := c.send(ctx, http.MethodPost, "/v1/jobs", "application/json", bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	defer drain(res)
	raw, err := readAnswer(res)
	if err != nil {
		return a, err
	}
	if json.Unmarshal(raw, &a) == nil && a.Verdict != "" {
		return a, nil
	}
	return a, newError(res, raw)
}

// EnqueueStream sends the jobs that next returns until it returns io.EOF, and calls done for each answer, in order. It
// sends jobs while it receives answers and keeps neither in memory. Jobs for which done was called are decided;
// after an error, the others may be sent again. done is called in the calling goroutine, next in another one;
// EnqueueStream returns only after next has returned. Herald ends a stream on which it receives nothing for a minute.
func (c *Client) EnqueueStream(ctx context.Context, next func() (job any, err error), done func(Answer) error) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	body, feed := io.Pipe()
	var sent atomic.Int64
	ended := make(chan error, 1)
	go func() {
		fault := sendJobs(feed, next, &sent)
		_ = feed.CloseWithError(fault) // io.EOF ends the body
		ended <- fault
	}()
	answered, err := c.streamJobs(ctx, body, done)
	cancel()
	_ = body.CloseWithError(context.Canceled)
	switch fault := <-ended; {
	case !errors.Is(fault, io.EOF) && !errors.Is(fault, context.Canceled):
		return fault // it caused any other error
	case err == nil && (!errors.Is(fault, io.EOF) || answered < sent.Load()):
		return fmt.Errorf("herald: the stream ended after %d of %d answers: %w", answered, sent.Load(), io.ErrUnexpectedEOF)
	}
	return err
}

// EnqueueMany sends the jobs that next returns until it returns io.EOF, as EnqueueStream does. It returns the answers of
// the jobs that Herald refused and of those in conflict: Answer.Line numbers the job, Answer.Error is the reason.
func (c *Client) EnqueueMany(ctx context.Context, next func() (job any, err error)) (refused []Answer, err error) {
	err = c.EnqueueStream(ctx, next, func(a Answer) error {
		if a.Error != nil {
			refused = append(refused, a)
		}
		return nil
	})
	return refused, err
}

// streamJobs sends a body and passes the answer to each line to done.
func (c *Client) streamJobs(ctx context.Context, body io.Reader, done func(Answer) error) (answered int64, err error) {
	res, err := c.send(ctx, http.MethodPost, "/v1/jobs", "application/x-ndjson", body)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		raw, err := readAnswer(res)
		if err != nil {
			return 0, err
		}
		return 0, newError(res, raw)
	}
	err = readAnswers(res, func(a Answer) error {
		answered++
		return done(a)
	})
	return answered, err
}

// sendJobs writes one line per job and counts them. It returns io.EOF when all are written.
func sendJobs(feed *io.PipeWriter, next func() (any, error), sent *atomic.Int64) error {
	out := bufio.NewWriterSize(feed, 16<<10)
	encode := json.NewEncoder(out)
	for {
		job, err := next()
		if errors.Is(err, io.EOF) {
			if err := out.Flush(); err != nil {
				return context.Canceled // the reader was closed; the caller has the reason
			}
			return io.EOF
		}
		if err != nil {
			return err
		}
		sent.Add(1)
		if err := encode.Encode(job); err != nil {
			if errors.Is(err, context.Canceled) {
				return context.Canceled
			}
			return fmt.Errorf("herald: encode a job: %w", err)
		}
		if err := out.Flush(); err != nil {
			return context.Canceled
		}
	}
}

// readAnswers calls done for each answer in the body, until the body or Herald ends the stream.
func readAnswers(res *http.Response, done func(Answer) error) error {
	in := json.NewDecoder(res.Body)
	for {
		var a Answer
		switch err := in.Decode(&a); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("herald: read an answer: %w", err)
		case a.Verdict == "" && a.Error != nil: // Herald ends the stream with this answer
			return &Error{Problem: *a.Error, Status: http.StatusServiceUnavailable, RetryAfter: 5 * time.Second}
		}
		if err := done(a); err != nil {
			return err
		}
	}
}

// Delivery is the state of a delivery. Raw is the whole answer.
type Delivery struct {
	ID            string          `json:"id"`
	Key           string          `json:"key"`
	Kind          string          `json:"kind"`
	ChainID       uint64          `json:"chainId"`
	AgentID       string          `json:"agentId"`
	Status        string          `json:"status"`
	Reason        string          `json:"reason"`
	Error         string          `json:"error"`
	Attempts      int             `json:"attempts"`
	NextAttemptAt *time.Time      `json:"nextAttemptAt"`
	CreatedAt     time.Time       `json:"createdAt"`
	FinishedAt    *time.Time      `json:"finishedAt"`
	Raw           json.RawMessage `json:"-"`
}

// Final reports whether the delivery has ended. After that only an operator's replay changes it.
func (d Delivery) Final() bool { return d.FinishedAt != nil }

// Get returns a delivery by id or by key.
func (c *Client) Get(ctx context.Context, idOrKey string) (d Delivery, err error) {
	parts := strings.Split(idOrKey, "/")
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	res, err := c.send(ctx, http.MethodGet, "/v1/deliveries/"+strings.Join(parts, "/"), "", nil)
	if err != nil {
		return d, err
	}
	defer drain(res)
	raw, err := readAnswer(res)
	if err != nil {
		return d, err
	}
	if res.StatusCode != http.StatusOK {
		return d, newError(res, raw)
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		return d, fmt.Errorf("herald: read the delivery: %w", err)
	}
	d.Raw = raw
	return d, nil
}

const (
	firstLook   = 50 * time.Millisecond
	longestLook = 5 * time.Second
)

// Wait polls the delivery until it has ended, and returns it. If ctx ends first, it returns the last state and ctx's
// error. It continues to poll while the worker is unavailable.
func (c *Client) Wait(ctx context.Context, idOrKey string) (d Delivery, err error) {
	for pause := firstLook; ; pause = min(2*pause, longestLook) {
		seen, err := c.Get(ctx, idOrKey)
		var refused *Error
		switch {
		case err == nil:
			if d = seen; d.Final() {
				return d, nil
			}
		case errors.As(err, &refused) && !refused.Temporary():
			return d, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return d, ctx.Err()
		}
	}
}

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
