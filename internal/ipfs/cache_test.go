package ipfs

import (
	"fmt"
	"testing"
)

// TestCacheCountsMemory: the bound of the cache is on the memory that the documents use. io.ReadAll leaves a part of it
// empty.
func TestCacheCountsMemory(t *testing.T) {
	t.Parallel()
	const most = 1 << 20
	c := newCache(most)
	for i := range 500 {
		c.put(fmt.Sprintf("cid-%d", i), Document{Bytes: make([]byte, 5000, 9000)})
	}
	held := 0
	for _, doc := range c.byKey.Values() {
		held += cap(doc.Bytes)
	}
	if held > most || held < most/2 {
		t.Errorf("the cache holds %d bytes, at most %d are wanted", held, most)
	}
}
