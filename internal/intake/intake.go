// Package intake stores jobs. They come from the command line, from the API, from foreign tasks and the old backend's
// list in Redis, or from a chain's events. The intake parses a job, encrypts its secret headers, and commits its row.
// It answers accepted, known, conflict or refused.
//
// Package job defines the format of a job and its key. Package store defines the rows, and the verdict on a key that is
// known already. Package delivery delivers the accepted jobs.
package intake

import (
	"bytes"
	"cmp"
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

// Ledger is the part of the store that the intake uses.
type Ledger interface {
	Accept(ctx context.Context, in []store.Intake) ([]store.Acceptance, []store.Task, error)
}

// Dispatcher enqueues tasks in Redis and returns how many tasks Redis accepted.
type Dispatcher interface {
	Dispatch(ctx context.Context, tasks []store.Task) int
}

// Sealer encrypts a job's secret headers, and decrypts stored ones for a comparison with the headers of a known job.
type Sealer interface {
	Seal(plain []byte, b secret.Binding) ([]byte, error)
	Open(cipher []byte, b secret.Binding) ([]byte, error)
}

// Config configures an Intake.
type Config struct {
	Ledger Ledger
	// Dispatcher enqueues accepted deliveries. It is nil where there is no Redis; the worker's reconciler then enqueues
	// them.
	Dispatcher Dispatcher
	Sealer     Sealer
	Limits     job.Limits
	// Redis decides whether whole jobs in Redis are accepted. Default RedisJobs.
	Redis  RedisPolicy
	Logger *slog.Logger
}

// RedisPolicy decides which foreign tasks in Redis are accepted as jobs (HERALD_REDIS_INTAKE). A foreign task is one
// that another program's asynq client enqueued; every client of that Redis can do so.
type RedisPolicy string

// The values of RedisPolicy.
const (
	RedisOn   RedisPolicy = "on"   // all jobs are accepted
	RedisJobs RedisPolicy = "jobs" // jobs are accepted, except those that set a field of job.DirectField
	RedisOff  RedisPolicy = "off"  // no job is accepted
)

// Intake turns jobs into committed rows. Submit handles the jobs of enqueue and the API, FromTask foreign asynq tasks, and
// FromList the elements of a list in Redis.
type Intake struct{ Config }

// New validates the configuration and sets the defaults.
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

// maxNote is the longest note for the web UI, in bytes.
const maxNote = 500

// Refused is the verdict on a job that was not stored, because it is invalid or the sender may not set one of its
// fields.
const Refused store.Verdict = "refused"

// Answer is the result for one job. ID, Key and Status are those of the stored delivery, and are empty for a Refused
// job.
type Answer struct {
	Verdict store.Verdict
	ID      uuid.UUID
	Key     string
	Path    string   // Refused: the invalid field; Conflict: the event's field that differs
	Differs []string // Known: the job's fields that differ from the event that was read from the chain
	Problem string   // Refused: the error in the field
	Status  store.Status

	Forbidden bool // Refused: the job is valid, but the sender may not set the field Path
}

// Submit stores up to store.MaxAccept jobs, one per body, and returns the answers in the same order. Refused jobs are
// not stored. A sender without store.TrustDirect may not set a field of job.DirectField. The deliveries continue the
// trace of ctx (tracecontext.NewContext reads it from a request's header). After an error it is unknown whether the jobs
// were stored; submitting them again is harmless.
func (in *Intake) Submit(ctx context.Context, bodies [][]byte, from store.Source) ([]Answer, error) {
	answers := make([]Answer, len(bodies))
	intakes := make([]store.Intake, 0, len(bodies))
	positions := make([]int, 0, len(bodies)) // positions[k] is the index in bodies of intakes[k]
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
		if field := j.DirectField(); field != "" && from.Trust < store.TrustDirect {
			answers[i] = Answer{Verdict: Refused, Path: field, Forbidden: true, Problem: "needs a token with the scope direct"}
			continue
		}
		it, err := in.sealHeaders(j, from)
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
		answers[positions[k]] = Answer{Verdict: a.Verdict, ID: a.ID, Key: a.Key, Path: a.Field, Differs: a.Differs, Status: a.Status}
	}
	return answers, nil
}

// FromTask stores the whole job of a foreign asynq task and returns a note for the web UI. The sender gets no answer,
// so a refused job becomes a rejected row, whose key is the hash of the bytes. With RedisOff, FromTask returns an *queue.ArchivedError, and asynq archives the task unchanged.
func (in *Intake) FromTask(ctx context.Context, kind string, body []byte) (string, error) {
	if in.Redis == RedisOff {
		return "", &queue.ArchivedError{Text: "whole jobs in Redis are not accepted (HERALD_REDIS_INTAKE=off): " +
			"use enqueue, or set it to jobs or on and run this task again"}
	}
	trust := store.TrustOrdinary
	if in.Redis == RedisOn {
		trust = store.TrustDirect
	}
	it, refusal, err := in.readUnanswered(Element{body, int64(len(body))}, job.Kind(kind), trust)
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
		in.Logger.Warn("job from Redis not accepted: its event is stored with other content",
			"kind", kind, "delivery", a.ID, "key", a.Key, "field", a.Field)
		return fmt.Sprintf("conflict with delivery %s: %s differs", a.ID, a.Field), nil
	}
	in.Logger.Info("job accepted from Redis", "kind", kind, "verdict", a.Verdict, "delivery", a.ID, "key", a.Key)
	return fmt.Sprintf("%s as delivery %s", a.Verdict, a.ID), nil
}

// readUnanswered parses a job in Redis, whose sender gets no answer. A refused job becomes a rejected row; kind is used
// if the job does not state its own.
func (in *Intake) readUnanswered(e Element, kind job.Kind, trust store.Trust) (it store.Intake, refusal *job.Refusal, err error) {
	j, err := in.parseElement(e)
	if err == nil && trust < store.TrustDirect {
		err = refuseDirect(j)
	}
	switch {
	case err == nil:
		it, err = in.sealHeaders(j, store.Source{Name: store.SourceRedis, Trust: trust})
		return it, nil, err
	case !errors.As(err, &refusal):
		return it, nil, fmt.Errorf("parse a job from Redis: %w", err)
	}
	it = store.Intake{Job: j, Refused: refusal.Error(), Key: e.invalidKey()}
	if it.Received, err = encodeReceived(e); err != nil {
		return it, nil, fmt.Errorf("encode a refused job from Redis: %w", err)
	}
	it.Job.Kind = cmp.Or(j.Kind, kind)
	return it, refusal, nil
}

// refuseDirect returns a *job.Refusal if the job sets a field of job.DirectField, which only trusted senders may set.
// Clients that can write to Redis are not trusted.
func refuseDirect(j job.Job) error {
	field := j.DirectField()
	if field == "" {
		return nil
	}
	return &job.Refusal{Path: field,
		Problem: "is not accepted from a job in Redis: use enqueue, or set HERALD_REDIS_INTAKE=on"}
}

// acceptJobs stores the jobs and enqueues the deliveries that the store dispatched in the same transaction.
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

// sealHeaders encrypts the headers of the endpoint that the job names. They are the only secret in a job.
func (in *Intake) sealHeaders(j job.Job, from store.Source) (store.Intake, error) {
	it := store.Intake{Job: j, Source: from}
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
