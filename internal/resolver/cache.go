package resolver

import (
	"container/list"
	"sync"
	"time"
)

// outcome is what resolving an agent ended in: a target, or an error that will
// be the same for a while.
type outcome struct {
	target Target
	err    error
	page   *page // the document, where its server can be asked whether it has changed; else nil
}

// summarize is what a cached outcome's step tells.
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
	key     string
	epoch   int64
	outcome outcome
	made    time.Time
	expires time.Time
}

// cache holds outcomes by agent, bounded in number; what was used longest ago
// goes first.
type cache struct {
	mu    sync.Mutex
	max   int
	order *list.List // of *entry, last used first
	byKey map[string]*list.Element
}

func newCache(most int) *cache {
	return &cache{max: most, order: list.New(), byKey: make(map[string]*list.Element)}
}

// get returns an outcome that is neither older than epoch nor out of date, and
// when it was made. An outcome of a later epoch is only fresher.
func (c *cache) get(key string, epoch int64, now time.Time) (outcome, time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.byKey[key]
	if !ok {
		return outcome{}, time.Time{}, false
	}
	v := e.Value.(*entry)
	if v.epoch < epoch || !now.Before(v.expires) {
		return outcome{}, time.Time{}, false
	}
	c.order.MoveToFront(e)
	return v.outcome, v.made, true
}

// stale returns what the document of an outcome said that is out of date, but
// not outdated by a raised epoch: that means that something was wrong with it.
func (c *cache) stale(key string, epoch int64) *page {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.byKey[key]
	if !ok {
		return nil
	}
	if v := e.Value.(*entry); v.epoch == epoch {
		return v.outcome.page
	}
	return nil
}

// put stores an outcome, unless one of a later epoch is there: a slow resolve
// must not undo a newer one.
func (c *cache) put(v *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.byKey[v.key]; ok {
		if e.Value.(*entry).epoch <= v.epoch {
			e.Value = v
			c.order.MoveToFront(e)
		}
		return
	}
	c.byKey[v.key] = c.order.PushFront(v)
	for c.order.Len() > c.max {
		old := c.order.Remove(c.order.Back()).(*entry)
		delete(c.byKey, old.key)
	}
}
