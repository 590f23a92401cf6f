package chain

import (
	"testing"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// vanish gives feedback and replaces its block. If again is set, its transaction is in another block afterwards.
func (w *world) vanish(again bool) job.Job {
	w.T.Helper()
	j := w.Feedback()
	heraldtest.Must(w.T, w.Net.Reorg(w.Ctx, 1, again))
	return j.Retraction(j.ID())
}

func (w *world) retraction() job.Job {
	j := w.Feedback()
	return j.Retraction(j.ID())
}

func TestCheckRetraction(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	gone := Standing{Found: true, Confirmed: true, Witnessed: true}
	unseen := Standing{Found: true, Confirmed: true} // the node cannot say whether it ever existed
	unknown := common.Hash{7}

	canonical := w.retraction()
	minedAgain := w.vanish(true)
	vanished := w.vanish(false)
	for name, c := range map[string]struct {
		job  job.Job
		want Standing
	}{
		"still canonical":            {canonical, newContradiction("blockHash")},
		"canonical, without number":  {with(canonical, func(j *job.Job) { j.BlockNumber = 0 }), newContradiction("blockHash")},
		"mined again":                {minedAgain, newContradiction("transactionHash")},
		"gone":                       {vanished, gone},
		"a false transaction":        {with(vanished, func(j *job.Job) { j.TransactionHash = unknown }), unseen},
		"gone, without transaction":  {with(vanished, func(j *job.Job) { j.TransactionHash, j.LogIndex = common.Hash{}, nil }), gone},
		"gone, without number":       {with(vanished, func(j *job.Job) { j.BlockNumber = 0 }), gone},
		"gone, another number":       {with(vanished, func(j *job.Job) { j.BlockNumber-- }), newContradiction("blockNumber")},
		"gone, its block forgotten":  {with(vanished, func(j *job.Job) { j.BlockHash = unknown }), unseen},
		"never, in the lost block":   {with(vanished, func(j *job.Job) { j.FeedbackIndex = 9 }), unseen},
		"never, by somebody else":    {with(vanished, func(j *job.Job) { j.ClientAddress = w.Owner.Address }), unseen},
		"never, in a block that is":  {with(canonical, func(j *job.Job) { j.FeedbackIndex = 9 }), newContradiction("blockHash")},
		"never, in an unknown block": {with(canonical, func(j *job.Job) { j.FeedbackIndex, j.BlockHash = 9, unknown }), unseen},
		"there, in an unknown block": {with(canonical, func(j *job.Job) { j.BlockHash = unknown }), newContradiction("transactionHash")},
		"unknown, without number":    {with(vanished, func(j *job.Job) { j.BlockHash, j.BlockNumber = unknown, 0 }), newContradiction("blockNumber")},
		"far ahead":                  {with(vanished, func(j *job.Job) { j.BlockHash, j.BlockNumber = unknown, 1<<62 }), newContradiction("blockNumber")},
		"another identity registry":  {with(vanished, func(j *job.Job) { j.IdentityRegistry = common.Address{5} }), gone},
		"another registry": {with(vanished,
			func(j *job.Job) { j.ReputationRegistry = w.Net.Deployment().Validation }),
			Standing{Disagrees: "reputationRegistry", Unlisted: true}},
	} {
		heraldtest.Equal(t, name, w.check(c.job, VerifyReceipt), c.want)
	}
	_, mined, err := w.Net.GiveFeedback(w.Ctx, w.Rater, devnet.Feedback{AgentID: w.Agent, Tag1: "next"})
	if next := w.Job(mined, err)(erc8004.NewFeedback); next.FeedbackIndex != vanished.FeedbackIndex {
		t.Fatalf("the next feedback has index %d", next.FeedbackIndex)
	}
	heraldtest.Equal(t, "gone, and its index taken by another feedback", w.check(vanished, VerifyReceipt), gone)
	nameless := with(vanished, func(j *job.Job) { j.TransactionHash, j.LogIndex = common.Hash{}, nil })
	if got := w.check(nameless, VerifyReceipt); got != newContradiction("feedbackIndex") {
		t.Errorf("the same without a transaction: %+v", got)
	}
	if got := w.check(canonical, VerifyOff); !got.Confirmed {
		t.Errorf("off: %+v", got)
	}
	w.client.registries.Reputation = append(w.client.registries.Reputation, common.Address{9})
	noContract := with(vanished, func(j *job.Job) { j.ReputationRegistry = common.Address{9} })
	if _, err := w.client.Check(w.Ctx, noContract, VerifyReceipt); !as[*node.UnavailableError](err) {
		t.Errorf("no contract: %v", err)
	}
	heraldtest.Must(t, w.Net.Close())
	if _, err := w.client.Check(w.Ctx, vanished, VerifyReceipt); !as[*node.UnavailableError](err) {
		t.Errorf("the node is away: %v", err)
	}
}

// TestCheckRetractionWaits: until the height of the named block is confirmed, Check decides nothing, because the
// indexer's node may be ahead of ours. It also waits until the block that contains the feedback again is confirmed,
// because another reorg may remove that block before the follower reads it.
func TestCheckRetractionWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	w.Mine(3)
	again := with(w.retraction(), func(j *job.Job) { j.BlockNumber, j.BlockHash = j.BlockNumber-3, common.Hash{7} })
	for missing := uint64(3); missing > 0; missing-- {
		if got := w.check(again, VerifyReceipt); !got.Found || got.Confirmed || got.ConfirmedIn != missing {
			t.Errorf("mined again, %d blocks are missing: %+v", missing, got)
		}
		w.Mine(1)
	}
	heraldtest.Equal(t, "mined again, three blocks on it", w.check(again, VerifyReceipt), newContradiction("transactionHash"))
	stays := w.retraction()
	vanished := w.vanish(false) // two blocks replace one
	for name, j := range map[string]job.Job{
		"gone":                               vanished,
		"a block that the node has not seen": with(vanished, func(j *job.Job) { j.BlockNumber, j.BlockHash = j.BlockNumber+50, common.Hash{7} }),
	} {
		if got := w.check(j, VerifyReceipt); !got.Found || got.Confirmed || got.ConfirmedIn == 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := w.check(stays, VerifyReceipt); !got.Found || got.ConfirmedIn != 1 {
		t.Errorf("a block that may still be replaced: %+v", got)
	}
	w.Mine(1)
	heraldtest.Equal(t, "three blocks on it", w.check(stays, VerifyReceipt), newContradiction("blockHash"))
	if got := w.check(vanished, VerifyReceipt); !got.Found || got.ConfirmedIn != 1 {
		t.Errorf("two blocks on it: %+v", got)
	}
	if got := w.check(vanished, VerifyFinalized); !got.Found || got.Confirmed || got.ConfirmedIn == 0 {
		t.Errorf("nothing is final yet: %+v", got)
	}
	w.Mine(1)
	if got := w.check(vanished, VerifyReceipt); !got.Confirmed || got.ConfirmedIn != 0 {
		t.Errorf("three blocks on it: %+v", got)
	}
	w.Mine(64) // the development chain finalizes every 32nd block
	if got := w.check(vanished, VerifyFinalized); !got.Confirmed {
		t.Errorf("final: %+v", got)
	}
}

// TestCheckRetractionOfADroppedBlock: a retraction that names an old block, which the node has pruned, does not keep
// the delivery waiting.
func TestCheckRetractionOfADroppedBlock(t *testing.T) {
	t.Parallel()
	_, j := chaintest.ScriptedLog(t, 500_000)
	retraction := func(block uint64) job.Job {
		r := j.Retraction(j.ID())
		r.BlockNumber, r.BlockHash = block, common.Hash{7}
		return r
	}
	refused := func(uint64) (any, *chaintest.Error) {
		return nil, &chaintest.Error{Code: 4444, Message: "pruned history unavailable"}
	}
	null := func(uint64) (any, *chaintest.Error) { return nil, nil }
	for name, c := range map[string]struct {
		pruned func(uint64) (any, *chaintest.Error)
		block  uint64
		want   Standing
		away   bool
	}{
		"refused":             {refused, 1, newContradiction("blockNumber"), false},
		"null":                {null, 1, newContradiction("blockNumber"), false},
		"null, near the head": {null, 999_900, Standing{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := &chaintest.Script{Head: 1_000_000, Pruned: c.pruned, Logs: chaintest.Holding()}
			got, err := newScripted(t, server, 10_000).Check(t.Context(), retraction(c.block), VerifyReceipt)
			if got != c.want || as[*node.UnavailableError](err) != c.away || err != nil && !c.away {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}
