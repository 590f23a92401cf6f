package resolver

import (
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

// outcome is what resolving an agent ended in: a target, or an error that will be the same for a while.
type outcome struct {
	target Target
	err    error
	page   *page // the document, where its server can be asked whether it has changed; else nil
}

// summarize says what a cached outcome was, for the step of the trace.
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

type entry struct {
	epoch   int64
	outcome outcome
	made    time.Time
	expires time.Time
}

// cache holds outcomes by agent, bounded in number; what was used longest ago goes first.
type cache struct {
	put     sync.Mutex // one writer compares and stores at a time
	entries *lru.Cache[string, entry]
}

func newCache(most int) *cache {
	entries, _ := lru.New[string, entry](most) // fails for a size below 1 only
	return &cache{entries: entries}
}

// getFresh returns an outcome that is neither older than epoch nor out of date, and when it was made. An outcome of a
// later epoch is only fresher.
func (c *cache) getFresh(key string, epoch int64, now time.Time) (outcome, time.Time, bool) {
	e, ok := c.entries.Get(key)
	if !ok || e.epoch < epoch || !now.Before(e.expires) {
		return outcome{}, time.Time{}, false
	}
	return e.outcome, e.made, true
}

// getStalePage returns what the document of an outcome said that is out of date, but not outdated by a raised epoch:
// that means that something was wrong with it.
func (c *cache) getStalePage(key string, epoch int64) *page {
	if e, ok := c.entries.Peek(key); ok && e.epoch == epoch {
		return e.outcome.page
	}
	return nil
}

// putNewer stores an outcome, unless one of a later epoch is there: a slow resolve must not undo a newer one.
func (c *cache) putNewer(key string, e entry) {
	c.put.Lock()
	defer c.put.Unlock()
	if known, ok := c.entries.Peek(key); !ok || known.epoch <= e.epoch {
		c.entries.Add(key, e)
	}
}
