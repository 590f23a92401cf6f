package legacy

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/job"
	"github.com/redis/go-redis/v9"
)

//go:embed lua/read.lua
var readSource string

const (
	// maxBatch is the largest number of elements in a batch. An element is added only if the elements before it have
	// less than maxBatchBytes together. Only the first maxElement bytes of an element are read.
	maxBatch      = 100
	maxBatchBytes = 4 << 20
	maxElement    = job.MaxBytes + 1
)

// list is the old backend's list.
type list struct {
	client redis.Cmdable
	name   string
	script *redis.Script
}

func newList(client redis.Cmdable, name string) *list {
	return &list{client, name, redis.NewScript(readSource)}
}

// readerKey returns the key of the id of the worker that reads. It is in the same hash slot of a Redis cluster as the
// list.
func (l *list) readerKey() string { return "{" + l.name + "}:reader" }

// batch contains elements to commit, the oldest first.
type batch struct {
	elements []intake.Element
	hashes   []any // SHA-1 of each element
	length   int64 // of the list, with these elements
}

// readBatch removes done, the worker's last committed elements, from the list, and returns the worker's next batch. It
// returns no elements if the list is empty or another worker reads it. No other worker reads it for the time lease;
// with 0, the worker stops reading.
func (l *list) readBatch(ctx context.Context, worker string, lease time.Duration, done []any) (batch, error) {
	args := append([]any{worker, lease.Milliseconds(), maxBatch, maxBatchBytes, maxElement}, done...)
	answer, err := l.script.Run(ctx, l.client, []string{l.name, l.readerKey()}, args...).Slice()
	if err != nil {
		return batch{}, fmt.Errorf("take jobs from the list %s in Redis: %w", l.name, err)
	}
	return parseBatch(answer)
}

// errAnswer is the error for an answer of Redis that read.lua never returns.
var errAnswer = errors.New("take jobs from a list in Redis: its answer is not understood")

// parseBatch parses the answer of read.lua.
func parseBatch(answer []any) (b batch, err error) {
	if len(answer)%3 != 1 {
		return b, errAnswer
	}
	length, isNumber := answer[0].(int64)
	if !isNumber {
		return b, errAnswer
	}
	b.length = length
	for i := 1; i < len(answer); i += 3 {
		length, isNumber := answer[i+1].(int64)
		body, isText := answer[i+2].(string)
		if !isNumber || !isText {
			return batch{}, errAnswer
		}
		b.hashes = append(b.hashes, answer[i])
		b.elements = append(b.elements, intake.Element{Body: []byte(body), Length: length})
	}
	return b, nil
}
