package legacy

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/job"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

//go:embed lua/take.lua
var takeSource string

//go:embed lua/return.lua
var returnSource string

const (
	// maxBatch is the largest number of elements in a batch. An element is added only if the elements before it have
	// less than maxBatchBytes together. Only the first maxElement bytes of an element are read.
	maxBatch      = 100
	maxBatchBytes = 4 << 20
	maxElement    = job.MaxBytes + 1

	// maxReturned is the largest number of elements that one call of putBack or removeWorker returns to the list. It
	// exceeds maxBatch, the most that a worker has.
	maxReturned = 1000
)

// list is the old backend's list, with Herald's own keys for it. All these keys are in one hash slot of a Redis
// cluster.
type list struct {
	client       redis.Cmdable
	name         string
	takeScript   *redis.Script
	returnScript *redis.Script
}

func newList(client redis.Cmdable, name string) *list {
	return &list{client, name, redis.NewScript(takeSource), redis.NewScript(returnSource)}
}

// workersKey returns the Redis key of the hash that maps each worker's id to the token of its batch.
func (l *list) workersKey() string { return "{" + l.name + "}:workers" }

// keysOf returns the Redis keys that take.lua and return.lua get as KEYS for a worker: the old backend's list, the
// worker's processing list, the hash of workersKey, and the worker's keep-alive key.
func (l *list) keysOf(worker string) []string {
	return []string{l.name, "{" + l.name + "}:processing:" + worker, l.workersKey(),
		"{" + l.name + "}:worker:" + worker}
}

// batch contains the elements that a worker has to commit, the oldest first.
type batch struct {
	token    string // random id; Redis accepts it only once as the acknowledgement of the batch
	elements []intake.Element
	waiting  int64 // number of elements that remain in the old backend's list
}

// takeBatch acknowledges done, the worker's previous batch, and returns its next batch. If done is empty, nothing is
// acknowledged. An empty result means that the list is empty. The elements of the next batch stay in the processing
// list until they are acknowledged. takeBatch also renews the worker's keep-alive key, which expires after the time
// alive unless it is renewed again.
func (l *list) takeBatch(ctx context.Context, worker string, done batch, alive time.Duration) (batch, error) {
	answer, err := l.takeScript.Run(ctx, l.client, l.keysOf(worker), worker, alive.Milliseconds(), done.token,
		len(done.elements), uuid.NewString(), maxBatch, maxBatchBytes, maxElement).Slice()
	if err != nil {
		return batch{}, fmt.Errorf("take jobs from the list %s in Redis: %w", l.name, err)
	}
	return readBatch(answer)
}

// errAnswer is the error for an answer of Redis that take.lua never returns.
var errAnswer = errors.New("take jobs from a list in Redis: its answer is not understood")

// readBatch parses the answer of take.lua: the token, the length of the list, and for each element its length and its
// beginning.
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

// putBack moves at most maxReturned elements of another worker's processing list back to the old backend's list, and
// returns their number. If that worker is alive, putBack moves nothing and returns -1.
func (l *list) putBack(ctx context.Context, worker string) (int, error) {
	return l.runReturn(ctx, worker, batch{}, "")
}

// removeWorker removes this worker when it stops, with one script. It acknowledges done, the worker's last batch
// (empty: nothing), moves the other elements of the worker's processing list back to the old backend's list, and
// deletes the worker's keys.
func (l *list) removeWorker(ctx context.Context, worker string, done batch) error {
	_, err := l.runReturn(ctx, worker, done, "itself")
	return err
}

// runReturn runs return.lua for the worker with this id, and returns the number of elements that it moved from the
// worker's processing list back to the old backend's list. caller is "itself" if the worker stops and returns its own
// elements, and "" if another worker returns them. If caller is "" and the worker is alive, the script moves nothing
// and returns -1. The script first acknowledges done, the worker's last batch. If done is empty, nothing is
// acknowledged.
func (l *list) runReturn(ctx context.Context, worker string, done batch, caller string) (int, error) {
	moved, err := l.returnScript.Run(ctx, l.client, l.keysOf(worker), worker, maxReturned, caller, done.token,
		len(done.elements)).Int()
	if err != nil {
		return 0, fmt.Errorf("return what worker %s took from the list %s in Redis: %w", worker, l.name, err)
	}
	return moved, nil
}

// listWorkers returns a page of the ids of workers that have a processing list. cursor is 0 for the first page. next is
// the cursor of the next page, or 0 after the last one. Names in the hash that are not UUIDs are skipped.
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
