// Package intake stores jobs in Postgres. They come from the command line, from the API, from tasks of other programs
// in Redis, or from the list in Redis of the old backend, the system that Herald replaces (package legacy). The intake
// parses a job, encrypts its secret headers, and commits its row. For each job it returns a verdict: accepted (stored),
// known (stored before), conflict (stored before with other content), refused (invalid or not permitted, and not
// stored) or rejected (the same, but stored as a rejected row, because the sender gets no answer).
//
// Package job defines the format of a job and its key. Package store defines the rows, and decides between accepted,
// known and conflict. Package watch stores the jobs of a chain's events. Package delivery delivers the accepted jobs.
package intake

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/base/tracecontext"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/google/uuid"
)

// Ledger is the part of package store that the intake uses.
type Ledger interface {
	Accept(ctx context.Context, in []ledger.Intake) ([]ledger.Acceptance, []ledger.Task, error)
}

// Dispatcher enqueues tasks in Redis. It stops at the first task that it cannot enqueue, and returns the number of
// tasks before that one.
type Dispatcher interface {
	Dispatch(ctx context.Context, tasks []ledger.Task) int
}

// Sealer encrypts (Seal) and decrypts (Open) the secret headers of a job. The intake decrypts stored headers only to
// compare them with those of a job that has the same key.
type Sealer interface {
	Seal(plain []byte, b secret.Binding) ([]byte, error)
	Open(cipher []byte, b secret.Binding) ([]byte, error)
}

// Config configures an Intake.
type Config struct {
	Ledger Ledger
	// Dispatcher enqueues the tasks of accepted deliveries. A program without access to Redis leaves it nil; the
	// reconciler of a worker then enqueues the tasks.
	Dispatcher Dispatcher
	Sealer     Sealer
	Limits     job.Limits
	// Redis decides which jobs in other programs' tasks are accepted (FromTask). Default RedisJobs.
	Redis  RedisPolicy
	Logger *slog.Logger
}

// RedisPolicy decides which jobs in tasks of other programs are accepted (HERALD_REDIS_INTAKE). Every program with
// write access to Herald's Redis can enqueue an asynq task whose payload is a whole job.
type RedisPolicy string

// The values of RedisPolicy.
const (
	RedisOn   RedisPolicy = "on"   // all jobs are accepted
	RedisJobs RedisPolicy = "jobs" // jobs are accepted, except those that set a field of job.DirectField
	RedisOff  RedisPolicy = "off"  // no job is accepted
)

// Intake stores jobs as rows. Submit handles the jobs of the command enqueue and of the API, FromTask those in tasks of
// other programs, and FromList those in the Redis list of the old backend, the system that Herald replaces.
type Intake struct {
	Config
	frozen atomic.Int64 // until this time, in Unix nanoseconds, Redis gets no task
}

const (
	frozenAfter = time.Second // Redis counts as frozen if a failed dispatch took longer
	// frozenPause is the default of ReconcilerConfig.Late: the reconciler then replaces the missing tasks.
	frozenPause = 15 * time.Second
)

