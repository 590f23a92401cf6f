package inspect

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/delivery/tools"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
)

// probePrefix begins the deliveryId of every sample, so that an agent whose SDK passes no _meta recognises samples. The
// id is a UUIDv8 (RFC 9562 §5.8) whose first bytes spell "probe".
const probePrefix = "70726f62-6500-8000-8000-"

// ProbeDeliveryID is the deliveryId of every probe's sample, so that an agent that deduplicates counts them once.
const ProbeDeliveryID = probePrefix + "000000000000"

// newProbeID returns a deliveryId for a sample that an agent has not received before.
func newProbeID() string { return fmt.Sprintf("%s%012x", probePrefix, rand.Uint64N(1<<48)) }

// probeName is the sample's tag, and fills the last bytes of its hashes.
const probeName = "probe"

// sampleAddress is the sample's accounts in ASCII. Like almost every real address, its checksum form (EIP-55) has
// letters of both cases, so that a schema for lower case alone does not pass the check.
const sampleAddress = "Herald: only a probe"

// sampleFile is the content of the sample's file.
const sampleFile = `{"probe":true,"text":"A sample of Herald's operator: this event never happened."}`

// sampleTime is the timestamp of the sample event.
var sampleTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// sample is an invented event for an agent, with every field that a real event can have.
type sample struct {
	job  job.Job
	file job.File
	id   string // its deliveryId
}

// newSample creates a sample through job.Parse, as every job is created. tool is the tool to call; "": that of the
// kind.
func newSample(kind job.Kind, g erc8004.Agent, tool string, limits job.Limits) (sample, error) {
	address, hash := common.BytesToAddress([]byte(sampleAddress)).Hex(), common.BytesToHash([]byte(probeName)).Hex()
	uri := "data:application/json;base64," + base64.StdEncoding.EncodeToString([]byte(sampleFile))
	fileHash := crypto.Keccak256Hash([]byte(sampleFile)).Hex()
	event := map[string]any{"type": kind, "chainId": g.ChainID, "agentId": g.ID, "identityRegistry": g.Registry,
		"reputationRegistry": g.Registry, "validationRegistry": g.Registry, // agents do not receive these
		"blockNumber": 1, "blockHash": hash, "transactionHash": hash, "logIndex": 0, "timestamp": sampleTime.Unix()}
	s := sample{id: ProbeDeliveryID,
		file: job.File{Content: json.RawMessage(sampleFile), Source: "data", Verification: string(erc8004.Raw)}}
	switch kind {
	case job.KindNewFeedback:
		maps.Copy(event, map[string]any{"clientAddress": address, "feedbackIndex": 1, "value": "9977",
			"valueDecimals": 2, "tag1": probeName, "tag2": "", "endpoint": "",
			"feedbackURI": uri, "feedbackHash": fileHash})
	case job.KindFeedbackRevoked:
		maps.Copy(event, map[string]any{"clientAddress": address, "feedbackIndex": 1})
		s.file = job.File{Verification: string(erc8004.NotGiven)}
	case job.KindResponseAppended:
		maps.Copy(event, map[string]any{"clientAddress": address, "feedbackIndex": 1, "responder": address,
			"responseURI": uri, "responseHash": fileHash})
	case job.KindValidationResponse:
		maps.Copy(event, map[string]any{"validatorAddress": address, "requestHash": hash, "response": 100,
			"tag": probeName, "responseURI": uri, "responseHash": fileHash})
	}
	if tool != "" {
		event["action"] = map[string]any{"toolName": tool}
	}
	line, _ := json.Marshal(event) // cannot fail: it encodes strings and numbers
	limits.Registries = func(uint64) (erc8004.Registries, bool) {
		return erc8004.Registries{}, false
	} // the operator names the agent's registry
	var err error
	s.job, err = job.Parse(line, limits)
	return s, err
}

// sparse returns the sample without file, tags, score and position, as an indexer may send an event to a Herald without
// a node. A revocation becomes a retraction. Jobs of responses and validations always name transaction and log.
func (s sample) sparse() sample {
	s.file = job.File{Verification: string(erc8004.NotGiven)}
	s.job.Tag1, s.job.Tag, s.job.FeedbackURI, s.job.ResponseURI = "", "", "", ""
	s.job.FeedbackHash, s.job.ResponseHash = common.Hash{}, common.Hash{}
	s.job.Value, s.job.ValueDecimals = big.NewInt(-1), 0
	s.job.BlockNumber, s.job.Timestamp = 0, 0
	if s.job.Kind == job.KindNewFeedback || s.job.Kind == job.KindFeedbackRevoked {
		s.job.TransactionHash, s.job.LogIndex = common.Hash{}, nil
	}
	if s.job.Kind == job.KindFeedbackRevoked {
		s.job.Reason = job.RevokedByReorg
	}
	return s
}

// withLargeFile returns the sample with the largest file that Herald sends as JSON: 2 MiB (docs/agent.md).
func (s sample) withLargeFile() sample {
	filler := strings.Repeat("x", 2<<20-len(sampleFile))
	s.file.Content = json.RawMessage(strings.Replace(sampleFile, "A sample", filler+"A sample", 1))
	return s
}

// callMeta returns the metadata of a call with the sample. It marks the sample.
func (s sample) callMeta() map[string]any {
	return map[string]any{tools.MetaKey: map[string]any{"id": s.id, "probe": true, "attempt": 1, "replay": false,
		"key": fmt.Sprintf("probe:%d:%s#%s", s.job.ChainID, s.job.AgentID, s.job.Kind)}}
}

// unfitted returns the arguments of the sample before they are fitted to a schema.
func (s sample) unfitted() map[string]any { return s.job.Arguments(s.file, s.id) }

// Values of ProbedArgument.Change: what fitting to the tool's input schema did to an argument.
const (
	ArgumentKept    = ""
	argumentChanged = "changed"
	ArgumentDropped = "dropped"
)

// ProbedArgument is one argument of the sample before and after fitting.
type ProbedArgument struct {
	Name   string          `json:"name"`
	Sample json.RawMessage `json:"sample"`
	Sent   json.RawMessage `json:"sent,omitempty"` // missing if it is dropped
	Change string          `json:"change,omitempty"`
}

// compareArguments lists the documented arguments in their order. If sent is nil, it lists only the sample's values.
func (s sample) compareArguments(sent map[string]any) (out []ProbedArgument) {
	all := s.unfitted()
	for _, name := range job.ArgumentNames(s.job.Kind) {
		before, _ := json.Marshal(all[name]) // cannot fail: all arguments have a JSON form
		arg := ProbedArgument{Name: name, Sample: before}
		value, kept := sent[name]
		switch {
		case sent == nil:
		case !kept:
			arg.Change = ArgumentDropped
		default:
			arg.Sent, _ = json.Marshal(value)
			if !bytes.Equal(arg.Sent, before) {
				arg.Change = argumentChanged
			}
		}
		out = append(out, arg)
	}
	return out
}
