package queue

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
)

// WaitError has asynq run the task again: its delivery waits. Text is what the operator reads.
type WaitError struct {
	Text string
	At   time.Time // rounded up to whole seconds, which asynq counts in: not before the delivery is due
	Free bool      // nothing failed: asynq does not count it
}

func (e *WaitError) Error() string { return e.Text }

// retryDelay is how long asynq waits before it runs a task again.
func retryDelay(_ int, err error, _ *asynq.Task) time.Duration {
	var wait *WaitError
	if errors.As(err, &wait) {
		return time.Until(ceilSecond(wait.At)) // asynq adds it to a later now, and rounds that down
	}
	var foreign *foreignError
	if errors.As(err, &foreign) {
		return foreignDelay
	}
	return netDelay
}

// isFailure tells whether asynq counts the error, as one of the task's retries and in its error rates.
func isFailure(err error) bool {
	var wait *WaitError
	var foreign *foreignError
	return !errors.As(err, &foreign) && (!errors.As(err, &wait) || !wait.Free)
}

// Headers of a task that was moved, which say what it waits for.
const (
	waitUntil = "wait-until" // seconds since 1970
	waitText  = "wait-text"
	waitFree  = "wait-free"
)

// moveToRetry puts a task of the lane first into the lane retry, before it waits: asynq's retries stay in their lane,
// and thousands that are due at once would stand before first attempts. There it is run at once, and waits (readWait).
// What cannot be moved waits where it is.
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

// readWait is what a task that was moved waits for; nil: nothing any more.
func readWait(t *asynq.Task) *WaitError {
	until, err := strconv.ParseInt(t.Headers()[waitUntil], 10, 64)
	if err != nil || !time.Now().Before(time.Unix(until, 0)) {
		return nil
	}
	return &WaitError{Text: t.Headers()[waitText], At: time.Unix(until, 0), Free: t.Headers()[waitFree] == "true"}
}
