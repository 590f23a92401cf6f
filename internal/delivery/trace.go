package delivery

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"time"

	"github.com/agentherald/herald/internal/delivery/spans"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/google/uuid"
)

// Step is a part of an attempt that has ended, for display.
type Step struct {
	DeliveryID uuid.UUID
	Attempt    int
	Name       string // claim check resolve fetch connect compose call record
	Detail     string // the result of the step as a phrase
	Took       time.Duration
	At         time.Time
}

// stage is the present stage of an attempt, with the durations of the stages before it. The stage's name is stored with
// the attempt, logged and traced.
type stage struct {
	name  string
	began time.Time
	took  [maxStages]int32 // durations in µs of the stages that have ended, in their order
	ended int              // number of durations in took
}

// maxStages is the number of stages whose duration is stored: check, resolve, fetch, connect, compose, call.
const maxStages = 6

// noteTime appends the duration of the stage, which ends at now, to took. It does nothing if no stage has begun or took
// is full.
func (s *stage) noteTime(now time.Time) {
	if s.ended < maxStages && !s.began.IsZero() {
		s.took[s.ended] = int32(min(now.Sub(s.began).Microseconds(), math.MaxInt32))
		s.ended++
	}
}

// beginStage ends the attempt's present stage as successful, if it has one, traces its end, and begins the stage called
// name.
func (e *Executor) beginStage(a *attempt, name string) {
	now := e.Now()
	if !a.stage.began.IsZero() {
		e.traceStep(a, a.stage.name, "", nil, a.stage.began)
	}
	a.stage.noteTime(now)
	a.stage.name, a.stage.began = name, now
}

// endStages ends the attempt's last stage, traces its end, and returns err, the error of that stage (nil: success).
// panicked is the result of recover(). If it is not nil, endStages logs the panic and returns an error instead of err,
// so that the attempt is recorded as failed: outcome_unknown in the stage call, else internal_error.
func (e *Executor) endStages(a *attempt, err error, panicked any) error {
	if panicked != nil {
		e.Logger.Error("a step panicked", "delivery", a.claim.ID, "step", a.stage.name,
			"panic", panicked, "stack", string(debug.Stack()))
		reason := outcome.InternalError
		if a.stage.name == "call" { // the agent may have received the call
			a.answer.called, reason = true, outcome.Unknown
		}
		err = outcome.Bar(reason, "a fault of Herald's own in step "+a.stage.name+": its log has the stack")
	}
	e.traceStep(a, a.stage.name, "", err, a.stage.began)
	a.stage.noteTime(e.Now())
	return err
}

// stageDetail returns the result of the stage called name as a phrase for logs and traces, or "" if the stage has none.
func (a *attempt) stageDetail(name string) string {
	switch name {
	case "check":
		return a.event.Detail
	case "resolve":
		if a.auth == nil {
			return ""
		}
		return a.endpoint.display + a.endpoint.source + a.auth.Note()
	case "fetch":
		return a.file.Detail
	case "compose":
		return fmt.Sprintf("%d arguments fitted to %s", len(a.call.arguments), a.call.tool)
	case "call":
		return a.answer.detail
	}
	return ""
}

// traceStep logs the end of the step called name at level debug, passes it to Executor.Trace, and adds it to the
// attempt's spans. The step lasted from began until now. If err is not nil, its text is the step's detail. Otherwise
// the parameter detail is the step's detail or, if it is empty, the result of stageDetail.
func (e *Executor) traceStep(a *attempt, name, detail string, err error, began time.Time) {
	now := e.Now()
	a.spans.AddStep(spans.Step{Name: name, Err: err, Began: began, Ended: now, Tool: a.call.tool, URL: a.endpoint.URL})
	if e.Trace == nil && !e.Logger.Enabled(context.Background(), slog.LevelDebug) {
		return
	}

	c, took := a.claim, now.Sub(began)
	if detail = cmp.Or(detail, a.stageDetail(name)); err != nil {
		detail = err.Error()
	}
	e.Logger.Debug("step", "delivery", c.ID, "attempt", c.Attempt, "step", name, "detail", detail, "took", took)
	if e.Trace != nil {
		e.Trace(Step{DeliveryID: c.ID, Attempt: c.Attempt, Name: name, Detail: detail, Took: took, At: now})
	}
}
