package delivery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/delivery/content"
	"github.com/agentherald/herald/internal/delivery/tools"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/receiver"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// offers is an agent with one tool, which is never called.
type offers struct{ tool mcpcall.Tool }

func (o offers) Tools(context.Context, mcpcall.Endpoint, bool) (mcpcall.ToolSet, error) {
	return mcpcall.ToolSet{Tools: []mcpcall.Tool{o.tool}}, nil
}

func (offers) Call(context.Context, mcpcall.Endpoint, mcpcall.Request) (mcpcall.Answer, error) {
	return mcpcall.Answer{}, errors.New("only composed, not called")
}

// composed runs only the compose step and returns the arguments.
func composed(t testing.TB, j job.Job, f job.File, schema json.RawMessage) json.RawMessage {
	t.Helper()
	a := &attempt{file: content.File{File: f},
		claim: &ledger.Claim{ID: uuid.MustParse("6ba7b810-9dad-51d1-80b4-00c04fd430c8"), Job: j}}
	p := &Executor{Config: Config{Caller: offers{mcpcall.Tool{Name: j.Action.ToolName, InputSchema: schema}}, CallTimeout: time.Minute}}
	call, err := p.prepareCall(t.Context(), a, mcpcall.Endpoint{}, []string{j.Action.ToolName}, cachedTools)
	if err != nil {
		t.Fatalf("%s: %v", j.Kind, err)
	}
	return asJSON(call.arguments)
}

// documented is a schema of docs/tools.
type documented struct {
	raw        json.RawMessage
	compiled   *jsonschema.Schema
	Title      string                     `json:"title"`
	Properties map[string]json.RawMessage `json:"properties"`
	Required   []string                   `json:"required"`
}

func readSchema(t testing.TB, tool string) (d documented) {
	t.Helper()
	d.raw = must(os.ReadFile("../../docs/tools/" + tool + ".schema.json"))
	heraldtest.Must(t, json.Unmarshal(d.raw, &d))
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("https://schema.invalid/"+tool, must(jsonschema.UnmarshalJSON(bytes.NewReader(d.raw)))); err != nil {
		t.Fatal(err)
	}
	d.compiled = must(c.Compile("https://schema.invalid/" + tool))
	return d
}

