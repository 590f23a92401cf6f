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

// comparison is the result of comparing one field.
type comparison struct {
	field string
	is    bool
}

// firstDifferent returns the name of the first field that differs, or "".
func firstDifferent(compared ...comparison) string {
	for _, s := range compared {
		if !s.is {
			return s.field
		}
	}
	return ""
}

// valueField returns the name of the job's field that contains the rating.
func valueField(j job.Job) string {
	if j.LegacyScore {
		return "score"
	}
	return "value"
}

// compareEvent returns the name of the job's field that differs from the event. It returns "type" if the event is of
// another kind, and "" if the event matches the job.
func compareEvent(j job.Job, e erc8004.Event) string {
	return cmp.Or(compareIdentity(j, e), compareContent(j, e))
}

// compareIdentity returns the name of a field which shows that the event is not the one that the job describes. It
// does not compare the content.
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

// compareContent returns the name of the field in which the content of the event differs from the job's.
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

// comparePosition returns the name of the position field that the event contradicts. If a reorg moved the event to
// another block, its log index may differ. The log index is compared anyway if it is part of the job's key: otherwise
// one event could pass as several.
func comparePosition(j job.Job, e erc8004.Event) string {
	sameBlock := j.BlockHash == e.BlockHash
	keyed := j.Kind == job.KindResponseAppended || j.Kind == job.KindValidationResponse
	moved := !sameBlock && j.BlockHash != (common.Hash{}) && !keyed
	return firstDifferent(
		comparison{"blockNumber", !sameBlock || j.BlockNumber == 0 || j.BlockNumber == e.BlockNumber},
		comparison{"logIndex", j.LogIndex == nil || moved || *j.LogIndex == e.LogIndex},
	)
}

// compareState compares a job with the registry's stored feedback if the event alone does not identify it: if it
// lacks the index, so that one event could pass as several, or if it contains only the hash of another tag1. stored
// is nil if the registry does not report its state; then compareState returns the missing field.
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

// sameTag1 compares a job's tag with the event's tag1, of which the log may contain only the hash. A tag that was
// repaired (U+FFFD) has another hash than the original, so it always matches here; compareState compares it with the
// registry's state.
func sameTag1(e erc8004.Event, tag string) bool {
	if !e.Tag1Lost {
		return erc8004.SameText(e.Tag1, tag)
	}
	return crypto.Keccak256Hash([]byte(tag)) == e.Tag1Hash || strings.ContainsRune(tag, utf8.RuneError)
}
