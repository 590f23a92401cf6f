package chain

import (
	"bytes"
	"fmt"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/contracts"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestSearch checks in which blocks Check searches the event of a job without a transaction, at nodes with different
// limits.
func TestSearch(t *testing.T) {
	t.Parallel()
	const head = 1_000_000
	mined, now := uint64(head-9_000), time.Now()
	l, j := chaintest.ScriptedLog(t, mined)
	numbered := with(j, func(j *job.Job) { j.BlockNumber = mined + 3 }) // a reorg moved the event
	found := Standing{Found: true, Confirmed: true, BlockNumber: mined, BlockHash: chaintest.BlockHash(mined), Timestamp: now.Unix()}
	missing := func(from, to uint64) Standing {
		return Standing{Disagrees: "transactionHash", SearchedFrom: from, SearchedTo: to}
	}
	huge := strings.Repeat("x", 16<<20)
	for name, c := range map[string]struct {
		node     *chaintest.Script
		job      job.Job
		logRange uint64
		want     Standing
		most     int // requests with eth_getLogs
	}{
		"by number":              {&chaintest.Script{Logs: chaintest.Holding(l)}, numbered, 0, found, 1},
		"by number, ten at once": {&chaintest.Script{Logs: chaintest.Limited(10, chaintest.Holding(l))}, numbered, 0, found, 20},
		"by a wrong number": {&chaintest.Script{Logs: chaintest.Holding(l)}, with(j, func(j *job.Job) { j.BlockNumber = mined + 100 }), 0,
			missing(mined+50, mined+150), 1},
		"in the range":              {&chaintest.Script{Logs: chaintest.Holding(l)}, j, 10_000, found, 1},
		"in the range, 500 at once": {&chaintest.Script{Logs: chaintest.Limited(500, chaintest.Holding(l))}, j, 10_000, found, searchRequests},
		"before the range":          {&chaintest.Script{Logs: chaintest.Holding(l)}, j, 9_000, missing(head-8_999, head), 1},
		"no range":                  {&chaintest.Script{Logs: chaintest.Holding(l)}, j, 0, missing(0, 0), 0},
		"one at once": {&chaintest.Script{Logs: chaintest.Limited(1, chaintest.Holding(l))}, j, 10_000, missing(head-114, head),
			searchRequests},
		"a range of the whole chain": {&chaintest.Script{Logs: chaintest.Holding(l)}, j, 2 * head, found, 1},
		"false content": {&chaintest.Script{Logs: chaintest.Holding(l)}, with(j,
			func(j *job.Job) { j.FeedbackURI = "ipfs://y" }), 100_000, found, 1},
		"an answer that is too large": {&chaintest.Script{Logs: func(from, to uint64) (any, *chaintest.Error) {
			if to-from > 1000 {
				return []string{huge}, nil
			}
			return chaintest.Holding(l)(from, to)
		}}, j, 10_000, found, 30},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.node.Head, c.node.HeadAt = head, now
			client := newScripted(t, c.node, c.logRange)
			got, err := client.Check(t.Context(), c.job, VerifyReceipt)
			if got.Found && got.Event.FeedbackURI != "ipfs://x" {
				t.Errorf("the event is %+v", got.Event)
			}
			if got.Event = nil; err != nil || got != c.want {
				t.Errorf("%+v, %v; want %+v", got, err, c.want)
			}
			if n := len(c.node.Asked); n > c.most {
				t.Errorf("%d requests, want at most %d: %v", n, c.most, c.node.Asked)
			}
		})
	}
}

