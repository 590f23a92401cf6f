package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

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
func (c *Client) EnqueueStream(caller context.Context,
	next func() (job any, err error), done func(Answer) error) (err error) {
	ctx, cancel := context.WithCancel(caller)
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
	case err != nil && caller.Err() != nil:
		return fmt.Errorf("herald: %w", caller.Err())
	case err == nil && (!errors.Is(fault, io.EOF) || answered < sent.Load()):
		return fmt.Errorf("herald: the stream ended after %d of %d answers: %w",
			answered, sent.Load(), io.ErrUnexpectedEOF)
	}
	return err
}

// EnqueueMany sends the jobs that next returns until it returns io.EOF, as EnqueueStream does. It returns the answers
// of the jobs that Herald refused and of those in conflict: Answer.Line numbers the job, Answer.Error is the reason.
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

// sendJobs writes one line per job and counts them. It returns io.EOF when all are written, and context.Canceled if the
// body was closed, whose reason the caller has.
func sendJobs(feed io.Writer, next func() (any, error), sent *atomic.Int64) error {
	for {
		job, err := next()
		if err != nil {
			return err
		}
		line, err := json.Marshal(job)
		if err != nil {
			return fmt.Errorf("herald: encode a job: %w", err)
		}
		sent.Add(1)
		if _, err := feed.Write(append(line, '\n')); err != nil {
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
