package delivery

import (
	"math/big"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
)

// retraction returns an indexer's job for a feedback whose block disappeared. The test's agents have one tool for all
// kinds.
func retraction(feedback map[string]any) map[string]any {
	j := map[string]any{"type": "FeedbackRevoked", "reason": "reorg"}
	for _, name := range []string{"chainId", "agentId", "identityRegistry", "reputationRegistry", "clientAddress", "feedbackIndex", "blockNumber", "blockHash"} {
		j[name] = feedback[name]
	}
	return with(j, map[string]any{"toolName": "agent.receiveFeedback"})
}

// TestRetractions: retracted feedback is looked up on the chain, and is retracted only if it is gone. The agent learns
// under which id it received the feedback.
func TestRetractions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(w.newWorker())
	a := newAgent(t)
	id := w.register(at(a.URL))
	var delivered string // the last id
	given := func(deliver bool) map[string]any {
		j, _ := w.rate(devnet.Feedback{AgentID: id})
		if deliver {
			delivered = w.until(w.accept(j), outcome.Delivered).ID.String()
		}
		return j
	}
	reorg := func(again bool) {
		heraldtest.Must(t, w.net.Reorg(heraldtest.Within(t, 20*time.Second), 1, again))
	}
	unknownBlock := map[string]any{"blockHash": common.HexToHash("0x0bad").Hex()}
	refused := func(name string, j map[string]any, says string) {
		t.Helper()
		before := len(a.received())
		w.ends(w.accept(j), outcome.Rejected, outcome.EventNotFound, 1, says)
		heraldtest.Equal(t, "calls for one that is "+name, len(a.received())-before, 0)
	}

	there := given(true)
	refused("in a block that nobody knows", repositioned(retraction(there), unknownBlock), "the chain has a feedback 1 of this client")
	refused("never existed", repositioned(repositioned(retraction(there), unknownBlock), map[string]any{"feedbackIndex": 9}), "nothing shows that feedback 9 ever was")

	again := given(true)
	reorg(true)
	refused("mined again", retraction(again), "the chain has a feedback 1 of this client")
	refused("mined again, with its transaction", repositioned(retraction(again), map[string]any{"blockHash": common.HexToHash("0x0bae").Hex(),
		"transactionHash": again["transactionHash"]}), "was mined again")

	forgotten := repositioned(retraction(given(false)), unknownBlock)
	reorg(false)
	refused("gone, of a block that the node forgot, and never sent", forgotten, "never sent it to the agent")

	gone := given(true)
	before := len(a.received())
	early := w.accept(retraction(gone)) // the indexer's node saw the reorg before Herald's
	w.ends(early, outcome.Waiting, outcome.NotConfirmed, 0, "is on the chain: the node may lag behind")
	reorg(false)
	w.due(early)
	w.until(early, outcome.Delivered)
	w.until(w.accept(repositioned(retraction(gone), unknownBlock)), outcome.Delivered) // Herald sent the feedback
	heraldtest.Equal(t, "retractions arrived", len(a.received())-before, 2)
	for _, call := range a.received()[before:] {
		heraldtest.Equal(t, "retracts", call.args(t)["retracts"], any(delivered))
	}
}

// TestReturnAfterAnIndexersRetraction: the chain has no follower. An agent got a feedback and its retraction, and then
// the event returned. The indexer's repeated job makes a worker read the chain, and the feedback is delivered again,
// under another id. A repeated job does nothing before the retraction, or while the event is gone.
func TestReturnAfterAnIndexersRetraction(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.newWorker()
	w.serve(k)
	a := newAgent(t)
	f := devnet.Feedback{AgentID: w.register(at(a.URL)), Value: big.NewInt(80), Tag1: "quality"}
	j, client := w.rate(f)
	ctx := heraldtest.Within(t, 60*time.Second)
	review := func() (reads int) {
		for range 2 { // the first one is of a recent job, and the node may lag
			reads += len(must(w.store.TakeReviews(ctx, 10)))
			w.exec(`UPDATE herald.hints SET review_at = now() WHERE review_at IS NOT NULL`)
			k.reviewEvents(w)
			w.exec(`UPDATE herald.hints SET created_at = now() - interval '1 hour',
				review_at = CASE WHEN review_at IS NOT NULL THEN now() END`)
		}
		return reads
	}
	resend := func() {
		t.Helper()
		if got := w.submit(j)[0]; got.Verdict != ledger.Known {
			t.Fatalf("%+v", got)
		}
	}
	first := w.until(w.accept(j), outcome.Delivered)
	resend()
	heraldtest.Equal(t, "reviews of an ordinary job", review(), 0)

	heraldtest.Must(t, w.net.Reorg(ctx, 1, false))
	w.until(w.accept(retraction(j)), outcome.Delivered)
	for range 2 {
		resend()
		resend()
		heraldtest.Equal(t, "reviews while the event is gone", review(), 2)
	}
	heraldtest.Equal(t, "holder of the key", must(w.store.DeliveryByKey(ctx, w.keyOf(j))).ID, first.ID)

	_, again, err := w.net.GiveFeedback(ctx, client, f)
	heraldtest.Must(t, err)
	heraldtest.Equal(t, "transaction", again.TxHash.Hex(), j["transactionHash"].(string))
	resend()
	review()
	next := must(w.store.DeliveryByKey(ctx, w.keyOf(j)))
	if next.ID == first.ID {
		t.Fatal("the feedback that the agent deleted is not sent again")
	}
	w.until(next.ID, outcome.Delivered)
	calls := a.received()
	heraldtest.Equal(t, "deliveryId", calls[len(calls)-1].args(t)["deliveryId"], any(next.ID.String()))
	resend()
	heraldtest.Equal(t, "reviews after the return", review(), 0)
}
