package ipfs

import (
	"crypto/sha256"
	"errors"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

const (
	// firstRefusal is how long content is not requested again after a failed fetch. The time doubles with each
	// failure, up to lastRefusal. Except before the second attempt, that is shorter than the wait between two
	// attempts of a delivery: it protects against many deliveries that name the same unavailable content.
	firstRefusal = 500 * time.Millisecond
	lastRefusal  = 5 * time.Second
	// forgotten is how long after the end of a refusal the failure still counts.
	forgotten = time.Minute
	// finalRefusal is used for failures that a CID determines for good: a directory, too large, not a file.
	finalRefusal = 10 * time.Minute

	maxFailures = 4096
)

// failures stores which content could not be fetched. It evicts the least recently used entries.
type failures struct {
	now   func() time.Time
	mu    sync.Mutex
	byKey *lru.Cache[[sha256.Size]byte, failed] // by the hash of the key, because keys are untrusted and long
}

// failed is the last failure of a fetch.
type failed struct {
	err   error
	until time.Time
	wait  time.Duration // the last refusal time, for a failure that may be temporary
}

func newFailures(now func() time.Time) *failures {
	byKey, _ := lru.New[[sha256.Size]byte, failed](maxFailures) // fails only for a size below 1
	return &failures{now: now, byKey: byKey}
}

// try calls fetch and stores its failure. While a fetch is refused, it returns the last failure instead. mutable means
// that the key is a name whose content can change, so that no failure is final.
func (f *failures) try(key string, mutable bool, fetch func() error) error {
	id := sha256.Sum256([]byte(key))
	if e, _ := f.byKey.Get(id); f.now().Before(e.until) {
		return e.err
	}
	err := fetch()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		f.byKey.Remove(id)
		return nil
	}
	e, _ := f.byKey.Get(id)
	now := f.now()
	if now.Sub(e.until) > forgotten {
		e.wait = 0
	}
	e.err, e.wait = err, min(max(2*e.wait, firstRefusal), lastRefusal)
	if known, ok := errors.AsType[fetchError](err); ok && known.isFinal() && !mutable {
		e.wait = finalRefusal
	}
	e.until = now.Add(e.wait)
	f.byKey.Add(id, e)
	return err
}
