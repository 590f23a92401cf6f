package ipfs

import (
	"crypto/sha256"
	"errors"
	"sync"
	"time"
)

const (
	// firstRefusal is how long content that could not be had is not asked for again; it doubles with each failure, to lastRefusal. That is
	// shorter than the wait between two attempts at a delivery, but the first: it is for the many that name the same dead content.
	firstRefusal = 500 * time.Millisecond
	lastRefusal  = 5 * time.Second
	// forgotten is how long after its end a failure still counts.
	forgotten = time.Minute
	// finalRefusal is for what a CID is and will remain: a directory, too large, no file.
	finalRefusal = 10 * time.Minute

	maxFailures = 4096
)

// failures remembers which content could not be had, bounded in number.
type failures struct {
	mu    sync.Mutex
	byKey map[[sha256.Size]byte]*failed // by the key's hash: keys are strangers', and long
}

type failed struct {
	err   error
	until time.Time
	wait  time.Duration // the last one, of a failure that may pass
}

func newFailures() *failures { return &failures{byKey: make(map[[sha256.Size]byte]*failed)} }

// get returns the error of a failure that stands.
func (f *failures) get(key string, now time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e := f.byKey[sha256.Sum256([]byte(key))]; e != nil && now.Before(e.until) {
		return e.err
	}
	return nil
}

// note remembers how a fetch ended; nil forgets what was. What a name stands for is mutable: nothing about it is final. That there was no
// place at a gateway says nothing of the content.
func (f *failures) note(key string, err error, mutable bool, now time.Time) {
	if errors.Is(err, errBusy) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	id := sha256.Sum256([]byte(key))
	if err == nil {
		delete(f.byKey, id)
		return
	}
	e := f.byKey[id]
	if e == nil {
		if len(f.byKey) >= maxFailures {
			f.shrink(now)
		}
		e = &failed{}
		f.byKey[id] = e
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

// shrink forgets what stands no more, or all when that is too little: it costs a request each, no more.
func (f *failures) shrink(now time.Time) {
	for id, e := range f.byKey {
		if now.After(e.until) {
			delete(f.byKey, id)
		}
	}
	if len(f.byKey) > maxFailures/2 {
		clear(f.byKey)
	}
}

// isFinal: no server and no time can mend it.
func isFinal(err error) bool {
	var (
		notFound *NotFoundError
		none     *NoDocumentError
		invalid  *InvalidError
		large    *TooLargeError
	)
	return errors.As(err, &none) || errors.As(err, &invalid) || errors.As(err, &large) || errors.As(err, &notFound) && notFound.Proven
}
