package resolver

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
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

// maxCachedBytes bounds the memory of the cached results. It has room for Config.CacheEntries usual results. The author
// of a document can make a result ten times as large.
const maxCachedBytes = 32 << 20

// costOf returns the approximate memory of a cached result: its texts from outside, and all that has a bounded size.
func costOf(key string, e entry) int64 {
	t := e.result.target
	size := 1<<10 + len(key) + len(t.URL) + len(t.Name) + len(t.DocumentURI) + len(t.ProtocolHint) + len(t.TokenHeader)
	for _, s := range t.Steps {
		size += len(s.Source) + len(s.Detail)
	}
	if e.result.err != nil {
		size += len(e.result.err.Error())
	}
	if p := e.result.page; p != nil { // it shares the texts of its target with the result
		size += len(p.uri) + len(p.validators.ETag) + len(p.validators.LastModified)
	}
	return int64(size)
}

// cache contains results by Agent.cacheKey. If it has too many results, or if they use more memory than maxCachedBytes,
// it evicts the least recently used ones.
type cache struct {
	mu      sync.Mutex
	entries *simplelru.LRU[string, entry]
	bytes   int64 // the sum of costOf
}

// newCache returns a cache for at most most results.
func newCache(most int) *cache {
	c := &cache{}
	// NewLRU fails only for a size below 1.
	c.entries, _ = simplelru.NewLRU(most, func(key string, e entry) { c.bytes -= costOf(key, e) })
	return c
}

// getFresh returns the cached result for key and the time when it was stored. It returns false if no result is
// cached, if it was resolved for an epoch below epoch, or if it has expired.
func (c *cache) getFresh(key string, epoch int64, now time.Time) (result, time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries.Get(key)
	if !ok || e.epoch < epoch || !now.Before(e.expires) {
		return result{}, time.Time{}, false
	}
	return e.result, e.made, true
}

// hasEpoch reports whether the cached result for key was resolved for at least this epoch, even if it has expired.
func (c *cache) hasEpoch(key string, epoch int64) bool {
	e, ok := c.peekEntry(key)
	return ok && e.epoch >= epoch
}

// getStalePage returns the page of the cached result for key if that was resolved for exactly this epoch, even if it
// has expired. It returns nil otherwise: the epoch was raised because data of a lower epoch may be wrong.
func (c *cache) getStalePage(key string, epoch int64) *page {
	if e, ok := c.peekEntry(key); ok && e.epoch == epoch {
		return e.result.page
	}
	return nil
}

func (c *cache) peekEntry(key string) (entry, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries.Peek(key)
}

// putNewer stores a result, unless the cache has one of a higher epoch. So a slow resolution does not replace a newer
// outcome.
func (c *cache) putNewer(key string, e entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.entries.Peek(key); ok && known.epoch > e.epoch {
		return
	}
	c.entries.Remove(key) // Add would not call the function that subtracts the cost of the former result
	c.bytes += costOf(key, e)
	c.entries.Add(key, e)
	for c.bytes > maxCachedBytes {
		c.entries.RemoveOldest()
	}
}