// New validates cfg, sets its defaults, and returns an Intake.
func New(cfg Config) (*Intake, error) {
	if cfg.Ledger == nil || cfg.Sealer == nil {
		return nil, errors.New("intake: an intake needs a ledger and a sealer")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	cfg.Redis = cmp.Or(cfg.Redis, RedisJobs)
	return &Intake{Config: cfg}, nil
}

const (
	maxNote  = 500 // bounds the text of a refusal in the note that FromTask returns, in bytes
	maxValue = 150 // bounds each value that DescribeConflict returns, in bytes
)

// Refused is the verdict on a job that Submit does not store, because it is invalid or because its sender may not set
// one of its fields.
const Refused ledger.Verdict = "refused"

// Answer is the result of Submit for one job. ID, Key and Status describe the stored delivery. For a Refused job they
// are empty.
type Answer struct {
	Verdict ledger.Verdict
	ID      uuid.UUID
	Key     string
	Path    string   // Refused: the invalid field; Conflict: the field that differs from the stored event
	Differs []string // Known: the job's fields that differ from the event as Herald read it from the chain
	Problem string   // Refused: what is wrong with the field Path; Rejected: the refusal; Conflict: both values
	Status  outcome.Status

	Forbidden bool // Refused: the job is valid, but the sender may not set the field Path
}

// Submit stores up to ledger.MaxAccept jobs, one per body, in one transaction, and returns their answers in the same
// order. It does not store a job that it refuses. It refuses an invalid job, and one that sets a field of
// job.DirectField if from.Trust is below ledger.TrustDirect.
//
// The deliveries continue the trace in ctx (tracecontext.NewContext stores it there). After an error it is unknown
// whether the jobs were stored. The caller may then submit them again: stored jobs are known.
func (in *Intake) Submit(ctx context.Context, bodies [][]byte, from ledger.Source) ([]Answer, error) {
	answers := make([]Answer, len(bodies))
	intakes := make([]ledger.Intake, 0, len(bodies))
	positions := make([]int, 0, len(bodies)) // positions[k] is the index in bodies of intakes[k]
	traceparent := tracecontext.FromContext(ctx)
	for i, body := range bodies {
		j, err := job.Parse(body, in.Limits)
		if refusal, ok := errors.AsType[*job.Refusal](err); ok {
			answers[i] = Answer{Verdict: Refused, Path: refusal.Path, Problem: refusal.Problem}
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("parse job %d: %w", i+1, err)
		}
		if field := j.DirectField(); field != "" && from.Trust < ledger.TrustDirect {
			answers[i] = Answer{Verdict: Refused, Path: field, Forbidden: true,
				Problem: "needs a token with the scope direct"}
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
		answers[positions[k]] = Answer{Verdict: a.Verdict, ID: a.ID, Key: a.Key, Path: a.Field,
			Differs: a.Differs, Status: a.Status, Problem: DescribeConflict(a, intakes[k].Job)}
	}
	return answers, nil
}

// DescribeConflict returns both values of the field in which a job and its committed delivery differ, as text that
// continues a sentence which begins with the name of the field: "is … in the committed job and … in this one". It
// returns "" unless the verdict is ledger.Conflict.
func DescribeConflict(a ledger.Acceptance, brought job.Job) string {
	switch {
	case a.Verdict != ledger.Conflict:
		return ""
	case a.Field == "action":
		return "differs from the action of the committed job"
	}
	return fmt.Sprintf("is %q in the committed job and %q in this one", text.Excerpt(a.Stored, maxValue),
		text.Excerpt(brought.ContentValue(a.Field), maxValue))
}

// FromTask stores the whole job in body, the payload of a task that another program enqueued, and returns a note for
// asynq's web UI. kind is the task's type. The sender gets no answer, so FromTask stores a job that it refuses as a
// rejected row, whose key is the hash of body. With RedisOff it stores nothing and returns a *queue.ArchivedError, so
// that asynq archives the task unchanged.
func (in *Intake) FromTask(ctx context.Context, kind string, body []byte) (string, error) {
	if in.Redis == RedisOff {
		return "", &queue.ArchivedError{Text: "whole jobs in Redis are not accepted (HERALD_REDIS_INTAKE=off): " +
			"use enqueue, or set it to jobs or on and run this task again"}
	}
	trust := ledger.TrustOrdinary
	if in.Redis == RedisOn {
		trust = ledger.TrustDirect
	}
	got, err := in.acceptElements(ctx, []Element{{body, int64(len(body))}}, job.Kind(kind), trust)
	if err != nil {
		return "", err
	}
	a := got[0]
	switch a.Verdict {
	case Rejected:
		in.Logger.Info("job from Redis refused", "kind", kind, "delivery", a.ID, "key", a.Key, "problem", a.Problem)
		return "rejected invalid_job: " + text.Excerpt(a.Problem, maxNote), nil
	case ledger.Conflict:
		in.Logger.Warn("job from Redis not accepted: its event is stored with other content",
			"kind", kind, "delivery", a.ID, "key", a.Key, "field", a.Path, "problem", a.Problem)
		return text.Excerpt(fmt.Sprintf("conflict with delivery %s: %s %s", a.ID, a.Path, a.Problem), maxNote), nil
	case ledger.Refreshed: // an agent update becomes no delivery
		in.Logger.Info("job accepted from Redis", "kind", kind, "verdict", a.Verdict)
		return "refreshed: the agent's endpoint is looked up again", nil
	}
	in.Logger.Info("job accepted from Redis", "kind", kind, "verdict", a.Verdict, "delivery", a.ID, "key", a.Key)
	return fmt.Sprintf("%s as delivery %s", a.Verdict, a.ID), nil
}

// acceptJobs stores the jobs. It then enqueues the tasks of those deliveries that the store dispatched in the same
// transaction.
func (in *Intake) acceptJobs(ctx context.Context, intakes []ledger.Intake) ([]ledger.Acceptance, error) {
	got, tasks, err := in.Ledger.Accept(ctx, intakes)
	if err != nil {
		return nil, err
	}
	in.dispatchTasks(ctx, tasks)
	return got, nil
}

// dispatchTasks enqueues tasks. While Redis is frozen it leaves them to the reconciler: otherwise each sender would
// wait for seconds for the answer to a committed job.
func (in *Intake) dispatchTasks(ctx context.Context, tasks []ledger.Task) {
	began := time.Now()
	if in.Dispatcher == nil || began.UnixNano() < in.frozen.Load() {
		return
	}
	if in.Dispatcher.Dispatch(ctx, tasks) < len(tasks) && time.Since(began) > frozenAfter {
		in.frozen.Store(time.Now().Add(frozenPause).UnixNano())
	}
}

// sealHeaders returns the row to store for a job and its source. The only secret in a job is the HTTP headers of the
// endpoint that the job itself names (job.Action.Endpoint). sealHeaders encrypts them, and sets
// ledger.Intake.SameHeaders, a function that compares them with the encrypted headers of another job.
func (in *Intake) sealHeaders(j job.Job, from ledger.Source) (ledger.Intake, error) {
	it := ledger.Intake{Job: j, Source: from}
	if j.Action.Endpoint == nil || len(j.Action.Endpoint.Headers) == 0 {
		return it, nil
	}
	plain := make(map[string]string, len(j.Action.Endpoint.Headers))
	for name, value := range j.Action.Endpoint.Headers {
		plain[name] = value.Reveal()
	}
	b, _ := json.Marshal(plain) // encoding strings cannot fail
	binding := j.HeaderBinding(j.Action.Endpoint.URL)
	var err error
	if it.SealedHeaders, err = in.Sealer.Seal(b, binding); err != nil {
		return it, fmt.Errorf("encrypt the job's headers: %w", err)
	}
	it.SameHeaders = func(sealed []byte) bool {
		other, err := in.Sealer.Open(sealed, binding)
		return err == nil && bytes.Equal(other, b) // equal headers are equal bytes: json.Marshal sorts the names
	}
	return it, nil
}
