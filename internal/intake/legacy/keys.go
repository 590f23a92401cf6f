package legacy

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/intake"
	"github.com/agentherald/herald/internal/job"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

//go:embed lua/take.lua
var takeSource string

//go:embed lua/return.lua
var returnSource string

const (
	// maxBatch is the largest number of elements in a batch. A batch gets no further element once its elements have
	// maxBatchBytes together. At most maxElement bytes of each element are read.
	maxBatch      = 100
	maxBatchBytes = 4 << 20
	maxElement    = job.MaxBytes + 1

	// maxReturned is the largest number of elements that one call returns to the list. A dead worker never has more.
	maxReturned = 1000
)

// list is one list of the old backend, with Herald's own keys for it. A Redis cluster keeps all these keys in one slot.
type list struct {
	client       redis.UniversalClient
	name         string
	takeScript   *redis.Script
	returnScript *redis.Script
}

func newList(client redis.UniversalClient, name string) *list {
	return &list{client, name, redis.NewScript(takeSource), redis.NewScript(returnSource)}
}

func (l *list) workersKey() string { return "{" + l.name + "}:workers" }

// keysOf returns the keys for one worker, in the order in which both scripts expect them.
func (l *list) keysOf(worker string) []string {
	return []string{l.name, "{" + l.name + "}:processing:" + worker, l.workersKey(), "{" + l.name + "}:worker:" + worker}
}

// batch is the content of a worker's processing list, the oldest element first.
type batch struct {
	token    string // random name of the batch; it acknowledges the batch only once
	elements []intake.Element
	waiting  int64 // elements that remain in the old backend's list
}

// takeBatch acknowledges the batch done, unless it is empty, and returns the worker's next batch, which is empty if the
// list is. The elements of the batch stay in Redis until they are acknowledged. alive is the time after which the
// worker counts as dead.
func (l *list) takeBatch(ctx context.Context, worker string, done batch, alive time.Duration) (batch, error) {
	answer, err := l.takeScript.Run(ctx, l.client, l.keysOf(worker), worker, alive.Milliseconds(), done.token,
		len(done.elements), uuid.NewString(), maxBatch, maxBatchBytes, maxElement).Slice()
	if err != nil {
		return batch{}, fmt.Errorf("take jobs from the list %s in Redis: %w", l.name, err)
	}
	return readBatch(answer)
}

// errAnswer means that Redis returned something that take.lua never returns: another server or another script answered.
var errAnswer = errors.New("take jobs from a list in Redis: its answer is not understood")

// readBatch parses the answer of take.lua: token, length of the list, and length and beginning of each element.
func readBatch(answer []any) (b batch, err error) {
	if len(answer) < 2 || len(answer)%2 != 0 {
		return b, errAnswer
	}
	token, isText := answer[0].(string)
	waiting, isNumber := answer[1].(int64)
	if !isText || !isNumber {
		return b, errAnswer
	}
	b.token, b.waiting = token, waiting
	for i := 2; i < len(answer); i += 2 {
		length, isNumber := answer[i].(int64)
		body, isText := answer[i+1].(string)
		if !isNumber || !isText {
			return batch{}, errAnswer
		}
		b.elements = append(b.elements, intake.Element{Body: []byte(body), Length: length})
	}
	return b, nil
}

// putBack moves the elements of a dead worker back to the list. It returns their number, or -1 if the worker is alive
// and nothing was moved.
func (l *list) putBack(ctx context.Context, worker string) (int, error) {
	return l.runReturn(ctx, worker, batch{}, "")
}

// removeWorker is called by a worker that stops. It acknowledges done, moves the worker's other elements back to the
// list, and removes the worker's keys.
func (l *list) removeWorker(ctx context.Context, worker string, done batch) error {
	_, err := l.runReturn(ctx, worker, done, "itself")
	return err
}

// runReturn runs return.lua and returns the number of moved elements. An empty who means that another worker calls:
// while the worker is alive, the script then moves nothing and returns -1. Otherwise the worker itself calls.
func (l *list) runReturn(ctx context.Context, worker string, done batch, who string) (int, error) {
	moved, err := l.returnScript.Run(ctx, l.client, l.keysOf(worker), worker, maxReturned, who, done.token,
		len(done.elements)).Int()
	if err != nil {
		return 0, fmt.Errorf("return what worker %s took from the list %s in Redis: %w", worker, l.name, err)
	}
	return moved, nil
}

// listWorkers returns a page of the workers that have a processing list, beginning at cursor (0: the first page). next
// is the cursor of the next page, or 0 after the last one. Names that are not ids of workers are skipped.
func (l *list) listWorkers(ctx context.Context, cursor uint64) (workers []string, next uint64, err error) {
	pairs, next, err := l.client.HScan(ctx, l.workersKey(), cursor, "", maxBatch).Result()
	if err != nil {
		return nil, 0, fmt.Errorf("list the workers of %s in Redis: %w", l.name, err)
	}
	for i := 0; i < len(pairs); i += 2 { // names and values alternate
		name := pairs[i]
		if id, err := uuid.Parse(name); err == nil && id.String() == name {
			workers = append(workers, name)
		}
	}
	return workers, next, nil
}
