package resolver

import (
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

// result is the outcome of resolving an agent: a target or an error.
type result struct {
	target Target
	err    error
	page   *page // data of the document, for a conditional request to its server (page.isCached); nil: none
}

// summarize describes the result in the step "cache" of a resolution that used it from the cache.
func (o result) summarize() string {
	if o.err != nil {
		return excerpt(o.err.Error())
	}
	out := o.target.From + " of a document by " + o.target.DocumentSource
	if o.target.Binding != "" {
		out += ", binding: " + o.target.Binding
	}
	return out
}

// entry is a result in the cache. epoch is the agent's epoch for which it was resolved.
type entry struct {
	epoch   int64
	result  result
	made    time.Time
	expires time.Time
}

// cache contains results by Agent.cacheKey. If it is full, it evicts the least recently used one.
type cache struct {
	put     sync.Mutex // serializes putNewer
	entries *lru.Cache[string, entry]
}

// newCache returns a cache for at most most results.
func newCache(most int) *cache {
	entries, _ := lru.New[string, entry](most) // fails only for a size below 1
	return &cache{entries: entries}
}

// getFresh returns the cached result for key and the time when it was stored. It returns false if no result is
// cached, if it was resolved for an epoch below epoch, or if it has expired.
func (c *cache) getFresh(key string, epoch int64, now time.Time) (result, time.Time, bool) {
	e, ok := c.entries.Get(key)
	if !ok || e.epoch < epoch || !now.Before(e.expires) {
		return result{}, time.Time{}, false
	}
	return e.result, e.made, true
}

// hasEpoch reports whether the cached result for key was resolved for at least this epoch, even if it has expired.
func (c *cache) hasEpoch(key string, epoch int64) bool {
	e, ok := c.entries.Peek(key)
	return ok && e.epoch >= epoch
}

// getStalePage returns the page of the cached result for key if that was resolved for exactly this epoch, even if it
// has expired. It returns nil otherwise: the epoch was raised because data of a lower epoch may be wrong.
func (c *cache) getStalePage(key string, epoch int64) *page {
	if e, ok := c.entries.Peek(key); ok && e.epoch == epoch {
		return e.result.page
	}
	return nil
}

// putNewer stores a result, unless the cache has one of a higher epoch. So a slow resolution does not replace a newer
// outcome.
func (c *cache) putNewer(key string, e entry) {
	c.put.Lock()
	defer c.put.Unlock()
	if known, ok := c.entries.Peek(key); !ok || known.epoch <= e.epoch {
		c.entries.Add(key, e)
	}
}
