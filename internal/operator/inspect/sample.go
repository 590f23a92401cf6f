package inspect

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
)

// ProbeDeliveryID is every sample's deliveryId: an agent that deduplicates counts all of them once. It is a UUIDv8
// (RFC 9562 §5.8) whose first bytes spell "probe".
const ProbeDeliveryID = "70726f62-6500-8000-8000-000000000000"

// probeName is where the sample's addresses and hashes come from: the same five letters in their last bytes.
const probeName = "probe"

// sampleFile is the file that a sample names.
const sampleFile = `{"probe":true,"text":"A sample of Herald's operator: this event never happened."}`

// sampleTime is when the event that never happened did not happen.
var sampleTime = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// sample is an event for an agent, made up, with everything that a real one could bring.
type sample struct {
	job  job.Job
	file job.File
}

// newSample makes it the way of every job, through job.Parse. tool is the name to call, "" the kind's own.
func newSample(kind job.Kind, g store.Agent, tool string, limits job.Limits) (sample, error) {
	text := []byte(probeName)
	address, hash := common.BytesToAddress(text).Hex(), common.BytesToHash(text).Hex()
	uri := "data:application/json;base64," + base64.StdEncoding.EncodeToString([]byte(sampleFile))
	fileHash := crypto.Keccak256Hash([]byte(sampleFile)).Hex()
	event := map[string]any{"type": kind, "chainId": g.ChainID, "agentId": g.ID, "identityRegistry": g.Registry,
		"reputationRegistry": g.Registry, "validationRegistry": g.Registry, // no agent is told these
		"blockNumber": 1, "blockHash": hash, "transactionHash": hash, "logIndex": 0, "timestamp": sampleTime.Unix()}
	add := func(fields map[string]any) {
		for name, value := range fields {
			event[name] = value
		}
	}
	s := sample{file: job.File{Content: json.RawMessage(sampleFile), Source: "data", Verification: string(erc8004.Raw)}}
	switch kind {
	case job.KindNewFeedback:
		add(map[string]any{"clientAddress": address, "feedbackIndex": 1, "value": "9977", "valueDecimals": 2,
			"tag1": probeName, "tag2": "", "endpoint": "", "feedbackURI": uri, "feedbackHash": fileHash})
	case job.KindFeedbackRevoked:
		add(map[string]any{"clientAddress": address, "feedbackIndex": 1})
		s.file = job.File{Verification: string(erc8004.NotGiven)}
	case job.KindResponseAppended:
		add(map[string]any{"clientAddress": address, "feedbackIndex": 1, "responder": address, "responseURI": uri,
			"responseHash": fileHash})
	case job.KindValidationResponse:
		add(map[string]any{"validatorAddress": address, "requestHash": hash, "response": 100, "tag": probeName,
			"responseURI": uri, "responseHash": fileHash})
	}
	if tool != "" {
		event["action"] = map[string]any{"toolName": tool}
	}
	line, err := json.Marshal(event)
	if err != nil {
		return s, err
	}
	limits.Registries = func(uint64) (erc8004.Registries, bool) {
		return erc8004.Registries{}, false
	} // the operator names the agent's
	s.job, err = job.Parse(line, limits)
	return s, err
}

// callMeta marks a sample where the agent reads what a delivery is (DESIGN §5).
func (s sample) callMeta() map[string]any {
	return map[string]any{"io.agentherald/delivery": map[string]any{"id": ProbeDeliveryID, "probe": true, "attempt": 1,
		"replay": false, "key": fmt.Sprintf("probe:%d:%s#%s", s.job.ChainID, s.job.AgentID, s.job.Kind)}}
}

// unfitted of a sample before they are fitted.
func (s sample) unfitted() map[string]any { return s.job.Arguments(s.file, ProbeDeliveryID) }

// What fitting to the tool's input schema did to an argument (ProbedArgument.Change); ArgumentKept: nothing.
const (
	ArgumentKept    = ""
	argumentChanged = "changed"
	ArgumentDropped = "dropped"
)

// ProbedArgument is one argument of the sample, and what the tool's schema made of it.
type ProbedArgument struct {
	Name   string          `json:"name"`
	Sample json.RawMessage `json:"sample"`
	Sent   json.RawMessage `json:"sent,omitempty"` // none when it is dropped
	Change string          `json:"change,omitempty"`
}

// compareArguments lists the arguments of the documentation in its order. A nil sent: only the sample is known.
func (s sample) compareArguments(sent map[string]any) ([]ProbedArgument, error) {
	all := s.unfitted()
	var out []ProbedArgument
	for _, name := range job.ArgumentNames(s.job.Kind) {
		before, err := json.Marshal(all[name])
		if err != nil {
			return nil, fmt.Errorf("write the sample's %s as JSON: %w", name, err)
		}
		arg := ProbedArgument{Name: name, Sample: before}
		value, kept := sent[name]
		switch {
		case sent == nil:
		case !kept:
			arg.Change = ArgumentDropped
		default:
			if arg.Sent, err = json.Marshal(value); err != nil {
				return nil, fmt.Errorf("write the fitted %s as JSON: %w", name, err)
			}
			if !bytes.Equal(arg.Sent, before) {
				arg.Change = argumentChanged
			}
		}
		out = append(out, arg)
	}
	return out, nil
}
