package chain

import (
	"encoding/json"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
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
	if got := compareKey(j, e) + compareContent(j, e); got != "" {
		t.Errorf("differs in %q", got)
	}
	heraldtest.Equal(t, "another tag", compareContent(with(j, func(j *job.Job) { j.Tag1 = "price" }), e), "tag1")
	if got := compareContent(with(j, func(j *job.Job) { j.Value = big.NewInt(91) }), e); got != "score" {
		t.Errorf("another score: %q", got)
	}
	if _, err := Job(e, 1, erc8004.Deployment{}, 0, limits); err == nil {
		t.Error("a job was made without an index")
	}
	if _, err := Job(erc8004.Event{Kind: erc8004.ValidationRequest, AgentID: big.NewInt(1)}, 1, erc8004.Deployment{}, 0, limits); err == nil {
		t.Error("a job was made of a validation request")
	}
}

func TestJobOfArbitraryStrings(t *testing.T) {
	t.Parallel()
	var all strings.Builder
	for b := range 256 {
		all.WriteByte(byte(b))
	}
	e := erc8004.Event{Kind: erc8004.NewFeedback, HasIndex: true, FeedbackIndex: 1<<64 - 1, AgentID: new(big.Int).Lsh(big.NewInt(1), 255), Value: big.NewInt(-1),
		Tag1: all.String(), Tag2: `","x":"`, Address: common.Address{1}, Client: common.Address{2}}
	j, err := Job(e, 77777, erc8004.Deployment{Identity: common.Address{3}}, 1, limits)
	if err != nil || j.Tag2 != e.Tag2 || j.FeedbackIndex != e.FeedbackIndex || len(j.Sanitized) != 1 {
		t.Fatalf("the job %+v, %v: want tag1 sanitized and the rest as it is", j, err)
	}
	// The stored JSON is a valid job, as an enqueuer could have written it.
	j.Sanitized = nil
	text, err := json.Marshal(j)
	heraldtest.Must(t, err)
	again, err := job.Parse(text, limits)
	if field, differs := again.Conflict(j); err != nil || differs || again.Key() != j.Key() {
		t.Errorf("%s is read as %+v, %v: differs in %q", text, again, err, field)
	}
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
	} {
		c := fakeNode(t, func(string) string { return `"error":` + answer })
		if _, err := c.TokenURI(t.Context(), common.Address{1}, big.NewInt(99)); !as[*NoSuchAgentError](err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c := fakeNode(t, func(string) string {
		return `"error":{"code":-32005,"message":"limit exceeded","data":{"see":"https://x"}}`
	})
	if _, err := c.TokenURI(t.Context(), common.Address{1}, big.NewInt(99)); !as[*UnavailableError](err) {
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
	if _, err := c.TokenURI(t.Context(), common.Address{1}, big.NewInt(99)); !as[*UnavailableError](err) {
		t.Errorf("odd contract: %v", err)
	}
}

func as[E error](err error) bool {
	var target E
	return errors.As(err, &target)
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
	return newClient(t, Config{ChainID: 1, URLs: []secret.Secret{secret.New(server.URL)}})
}
