package chain

import (
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// counter counts the requests to a node.
type counter struct{ requests atomic.Int64 }

func (c *counter) RoundTrip(r *http.Request) (*http.Response, error) {
	c.requests.Add(1)
	return http.DefaultTransport.RoundTrip(r)
}

// TestRequestsOfCheck: a node may need more than a second for each request. One request is enough for an event whose
// block is deep and named by the job. The result is that of two requests.
func TestRequestsOfCheck(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	j := w.Feedback()
	w.Mine(1)
	var sent counter
	c := newClient(t, node.Config{ChainID: w.Net.ChainID(), URLs: []secret.Secret{secret.New(w.Net.URL())}, Transport: &sent},
		Config{Registries: w.Net.Deployment().Registries(), Confirmations: erc8004.Depth{Blocks: 2}})
	check := func(what string, j job.Job, requests int64, confirmed bool) Standing {
		t.Helper()
		sent.requests.Store(0)
		s, err := c.Check(w.Ctx, j, VerifyReceipt)
		heraldtest.Must(t, err)
		if n := sent.requests.Load(); n != requests || s.Confirmed != confirmed {
			t.Errorf("%s: %d requests, %+v", what, n, s)
		}
		s.Event = nil
		return s
	}
	// The first check also asks for the chain id, the identity registry and the block time.
	check("the first check, one block is missing", j, 5, false)
	check("one block is missing", j, 2, false)
	w.Mine(1)
	want := check("the blocks above are new", j, 2, true)
	heraldtest.Equal(t, "deep", check("deep", j, 1, true), want)
	elsewhere, nowhere := j, j
	elsewhere.BlockNumber--
	nowhere.BlockNumber = 0
	heraldtest.Equal(t, "another block", check("another block", elsewhere, 2, true), want)
	heraldtest.Equal(t, "no block", check("no block", nowhere, 2, true), want)

	heraldtest.Must(t, w.Net.Reorg(w.Ctx, 3, true))
	if moved := check("a reorg replaced its block", j, 1, true); moved.BlockHash == want.BlockHash {
		t.Errorf("the event is in the replaced block: %+v", moved)
	}
}
