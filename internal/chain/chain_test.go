package chain

import (
	"math/big"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestTokenURI(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	identity := w.Net.Deployment().Identity
	for _, want := range []string{"data:application/json,{}", "", "\x00\xff" + strings.Repeat("u", 5000)} {
		if want != "data:application/json,{}" {
			_, err := w.Net.SetURI(w.Ctx, w.Owner, w.Agent, want)
			heraldtest.Must(t, err)
		}
		if got, err := w.client.TokenURI(w.Ctx, identity, w.Agent); err != nil || got != want {
			t.Errorf("%.40q, %v", got, err)
		}
	}
	for _, id := range []*big.Int{big.NewInt(99), new(big.Int).Lsh(big.NewInt(1), 255), new(big.Int).Lsh(big.NewInt(1), 256), big.NewInt(-1), nil} {
		if _, err := w.client.TokenURI(w.Ctx, identity, id); !as[*NoSuchAgentError](err) {
			t.Errorf("agent %v: %v", id, err)
		}
	}
	// The reputation registry has no tokenURI, so it reverts without the error that the identity registry returns.
	if _, err := w.client.TokenURI(w.Ctx, w.Net.Deployment().Reputation, w.Agent); !as[*NoSuchAgentError](err) {
		t.Errorf("another contract: %v", err)
	}
	if _, err := w.client.TokenURI(w.Ctx, common.Address{9}, w.Agent); !as[*node.NoContractError](err) || !as[*node.UnavailableError](err) {
		t.Errorf("no contract: %v", err)
	}
}

func TestCheckFeedback(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	w.Feedback()
	j := w.Feedback()
	found := Standing{Found: true, Confirmed: true, BlockNumber: j.BlockNumber, BlockHash: j.BlockHash, Timestamp: w.minedAt(j)}
	heraldtest.Equal(t, "genuine", w.check(j, VerifyReceipt), found)
	if got := w.check(j, VerifyOff); !got.Found || !got.Confirmed {
		t.Errorf("off: %+v", got)
	}
	bare := j
	bare.TransactionHash, bare.LogIndex = common.Hash{}, nil
	if got := w.check(bare, VerifyReceipt); !got.Found || !got.Confirmed {
		t.Errorf("without transaction: %+v", got)
	}
	noPlace := j
	noPlace.LogIndex, noPlace.BlockHash, noPlace.BlockNumber = nil, common.Hash{}, 0
	heraldtest.Equal(t, "without log index and block", w.check(noPlace, VerifyReceipt), found)

	// The log is the content: other fields of the job have no effect.
	for field, forge := range map[string]func(*job.Job){
		"value":            func(j *job.Job) { j.Value = big.NewInt(9977) },
		"valueDecimals":    func(j *job.Job) { j.ValueDecimals = 1 },
		"tag1":             func(j *job.Job) { j.Tag1 = "uptime" },
		"tag2":             func(j *job.Job) { j.Tag2 += "x" },
		"endpoint":         func(j *job.Job) { j.Endpoint += "x" },
		"feedbackURI":      func(j *job.Job) { j.FeedbackURI += "x" },
		"feedbackHash":     func(j *job.Job) { j.FeedbackHash[0]++ },
		"identityRegistry": func(j *job.Job) { j.IdentityRegistry = common.Address{5} },
		"logIndex":         func(j *job.Job) { i := uint(17); j.LogIndex = &i },
		"blockNumber":      func(j *job.Job) { j.BlockNumber-- },
	} {
		for _, from := range []job.Job{j, bare} {
			forged := from
			forge(&forged)
			read := w.readEvent(forged)
			if !read.SameEvent(j) || read.IdentityRegistry != j.IdentityRegistry || *read.LogIndex != *j.LogIndex || read.BlockHash != j.BlockHash {
				t.Errorf("%s forged: %+v", field, read)
			}
			if got := forged.Differences(read); len(got) != 1 || got[0] != field {
				t.Errorf("%s forged: differences %v", field, got)
			}
		}
	}

	// The key names the event, and the transaction is where it has to be.
	for field, forge := range map[string]func(*job.Job){
		"agentId":            func(j *job.Job) { j.AgentID = big.NewInt(7) },
		"clientAddress":      func(j *job.Job) { j.ClientAddress = w.Owner.Address },
		"feedbackIndex":      func(j *job.Job) { j.FeedbackIndex = 3 },
		"reputationRegistry": func(j *job.Job) { j.ReputationRegistry = w.Net.Deployment().Validation },
		"transactionHash":    func(j *job.Job) { j.TransactionHash = common.Hash{5} },
		"type":               func(j *job.Job) { j.Kind = job.KindFeedbackRevoked },
	} {
		forged := j
		forge(&forged)
		want := Standing{Disagrees: field, Unlisted: field == "reputationRegistry"}
		if field == "type" { // the transaction has no log of that kind
			want = newContradiction("transactionHash")
		}
		if got := w.check(forged, VerifyReceipt); got != want {
			t.Errorf("%s forged: %+v", field, got)
		}
		if field == "transactionHash" {
			continue
		}
		forged = bare
		forge(&forged)
		if field != "reputationRegistry" {
			want = Standing{Disagrees: "transactionHash", SearchedTo: j.BlockNumber}
		}
		if got := w.check(forged, VerifyReceipt); got != want {
			t.Errorf("%s forged, without transaction: %+v, want %+v", field, got, want)
		}
	}

	revoked := w.Job(w.Net.RevokeFeedback(w.Ctx, w.Rater, w.Agent, j.FeedbackIndex))(erc8004.FeedbackRevoked)
	for _, j := range []job.Job{j, bare} {
		if got := w.check(j, VerifyReceipt); !got.Found || !got.Revoked {
			t.Errorf("revoked: %+v", got)
		}
	}
	if got := w.check(revoked, VerifyReceipt); !got.Found || !got.Confirmed || got.Revoked {
		t.Errorf("the revocation: %+v", got)
	}
}

func TestCheckOtherKinds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	given := w.Feedback()
	response := w.Job(w.Net.AppendResponse(w.Ctx, w.Owner, w.Agent, w.Rater.Address, given.FeedbackIndex, "r\x00", common.Hash{2}))(erc8004.ResponseAppended)
	request := common.Hash{3}
	_, err := w.Net.RequestValidation(w.Ctx, w.Owner, w.Rater.Address, w.Agent, "q", request)
	heraldtest.Must(t, err)
	validation := w.Job(w.Net.RespondValidation(w.Ctx, w.Rater, request, 88, "r", common.Hash{4}, "t"))(erc8004.ValidationResponse)
	for _, j := range []job.Job{response, validation} {
		if got := w.check(j, VerifyReceipt); !got.Found || !got.Confirmed {
			t.Errorf("%s: %+v", j.Kind, got)
		}
		bare := j
		bare.TransactionHash = common.Hash{}
		if got := w.check(bare, VerifyReceipt); got != newContradiction("transactionHash") { // only that log counts
			t.Errorf("%s, without transaction: %+v", j.Kind, got)
		}
	}
	for field, j := range map[string]job.Job{
		// One event must not pass under several keys. The first job names a block that no node has.
		"logIndex":    with(response, func(j *job.Job) { i := uint(17); j.LogIndex, j.BlockHash = &i, common.Hash{5} }),
		"responder":   with(response, func(j *job.Job) { j.Responder = w.Rater.Address }),
		"requestHash": with(validation, func(j *job.Job) { j.RequestHash = common.Hash{9} }),
	} {
		if got := w.check(j, VerifyReceipt); got != newContradiction(field) {
			t.Errorf("%s forged: %+v", field, got)
		}
	}
	elsewhere := with(validation, func(j *job.Job) { i := uint(17); j.LogIndex, j.BlockHash = &i, common.Hash{5} })
	heraldtest.Equal(t, "a validation elsewhere", w.check(elsewhere, VerifyReceipt), newContradiction("logIndex"))
	if got := w.readEvent(with(response, func(j *job.Job) { j.ResponseURI, j.ResponseHash = "", common.Hash{} })); !got.SameEvent(response) {
		t.Errorf("the response is %+v", got)
	}
	forged := with(validation, func(j *job.Job) {
		j.AgentID, j.ValidatorAddress, j.Response, j.Tag = big.NewInt(7), common.Address{7}, 100, "x"
	})
	if got := w.readEvent(forged); !got.SameEvent(validation) {
		t.Errorf("the validation is %+v", got)
	}
	updated := job.Job{Kind: job.KindAgentUpdated, ChainID: w.Net.ChainID()}
	if got := w.check(updated, VerifyReceipt); !got.Found || !got.Confirmed {
		t.Errorf("%s: %+v", updated.Kind, got)
	}
}

