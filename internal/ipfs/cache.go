package ipfs

import (
	"math"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// cache stores verified content, which never changes, by normalised URI. Its size in bytes is bounded; it evicts the
// least recently used content.
type cache struct {
	mu    sync.Mutex
	max   int64
	size  int64
	byKey *simplelru.LRU[string, Document]
}

func newCache(maxBytes int64) *cache {
	byKey, _ := simplelru.NewLRU[string, Document](math.MaxInt, nil) // fails only for a size below 1
	return &cache{max: maxBytes, byKey: byKey}
}

// costOf returns the memory of the content plus the approximate overhead of an entry.
func costOf(key string, doc Document) int64 { return int64(cap(doc.Bytes)+2*len(key)) + 256 }

func (c *cache) get(key string) (Document, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byKey.Get(key)
}

// put stores a document, unless it takes more than a quarter of the cache.
func (c *cache) put(key string, doc Document) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byKey.Contains(key) || costOf(key, doc) > c.max/4 {
		return // content of a CID never changes; a very large document would evict all others
	}
	c.byKey.Add(key, doc)
	for c.size += costOf(key, doc); c.size > c.max; {
		oldest, dropped, _ := c.byKey.RemoveOldest()
		c.size -= costOf(oldest, dropped)
	}
}