// TestSearchRejectsUnrequestedLogs: neither logs outside the requested filter nor logs of another block make Check find
// an event.
func TestSearchRejectsUnrequestedLogs(t *testing.T) {
	t.Parallel()
	const head = 1000
	genuine, j := chaintest.ScriptedLog(t, 990)
	for name, change := range map[string]func(*types.Log){
		"of another contract": func(l *types.Log) { l.Address = common.Address{0xba} },
		"of another agent":    func(l *types.Log) { l.Topics[1] = common.Hash{1} },
		"of another client":   func(l *types.Log) { l.Topics[2] = common.BytesToHash([]byte{0xc2}) },
		"of another kind":     func(l *types.Log) { l.Topics[0] = erc8004.Topics(erc8004.FeedbackRevoked)[0] },
		"taken back":          func(l *types.Log) { l.Removed = true },
		"of another block":    func(l *types.Log) { l.BlockNumber = 500 },
		"of a block to come":  func(l *types.Log) { l.BlockNumber = head + 1 },
		"without topics":      func(l *types.Log) { l.Topics = []common.Hash{} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := genuine
			l.Topics = append([]common.Hash(nil), genuine.Topics...)
			change(&l)
			server := &chaintest.Script{Head: head, Logs: func(uint64, uint64) (any, *chaintest.Error) { return []types.Log{l}, nil }}
			got, err := newScripted(t, server, 100).Check(t.Context(), j, VerifyReceipt)
			if want := (Standing{Disagrees: "transactionHash", SearchedFrom: head - 99, SearchedTo: head}); err != nil ||
				got != want {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	genuine.BlockHash = common.Hash{0xba}
	server := &chaintest.Script{Head: head, Logs: chaintest.Holding(genuine)}
	if got, err := newScripted(t, server, 100).Check(t.Context(), j, VerifyReceipt); err != nil || got.Confirmed {
		t.Errorf("in a block that is not canonical: %+v, %v", got, err)
	}
}

// TestSearchUnavailable: while a node fails or is overloaded, Check decides nothing, and does not block a worker for
// long.
func TestSearchUnavailable(t *testing.T) {
	t.Parallel()
	l, j := chaintest.ScriptedLog(t, 500_000)
	nothing := chaintest.Holding()
	for name, server := range map[string]*chaintest.Script{
		"overloaded": {Logs: nothing, Status: func(from, to uint64) int {
			if to-from > 3 {
				return http.StatusTooManyRequests
			}
			return 0
		}},
		"has too many requests": {Logs: func(from, to uint64) (any, *chaintest.Error) {
			if to-from > 3 {
				return nil, &chaintest.Error{Code: -32005, Message: "request rate exceeded"}
			}
			return nothing(from, to)
		}},
		"refuses one block for a reason that may pass": {Logs: func(uint64, uint64) (any, *chaintest.Error) {
			return nil, &chaintest.Error{Code: -32000, Message: "header not found"}
		}},
		"refuses one block with a status": {Logs: nothing, Status: func(uint64, uint64) int { return http.StatusBadGateway }},
		"lags":                            {Logs: chaintest.Holding(l), Lags: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server.Head = 1_000_000
			client := newScripted(t, server, 10_000)
			if got, err := client.Check(t.Context(), j, VerifyReceipt); !as[*node.UnavailableError](err) {
				t.Errorf("%+v, %v", got, err)
			}
			if n := len(server.Asked); n > searchRequests {
				t.Errorf("%d requests", n)
			}
		})
	}
}

// TestSearchRefusedForGood: a node cannot search all blocks that a job needs. Check says so at once, because the job
// needs its transaction and would otherwise wait for weeks.
func TestSearchRefusedForGood(t *testing.T) {
	t.Parallel()
	_, j := chaintest.ScriptedLog(t, 500_000)
	old := with(j, func(j *job.Job) { j.BlockNumber = 1 })
	refuses := func(code int, message string) *chaintest.Script {
		return &chaintest.Script{Logs: func(uint64, uint64) (any, *chaintest.Error) {
			return nil, &chaintest.Error{Code: code, Message: message}
		}}
	}
	needed := newContradiction("transactionHash")
	for name, c := range map[string]struct {
		node *chaintest.Script
		job  job.Job
		want Standing
	}{
		"pruned history":     {refuses(4444, "pruned history unavailable"), old, needed},
		"no such method":     {refuses(-32601, "the method eth_getLogs does not exist"), j, needed},
		"method not offered": {refuses(-32004, "method not supported"), j, needed},
		"ten at once, by 400": {&chaintest.Script{Logs: chaintest.Holding(), Status: func(from, to uint64) int {
			if to-from >= 10 {
				return http.StatusBadRequest
			}
			return 0
		}}, j, Standing{Disagrees: "transactionHash", SearchedFrom: 998_939, SearchedTo: 1_000_000}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.node.Head = 1_000_000
			got, err := newScripted(t, c.node, 10_000).Check(t.Context(), c.job, VerifyReceipt)
			if err != nil || got != c.want {
				t.Errorf("%+v, %v; want %+v", got, err, c.want)
			}
			if n := len(c.node.Asked); n > searchRequests+3 { // the client tries smaller requests after the first refusal
				t.Errorf("%d requests", n)
			}
		})
	}
}

// TestSlowSearch: a node that is too slow for searches still serves jobs that need none. The search is not retried for
// days.
func TestSlowSearch(t *testing.T) {
	t.Parallel()
	_, j := chaintest.ScriptedLog(t, 500_000)
	numbered := with(j, func(j *job.Job) { j.BlockNumber = 500_000 })
	synctest.Test(t, func(t *testing.T) {
		client := newHere(t, &chaintest.Script{Head: 1_000_000, Hangs: true})
		began := time.Now()
		got, err := client.Check(t.Context(), j, VerifyReceipt)
		if err != nil || got != newContradiction("transactionHash") {
			t.Errorf("%+v, %v", got, err)
		}
		heraldtest.Equal(t, "it took", time.Since(began), searchTimeouts*client.Timeout())
		got, err = client.Check(t.Context(), numbered, VerifyReceipt)
		if err != nil || got != newContradiction("transactionHash") {
			t.Errorf("numbered: %+v, %v", got, err)
		}
		_, err = client.ReadHead(t.Context())
		heraldtest.Must(t, err)
		gone := newHere(t, &chaintest.Script{Head: 1_000_000, Dies: true})
		if got, err := gone.Check(t.Context(), j, VerifyReceipt); !as[*node.UnavailableError](err) {
			t.Errorf("a node that stopped answering refuted the event: %+v, %v", got, err)
		}
	})
}

// newHere is newScripted without a network, for testing/synctest.
func newHere(t *testing.T, s *chaintest.Script) *Client {
	t.Helper()
	return newClient(t, node.Config{ChainID: 1, URLs: []secret.Secret{secret.New("http://node.invalid")}, Transport: s},
		Config{Registries: chaintest.ScriptedRegistries().Registries(), LogRange: erc8004.Depth{Blocks: 10_000}})
}

// TestIndexOfOldForms: NewFeedback logs of 2025 lack the index. The registry's count at the end of the block determines
// it. If the node does not have that state, the job's fields select the log and must agree with the registry's state.
func TestIndexOfOldForms(t *testing.T) {
	t.Parallel()
	l, j := chaintest.ScriptedLog(t, 990)
	j.LegacyScore, j.Value, j.ValueDecimals, j.Tag1, j.Tag2, j.Endpoint, j.FeedbackURI = true, big.NewInt(90), 0, "a",
		"b", "", "u"
	word := func(s string) (w [32]byte) { copy(w[:], s); return w }
	number := func(n int64) []byte { return common.LeftPadBytes(big.NewInt(n).Bytes(), 32) }
	tag1, tag2, uri := word("a"), word("b"), word("u")
	l.Topics[0], l.Topics[3] = common.HexToHash("0x54b3254e4cc01969e70376d20390cc2f6af90539d9adaa78a53ebcda17f78154"),
		tag1 // 2025-10-08
	l.Data = bytes.Join([][]byte{number(90), tag2[:], number(128), j.FeedbackHash[:], number(1), uri[:]}, nil)
	its := bytes.Join([][]byte{number(90), tag1[:], tag2[:], number(0)}, nil)
	other := bytes.Join([][]byte{number(91), tag1[:], tag2[:], number(0)}, nil)
	twin := l
	twin.Index, twin.TxHash = 1, common.Hash{8}
	forged := with(j, func(j *job.Job) { j.Value, j.Tag2 = big.NewInt(1), "forged" })
	for name, c := range map[string]struct {
		job    job.Job
		logs   []types.Log
		last   uint64
		stored []byte
		want   string
	}{
		"counted":                              {j, []types.Log{l}, 7, its, ""},
		"counted, false content":               {forged, []types.Log{l}, 7, its, ""},
		"counted, another index":               {j, []types.Log{l}, 8, its, "feedbackIndex"},
		"the second of its block":              {j, []types.Log{l, twin}, 7, its, ""},
		"not counted, its own":                 {j, []types.Log{l}, 0, its, ""},
		"not counted, another's":               {j, []types.Log{l}, 0, other, "feedbackIndex"},
		"not counted, false content":           {forged, []types.Log{l}, 0, its, "feedbackIndex"},
		"not counted, two fit":                 {j, []types.Log{l, twin}, 0, its, "feedbackIndex"},
		"not counted, no state":                {j, []types.Log{l}, 0, nil, "feedbackIndex"},
		"not counted, no word of the registry": {j, []types.Log{l}, 0, []byte{1}, "feedbackIndex"},
	} {
		server := &chaintest.Script{Head: 1000, Logs: chaintest.Holding(c.logs...), Stored: c.stored, Last: c.last}
		got, err := newScripted(t, server, 100).Check(t.Context(), c.job, VerifyReceipt)
		if err != nil || got.Disagrees != c.want || got.Found != (c.want == "") {
			t.Errorf("%s: %+v, %v", name, got, err)
			continue
		}
		if got.Found && (got.Event.Value.Int64() != 90 || got.Event.Tag2 != "b" || got.Event.FeedbackIndex != 7 ||
			len(c.logs) == 2 && got.Event.TransactionHash != twin.TxHash) {
			t.Errorf("%s: the event is %+v", name, got.Event)
		}
	}
}

// TestHiddenIdentityRegistry: a registry that reports no identity registry has the one of the operator's settings, not
// the job's.
func TestHiddenIdentityRegistry(t *testing.T) {
	t.Parallel()
	l, j := chaintest.ScriptedLog(t, 990)
	j.IdentityRegistry = common.Address{5}
	server := &chaintest.Script{Head: 1000, Logs: chaintest.Holding(l), Hidden: true}
	got, err := newScripted(t, server, 100).Check(t.Context(), j, VerifyReceipt)
	if err != nil || !got.Found || got.Event.IdentityRegistry != chaintest.ScriptedRegistries().Identity {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestTagOfOldForms: if the log has only the hash of tag1, the tag is the one with that hash: the registry's, or the
// job's. A tag that is no valid UTF-8 is repaired like other strings.
func TestTagOfOldForms(t *testing.T) {
	t.Parallel()
	e := erc8004.Event{Kind: erc8004.NewFeedback, HasIndex: true, Tag1Lost: true,
		Tag1Hash: crypto.Keccak256Hash([]byte("a\xff"))}
	stored := &erc8004.StoredFeedback{Tag1: "a\xff"}
	for name, c := range map[string]struct {
		tag    string
		stored *erc8004.StoredFeedback
		want   string
		field  string
	}{
		"the registry's":                {"forged", stored, "a\xff", ""},
		"the job's":                     {"a\xff", nil, "a\xff", ""},
		"none":                          {"forged", nil, "", "tag1"},
		"another one of the registry's": {"", &erc8004.StoredFeedback{Tag1: "b"}, "", "tag1"},
	} {
		got, field, err := restoreTag(job.Job{Tag1: c.tag}, e, c.stored)
		if err != nil || got.Tag1 != c.want || field != c.field {
			t.Errorf("%s: %q, %q, %v", name, got.Tag1, field, err)
		}
	}
}

// TestForgedRegistry: logs of a forger's own contract are no events, whether the job names that contract or the genuine
// registry.
func TestForgedRegistry(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 0)
	d := w.Net.Deployment()
	create := func(c contracts.Contract, args ...any) common.Address {
		own, err := w.Net.Create(w.Ctx, w.Rater, c.Bytecode)
		heraldtest.Must(t, err)
		w.send(own, c.Pack("initialize", args...))
		return own
	}
	rep, val, request := contracts.Reputation(), contracts.Validation(), common.Hash{3}
	reputation, validation, identity := create(rep, d.Identity), create(val, d.Identity), create(contracts.Identity())
	of := func(kind erc8004.Kind, r *types.Receipt) job.Job { return w.Job(r, nil)(kind) }
	given := of(erc8004.NewFeedback, w.send(reputation, devnet.Feedback{AgentID: w.Agent, URI: "ipfs://x"}.Calldata()))
	response := of(erc8004.ResponseAppended, w.send(reputation, rep.Pack("appendResponse", w.Agent, w.Rater.Address, uint64(1), "r",
		common.Hash{2})))
	revoked := of(erc8004.FeedbackRevoked, w.send(reputation, rep.Pack("revokeFeedback", w.Agent, uint64(1))))
	w.sendFrom(w.Owner, validation, val.Pack("validationRequest", w.Rater.Address, w.Agent, "q", request))
	validated := of(erc8004.ValidationResponse, w.send(validation, val.Pack("validationResponse", request, uint8(100), "r",
		common.Hash{4}, "t")))
	for _, j := range []job.Job{given, response, revoked, validated} {
		_, field := emitterOf(j)
		genuine := with(j, func(j *job.Job) { j.ReputationRegistry, j.ValidationRegistry = d.Reputation, d.Validation })
		for _, forged := range []job.Job{j, genuine} {
			bare := with(forged, func(j *job.Job) { j.TransactionHash, j.LogIndex = common.Hash{}, nil })
			for _, forged := range []job.Job{forged, bare} {
				if got := w.check(forged, VerifyReceipt); got.Found || got.Disagrees != field &&
					got.Disagrees != "transactionHash" {
					t.Errorf("%s: %+v", forged.Kind, got)
				}
			}
		}
	}
	theirs := with(w.Feedback(), func(j *job.Job) { j.IdentityRegistry = identity })
	heraldtest.Equal(t, "an identity registry of the forger's own", w.readEvent(theirs).IdentityRegistry, d.Identity)
	listed := w.Net.Deployment().Registries()
	listed.Reputation = append(listed.Reputation, reputation)
	w.client.registries = listed
	if got := w.check(given, VerifyReceipt); !got.Found || !got.Confirmed || !got.Revoked {
		t.Errorf("once it is listed: %+v", got)
	}
	w.client.registries = erc8004.Registries{}
	if got := w.check(theirs, VerifyReceipt); got.Found || !got.Unlisted {
		t.Errorf("a chain without registries: %+v", got)
	}
}

func (w *world) send(to common.Address, data []byte) *types.Receipt {
	w.T.Helper()
	return w.sendFrom(w.Rater, to, data)
}

func (w *world) sendFrom(from devnet.Account, to common.Address, data []byte) *types.Receipt {
	w.T.Helper()
	tx, err := w.Net.Submit(w.Ctx, from, to, data)
	if err != nil {
		w.T.Fatal(fmt.Errorf("sending to %s: %w", to, err))
	}
	w.Mine(1)
	r, err := w.Net.Receipt(w.Ctx, tx)
	heraldtest.Must(w.T, err)
	heraldtest.Equal(w.T, "the status of the receipt", r.Status, types.ReceiptStatusSuccessful)
	return r
}
