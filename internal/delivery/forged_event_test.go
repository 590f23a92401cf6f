package delivery

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/contracts"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/google/uuid"
)

// unfound waits until a job with a false event is rejected, and checks that the agent was not called.
func (w *world) unfound(a *agent, id uuid.UUID, says string) {
	w.t.Helper()
	w.ends(id, outcome.Rejected, outcome.EventNotFound, 1, says)
	heraldtest.Equal(w.t, "calls", len(a.received()), 0)
}

// TestForgedContent: the agent gets the log's content, even if a job without a transaction has another. A key that no
// event has is not found a minute after the job arrived.
func TestForgedContent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(w.newWorker())
	const file, other = `{"text":"slow"}`, `{"text":"forged"}`
	for field, forged := range map[string]string{
		"feedbackURI": "data:application/json," + other, "feedbackHash": crypto.Keccak256Hash([]byte(file)).Hex(),
		"endpoint": "https://victim.example",
		"":         "", "feedbackIndex": "2",
	} {
		for _, numbered := range []bool{true, false} {
			w.runParallel(t, fmt.Sprintf("%s, with a block number: %t", field, numbered), func(t *testing.T, w *world) {
				a := newAgent(t)
				j, _ := w.rate(devnet.Feedback{AgentID: w.register(at(a.URL)), URI: "data:application/json," + file})
				delete(j, "transactionHash")
				if !numbered {
					for _, name := range []string{"blockNumber", "blockHash", "logIndex"} {
						delete(j, name)
					}
				}
				if field != "" {
					j[field] = forged
				}
				id := w.accept(j)
				if field == "feedbackIndex" {
					w.exec(`UPDATE herald.history SET created_at = created_at - interval '1 minute' WHERE id = $1`, id)
					w.unfound(a, id, "no transactionHash, which is needed")
					return
				}
				d := w.until(id, outcome.Delivered)
				args := a.received()[0].args(t)
				if args["fileUri"] != "data:application/json,"+file || args["fileHash"] != nil || args["endpoint"] != "" {
					t.Errorf("the agent received %v", args)
				}
				if field != "" && !slices.Contains(d.Corrected, field) {
					t.Errorf("corrected %v, want %s", d.Corrected, field)
				}
			})
		}
	}
}

// TestForgersRegistry: a contract of a forger can emit any event. This one has the registry's own code, so it answers
// each query as the genuine registry does.
func TestForgersRegistry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(w.newWorker())
	forger, ctx := w.net.Account(1), heraldtest.Within(t, 30*time.Second)
	own := must(w.net.Create(ctx, forger, contracts.Reputation().Bytecode))
	send := func(data []byte) *types.Receipt {
		tx := must(w.net.Submit(ctx, forger, own, data))
		must(w.net.Commit())
		return must(w.net.Receipt(ctx, tx))
	}
	send(contracts.Reputation().Pack("initialize", w.net.Deployment().Identity))
	for name, bare := range map[string]bool{"with its transaction": false, "without": true} {
		w.run(t, name, func(t *testing.T, w *world) {
			a := newAgent(t)
			mined := send(devnet.Feedback{AgentID: w.register(at(a.URL)), Tag1: "scam",
				Endpoint: "https://victim.example"}.Calldata())
			e := must(erc8004.Decode(*mined.Logs[0]))
			j := map[string]any{"type": "NewFeedback", "chainId": w.net.ChainID(),
				"identityRegistry":   w.net.Deployment().Identity.Hex(),
				"reputationRegistry": own.Hex(), "agentId": e.AgentID.String(), "clientAddress": forger.Address.Hex(),
				"feedbackIndex": e.FeedbackIndex,
				"value":         "0", "valueDecimals": 0, "tag1": e.Tag1, "tag2": "", "endpoint": e.Endpoint}
			if !bare {
				j["transactionHash"] = mined.TxHash.Hex()
			}
			if got := w.submit(j)[0]; got.Verdict != intake.Refused || got.Path != "reputationRegistry" ||
				!strings.Contains(got.Problem, "REPUTATION_REGISTRY_") {
				t.Errorf("at intake: %+v", got)
			}
			w.unfound(a, w.acceptJobs(parsed(j))[0].ID, "REPUTATION_REGISTRY_") // a program without the chain enqueues it
		})
	}
}
