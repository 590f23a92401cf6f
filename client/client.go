// Package client hands jobs to Herald over HTTP and looks at what becomes of them.
//
// It needs nothing but the standard library. A job is whatever encodes to the JSON of docs/jobs.md; Herald checks it.
// Enqueueing the same job again is harmless: it is known, and nothing changes. So a call that failed may always be made
// again.
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

// Config says which Herald is called.
type Config struct {
	URL   string // of a worker's HTTP server, as in http://127.0.0.1:8080; needed
	Token string // with the scopes enqueue, to hand jobs in (and direct, for jobs with an endpoint of their own), and read, to look at deliveries; needed

	HTTP *http.Client // default: one without a time limit; contexts bound calls
}

// Client calls the HTTP API. Safe for concurrent use.
type Client struct {
	base  string
	token string
	http  *http.Client
}

// New checks the configuration. Nothing is connected to.
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

// Verdicts on a job.
const (
	Accepted  = "accepted"  // committed: it ends in a final status, whatever happens
	Known     = "known"     // the same event was accepted before
	Conflict  = "conflict"  // the same event is known with another content
	Refused   = "refused"   // it is invalid; nothing was stored
	Refreshed = "refreshed" // AgentUpdated: the agent is looked up anew
)

// Answer is what became of a job.
type Answer struct {
	Line    int64    `json:"line"` // of a stream, from 1
	Verdict string   `json:"verdict"`
	ID      string   `json:"id"` // the delivery's
	Key     string   `json:"key"`
	Status  string   `json:"status"`
	Error   *Problem `json:"error"` // Conflict and Refused
}

// Problem is why something was not done.
type Problem struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Field   string `json:"field"` // the path in the job, or the parameter, that is wrong
}

// Error is an answer that is no success.
type Error struct {
	Problem
	Status     int           // HTTP
	RetryAfter time.Duration // with 429 and 503: when to come back
}

func (e *Error) Error() string {
	if e.Field != "" {
		return fmt.Sprintf("herald: %s: %s (%s, HTTP %d)", e.Field, e.Message, e.Code, e.Status)
	}
	return fmt.Sprintf("herald: %s (%s, HTTP %d)", e.Message, e.Code, e.Status)
}

// Temporary tells whether the same call may succeed later.
func (e *Error) Temporary() bool { return e.Status == http.StatusTooManyRequests || e.Status >= 500 }

// Enqueue hands one job in. A job that is refused or in conflict is an answer, not an error.
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

// EnqueueStream hands in the jobs that next returns, until it returns io.EOF, and calls done for each answer, in order.
// Jobs are sent while answers come, and neither are held. Jobs for which done was called are decided; after an error the
// others may be sent again. done is called from the calling goroutine, next from another; EnqueueStream does not return
// before next does. Herald ends a stream on which nothing comes for a minute.
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
		return fault // the reason of whatever else failed
	case err == nil && (!errors.Is(fault, io.EOF) || answered < sent.Load()):
		return fmt.Errorf("herald: the stream ended after %d of %d answers: %w", answered, sent.Load(), io.ErrUnexpectedEOF)
	}
	return err
}

// streamJobs sends a body and reads the answers to its lines.
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

// sendJobs writes a line for each job, and counts them. io.EOF: all are written.
func sendJobs(feed *io.PipeWriter, next func() (any, error), sent *atomic.Int64) error {
	out := bufio.NewWriterSize(feed, 16<<10)
	encode := json.NewEncoder(out)
	for {
		job, err := next()
		if errors.Is(err, io.EOF) {
			if err := out.Flush(); err != nil {
				return context.Canceled // nobody reads: the caller knows why
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

func readAnswers(res *http.Response, done func(Answer) error) error {
	in := json.NewDecoder(res.Body)
	for {
		var a Answer
		switch err := in.Decode(&a); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("herald: read an answer: %w", err)
		case a.Verdict == "" && a.Error != nil: // the stream ends here
			return &Error{Problem: *a.Error, Status: http.StatusServiceUnavailable, RetryAfter: 5 * time.Second}
		}
		if err := done(a); err != nil {
			return err
		}
	}
}

// Delivery is where a delivery stands. Raw is the whole answer.
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

// Final tells whether the delivery has ended; only an operator's replay changes it then.
func (d Delivery) Final() bool { return d.FinishedAt != nil }

// Get looks a delivery up, by id or by key.
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

// Wait looks until the delivery has ended, or ctx does: then it returns what it saw last, and ctx's error. While the
// worker is away it goes on looking.
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

// drain lets the connection be used again.
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
