package ipfs

import (
	"crypto/sha256"
	"errors"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

const (
	// firstRefusal is how long content that could not be had is not asked for again; it doubles with each failure, to
	// lastRefusal. That is shorter than the wait between two attempts at a delivery, but the first: it is for the many
	// that name the same dead content.
	firstRefusal = 500 * time.Millisecond
	lastRefusal  = 5 * time.Second
	// forgotten is how long after its end a failure still counts.
	forgotten = time.Minute
	// finalRefusal is for what a CID is and will remain: a directory, too large, no file.
	finalRefusal = 10 * time.Minute

	maxFailures = 4096
)

// failures remembers which content could not be had; what was used longest ago goes first.
type failures struct {
	mu    sync.Mutex
	byKey *lru.Cache[[sha256.Size]byte, *failed] // by the key's hash: keys are strangers', and long
}

type failed struct {
	err   error
	until time.Time
	wait  time.Duration // the last one, of a failure that may pass
}

func newFailures() *failures {
	byKey, _ := lru.New[[sha256.Size]byte, *failed](maxFailures) // fails for a size below 1 only
	return &failures{byKey: byKey}
}

// get returns the error of a failure that stands.
func (f *failures) get(key string, now time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e, ok := f.byKey.Get(sha256.Sum256([]byte(key))); ok && now.Before(e.until) {
		return e.err
	}
	return nil
}

// record remembers how a fetch ended; nil forgets what was. What a name stands for is mutable: nothing about it is
// final. That there was no place at a gateway says nothing of the content.
func (f *failures) record(key string, err error, mutable bool, now time.Time) {
	if errors.Is(err, errBusy) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	id := sha256.Sum256([]byte(key))
	if err == nil {
		f.byKey.Remove(id)
		return
	}
	e, ok := f.byKey.Get(id)
	if !ok {
		e = &failed{}
		f.byKey.Add(id, e)
	}
	e.err = err
	if isFinal(err) && !mutable {
		e.until, e.wait = now.Add(finalRefusal), 0
		return
	}
	if now.Sub(e.until) > forgotten {
		e.wait = 0
	}
	e.wait = min(max(2*e.wait, firstRefusal), lastRefusal)
	e.until = now.Add(e.wait)
}

// isFinal: no server and no time can mend it.
func isFinal(err error) bool {
	var (
		notFound *NotFoundError
		none     *NoDocumentError
		invalid  *InvalidError
		large    *TooLargeError
	)
	return errors.As(err, &none) || errors.As(err, &invalid) || errors.As(err, &large) || errors.As(err, &notFound) &&
		notFound.Proven
}
