package queue

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
)

// WaitError makes asynq run the task again later, because its delivery waits. Text is shown to the operator.
type WaitError struct {
	Text string
	At   time.Time // rounded up to asynq's whole seconds, so that the task does not run before the delivery is due
	Free bool      // nothing failed: asynq does not count a retry
}

func (e *WaitError) Error() string { return e.Text }

// retryDelay returns how long asynq waits before it runs a task again.
func retryDelay(_ int, err error, _ *asynq.Task) time.Duration {
	var wait *WaitError
	if errors.As(err, &wait) {
		return time.Until(ceilSecond(wait.At)) // asynq adds it to a slightly later time and rounds down to seconds
	}
	var foreign *foreignError
	if errors.As(err, &foreign) {
		return foreignDelay
	}
	return netDelay
}

// isFailure reports whether asynq counts the error as a retry and in its error rates.
func isFailure(err error) bool {
	var wait *WaitError
	var foreign *foreignError
	return !errors.As(err, &foreign) && (!errors.As(err, &wait) || !wait.Free)
}

// Headers that moveToRetry adds to a task. They contain the wait.
const (
	waitUntil = "wait-until" // Unix time in seconds
	waitText  = "wait-text"
	waitFree  = "wait-free"
)

// moveToRetry enqueues a task of the lane first again in the lane retry, before it waits. asynq retries a task in its
// own lane, where thousands of waits that end at once would delay first attempts. A worker fetches the new task
// immediately, and readWait makes it wait. If the task cannot be moved, moveToRetry returns false and the task waits in
// its lane.
func (s *Server) moveToRetry(ctx context.Context, t *asynq.Task, wait *WaitError) bool {
	var p payload
	if lane, _ := asynq.GetQueueName(ctx); lane != string(First) || json.Unmarshal(t.Payload(), &p) != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), moveTimeout)
	defer cancel()
	return s.enqueue(ctx, Task{DeliveryID: p.DeliveryID, N: p.N, Kind: t.Type(), Lane: Retry}, map[string]string{
		waitUntil: strconv.FormatInt(ceilSecond(wait.At).Unix(), 10), waitText: wait.Text,
		waitFree: strconv.FormatBool(wait.Free)}) == nil
}

const moveTimeout = 5 * time.Second

// readWait returns the wait of a task that moveToRetry moved, or nil if the task was not moved or the wait is over.
func readWait(t *asynq.Task) *WaitError {
	until, err := strconv.ParseInt(t.Headers()[waitUntil], 10, 64)
	if err != nil || !time.Now().Before(time.Unix(until, 0)) {
		return nil
	}
	return &WaitError{Text: t.Headers()[waitText], At: time.Unix(until, 0), Free: t.Headers()[waitFree] == "true"}
}
