package delivery

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

// Runner gives each task a slot, a context that asynq cannot cancel, and the certainty that no other goroutine of this
// process runs the same delivery. It implements queue.Handler.
type Runner struct {
	pipeline *Pipeline
	intake   *Intake
	slots    chan struct{}
	deadline time.Duration // an attempt that is not over by then is cancelled

	base context.Context // ends when shutdown gives up waiting
	stop context.CancelCauseFunc

	mu      sync.Mutex
	running map[uuid.UUID]bool
	wg      sync.WaitGroup
}

// NewRunner allows concurrency deliveries at a time. An attempt ends with its lease at the latest.
func NewRunner(p *Pipeline, in *Intake, concurrency int) (*Runner, error) {
	if p == nil || in == nil || concurrency < 1 {
		return nil, errors.New("delivery: a runner needs a pipeline, an intake and a concurrency of at least 1")
	}
	r := &Runner{pipeline: p, intake: in, slots: make(chan struct{}, concurrency), deadline: 2 * p.Lease, running: map[uuid.UUID]bool{}}
	r.base, r.stop = context.WithCancelCause(context.Background())
	return r, nil
}

var _ queue.Handler = (*Runner)(nil)

// Deliver runs task n of a delivery. The given context only decides whether it is begun.
func (r *Runner) Deliver(ctx context.Context, id uuid.UUID, n int) (note string, err error) {
	select {
	case r.slots <- struct{}{}:
		defer func() { <-r.slots }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	if !r.enter(id) {
		return "refused: this process is delivering it already", nil
	}
	defer r.leave(id)
	defer func() {
		if v := recover(); v != nil {
			r.pipeline.Logger.Error("delivery panicked; its lease brings it back", "delivery", id, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			err = fmt.Errorf("delivery %s panicked: %v", id, v)
		}
	}()
	run, cancel := context.WithTimeout(r.base, r.deadline)
	defer cancel()
	res, err := r.pipeline.Deliver(run, id, n)
	if err != nil {
		return "", err
	}
	return verdict(res)
}

// verdict is what asynq is told: a note for the web UI, or the archive for what ended badly.
func verdict(res Result) (string, error) {
	switch {
	case res.Refused:
		return "refused: an older task, another worker has it, or it is not due", nil
	case res.Status == store.Rejected || res.Status == store.Dead:
		return "", &queue.ArchivedError{Text: fmt.Sprintf("%s %s: %s", res.Status, res.Reason, res.Text)}
	case res.Status == store.Waiting:
		return fmt.Sprintf("waiting %s, again in %s: %s", res.Reason, res.Delay.Round(100*time.Millisecond), res.Text), nil
	case res.Reason != "":
		return fmt.Sprintf("%s %s: %s", res.Status, res.Reason, res.Text), nil
	}
	return string(res.Status), nil
}

// Intake takes a whole job from a task that somebody else's asynq client made.
func (r *Runner) Intake(ctx context.Context, kind string, body []byte) (string, error) {
	return r.intake.FromTask(ctx, kind, body)
}

func (r *Runner) enter(id uuid.UUID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running[id] {
		return false
	}
	r.running[id] = true
	r.wg.Add(1)
	return true
}

func (r *Runner) leave(id uuid.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, id)
	r.wg.Done()
}

// Running is how many deliveries run now.
func (r *Runner) Running() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.running)
}

var errShutdown = errors.New("the worker is shutting down and waited long enough")

// Wait returns when nothing runs any more; when ctx ends first, running attempts are cancelled and then waited for. Call it
// after the queue's server has stopped.
func (r *Runner) Wait(ctx context.Context) {
	done := make(chan struct{})
	go func() { r.wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		r.stop(errShutdown)
		<-done
	}
	r.stop(errShutdown)
}
