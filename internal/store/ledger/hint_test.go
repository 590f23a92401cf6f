package ledger

import (
	"math/big"
	"testing"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestAdoptAction: an event that took the key of another one gets the action of a job that names it, or that names no
// transaction. The most trusted sender decides, and among equals the first.
func TestAdoptAction(t *testing.T) {
	t.Parallel()
	event := job.Job{Kind: job.KindNewFeedback, ChainID: 1, AgentID: big.NewInt(7), TransactionHash: common.Hash{2}}
	hint := func(tool string, trust Trust, change func(*job.Job)) Hint {
		j := event
		j.Action.ToolName = tool
		if change != nil {
			change(&j)
		}
		return Hint{Job: j, SealedHeaders: []byte(tool), Source: Source{Name: tool, Trust: trust}}
	}
	elsewhere := hint("elsewhere", TrustDirect, func(j *job.Job) { j.TransactionHash = common.Hash{1} })
	otherAgent := hint("other agent", TrustDirect, func(j *job.Job) { j.IdentityRegistry = common.Address{1} })
	anywhere := hint("anywhere", TrustOrdinary, func(j *job.Job) { j.TransactionHash = common.Hash{} })
	for want, list := range map[string][]Hint{
		"":         {elsewhere, otherAgent, hint("chain", TrustChain, nil)},
		"anywhere": {elsewhere, anywhere, hint("later", TrustOrdinary, nil)},
		"direct":   {anywhere, hint("direct", TrustDirect, nil), hint("later", TrustDirect, nil)},
	} {
		it := AdoptAction(Intake{Job: event}, list)
		heraldtest.Equal(t, "tool", it.Job.Action.ToolName, want)
		heraldtest.Equal(t, "headers", string(it.SealedHeaders), want)
		heraldtest.Equal(t, "source", it.Source.Name, want)
		heraldtest.Equal(t, "transaction", it.Job.TransactionHash, event.TransactionHash)
	}
}
