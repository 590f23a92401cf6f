package delivery

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/delivery/event"
	"github.com/agentherald/herald/internal/delivery/slots"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/queue"
	"github.com/google/uuid"
)

// Runner runs the tasks of deliveries, in the worker's slots and on a context that asynq cannot cancel. In one process
// it never runs two tasks of a delivery at the same time. It implements queue.Handler.
type Runner struct {
	executor *Executor
	intake   TaskIntake
	slots    *slots.Completer

	base context.Context // context of all attempts; ends when Wait returns, or when Wait's ctx ends
	stop context.CancelCauseFunc

	runs    sync.WaitGroup // of run
	running sync.Map       // delivery id → n of the task that runs it, an int
}

// TaskIntake stores the job of a task that another program put into Redis. kind is the task's type, and body its
// payload. note is the result of the task in the web UI.
type TaskIntake interface {
	FromTask(ctx context.Context, kind string, body []byte) (note string, err error)
}

// intakeTimeout bounds storing the job of another program's task.
const intakeTimeout = 30 * time.Second

// NewRunner returns a Runner for a worker whose number of slots is concurrency. The Runner passes the tasks of other
// programs to in, which stores their jobs.
func NewRunner(e *Executor, in TaskIntake, concurrency int) (*Runner, error) {
	if e == nil || in == nil || concurrency < 1 {
		return nil, errors.New("delivery: a runner needs an executor, an intake and a concurrency of at least 1")
	}
	r := &Runner{executor: e, intake: in, slots: slots.New(concurrency)}
	r.base, r.stop = context.WithCancelCause(context.Background())
	return r, nil
}

var _ queue.Handler = (*Runner)(nil)

// Tasks returns how many tasks asynq must run at a time: one for each slot, and one for each delivery that the worker
// claims before a slot is free (slots.ClaimsAhead).
func (r *Runner) Tasks() int { return r.slots.Capacity() }

// Deliver runs task n of the delivery with this id, and returns how the task ends in asynq (describeResult). It returns
// after the outcome was recorded or, if the agent accepted the delivery, while the outcome is being recorded
// (slots.Ticket.Release). If this process still runs another task of the delivery, it returns an error at once. The end
// of ctx has no effect after the delivery was claimed.
func (r *Runner) Deliver(ctx context.Context, id uuid.UUID, n int) (note string, err error) {
	t, err := r.slots.Begin(ctx)
	if err != nil {
		return "", err
	}
	if other, runs := r.running.LoadOrStore(id, n); runs {
		t.End(slots.TaskEnd{})
		// The other run is about to end, or asynq considered its task lost. This task is outdated or has to wait. When
		// asynq runs it again, the claim decides which.
		return "", fmt.Errorf("this process still runs task %d of the delivery", other)
	}
	r.runs.Go(func() { r.run(id, n, t) })
	end := <-t.TaskEnds
	return end.Note, end.Err
}

// run makes the attempt of a delivery with the ticket t, and sends the end of its task to t.TaskEnds, from which
// Deliver receives it. It returns after the outcome was recorded, or after recording failed.
func (r *Runner) run(id uuid.UUID, n int, t *slots.Ticket) {
	var end slots.TaskEnd
	defer func() {
		if v := recover(); v != nil {
			r.executor.Logger.Error("delivery panicked; its lease brings it back",
				"delivery", id, "panic", v, "stack", string(debug.Stack()))
			end.Err = fmt.Errorf("delivery %s panicked: the log has the stack", id)
		}
		r.running.Delete(id)
		t.WithholdClaim()
		t.End(end)
	}()
	res, err := r.executor.Deliver(r.base, id, n, t)
	if end.Err = err; err == nil {
		end.Note, end.Err = describeResult(res)
	}
}

// maxNote bounds each text of a note, in bytes. Postgres has the whole text.
const maxNote = 500

// describeResult returns how a task ends in asynq: its note, which the web UI shows, and its error. The error is
//
//   - nil if the delivery was delivered or skipped. asynq completes the task.
//   - a *queue.WaitError if the delivery waits and this task must run again.
//   - a *queue.ArchivedError if the delivery was rejected, is dead or is held.
//   - queue.ErrDropped in all other cases. asynq removes the task.
//
// A delivered task has no note, which saves a Redis command.
func describeResult(res Result) (string, error) {
	if res.Refused || res.Status == outcome.Waiting && res.At.IsZero() {
		return "", queue.ErrDropped
	}
	note := strings.TrimSpace(string(res.Status) + " " + string(res.Reason))
	if res.Status == outcome.Waiting {
		note = string(res.Reason) // asynq's state shows that it waits
	}
	if res.Text != "" {
		note += ": " + text.Excerpt(res.Text, maxNote)
	}
	if res.Next != "" && res.Status != outcome.Waiting {
		note += " Next: " + text.Excerpt(res.Next, maxNote)
	}
	switch res.Status {
	case outcome.Delivered:
		return "", nil
	case outcome.Skipped:
		return note, nil
	case outcome.Waiting:
		return "", &queue.WaitError{Text: note, At: res.At, Free: res.Free}
	case outcome.Rejected, outcome.Dead, outcome.Held:
		return "", &queue.ArchivedError{Text: note}
	}
	return "", queue.ErrDropped
}

// Intake stores the job of a task that another program's asynq client enqueued. It returns the note of TaskIntake.
func (r *Runner) Intake(ctx context.Context, kind string, body []byte) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, intakeTimeout)
	defer cancel()
	return r.intake.FromTask(ctx, kind, body)
}

// Events returns the checker with which the attempts check the events of their deliveries.
func (r *Runner) Events() *event.Checker { return r.executor.events }

// Summarize logs the numbers of free waits until ctx ends (package waits).
func (r *Runner) Summarize(ctx context.Context) {
	r.executor.waits.Log(ctx, r.executor.Logger, r.executor.Now)
}

// Running returns the number of deliveries of which this process runs a task now.
func (r *Runner) Running() (n int) {
	r.running.Range(func(any, any) bool {
		n++
		return true
	})
	return n
}

var errShutdown = errors.New("the worker is shutting down and waited long enough")

// StopClaiming prevents further claims, and ends the waits of claimed deliveries for a slot: their outcome is a free
// wait. Deliveries that have a slot continue, but begin no call later than callsAfterStop. The caller calls it after
// the queue's server has stopped fetching tasks.
func (r *Runner) StopClaiming() {
	now := r.executor.Now()
	r.executor.stopped.CompareAndSwap(nil, &now)
	r.slots.Stop()
}

// Wait waits until no task runs. If ctx ends first, it cancels the running attempts and waits for their end; each of
// them still tries once to record its outcome. The caller calls it after the queue's server has stopped, so that no
// task begins.
func (r *Runner) Wait(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { r.stop(errShutdown) })
	defer stop()
	r.runs.Wait()
	r.stop(errShutdown)
}
