package receiver

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Store remembers which deliveries an agent has processed. Implementations are safe for concurrent use. Several
// processes of one agent share a Store in a database.
type Store interface {
	// Processed reports whether Remember was called for this id.
	Processed(ctx context.Context, deliveryID string) (bool, error)
	// Remember is called after the handler has succeeded.
	Remember(ctx context.Context, deliveryID string) error
}

// DefaultMemory is the number of ids that the Store of Register keeps if no other is given: about 10 MB.
const DefaultMemory = 100_000

// MemoryStore keeps the ids of the latest deliveries in memory. It forgets them when the process ends.
type MemoryStore struct {
	mu    sync.Mutex
	known map[string]struct{}
	order []string // the ids in a ring, which starts at next once it is full
	next  int
	limit int
}

// NewMemoryStore returns a Store of the latest limit ids, at least one.
func NewMemoryStore(limit int) *MemoryStore {
	return &MemoryStore{known: map[string]struct{}{}, limit: max(limit, 1)}
}

// Processed implements Store. It returns no error.
func (s *MemoryStore) Processed(_ context.Context, deliveryID string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.known[deliveryID]
	return known, nil
}

// Remember implements Store. It returns no error. It evicts the oldest id if the store is full.
func (s *MemoryStore) Remember(_ context.Context, deliveryID string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.known[deliveryID]; known {
		return nil
	}
	s.known[deliveryID] = struct{}{}
	if len(s.order) < s.limit {
		s.order = append(s.order, deliveryID)
		return nil
	}
	delete(s.known, s.order[s.next])
	s.order[s.next] = deliveryID
	s.next = (s.next + 1) % s.limit
	return nil
}

// once runs at most one function for each delivery at a time, and none for a delivery that the store knows.
type once struct {
	store   Store
	mu      sync.Mutex
	running map[string]*flight
}

// flight is a running call. err is its result once done is closed.
type flight struct {
	done chan struct{}
	err  error
}

// waitTime bounds how long a call waits for another call of its delivery. The last element of a batch may begin to wait
// after batchTime, and Herald waits 30 seconds for the answer.
const waitTime = 10 * time.Second

// errStillRunning is the result of a call that waited for waitTime.
var errStillRunning = errors.New("the handler of an earlier call for this delivery is still running")

// errAborted is the result of a call whose goroutine ended by a panic or runtime.Goexit.
var errAborted = errors.New("the call for this delivery was aborted")

// do runs process, unless the delivery was processed before. If a call for the delivery is running, do waits for it,
// at most waitTime, and returns its result. duplicate reports that process did not run. A call that failed is not
// remembered.
func (o *once) do(ctx context.Context, deliveryID string, process func() error) (duplicate bool, err error) {
	o.mu.Lock()
	if other, runs := o.running[deliveryID]; runs {
		o.mu.Unlock()
		select {
		case <-other.done:
			return true, other.err
		case <-time.After(waitTime):
			return true, errStillRunning
		case <-ctx.Done():
			return true, ctx.Err()
		}
	}
	mine := &flight{done: make(chan struct{}), err: errAborted}
	o.running[deliveryID] = mine
	o.mu.Unlock()

	defer func() {
		o.mu.Lock()
		delete(o.running, deliveryID)
		o.mu.Unlock()
		close(mine.done)
	}()
	duplicate, mine.err = o.processNew(ctx, deliveryID, process)
	return duplicate, mine.err
}

func (o *once) processNew(ctx context.Context, deliveryID string, process func() error) (duplicate bool, err error) {
	known, err := o.store.Processed(ctx, deliveryID)
	if known || err != nil {
		return known, err
	}
	if err = process(); err != nil {
		return false, err
	}
	// The handler has done its work, even if the caller has left.
	return false, o.store.Remember(context.WithoutCancel(ctx), deliveryID)
}