// TestToolSchemas: docs/tools describes the arguments for a tool without a schema. A tool with the documented schema
// gets the same arguments, complete and unchanged.
func TestToolSchemas(t *testing.T) {
	t.Parallel()
	address, hash, index := common.HexToAddress("0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"), common.HexToHash("0xab"), uint(0)
	full := job.Job{ChainID: 8453, IdentityRegistry: address, AgentID: new(big.Int).Lsh(big.NewInt(1), 255), ClientAddress: address, FeedbackIndex: 7,
		Value: big.NewInt(9977), ValueDecimals: 2, Tag1: "uptime", Endpoint: "not a URL", FeedbackURI: "ipfs://x", FeedbackHash: hash,
		Reason: job.RevokedByReorg, Responder: address, ResponseURI: "https://a.example/", ResponseHash: hash, ValidatorAddress: address, RequestHash: hash, Response: 100, Tag: "t",
		BlockNumber: 41_700_000, TransactionHash: hash, LogIndex: &index, Timestamp: 1_770_000_000}
	bare := job.Job{ChainID: 1, AgentID: new(big.Int), FeedbackIndex: 1, Value: new(big.Int), Reason: job.RevokedByClient, RequestHash: hash}
	low, high := full, full
	low.Value, high.Value, high.ValueDecimals = big.NewInt(-5), new(big.Int).Exp(big.NewInt(10), big.NewInt(38), nil), 0
	wide := full
	wide.FeedbackIndex, wide.BlockNumber, wide.ChainID = 1<<60, 1<<60, 1<<60
	files := map[string]job.File{
		"none":        {Verification: "not_given"},
		"not asked":   {Verification: "not_fetched"},
		"not had":     {Verification: "unavailable"},
		"an object":   {Content: json.RawMessage(`{"text":"x"}`), Source: "cid", Verification: "raw"},
		"a number":    {Content: json.RawMessage(`1e400`), Source: "https", Verification: "mismatch"},
		"other bytes": {Content: json.RawMessage(`{"raw":"AA==","mediaType":"image/png"}`), Source: "ar", Verification: "sha256"},
	}
	for kind, tool := range map[job.Kind]string{job.KindNewFeedback: "agent.receiveFeedback", job.KindFeedbackRevoked: "agent.receiveRevocation",
		job.KindResponseAppended: "agent.receiveResponse", job.KindValidationResponse: "agent.receiveValidation"} {
		doc, names := readSchema(t, tool), slices.Sorted(slices.Values(job.ArgumentNames(kind)))
		if doc.Title != tool || !slices.Equal(slices.Sorted(maps.Keys(doc.Properties)), names) {
			t.Errorf("%s: its properties are not the arguments %v", tool, names)
		}
		always := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == "score" }) // may be missing
		heraldtest.Equal(t, tool+": required, and always sent", slices.Sorted(slices.Values(doc.Required)), always)
		for which, j := range map[string]job.Job{"full": full, "bare": bare, "low": low, "high": high, "wide": wide} {
			j.Kind, j.Action.ToolName = kind, tool
			for file, f := range files {
				said := composed(t, j, f, nil)
				fitted := composed(t, j, f, doc.raw)
				if which != "wide" && string(said) != string(fitted) { // its numbers are strings without a schema
					t.Errorf("%s, %s, %s: sent without a schema\n%s\nwith it\n%s", tool, which, file, said, fitted)
				}
				if err := doc.compiled.Validate(must(jsonschema.UnmarshalJSON(strings.NewReader(string(fitted))))); err != nil {
					t.Errorf("%s, %s, %s: %v\n%s", tool, which, file, err, fitted)
				}
				var sent map[string]json.RawMessage
				heraldtest.Must(t, json.Unmarshal(fitted, &sent))
				want := always
				if kind == job.KindNewFeedback && which != "low" && which != "high" {
					want = names
				}
				heraldtest.Equal(t, fmt.Sprintf("%s, %s, %s: sent", tool, which, file), slices.Sorted(maps.Keys(sent)), want)
			}
		}
	}
}

// TestReceiverSchemas: the receiver for authors of agents in Go offers tools with the published schemas.
func TestReceiverSchemas(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{receiver.ToolFeedback, receiver.ToolFeedbackBatch, receiver.ToolRevocation, receiver.ToolResponse, receiver.ToolValidation} {
		heraldtest.Equal(t, "docs/tools/"+tool+".schema.json: copy it to receiver/schemas", string(receiver.Schema(tool)), string(readSchema(t, tool).raw))
	}
}

// TestAgentsPage: the pages for agents contain each value that an agent can get, and only existing reasons.
func TestAgentsPage(t *testing.T) {
	t.Parallel()
	page := readAgentPages()
	var words struct {
		Properties struct {
			FileVerification struct{ Enum []string }
			FileSource       struct{ Enum []*string }
		}
	}
	heraldtest.Must(t, json.Unmarshal(readSchema(t, "agent.receiveFeedback").raw, &words))
	known := slices.Clone(words.Properties.FileVerification.Enum)
	for _, s := range words.Properties.FileSource.Enum {
		if s != nil {
			known = append(known, *s)
		}
	}
	for _, word := range append(known, tools.MetaKey, "sanitized", "attempt", "replay", "deliveryId") {
		if !strings.Contains(page, "`"+word+"`") && !strings.Contains(page, `"`+word+`"`) {
			t.Errorf("the pages for agents do not explain %s", word)
		}
	}
	for _, word := range regexp.MustCompile("`([a-z]+(?:_[a-z]+)+)`").FindAllStringSubmatch(page, -1) {
		v := classify.Error(outcome.Fail(outcome.Reason(word[1]), ""))
		if !slices.Contains(known, word[1]) && word[1] != "input_required" && v.Ending == outcome.Waiting && !slices.Contains(retried, v.Reason) {
			t.Errorf("the pages for agents name %s, which is no reason", word[1])
		}
	}
}

// retried are the reasons for waits that an agent can cause.
var retried = []outcome.Reason{outcome.ConnectFailed, outcome.Timeout, outcome.RateLimited, outcome.ServerError, outcome.Unknown}
