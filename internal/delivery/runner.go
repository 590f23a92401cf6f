package delivery

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/text"
	"github.com/google/uuid"
)

// Runner runs each task in one of the worker's slots, with a context that asynq cannot cancel. It never runs a delivery
// twice at the same time in this process. It implements queue.Handler.
type Runner struct {
	executor *Executor
	intake   TaskIntake
	slots    *completer

	base context.Context // context of all deliveries; ends when Wait stops waiting
	stop context.CancelCauseFunc

	mu      sync.Mutex
	running map[uuid.UUID]int // delivery id → number of the task that runs it
	idle    chan struct{}     // closed when no delivery runs; created by Wait
}

// TaskIntake stores the job of a task that another program put into Redis. kind is the task's type, and body its
// payload. note is a text that the web UI shows as the result of the task.
type TaskIntake interface {
	FromTask(ctx context.Context, kind string, body []byte) (note string, err error)
}

// intakeTimeout bounds the commit of a foreign task's job.
const intakeTimeout = 30 * time.Second

// NewRunner returns a Runner with so many slots: it runs at most concurrency deliveries at a time.
func NewRunner(e *Executor, in TaskIntake, concurrency int) (*Runner, error) {
	if e == nil || in == nil || concurrency < 1 {
		return nil, errors.New("delivery: a runner needs an executor, an intake and a concurrency of at least 1")
	}
	r := &Runner{executor: e, intake: in, slots: newCompleter(concurrency), running: map[uuid.UUID]int{}}
	r.base, r.stop = context.WithCancelCause(context.Background())
	return r, nil
}

var _ queue.Handler = (*Runner)(nil)

// Tasks returns how many tasks asynq has to run at a time: one for each of the worker's slots, and one for each
// delivery that is claimed before a slot is free.
func (r *Runner) Tasks() int { return cap(r.slots.claims) }

// Deliver runs task n of a delivery, and returns its result for asynq (see describeResult): note is for the web UI. ctx
// is only used until the delivery begins. Deliver returns after the outcome was recorded. After a plain success it
// returns earlier, while the outcome is being recorded (see slot.release). It returns an error at once if this process
// still runs another task of the delivery.
func (r *Runner) Deliver(ctx context.Context, id uuid.UUID, n int) (note string, err error) {
	s, err := r.slots.begin(ctx)
	if err != nil {
		return "", err
	}
	if other, ok := r.markRunning(id, n); !ok {
		s.end(taskEnd{})
		// The other run is about to end, or asynq considered its task lost. This task is outdated or will wait; its
		// next claim decides that.
		return "", fmt.Errorf("this process still runs task %d of the delivery", other)
	}
	go r.run(id, n, s)
	end := <-s.taskEnds
	return end.note, end.err
}

// run runs the delivery in slot s and passes the end of its task to Deliver through s.taskEnds. It returns after the
// outcome was recorded, unless recording failed. Wait waits for it.
func (r *Runner) run(id uuid.UUID, n int, s *slot) {
	var end taskEnd
	defer func() {
		if v := recover(); v != nil {
			r.executor.Logger.Error("delivery panicked; its lease brings it back",
				"delivery", id, "panic", v, "stack", string(debug.Stack()))
			end.err = fmt.Errorf("delivery %s panicked: the log has the stack", id)
		}
		r.unmarkRunning(id)
		s.withholdClaim()
		s.end(end)
	}()
	res, err := r.executor.Deliver(r.base, id, n, s)
	if end.err = err; err == nil {
		end.note, end.err = describeResult(res)
	}
}

// maxNote bounds each text for the web UI, in characters. Postgres has the whole texts.
const maxNote = 500

// describeResult returns the note (for the web UI) and the error with which a task ends in asynq: nil (asynq completes
// the task) if the delivery was delivered or skipped, a *queue.WaitError if it waits and needs this task, a
// *queue.ArchivedError if it was rejected, is dead or is held, and otherwise queue.ErrDropped, which removes the task.
// A delivered task has no note, which saves a Redis command.
func describeResult(res Result) (string, error) {
	if res.Refused || res.Status == store.Waiting && res.At.IsZero() {
		return "", queue.ErrDropped
	}
	note := strings.TrimSpace(string(res.Status) + " " + string(res.Reason))
	if res.Status == store.Waiting {
		note = string(res.Reason) // asynq's state shows that it waits
	}
	if res.Text != "" {
		note += ": " + text.Excerpt(res.Text, maxNote)
	}
	if res.Next != "" && res.Status != store.Waiting {
		note += " Next: " + text.Excerpt(res.Next, maxNote)
	}
	switch res.Status {
	case store.Delivered:
		return "", nil
	case store.Skipped:
		return note, nil
	case store.Waiting:
		return "", &queue.WaitError{Text: note, At: res.At, Free: res.Free}
	case store.Rejected, store.Dead, store.Held:
		return "", &queue.ArchivedError{Text: note}
	}
	return "", queue.ErrDropped
}

// Intake stores a whole job from a task that another program's asynq client made. It returns the note of TaskIntake.
func (r *Runner) Intake(ctx context.Context, kind string, body []byte) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, intakeTimeout)
	defer cancel()
	return r.intake.FromTask(ctx, kind, body)
}

// Summarize logs free waits until ctx ends (see Executor.SummarizeWaits).
func (r *Runner) Summarize(ctx context.Context) { r.executor.SummarizeWaits(ctx, nil) }

// markRunning marks the delivery as running with task n. If this process runs it already, it returns the number of the
// running task and false.
func (r *Runner) markRunning(id uuid.UUID, n int) (other int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if other, runs := r.running[id]; runs {
		return other, false
	}
	r.running[id] = n
	return n, true
}

func (r *Runner) unmarkRunning(id uuid.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, id)
	if len(r.running) == 0 && r.idle != nil {
		close(r.idle)
		r.idle = nil
	}
}

// Running returns the number of running deliveries.
func (r *Runner) Running() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.running)
}

var errShutdown = errors.New("the worker is shutting down and waited long enough")

// StopClaiming releases claimed deliveries that wait for one of the worker's slots, and prevents further claims.
// Deliveries in a slot continue. Call it after the queue's server has stopped fetching tasks.
func (r *Runner) StopClaiming() { r.slots.stop() }

// Wait waits until no delivery runs. If ctx ends first, it cancels the running attempts and waits until they have
// ended. Each of them still tries once to record its outcome. Call it after the queue's server has stopped, so that no
// delivery begins.
func (r *Runner) Wait(ctx context.Context) {
	defer r.stop(errShutdown)
	r.mu.Lock()
	if len(r.running) == 0 {
		r.mu.Unlock()
		return
	}
	if r.idle == nil {
		r.idle = make(chan struct{})
	}
	idle := r.idle
	r.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
		r.stop(errShutdown)
		<-idle
	}
}
