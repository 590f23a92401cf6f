package queue

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
)

// WaitError is the error of a Handler whose delivery waits. It makes asynq run the task again at At. The web UI shows
// Text.
type WaitError struct {
	Text string
	At   time.Time // the time at which the delivery is due; retryDelay rounds it up to whole seconds
	Free bool      // a free wait: the attempt did not count, so asynq counts neither a retry nor an error
}

func (e *WaitError) Error() string { return e.Text }

// retryDelay returns how long asynq waits before it runs a task again, after the task ended with err. For a *WaitError,
// this is the time until At; for a foreign task, foreignDelay; for any other error, netDelay.
func retryDelay(_ int, err error, _ *asynq.Task) time.Duration {
	if wait, ok := errors.AsType[*WaitError](err); ok {
		return time.Until(ceilSecond(wait.At)) // rounded up: asynq adds it to its own time and rounds down to seconds
	}
	if _, ok := errors.AsType[*foreignError](err); ok {
		return foreignDelay
	}
	return netDelay
}

// isFailure reports whether asynq counts err as a retry of the task and in its error rates. It returns false for a
// *WaitError with Free, and for a task that asynq must never archive (mustBeKept).
func isFailure(err error) bool {
	var wait *WaitError
	return !mustBeKept(err) && (!errors.As(err, &wait) || !wait.Free)
}

// mustBeKept reports whether a task ended with an error after which asynq must never archive it: it is foreign
// (*foreignError), or has a whole job that is not stored (*intakeError).
func mustBeKept(err error) bool {
	var foreign *foreignError
	var intake *intakeError
	return errors.As(err, &foreign) || errors.As(err, &intake)
}

// Headers of a task, in which moveToRetry passes the fields of a WaitError to readWait.
const (
	waitUntil = "wait-until" // Unix time in seconds
	waitText  = "wait-text"
	waitFree  = "wait-free"
)

// moveToRetry moves a task that must wait from the lane First to the lane Retry. Without it, asynq would leave the task
// in its lane, and thousands of tasks whose waits end at the same time would delay first attempts. It enqueues a copy
// of the task in Retry and returns true; its caller then deletes the original. It returns false for a task in another
// lane, or if Redis fails. The task then waits in its own lane.
//
// asynq cannot enqueue a task directly in the state retry. So the copy runs at once, and runTask returns the rest of
// the wait (readWait), which makes asynq put the copy into that state.
func (s *server) moveToRetry(ctx context.Context, t *asynq.Task, wait *WaitError) bool {
	p, ok := parsePayload(t.Payload())
	if lane, _ := asynq.GetQueueName(ctx); lane != string(First) || !ok {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), moveTimeout)
	defer cancel()
	return s.enqueueWith(ctx, Task{DeliveryID: p.DeliveryID, N: p.N, Kind: t.Type(), Lane: Retry}, map[string]string{
		waitUntil: strconv.FormatInt(ceilSecond(wait.At).Unix(), 10), waitText: wait.Text,
		waitFree: strconv.FormatBool(wait.Free)}) == nil
}

// moveTimeout limits the time in which moveToRetry enqueues the copy of a task.
const moveTimeout = 5 * time.Second

// readWait returns the rest of the wait that moveToRetry stored in the headers of a task. It returns nil if that wait
// is over, and for a task without these headers.
func readWait(t *asynq.Task) *WaitError {
	until, err := strconv.ParseInt(t.Headers()[waitUntil], 10, 64)
	if err != nil || !time.Now().Before(time.Unix(until, 0)) {
		return nil
	}
	return &WaitError{Text: t.Headers()[waitText], At: time.Unix(until, 0), Free: t.Headers()[waitFree] == "true"}
}
