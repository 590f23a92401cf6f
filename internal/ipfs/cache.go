package ipfs

import (
	"container/list"
	"sync"
)

// cache keeps verified content, which never changes, by normalised URI. It is
// bounded in bytes and drops what was used longest ago.
type cache struct {
	mu    sync.Mutex
	max   int64
	size  int64
	order *list.List // of *cached, last used first
	byKey map[string]*list.Element
}

type cacheEntry struct {
	key string
	doc Document
}

func newCache(maxBytes int64) *cache {
	return &cache{max: maxBytes, order: list.New(), byKey: make(map[string]*list.Element)}
}

// cost is the content and about what an entry costs besides.
func (e *cacheEntry) cost() int64 { return int64(len(e.doc.Bytes)+2*len(e.key)) + 256 }

func (c *cache) get(key string) (Document, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.byKey[key]
	if !ok {
		return Document{}, false
	}
	c.order.MoveToFront(e)
	return e.Value.(*cacheEntry).doc, true
}

func (c *cache) put(key string, doc Document) {
	entry := &cacheEntry{key: key, doc: doc}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.byKey[key]; known || entry.cost() > c.max/4 {
		return // content of a CID is always the same; a giant would evict all
	}
	c.byKey[key] = c.order.PushFront(entry)
	c.size += entry.cost()
	for c.size > c.max {
		last := c.order.Back()
		old := c.order.Remove(last).(*cacheEntry)
		delete(c.byKey, old.key)
		c.size -= old.cost()
	}
}
