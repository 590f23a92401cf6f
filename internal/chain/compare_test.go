package chain

import (
	"encoding/json"
	"math/big"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

func TestSameText(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		chain, job string
		same       bool
	}{
		{"", "", true}, {"a", "a", true}, {"a", "b", false}, {"a", "", false},
		{"a\x00b", "a\ufffdb", true}, {"a\xe2\x82b", "a\ufffdb", true}, {"a\xe2\x82b", "a\ufffd\ufffdb", true},
		{"\x00", "", false}, {"a\x00b", "ab", false}, {"é", "e", false},
	} {
		if got := erc8004.SameText(test.chain, test.job); got != test.same {
			t.Errorf("%q and %q: %v", test.chain, test.job, got)
		}
	}
}

// TestCompareEventsOfOldForms: NewFeedback events of 2025 have no index, and some have only the hash of tag1. Such an
// event still matches its job.
func TestCompareEventsOfOldForms(t *testing.T) {
	t.Parallel()
	registry, client := common.Address{1}, common.Address{2}
	e := erc8004.Event{Kind: erc8004.NewFeedback, Address: registry, AgentID: big.NewInt(1), Client: client, Value: big.NewInt(90), LegacyScore: true,
		Tag1Lost: true, Tag1Hash: crypto.Keccak256Hash([]byte("speed"))}
	j := job.Job{Kind: job.KindNewFeedback, ReputationRegistry: registry, AgentID: big.NewInt(1), ClientAddress: client, FeedbackIndex: 4, Value: big.NewInt(90), LegacyScore: true, Tag1: "speed"}
	if field := compareKey(j, e); field != "" || !hasContent(j, e) {
		t.Errorf("the same feedback: the key differs in %q, or the content differs", field)
	}
	heraldtest.Equal(t, "another tag", hasContent(with(j, func(j *job.Job) { j.Tag1 = "price" }), e), false)
	heraldtest.Equal(t, "another score", hasContent(with(j, func(j *job.Job) { j.Value = big.NewInt(91) }), e), false)
}

// TestNonexistentAgentOnOtherNodes: clients report a reverted call in different formats.
func TestNonexistentAgentOnOtherNodes(t *testing.T) {
	t.Parallel()
	const nonexistent = "0x7e2732890000000000000000000000000000000000000000000000000000000000000063"
	for name, answer := range map[string]string{
		"geth":       `{"code":3,"message":"execution reverted","data":"` + nonexistent + `"}`,
		"nethermind": `{"code":-32015,"message":"VM execution error.","data":"Reverted ` + nonexistent + `"}`,
		"no data":    `{"code":3,"message":"execution reverted"}`,
		"empty data": `{"code":-32000,"message":"execution reverted","data":"0x"}`,
		"old geth":   `{"code":-32000,"message":"execution reverted"}`,
	} {
		c := fakeNode(t, func(string) string { return `"error":` + answer })
		if _, err := c.TokenURI(t.Context(), common.Address{1}, big.NewInt(99)); !as[*NoSuchAgentError](err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := fakeNode(t, func(string) string {
		return `"error":{"code":-32005,"message":"limit exceeded","data":{"see":"https://x"}}`
	})
	if _, err := c.TokenURI(t.Context(), common.Address{1}, big.NewInt(99)); !as[*node.UnavailableError](err) {
		t.Errorf("rate limit: %v", err)
	}
	// tokenURI reverts but the agent has an owner, so the error is not "no such agent".
	var calls atomic.Int32
	c = fakeNode(t, func(string) string {
		if calls.Add(1) == 1 {
			return `"error":{"code":3,"message":"execution reverted"}`
		}
		return `"result":"0x0000000000000000000000001111111111111111111111111111111111111111"`
	})
	if _, err := c.TokenURI(t.Context(), common.Address{1}, big.NewInt(99)); !as[*node.UnavailableError](err) {
		t.Errorf("odd contract: %v", err)
	}
}

// fakeNode returns a client of a node of chain 1. The node answers eth_chainId; for other methods it returns
// answer(method).
func fakeNode(t *testing.T, answer func(method string) string) *Client {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		var request struct {
			ID     json.RawMessage
			Method string
		}
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			http.Error(rw, err.Error(), http.StatusBadRequest)
			return
		}
		body := `"result":"0x1"`
		if request.Method != "eth_chainId" {
			body = answer(request.Method)
		}
		_, _ = rw.Write([]byte(`{"jsonrpc":"2.0","id":` + string(request.ID) + `,` + body + `}`))
	}))
	t.Cleanup(server.Close)
	return newClient(t, node.Config{ChainID: 1, URLs: []secret.Secret{secret.New(server.URL)}}, Config{})
}
