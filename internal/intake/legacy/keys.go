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
	// maxBatch is how many elements are committed together, and maxBatchBytes after how many bytes of them no more are
	// taken: one element more may be in a batch, of which at most maxElement bytes are read.
	maxBatch      = 100
	maxBatchBytes = 4 << 20
	maxElement    = job.MaxBytes + 1

	// maxReturned is how many elements of a dead worker are put back at a time: more than it can have taken.
	maxReturned = 1000
)

// list is one list of the old backend and what Herald keeps beside it. All keys are in one slot of a cluster.
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

func (l *list) keysOf(worker string) []string {
	return []string{l.name, "{" + l.name + "}:processing:" + worker, l.workersKey(), "{" + l.name + "}:worker:" + worker}
}

// batch is what a worker has in its processing list, the oldest first.
type batch struct {
	token    string
	elements []intake.Element
	waiting  int64 // elements that are left in the list
}

// takeBatch acknowledges done (zero: nothing) and gives the worker's batch, whose elements are there until it is
// acknowledged.
func (l *list) takeBatch(ctx context.Context, worker string, done batch, alive time.Duration) (batch, error) {
	answer, err := l.takeScript.Run(ctx, l.client, l.keysOf(worker), worker, alive.Milliseconds(), done.token,
		len(done.elements), uuid.NewString(), maxBatch, maxBatchBytes, maxElement).Slice()
	if err != nil {
		return batch{}, fmt.Errorf("take jobs from the list %s in Redis: %w", l.name, err)
	}
	return readBatch(answer)
}

// errAnswer means that something else than Redis answered, or another script.
var errAnswer = errors.New("take jobs from a list in Redis: its answer is not understood")

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

// putBack returns to the list what a dead worker took; -1: it lives.
func (l *list) putBack(ctx context.Context, worker string) (int, error) {
	return l.runReturn(ctx, worker, batch{}, "")
}

// removeWorker acknowledges done and ends the worker's registration; what else it took is for others.
func (l *list) removeWorker(ctx context.Context, worker string, done batch) error {
	_, err := l.runReturn(ctx, worker, done, "itself")
	return err
}

func (l *list) runReturn(ctx context.Context, worker string, done batch, who string) (int, error) {
	moved, err := l.returnScript.Run(ctx, l.client, l.keysOf(worker), worker, maxReturned, who, done.token,
		len(done.elements)).Int()
	if err != nil {
		return 0, fmt.Errorf("return what worker %s took from the list %s in Redis: %w", worker, l.name, err)
	}
	return moved, nil
}

// listWorkers names some of the workers that have a processing list, from a cursor on. Names that no worker gives
// itself are left out.
func (l *list) listWorkers(ctx context.Context, cursor uint64) (workers []string, next uint64, err error) {
	pairs, next, err := l.client.HScan(ctx, l.workersKey(), cursor, "", maxBatch).Result()
	if err != nil {
		return nil, 0, fmt.Errorf("list the workers of %s in Redis: %w", l.name, err)
	}
	for i := 0; i < len(pairs); i += 2 { // names and values
		name := pairs[i]
		if id, err := uuid.Parse(name); err == nil && id.String() == name {
			workers = append(workers, name)
		}
	}
	return workers, next, nil
}
