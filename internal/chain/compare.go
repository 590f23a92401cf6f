package chain

import (
	"cmp"
	"strings"
	"unicode/utf8"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
)

// comparison is the outcome of comparing one field.
type comparison struct {
	field string
	is    bool
}

// firstDifferent names the first field that is not the same.
func firstDifferent(compared ...comparison) string {
	for _, s := range compared {
		if !s.is {
			return s.field
		}
	}
	return ""
}

func valueField(j job.Job) string {
	if j.LegacyScore {
		return "score"
	}
	return "value"
}

// compareEvent names the job's field in which it differs from an event, "type" if it is another event altogether, "" if
// the event is the job's.
func compareEvent(j job.Job, e erc8004.Event) string {
	return cmp.Or(compareIdentity(j, e), compareContent(j, e))
}

// compareIdentity names the field that shows that an event is not the one that a job means, whatever its content.
func compareIdentity(j job.Job, e erc8004.Event) string {
	if string(e.Kind) != string(j.Kind) {
		return "type"
	}
	registry, field := emitterOf(j)
	compared := []comparison{{field, e.Address == registry},
		{"agentId", j.AgentID != nil && e.AgentID.Cmp(j.AgentID) == 0}}
	if j.Kind == job.KindValidationResponse {
		return firstDifferent(append(compared,
			comparison{"validatorAddress", e.Validator == j.ValidatorAddress},
			comparison{"requestHash", e.RequestHash == j.RequestHash},
		)...)
	}
	return firstDifferent(append(compared,
		comparison{"clientAddress", e.Client == j.ClientAddress},
		comparison{"feedbackIndex", !e.HasIndex || e.FeedbackIndex == j.FeedbackIndex},
		comparison{"responder", e.Responder == j.Responder},
	)...)
}

// compareContent names the field in which the content of a job's event is another one.
func compareContent(j job.Job, e erc8004.Event) string {
	switch j.Kind {
	case job.KindNewFeedback:
		return firstDifferent(
			comparison{valueField(j), j.Value != nil && e.Value.Cmp(j.Value) == 0},
			comparison{"valueDecimals", e.ValueDecimals == j.ValueDecimals},
			comparison{"tag1", sameTag1(e, j.Tag1)},
			comparison{"tag2", erc8004.SameText(e.Tag2, j.Tag2)},
			comparison{"endpoint", erc8004.SameText(e.Endpoint, j.Endpoint)},
			comparison{"feedbackURI", erc8004.SameText(e.FeedbackURI, j.FeedbackURI)},
			comparison{"feedbackHash", e.FeedbackHash == j.FeedbackHash},
		)
	case job.KindResponseAppended:
		return firstDifferent(
			comparison{"responseURI", erc8004.SameText(e.ResponseURI, j.ResponseURI)},
			comparison{"responseHash", e.ResponseHash == j.ResponseHash},
		)
	case job.KindValidationResponse:
		return firstDifferent(
			comparison{"response", e.Response == j.Response},
			comparison{"responseURI", erc8004.SameText(e.ResponseURI, j.ResponseURI)},
			comparison{"responseHash", e.ResponseHash == j.ResponseHash},
			comparison{"tag", erc8004.SameText(e.Tag, j.Tag)},
		)
	}
	return ""
}

// comparePosition names what of the job's position the event contradicts. In another block than the job's, as after a
// reorg, the event has another log index; but where that is part of the key, one event would pass for many.
func comparePosition(j job.Job, e erc8004.Event) string {
	sameBlock := j.BlockHash == e.BlockHash
	keyed := j.Kind == job.KindResponseAppended || j.Kind == job.KindValidationResponse
	moved := !sameBlock && j.BlockHash != (common.Hash{}) && !keyed
	return firstDifferent(
		comparison{"blockNumber", !sameBlock || j.BlockNumber == 0 || j.BlockNumber == e.BlockNumber},
		comparison{"logIndex", j.LogIndex == nil || moved || *j.LogIndex == e.LogIndex},
	)
}

// compareState compares with what the registry stores, nil if it does not tell, what some forms of NewFeedback do not
// say: the index, so that one event would pass for many, and a tag1 of which the hash is another one.
func compareState(j job.Job, e erc8004.Event, stored *erc8004.StoredFeedback) string {
	otherTag := e.Tag1Lost && crypto.Keccak256Hash([]byte(j.Tag1)) != e.Tag1Hash
	switch {
	case e.HasIndex && !otherTag:
		return ""
	case stored == nil && !e.HasIndex:
		return "feedbackIndex"
	case stored == nil:
		return "tag1"
	}
	return firstDifferent(
		comparison{valueField(j), j.Value != nil && stored.Value.Cmp(j.Value) == 0},
		comparison{"valueDecimals", stored.ValueDecimals == j.ValueDecimals},
		comparison{"tag1", erc8004.SameText(stored.Tag1, j.Tag1)},
		comparison{"tag2", erc8004.SameText(stored.Tag2, j.Tag2)},
	)
}

// sameTag1 compares a tag with one of which the log may have the hash only. That of a tag that a job could not hold
// is another one: see compareState.
func sameTag1(e erc8004.Event, tag string) bool {
	if !e.Tag1Lost {
		return erc8004.SameText(e.Tag1, tag)
	}
	return crypto.Keccak256Hash([]byte(tag)) == e.Tag1Hash || strings.ContainsRune(tag, utf8.RuneError)
}
