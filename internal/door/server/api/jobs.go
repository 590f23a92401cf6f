package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/tracecontext"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/door/server"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
)

// JobAnswer is the result for one job.
type JobAnswer struct {
	Line    int64           `json:"line,omitempty"` // JSON Lines: number of the line, from 1
	Verdict ledger.Verdict  `json:"verdict"`
	ID      string          `json:"id,omitempty"` // of the delivery; empty for refused jobs and AgentUpdated
	Key     string          `json:"key,omitempty"`
	Status  outcome.Status  `json:"status,omitempty"`  // current status of the delivery
	Differs []string        `json:"differs,omitempty"` // for known: fields that differ from the event on the chain
	Error   *server.Problem `json:"error,omitempty"`   // for refused and conflict
}

const (
	jobBatch      = 500 // maximum of lines in one commit
	submitTimeout = 30 * time.Second
	// lineTimeout bounds the arrival of one line, and the sending of one response line.
	lineTimeout = 60 * time.Second
)

// enqueue accepts one job, or many as JSON Lines.
func (a *API) enqueue(w http.ResponseWriter, r *http.Request, v server.Visitor) {
	release, ok := a.enqueuing.acquire(v.Name)
	if !ok {
		a.answerError(w, r, refuse(http.StatusTooManyRequests, "too_many_requests", "",
			"as many requests as may be hand in jobs already: try again"))
		return
	}
	defer release()
	r = r.WithContext(tracecontext.NewContext(r.Context(), r.Header.Get(tracecontext.Header)))
	switch kind, err := readMediaType(w, r); {
	case err != nil:
		a.answerError(w, r, err)
	case kind == "application/json":
		a.enqueueOne(w, r, v)
	case kind == "application/x-ndjson":
		a.enqueueLines(w, r, v)
	default:
		a.answerError(w, r, refuse(http.StatusUnsupportedMediaType, "unsupported_media_type", "",
			"send one job as application/json, or JSON Lines as application/x-ndjson"))
	}
}

func (a *API) enqueueOne(w http.ResponseWriter, r *http.Request, v server.Visitor) {
	body, err := readJSON(w, r, job.MaxBytes)
	if err != nil {
		a.answerError(w, r, err)
		return
	}
	if !a.paceOf(v.Name).Allow() {
		a.answerError(w, r, refuse(http.StatusTooManyRequests, "too_many_requests", "",
			"a token may hand in %d jobs a second", jobsPerSecond))
		return
	}
	answers, err := a.submit(r.Context(), [][]byte{body}, v)
	if err != nil {
		a.answerError(w, r, err)
		return
	}
	answer := describeJob(answers[0])
	if answers[0].Forbidden {
		a.answerError(w, r,
			refuse(http.StatusForbidden, answer.Error.Code, answer.Error.Field, "%s", answer.Error.Message))
		return
	}
	status := http.StatusAccepted
	switch answer.Verdict {
	case ledger.Known:
		status = http.StatusOK
	case ledger.Conflict:
		status = http.StatusConflict
	case intake.Refused:
		status = http.StatusBadRequest
	}
	server.WriteJSON(w, status, answer)
}

// submit commits jobs, even if the client has disconnected.
func (a *API) submit(ctx context.Context, bodies [][]byte, v server.Visitor) ([]intake.Answer, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), submitTimeout)
	defer cancel()
	trust := ledger.TrustOrdinary
	if v.May(operator.ScopeDirect) {
		trust = ledger.TrustDirect
	}
	answers, err := a.Intake.Submit(ctx, bodies, ledger.SourceToken(v.Name, trust))
	if err != nil {
		a.Logger.Warn("jobs could not be accepted", logging.About(logging.Postgres), "jobs", len(bodies), "error", err)
		return nil, refuse(http.StatusServiceUnavailable, "unavailable", "",
			"the jobs could not be accepted, because the database does not answer: send them again, which is harmless")
	}
	return answers, nil
}

func describeJob(a intake.Answer) JobAnswer {
	out := JobAnswer{Verdict: a.Verdict, Key: a.Key, Status: a.Status, Differs: a.Differs}
	if a.ID != [16]byte{} {
		out.ID = a.ID.String()
	}
	switch a.Verdict {
	case intake.Refused:
		out.Error = &server.Problem{Code: "invalid_job", Message: a.Problem, Field: a.Path}
		if a.Forbidden {
			out.Error.Code = "forbidden"
		}
	case ledger.Conflict:
		out.Error = &server.Problem{Code: "conflict", Field: a.Path,
			Message: a.Path + " " + a.Problem + ": committed jobs stay"}
	}
	return out
}