func with(j job.Job, change func(*job.Job)) job.Job {
	change(&j)
	return j
}

func TestCheckConfirmations(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	j := w.Feedback()
	bare := with(j, func(j *job.Job) { j.TransactionHash = common.Hash{} })
	for missing := uint64(3); missing > 0; missing-- {
		if got := w.check(j, VerifyReceipt); !got.Found || got.Confirmed || got.ConfirmedIn != missing {
			t.Errorf("%d blocks missing: %+v", missing, got)
		}
		if got := w.check(bare, VerifyReceipt); !got.Found || got.Confirmed || got.ConfirmedIn == 0 {
			t.Errorf("%d blocks missing, without transaction: %+v", missing, got)
		}
		w.Mine(1)
	}
	for _, j := range []job.Job{j, bare} {
		if got := w.check(j, VerifyReceipt); !got.Confirmed || got.ConfirmedIn != 0 {
			t.Errorf("three blocks later: %+v", got)
		}
	}

	tx, err := w.Net.Submit(w.Ctx, w.Rater, w.Net.Deployment().Reputation, devnet.Feedback{AgentID: w.Agent}.Calldata())
	heraldtest.Must(t, err)
	waiting := with(j, func(j *job.Job) { j.TransactionHash, j.BlockNumber = tx, 0 })
	if got := w.check(waiting, VerifyReceipt); !got.Found || got.Confirmed || got.ConfirmedIn != 4 {
		t.Errorf("not mined yet: %+v", got)
	}
	rival := with(j, func(j *job.Job) { j.TransactionHash, j.BlockNumber = common.Hash{9}, j.BlockNumber+1 })
	if got := w.check(rival, VerifyReceipt); !got.Found || got.Confirmed || got.ConfirmedIn != 1 {
		t.Errorf("not in a block that a reorg may still replace: %+v", got)
	}
	w.Mine(1)
	if got := w.check(rival, VerifyReceipt); got != newContradiction("transactionHash") {
		t.Errorf("not in a block that is deep enough: %+v", got)
	}
	ahead := with(j, func(j *job.Job) { j.TransactionHash, j.BlockNumber = common.Hash{9}, j.BlockNumber+101 })
	if got := w.check(ahead, VerifyReceipt); !got.Found || got.Confirmed || got.ConfirmedIn != 100 {
		t.Errorf("a node that lags: %+v", got)
	}
}

