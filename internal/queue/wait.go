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
	At   time.Time // when the delivery is due; retryDelay rounds it up to whole seconds, so that no task runs early
	Free bool      // the wait is no failure: asynq counts neither a retry nor an error
}

func (e *WaitError) Error() string { return e.Text }

// retryDelay returns how long asynq waits before it runs a task again: until At of a *WaitError, foreignDelay for the
// task of another program, netDelay for any other error.
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

// isFailure reports whether asynq counts the error as a retry and in its error rates. It does not count a *WaitError
// that is Free, and the tasks of other programs.
func isFailure(err error) bool {
	var wait *WaitError
	var foreign *foreignError
	return !errors.As(err, &foreign) && (!errors.As(err, &wait) || !wait.Free)
}

// Headers of a task in which moveToRetry passes the fields of a WaitError to readWait.
const (
	waitUntil = "wait-until" // Unix time in seconds
	waitText  = "wait-text"
	waitFree  = "wait-free"
)

// moveToRetry enqueues a copy of a waiting task in the lane Retry, if the task is in the lane First, and reports
// whether it did. The caller then removes the original. asynq would retry the task in the lane First, where thousands
// of waits that end at once delay first attempts. A worker fetches the copy immediately, and readWait makes it wait. If
// moveToRetry returns false, the task waits in its own lane.
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

// readWait returns the wait of a task that moveToRetry made. It returns nil for any other task, and when the wait is
// over.
func readWait(t *asynq.Task) *WaitError {
	until, err := strconv.ParseInt(t.Headers()[waitUntil], 10, 64)
	if err != nil || !time.Now().Before(time.Unix(until, 0)) {
		return nil
	}
	return &WaitError{Text: t.Headers()[waitText], At: time.Unix(until, 0), Free: t.Headers()[waitFree] == "true"}
}