// enqueueLines commits all lines that have arrived since the last commit, and answers each line after its commit. It
// holds neither the whole body nor all answers in memory.
func (a *API) enqueueLines(w http.ResponseWriter, r *http.Request, v server.Visitor) {
	control := http.NewResponseController(w)
	_ = control.EnableFullDuplex() // otherwise HTTP/1.1 reads the whole body before the first answer; HTTP/2 never does
	w.Header().Del("Connection")   // the connection can serve further requests after the last line
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	ctx, cancel := v.WhileAllowed(r.Context())
	body := &timedBody{ctx: ctx, body: r.Body, control: control}
	lines := intake.ReadLines(ctx, []intake.Source{{Reader: body}}, func(int64) {})
	wake := context.AfterFunc(ctx, func() { _ = control.SetReadDeadline(time.Now()) }) // interrupts a blocked Read
	finished := false                                                                  // all lines were read
	defer func() {
		if finished {
			wake() // the connection serves further requests, which a deadline in the past would end
		}
		cancel()
		for range lines {
		}
		wake()
	}()

	out := json.NewEncoder(w)
	fail := func(p server.Problem) {
		_ = control.SetWriteDeadline(time.Now().Add(lineTimeout))
		_ = out.Encode(ErrorAnswer{p})
	}
	for {
		group, end := intake.CollectLines(ctx, lines, jobBatch, 0)
		if len(group) > 0 && a.paceOf(v.Name).WaitN(ctx, len(group)) == nil {
			answers, err := intake.SubmitLines(group, func(bodies [][]byte) ([]intake.Answer, error) {
				return a.submit(ctx, bodies, v)
			})
			if err != nil {
				fail(a.describeError(r, err).Problem)
				return
			}
			_ = control.SetWriteDeadline(time.Now().Add(lineTimeout))
			for i, one := range answers {
				answer := describeJob(one)
				answer.Line = group[i].Number
				_ = out.Encode(answer)
			}
			if control.Flush() != nil {
				return // the client has disconnected
			}
		}
		switch {
		case errors.Is(context.Cause(ctx), server.ErrRevoked):
			fail(server.Problem{Code: "unauthorized", Message: server.ErrRevoked.Error()})
			return
		case ctx.Err() != nil: // a normal end would mean that all lines were answered
			for range lines { // until the last Read has returned
			}
			ended := server.Problem{Code: "stopped",
				Message: "the worker stops: send the lines that were not answered again"}
			if body.late { // net/http cancels the request after an expired deadline
				ended = server.Problem{Code: "incomplete", Message: fmt.Sprintf("no line came within %s: "+
					"send the lines that were not answered again", lineTimeout)}
			}
			fail(ended)
			return
		case end == nil:
		case errors.Is(end.End, io.EOF):
			finished = true
			return
		default:
			fail(server.Problem{Code: "incomplete", Message: fmt.Sprintf("the body broke off in line %d: "+
				"send the lines that were not answered again", end.Number)})
			return
		}
	}
}

// timedBody reads a body and gives each line lineTimeout to arrive. It clears the deadline after the end of the body:
// net/http then watches the connection, and would take an expired deadline for a disconnect.
type timedBody struct {
	ctx     context.Context
	body    io.Reader
	control *http.ResponseController
	spent   time.Duration // time spent reading the current line
	late    bool          // a line did not arrive within lineTimeout; valid after the last Read
}

func (b *timedBody) Read(p []byte) (int, error) {
	began := time.Now()
	_ = b.control.SetReadDeadline(began.Add(lineTimeout - b.spent))
	if b.ctx.Err() != nil {
		return 0, context.Cause(b.ctx)
	}
	n, err := b.body.Read(p)
	b.spent += time.Since(began)
	b.late = err != nil && b.spent >= lineTimeout
	if bytes.IndexByte(p[:n], '\n') >= 0 {
		b.spent = 0
	}
	if err != nil && b.ctx.Err() == nil {
		_ = b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}
