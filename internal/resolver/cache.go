package resolver

import (
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

// outcome is the result of resolving an agent: a target, or an error that stays the same for a while.
type outcome struct {
	target Target
	err    error
	page   *page // the document, if its server can be asked whether it changed; otherwise nil
}

// summarize describes a cached outcome, for the step of the trace.
func (o outcome) summarize() string {
	if o.err != nil {
		return excerpt(o.err.Error())
	}
	out := o.target.From + " of a document by " + o.target.DocumentSource
	if o.target.Binding != "" {
		out += ", binding: " + o.target.Binding
	}
	return out
}

// entry is a cached outcome with the agent's epoch at the time of the resolution.
type entry struct {
	epoch   int64
	outcome outcome
	made    time.Time
	expires time.Time
}

// cache stores outcomes by agent. Their number is bounded; it evicts the least recently used ones.
type cache struct {
	put     sync.Mutex // held while putNewer compares and stores
	entries *lru.Cache[string, entry]
}

func newCache(most int) *cache {
	entries, _ := lru.New[string, entry](most) // fails only for a size below 1
	return &cache{entries: entries}
}

// getFresh returns an outcome that is neither older than epoch nor expired, and the time when it was made. An outcome
// of a later epoch is also fresh.
func (c *cache) getFresh(key string, epoch int64, now time.Time) (outcome, time.Time, bool) {
	e, ok := c.entries.Get(key)
	if !ok || e.epoch < epoch || !now.Before(e.expires) {
		return outcome{}, time.Time{}, false
	}
	return e.outcome, e.made, true
}

// getStalePage returns the page of an outcome of this epoch, which may have expired. It returns nil for an outcome of
// an older epoch, because the epoch was raised for the reason that something was wrong with it.
func (c *cache) getStalePage(key string, epoch int64) *page {
	if e, ok := c.entries.Peek(key); ok && e.epoch == epoch {
		return e.outcome.page
	}
	return nil
}

// putNewer stores an outcome, unless the cache contains one of a later epoch: a slow resolution must not overwrite a
// newer one.
func (c *cache) putNewer(key string, e entry) {
	c.put.Lock()
	defer c.put.Unlock()
	if known, ok := c.entries.Peek(key); !ok || known.epoch <= e.epoch {
		c.entries.Add(key, e)
	}
}
