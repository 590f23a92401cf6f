package queue

import (
	"context"
	"encoding/json"
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
	Free bool      // the wait is a free wait: asynq counts neither a retry nor an error
}

func (e *WaitError) Error() string { return e.Text }

// retryDelay returns the time from now after which asynq runs a task again that ended with err: the rest until At for a
// *WaitError, foreignDelay for a foreign task, and netDelay for any other error.
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

// isFailure reports whether asynq counts err as a retry of the task and in its error rates. It returns false for a
// *WaitError with Free, and for the *foreignError of a foreign task.
func isFailure(err error) bool {
	var wait *WaitError
	var foreign *foreignError
	return !errors.As(err, &foreign) && (!errors.As(err, &wait) || !wait.Free)
}

// Headers of a task. In them moveToRetry passes the fields of a WaitError to readWait.
const (
	waitUntil = "wait-until" // Unix time in seconds
	waitText  = "wait-text"
	waitFree  = "wait-free"
)

// moveToRetry enqueues a copy of a waiting task in the lane Retry if the task is in the lane First. It returns true if
// it enqueued the copy; its caller then deletes the original. It returns false for a task in another lane, or if Redis
// fails; the task then waits in its own lane. asynq leaves a waiting task in its lane. Without moveToRetry, thousands
// of tasks in the lane First whose waits end at the same time would delay first attempts.
//
// asynq cannot enqueue a task in the state retry. So the copy runs immediately, and runTask returns the rest of the
// wait (readWait), which moves it to that state.
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

// moveTimeout is the longest time for which moveToRetry tries to enqueue the copy of a task.
const moveTimeout = 5 * time.Second

// readWait returns the rest of the wait in the headers of a task that moveToRetry enqueued. It returns nil if the wait
// is over, and for any other task.
func readWait(t *asynq.Task) *WaitError {
	until, err := strconv.ParseInt(t.Headers()[waitUntil], 10, 64)
	if err != nil || !time.Now().Before(time.Unix(until, 0)) {
		return nil
	}
	return &WaitError{Text: t.Headers()[waitText], At: time.Unix(until, 0), Free: t.Headers()[waitFree] == "true"}
}
