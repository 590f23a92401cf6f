package chain

import (
	"strings"
	"unicode/utf8"

	"github.com/ethereum/go-ethereum/crypto"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
)

// same is the outcome of comparing one field.
type same struct {
	field string
	is    bool
}

// first names the first field that is not the same.
func first(compared ...same) string {
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

// differs names the job's field in which it differs from an event, "type" if it is another event altogether, "" if the event
// is the job's.
func differs(j job.Job, e erc8004.Event) string {
	if string(e.Kind) != string(j.Kind) {
		return "type"
	}
	registry, field := emitter(j)
	common := []same{{field, e.Address == registry}, {"agentId", j.AgentID != nil && e.AgentID.Cmp(j.AgentID) == 0}}
	if j.Kind == job.KindValidationResponse {
		return first(append(common,
			same{"validatorAddress", e.Validator == j.ValidatorAddress},
			same{"requestHash", e.RequestHash == j.RequestHash},
			same{"response", e.Response == j.Response},
			same{"responseURI", sameText(e.ResponseURI, j.ResponseURI)},
			same{"responseHash", e.ResponseHash == j.ResponseHash},
			same{"tag", sameText(e.Tag, j.Tag)},
		)...)
	}
	common = append(common,
		same{"clientAddress", e.Client == j.ClientAddress},
		same{"feedbackIndex", !e.HasIndex || e.FeedbackIndex == j.FeedbackIndex},
	)
	switch j.Kind {
	case job.KindNewFeedback:
		return first(append(common,
			same{valueField(j), j.Value != nil && e.Value.Cmp(j.Value) == 0},
			same{"valueDecimals", e.ValueDecimals == j.ValueDecimals},
			same{"tag1", sameTag1(e, j.Tag1)},
			same{"tag2", sameText(e.Tag2, j.Tag2)},
			same{"endpoint", sameText(e.Endpoint, j.Endpoint)},
			same{"feedbackURI", sameText(e.FeedbackURI, j.FeedbackURI)},
			same{"feedbackHash", e.FeedbackHash == j.FeedbackHash},
		)...)
	case job.KindResponseAppended:
		return first(append(common,
			same{"responder", e.Responder == j.Responder},
			same{"responseURI", sameText(e.ResponseURI, j.ResponseURI)},
			same{"responseHash", e.ResponseHash == j.ResponseHash},
		)...)
	}
	return first(common...)
}

// sameTag1 compares a tag with one of which the chain may have kept the hash only.
func sameTag1(e erc8004.Event, tag string) bool {
	if !e.Tag1Lost {
		return sameText(e.Tag1, tag)
	}
	return crypto.Keccak256Hash([]byte(tag)) == e.Tag1Hash || strings.ContainsRune(tag, utf8.RuneError)
}

// sameText compares the chain's bytes with a job's string. A job cannot hold NUL or invalid UTF-8, and whoever decoded the
// log before may have put one U+FFFD for each bad byte or one for several; so any run of such characters equals any other.
func sameText(chain, job string) bool {
	return chain == job || repaired(chain) == repaired(job)
}

func repaired(s string) string {
	var b strings.Builder
	bad := false
	for _, r := range s { // invalid bytes are read as U+FFFD
		if r == 0 || r == utf8.RuneError {
			if !bad {
				b.WriteRune(utf8.RuneError)
			}
			bad = true
			continue
		}
		bad = false
		b.WriteRune(r)
	}
	return b.String()
}
