// Package intake takes jobs into the store: from the command line, from foreign tasks in Redis, and those that were
// made from a chain's events. A job is parsed, its secret headers are sealed, and its row is committed together with
// the answer: accepted, known, conflict, refused.
//
// What does not live here: the format of a job and its key (job), the rows and the verdicts on a key that is known
// (store), what becomes of an accepted delivery (delivery).
package intake

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/text"
	"github.com/agentherald/herald/internal/tracecontext"
	"github.com/google/uuid"
)

// Ledger is the store as the intake needs it.
type Ledger interface {
	Accept(ctx context.Context, in []store.Intake) ([]store.Acceptance, []store.Task, error)
}

// Dispatcher puts tasks into Redis and returns how many it took.
type Dispatcher interface {
	Dispatch(ctx context.Context, tasks []store.Task) int
}

// Sealer encrypts a job's secret headers, and reads them to compare them with those of a job that is known.
type Sealer interface {
	Seal(plain []byte, b secret.Binding) ([]byte, error)
	Open(cipher []byte, b secret.Binding) ([]byte, error)
}

// Config makes an Intake.
type Config struct {
	Ledger Ledger
	// Dispatcher puts what is accepted into Redis; nil leaves that to the worker's reconciler (no Redis at hand).
	Dispatcher Dispatcher
	Sealer     Sealer
	Limits     job.Limits
	// Redis says whether whole jobs in Redis are taken. Default RedisJobs.
	Redis  RedisPolicy
	Logger *slog.Logger
}

// RedisPolicy says which foreign tasks in Redis are taken as jobs (HERALD_REDIS_INTAKE): every client of that Redis may
// write them.
type RedisPolicy string

// The values of RedisPolicy.
const (
	RedisOn   RedisPolicy = "on"   // all are taken
	RedisJobs RedisPolicy = "jobs" // one that sets a field of job.DirectField is refused
	RedisOff  RedisPolicy = "off"  // none is taken
)

// Intake turns jobs into committed rows: enqueue's lines (Submit), jobs made from a chain's events (SubmitJobs), foreign
// asynq tasks (FromTask), what lies in a list of Redis (FromList).
type Intake struct{ Config }

