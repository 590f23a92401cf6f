package ipfs

import (
	"math"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// cache keeps verified content, which never changes, by normalised URI. It is
// bounded in bytes and drops what was used longest ago.
type cache struct {
	mu    sync.Mutex
	max   int64
	size  int64
	byKey *simplelru.LRU[string, Document]
}

func newCache(maxBytes int64) *cache {
	byKey, _ := simplelru.NewLRU[string, Document](math.MaxInt, nil) // fails for a size below 1 only
	return &cache{max: maxBytes, byKey: byKey}
}

// costOf is the content and about what an entry costs besides.
func costOf(key string, doc Document) int64 { return int64(len(doc.Bytes)+2*len(key)) + 256 }

func (c *cache) get(key string) (Document, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byKey.Get(key)
}

func (c *cache) put(key string, doc Document) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byKey.Contains(key) || costOf(key, doc) > c.max/4 {
		return // content of a CID is always the same; a giant would evict all
	}
	c.byKey.Add(key, doc)
	for c.size += costOf(key, doc); c.size > c.max; {
		oldest, dropped, _ := c.byKey.RemoveOldest()
		c.size -= costOf(oldest, dropped)
	}
}
