package node

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestBatchSizeAdaptsToNode: nodes refuse a request with too many calls in different ways. The client sends the same
// calls in smaller requests, and later requests fit at once.
func TestBatchSizeAdaptsToNode(t *testing.T) {
	t.Parallel()
	const base = `{"jsonrpc":"2.0","id":null,"error":{"code":-32014,"message":"maximum 10 calls in 1 batch"}}`
	for name, c := range map[string]struct {
		most   int
		answer func(http.ResponseWriter, *http.Request)
		waits  bool // the first request fails and the node asks for a pause
	}{
		"OP Mainnet: 413":                    {10, chaintest.RefuseStatus(413, "", ""), false},
		"Base: 200 and one error object":     {10, chaintest.RefuseStatus(200, "", "\n "+base), false},
		"200 and an error that is a text":    {10, chaintest.RefuseStatus(200, "", `{"error":"batch too large"}`), false},
		"200 and an object without an error": {10, chaintest.RefuseStatus(200, "", `{"code":"LIMIT","message":"batch too large"}`), false},
		"over the rate limit, as a text":     {10, chaintest.RefuseStatus(200, "1", `{"error":"over rate limit"}`), true},
		"400":                                {10, chaintest.RefuseStatus(400, "", `{"error":"batch too large"}`), false},
		"geth: an array of one error object": {10, chaintest.RefuseStatus(200, "", "["+base+"]"), false},
		"dRPC and 1RPC, free tier: 500": {3, chaintest.RefuseStatus(500, "", `{"id":1,"jsonrpc":"2.0","error":{"code":31,`+
			`"message":"Batch of more than 3 requests are not allowed on free tier"}}`), false},
		"one call in a request": {1, chaintest.RefuseStatus(400, "", ""), false},
		"429 and Retry-After":   {10, chaintest.RefuseStatus(429, "1", ""), true},
		"413 and Retry-After":   {10, chaintest.RefuseStatus(413, "1", ""), true},
		"over the rate limit, as one object": {10, chaintest.RefuseStatus(200, "1", strings.Replace(base, "maximum 10 calls in 1 batch",
			"over rate limit", 1)), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := chaintest.NewNode(t, 1)
			client := newStubPool(t, n)
			n.Set(chaintest.RefuseBatches(n, c.most, c.answer), nil)
			for range 6 {
				if err := readForty(t.Context(), client); err == nil {
					break
				} else if !c.waits {
					t.Fatal(err)
				} else if rest := client.nodes[0].rest.remaining(time.Now()); rest == 0 || rest > time.Second {
					t.Fatalf("the node rests %s after %v", rest, err)
				}
				client.nodes[0].rest.until = time.Time{}
			}
			n.Set(chaintest.RefuseBatches(n, c.most, c.answer), nil)
			heraldtest.Must(t, readForty(t.Context(), client))
			refused := 0
			for _, calls := range n.Requests() {
				if len(calls) > c.most {
					refused++
				}
			}
			if refused > 1 { // after growAfter full requests the client tries one larger request
				t.Errorf("%d requests are refused", refused)
			}
		})
	}
}

// TestBatchesBecomeSmaller: a node accepts fewer calls in a request than before, and says so. The client sends smaller
// requests at once.
func TestBatchesBecomeSmaller(t *testing.T) {
	t.Parallel()
	n := chaintest.NewNode(t, 1)
	c := newStubPool(t, n)
	read := func() error {
		_, err := c.SendAll(t.Context(), "reading blocks", BlockCall(1, new(*Block)), BlockCall(2, new(*Block)),
			BlockCall(3, new(*Block)))
		return err
	}
	heraldtest.Must(t, read())
	n.Set(chaintest.RefuseBatches(n, 3, chaintest.RefuseStatus(500, "", "Batch of more than 3 requests are not allowed")), nil)
	heraldtest.Must(t, read())
}

// readForty reads the blocks 1 to 40.
func readForty(ctx context.Context, p *Pool) error {
	var elems []rpc.BatchElem
	for n := range uint64(40) {
		elems = append(elems, BlockCall(n+1, new(*Block)))
	}
	return p.SendParts(ctx, "reading blocks", elems)
}

// TestBatchRefusalIsShown: the error contains the node's own text, without the key from its URL. A page is no such text.
func TestBatchRefusalIsShown(t *testing.T) {
	t.Parallel()
	n := chaintest.NewNode(t, 1)
	n.URL += "/v2/0123456789abcdef"
	c := newStubPool(t, n)
	n.Set(chaintest.RefuseBatches(n, 0, chaintest.RefuseStatus(200, "",
		`{"error":{"code":-32090,"message":"no credits left for key 0123456789abcdef"}}`)), nil)
	_, err := c.ReadHead(t.Context())
	if err == nil || !strings.Contains(err.Error(), "error -32090: no credits left for key") ||
		strings.Contains(err.Error(), "0123456789abcdef") {
		t.Errorf("%v", err)
	}
	n.Set(chaintest.RefuseBatches(n, 1, chaintest.RefuseStatus(200, "", "<html>")), nil)
	if err := readForty(t.Context(), c); !as[*UnavailableError](err) {
		t.Errorf("a page: %v", err)
	}
}

// TestBatchLimit: a refusal halves the limit, but not below a size that the node accepted. The limit grows slowly.
func TestBatchLimit(t *testing.T) {
	t.Parallel()
	var b batchLimit
	b.noteAnswer(4)
	b.noteRefusal(50, 1)
	heraldtest.Equal(t, "after 50 were refused", b.readSize(), 25)
	b.noteRefusal(25, 1)
	b.noteRefusal(12, 1)
	b.noteRefusal(6, 1)
	heraldtest.Equal(t, "the read size after 4 answers", b.readSize(), 4)
	refused := 0
	for range 20 * growAfter {
		if calls := b.readSize(); calls > 10 {
			refused++
			b.noteRefusal(calls, 1)
		} else {
			b.noteAnswer(calls)
		}
	}
	if got := b.readSize(); got < 9 || got > 10 || refused > 20 {
		t.Errorf("%d, %d refusals", got, refused)
	}
	for range 30 {
		b.noteRefusal(b.readSize(), leastRated)
	}
	heraldtest.Equal(t, "by rate limits", b.readSize(), leastRated)
}
