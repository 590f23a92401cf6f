package chain

import (
	"encoding/json"
	"math/big"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/testing/chaintest"
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

// TestNonexistentAgentOnOtherNodes: clients report a reverted call in different formats. An agent that has an owner exists.
func TestNonexistentAgentOnOtherNodes(t *testing.T) {
	t.Parallel()
	const nonexistent = "0x7e2732890000000000000000000000000000000000000000000000000000000000000063"
	reverted := chaintest.Error{Code: 3, Message: "execution reverted"}
	for name, c := range map[string]struct {
		answer chaintest.Error
		owner  any // what the second call returns; nil: it fails as the first one
		isGone bool
	}{
		"geth":         {chaintest.Error{Code: 3, Message: "execution reverted", Data: nonexistent}, nil, true},
		"nethermind":   {chaintest.Error{Code: -32015, Message: "VM execution error.", Data: "Reverted " + nonexistent}, nil, true},
		"no data":      {reverted, nil, true},
		"empty data":   {chaintest.Error{Code: -32000, Message: "execution reverted", Data: "0x"}, nil, true},
		"old geth":     {chaintest.Error{Code: -32000, Message: "execution reverted"}, nil, true},
		"rate limit":   {chaintest.Error{Code: -32005, Message: "limit exceeded", Data: map[string]string{"see": "https://x"}}, nil, false},
		"odd contract": {reverted, common.HexToHash("0x1111111111111111111111111111111111111111"), false},
	} {
		calls := 0
		n := chaintest.NewNode(t, 1)
		n.Set(nil, func(method string, _ []json.RawMessage) (any, any) {
			if method != "eth_call" {
				return nil, nil
			}
			if calls++; calls > 1 && c.owner != nil {
				return c.owner, nil
			}
			return nil, c.answer
		})
		client := newClient(t, node.Config{ChainID: 1, URLs: []secret.Secret{secret.New(n.URL)}}, Config{})
		_, err := client.TokenURI(t.Context(), common.Address{1}, big.NewInt(99))
		if c.isGone && !as[*NoSuchAgentError](err) || !c.isGone && !as[*node.UnavailableError](err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
