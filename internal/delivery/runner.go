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

// Runner gives each task a slot, a context that asynq cannot cancel, and the certainty that no other goroutine of this
// process runs the same delivery. It implements queue.Handler.
type Runner struct {
	executor *Executor
	intake   TaskIntake
	slots    *completer

	base context.Context // ends when shutdown gives up waiting
	stop context.CancelCauseFunc

	mu      sync.Mutex
	running map[uuid.UUID]int // delivery → its task's n
	idle    chan struct{}     // closed when nothing runs any more, made by whoever waits for that
}

// TaskIntake takes the whole job of a foreign task. The note is for the web UI.
type TaskIntake interface {
	FromTask(ctx context.Context, kind string, body []byte) (note string, err error)
}

// intakeTimeout bounds the commit of a foreign task's job.
const intakeTimeout = 30 * time.Second

// NewRunner allows concurrency deliveries at a time.
func NewRunner(e *Executor, in TaskIntake, concurrency int) (*Runner, error) {
	if e == nil || in == nil || concurrency < 1 {
		return nil, errors.New("delivery: a runner needs an executor, an intake and a concurrency of at least 1")
	}
	r := &Runner{executor: e, intake: in, slots: newCompleter(concurrency), running: map[uuid.UUID]int{}}
	r.base, r.stop = context.WithCancelCause(context.Background())
	return r, nil
}

var _ queue.Handler = (*Runner)(nil)

// Tasks is how many tasks asynq shall run at a time: as many as may be claimed before they have the agent's answer.
func (r *Runner) Tasks() int { return cap(r.slots.claims) }

// Deliver runs task n of a delivery. The given context only decides whether it is begun. It returns when asynq can be
// told the end: when that is recorded, or, if it is plain success, when only the record is left (see slot.release).
func (r *Runner) Deliver(ctx context.Context, id uuid.UUID, n int) (note string, err error) {
	s, err := r.slots.begin(ctx)
	if err != nil {
		return "", err
	}
	if other, ok := r.markRunning(id, n); !ok {
		s.end(taskEnd{})
		// It is about to leave, or asynq took it for lost. Then this one is old, or waits, which the claim will tell.
		return "", fmt.Errorf("this process still runs task %d of the delivery", other)
	}
	go r.run(id, n, s)
	told := <-s.told
	return told.note, told.err
}

// run ends with the record; Wait waits for it.
func (r *Runner) run(id uuid.UUID, n int, s *slot) {
	var end taskEnd
	defer func() {
		if v := recover(); v != nil {
			r.executor.Logger.Error("delivery panicked; its lease brings it back",
				"delivery", id, "panic", v, "stack", string(debug.Stack()))
			end.err = fmt.Errorf("delivery %s panicked: the log has the stack", id)
		}
		r.unmarkRunning(id)
		s.rest()
		s.end(end)
	}()
	res, err := r.executor.Deliver(r.base, id, n, s)
	if end.err = err; err == nil {
		end.note, end.err = describeResult(res)
	}
}

// maxNote bounds what the web UI is told, in characters; Postgres has all of it.
const maxNote = 500

// describeResult is what asynq is told, which is what the web UI shows: completed is delivered or skipped, retry is a
// wait, archived is rejected, dead or held. What goes on without the task is dropped. A delivered one needs no note,
// which saves Redis a command.
func describeResult(res Result) (string, error) {
	if res.Refused || res.Status == store.Waiting && res.At.IsZero() {
		return "", queue.ErrDropped
	}
	told := strings.TrimSpace(string(res.Status) + " " + string(res.Reason))
	if res.Status == store.Waiting {
		told = string(res.Reason) // the state says the rest
	}
	if res.Text != "" {
		told += ": " + text.Excerpt(res.Text, maxNote)
	}
	if res.Next != "" && res.Status != store.Waiting {
		told += " Next: " + text.Excerpt(res.Next, maxNote)
	}
	switch res.Status {
	case store.Delivered:
		return "", nil
	case store.Skipped:
		return told, nil
	case store.Waiting:
		return "", &queue.WaitError{Text: told, At: res.At, Free: res.Free}
	case store.Rejected, store.Dead, store.Held:
		return "", &queue.ArchivedError{Text: told}
	}
	return "", queue.ErrDropped
}

// Intake takes a whole job from a task that somebody else's asynq client made.
func (r *Runner) Intake(ctx context.Context, kind string, body []byte) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, intakeTimeout)
	defer cancel()
	return r.intake.FromTask(ctx, kind, body)
}

// Summarize tells of attempts at which nothing was attempted, until ctx ends (see Executor.SummarizeWaits).
func (r *Runner) Summarize(ctx context.Context) { r.executor.SummarizeWaits(ctx, nil) }

// markRunning marks the delivery as running; false: it is already, with the task returned.
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

// Running is how many deliveries run now.
func (r *Runner) Running() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.running)
}

var errShutdown = errors.New("the worker is shutting down and waited long enough")

// StopClaiming lets no more deliveries begin: what is claimed and has no slot is given back. Call it when the queue's
// server takes no more tasks: what has a slot goes on.
func (r *Runner) StopClaiming() { r.slots.stop() }

// Wait returns when nothing runs any more; when ctx ends first, running attempts are cut off, recorded if that can be
// done at once, and waited for. Call it after the queue's server has stopped: nothing may begin any more.
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