// New checks the configuration.
func New(cfg Config) (*Intake, error) {
	if cfg.Ledger == nil || cfg.Sealer == nil {
		return nil, errors.New("intake: an intake needs a ledger and a sealer")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Redis == "" {
		cfg.Redis = RedisJobs
	}
	return &Intake{cfg}, nil
}

// maxNote bounds what the web UI is told, in bytes.
const maxNote = 500

// Refused is the verdict on a job that is not stored.
const Refused store.Verdict = "refused"

// Answer is what one job got.
type Answer struct {
	Verdict store.Verdict
	ID      uuid.UUID
	Key     string
	Path    string // Refused: the field; Conflict: the event's field that differs
	Problem string // Refused: what is wrong with it
	Status  store.Status

	Forbidden bool // Refused: only because the sender may not set the field
}

// Submit takes up to store.MaxAccept jobs, each the bytes of one. Answers come in order; refused ones are not stored.
// The deliveries go on with the trace that ctx is part of: tracecontext.NewContext takes it from a request's header. An
// error means that none of them is known to be stored: submitting them again is harmless.
func (in *Intake) Submit(ctx context.Context, bodies [][]byte) ([]Answer, error) {
	return in.submit(ctx, bodies, true)
}

// SubmitEvents is Submit for senders without the scope direct: a job that sets one of job.DirectField is refused.
func (in *Intake) SubmitEvents(ctx context.Context, bodies [][]byte) ([]Answer, error) {
	return in.submit(ctx, bodies, false)
}

func (in *Intake) submit(ctx context.Context, bodies [][]byte, direct bool) ([]Answer, error) {
	answers := make([]Answer, len(bodies))
	intakes := make([]store.Intake, 0, len(bodies))
	positions := make([]int, 0, len(bodies)) // of the intakes among the bodies
	traceparent := tracecontext.FromContext(ctx)
	for i, body := range bodies {
		j, err := job.Parse(body, in.Limits)
		var refusal *job.Refusal
		if errors.As(err, &refusal) {
			answers[i] = Answer{Verdict: Refused, Path: refusal.Path, Problem: refusal.Problem}
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("parse job %d: %w", i+1, err)
		}
		if field := j.DirectField(); field != "" && !direct {
			answers[i] = Answer{Verdict: Refused, Path: field, Forbidden: true, Problem: "needs a token with the scope direct"}
			continue
		}
		it, err := in.sealHeaders(j)
		if err != nil {
			return nil, err
		}
		it.Traceparent = traceparent
		intakes, positions = append(intakes, it), append(positions, i)
	}
	got, err := in.acceptJobs(ctx, intakes)
	if err != nil {
		return nil, err
	}
	for k, a := range got {
		answers[positions[k]] = Answer{Verdict: a.Verdict, ID: a.ID, Key: a.Key, Path: a.Field, Status: a.Status}
	}
	return answers, nil
}

// SubmitJobs takes jobs that were made from events, not parsed.
func (in *Intake) SubmitJobs(ctx context.Context, jobs []job.Job) ([]store.Acceptance, error) {
	intakes := make([]store.Intake, len(jobs))
	for i, j := range jobs {
		var err error
		if intakes[i], err = in.sealHeaders(j); err != nil {
			return nil, err
		}
	}
	return in.acceptJobs(ctx, intakes)
}

// FromTask takes the whole job of a foreign asynq task. There is nobody to answer, so what is refused becomes a
// rejected row: under the event's own key when that could be read, else under the hash of the bytes. With RedisOff the
// task, which lay in a lane of Herald's own, goes to asynq's archive as it is.
func (in *Intake) FromTask(ctx context.Context, kind string, body []byte) (string, error) {
	if in.Redis == RedisOff {
		return "", &queue.ArchivedError{Text: "whole jobs in Redis are not taken (HERALD_REDIS_INTAKE=off): " +
			"use enqueue, or set it to jobs or on and run this task again"}
	}
	it, refusal, err := in.readUnanswered(Element{body, int64(len(body))}, job.Kind(kind), in.Redis == RedisOn)
	if err != nil {
		return "", err
	}
	got, err := in.acceptJobs(ctx, []store.Intake{it})
	if err != nil {
		return "", err
	}
	a := got[0]
	if refusal != nil {
		in.Logger.Info("job from Redis refused", "kind", kind, "delivery", a.ID, "key", a.Key, "problem", it.Refused)
		return "rejected invalid_job: " + text.Excerpt(it.Refused, maxNote), nil
	}
	if a.Verdict == store.Conflict {
		in.Logger.Warn("job from Redis not taken: its event is known otherwise",
			"kind", kind, "delivery", a.ID, "key", a.Key, "field", a.Field)
		return fmt.Sprintf("conflict with delivery %s: %s differs", a.ID, a.Field), nil
	}
	in.Logger.Info("job taken from Redis", "kind", kind, "verdict", a.Verdict, "delivery", a.ID, "key", a.Key)
	return fmt.Sprintf("%s as delivery %s", a.Verdict, a.ID), nil
}

// readUnanswered reads a job of somebody in Redis, who cannot be answered: what is refused becomes a rejected row, of
// this kind if it does not tell its own. direct: the sender may set fields of job.DirectField.
func (in *Intake) readUnanswered(e Element, kind job.Kind, direct bool) (it store.Intake, refusal *job.Refusal, err error) {
	j, err := in.parseElement(e)
	if err == nil && !direct {
		err = refuseDirect(j)
	}
	switch {
	case err == nil:
		it, err = in.sealHeaders(j)
		return it, nil, err
	case !errors.As(err, &refusal):
		return it, nil, fmt.Errorf("parse a job from Redis: %w", err)
	}
	it = store.Intake{Job: j, Refused: refusal.Error()}
	if it.Received, err = encodeReceived(e); err != nil {
		return it, nil, fmt.Errorf("encode a refused job from Redis: %w", err)
	}
	if j.Kind == "" || j.Key() == "" {
		it.Key, it.Job.Kind = e.invalidKey(), kind
	}
	return it, refusal, nil
}

// refuseDirect refuses fields that only trusted senders may set: whoever may write to Redis is none.
func refuseDirect(j job.Job) error {
	field := j.DirectField()
	if field == "" {
		return nil
	}
	return &job.Refusal{Path: field,
		Problem: "is not taken from a job in Redis: use enqueue, or set HERALD_REDIS_INTAKE=on"}
}

func (in *Intake) acceptJobs(ctx context.Context, intakes []store.Intake) ([]store.Acceptance, error) {
	got, tasks, err := in.Ledger.Accept(ctx, intakes)
	if err != nil {
		return nil, err
	}
	if in.Dispatcher != nil {
		in.Dispatcher.Dispatch(ctx, tasks)
	}
	return got, nil
}

// sealHeaders encrypts the headers of an endpoint that the job names; nothing else of the job is secret.
func (in *Intake) sealHeaders(j job.Job) (store.Intake, error) {
	it := store.Intake{Job: j}
	if j.Action.Endpoint == nil || len(j.Action.Endpoint.Headers) == 0 {
		return it, nil
	}
	plain := make(map[string]string, len(j.Action.Endpoint.Headers))
	for name, value := range j.Action.Endpoint.Headers {
		plain[name] = value.Reveal()
	}
	b, err := json.Marshal(plain)
	if err != nil {
		return it, errors.New("encode the job's headers")
	}
	binding := j.HeaderBinding(j.Action.Endpoint.URL)
	if it.SealedHeaders, err = in.Sealer.Seal(b, binding); err != nil {
		return it, fmt.Errorf("encrypt the job's headers: %w", err)
	}
	it.SameHeaders = func(sealed []byte) bool {
		other, err := in.Sealer.Open(sealed, binding)
		return err == nil && bytes.Equal(other, b) // json.Marshal sorts the names
	}
	return it, nil
}