// TestCheckUnconfirmedRevocation: a reorg can remove a revocation, so the feedback waits until the revocation is
// confirmed.
func TestCheckUnconfirmedRevocation(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	j := w.Feedback()
	w.Mine(3)
	revoke := func() {
		_, err := w.Net.RevokeFeedback(w.Ctx, w.Rater, w.Agent, j.FeedbackIndex)
		heraldtest.Must(t, err)
	}
	revoke()
	for range 3 {
		if got := w.check(j, VerifyReceipt); got.Revoked || got.Confirmed || !got.Revoking || got.ConfirmedIn != 3 {
			t.Errorf("not confirmed: %+v", got)
		}
		w.Mine(1)
	}
	if got := w.check(j, VerifyReceipt); !got.Revoked || !got.Confirmed || got.Revoking {
		t.Errorf("confirmed: %+v", got)
	}

	j = w.Feedback()
	w.Mine(3)
	revoke()
	heraldtest.Must(t, w.Net.Reorg(w.Ctx, 1, false))
	if got := w.check(j, VerifyReceipt); got.Revoked || !got.Confirmed || got.Revoking {
		t.Errorf("removed by a reorg: %+v", got)
	}
}

func TestCheckAfterReorg(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	j := w.Feedback()
	heraldtest.Must(t, w.Net.Reorg(w.Ctx, 1, true))
	got := w.check(j, VerifyReceipt)
	if !got.Found || !got.Confirmed || got.BlockHash == j.BlockHash || got.BlockHash == (common.Hash{}) {
		t.Errorf("mined again: %+v", got)
	}
	j = w.Feedback()
	heraldtest.Must(t, w.Net.Reorg(w.Ctx, 1, false))
	if got := w.check(j, VerifyReceipt); got != newContradiction("transactionHash") {
		t.Errorf("gone: %+v", got)
	}
}

func TestCheckRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	if _, err := w.client.Check(w.Ctx, job.Job{ChainID: 8453}, VerifyReceipt); err == nil {
		t.Error("a job of another chain was checked")
	}
	if _, err := w.client.Check(w.Ctx, job.Job{ChainID: w.Net.ChainID()}, "maybe"); err == nil {
		t.Error("an unknown way to verify was taken")
	}
}

func TestNodeGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	j := w.Feedback()
	w.check(j, VerifyReceipt)
	heraldtest.Must(t, w.Net.Close())
	if _, err := w.client.Check(w.Ctx, j, VerifyReceipt); !as[*node.UnavailableError](err) {
		t.Errorf("check: %v", err)
	}
	if _, err := w.client.TokenURI(w.Ctx, j.IdentityRegistry, w.Agent); !as[*node.UnavailableError](err) {
		t.Errorf("tokenURI: %v", err)
	}
	w.client.Close()
	if err := w.client.Ping(w.Ctx); !as[*node.UnavailableError](err) {
		t.Errorf("closed: %v", err)
	}
}
