package chain

import (
	"bytes"
	"errors"
	"fmt"
	"math/big"
	"strconv"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
)

// errNoIndex is the refusal of the NewFeedback forms of 2025, which lack the feedback's index. It would have to be counted.
var errNoIndex = errors.New("this form of NewFeedback has no feedbackIndex")

// errNotDelivered is the answer for events that are no job.
var errNotDelivered = errors.New("this event is not delivered")

// JobLine writes an event as an enqueuer would: one line of JSON for job.Parse, which stays the only place where a job is
// validated and made storable. The chain's strings are put in byte by byte, so that what is wrong with them is seen and flagged
// there. blockTime is in seconds since 1970; 0 leaves it out.
//
// The registries are those of d, the emitter's own address aside. Registered, URIUpdated, MetadataSet, MetadataUpdate and Transfer
// become AgentUpdated. ValidationRequest and BatchMetadataUpdate are no jobs.
func JobLine(e erc8004.Event, chainID uint64, d erc8004.Deployment, blockTime uint64) ([]byte, error) {
	w := &line{}
	kind := job.Kind(e.Kind)
	switch e.Kind {
	case erc8004.NewFeedback:
		if !e.HasIndex {
			return nil, errNoIndex
		}
		d.Reputation = e.Address
	case erc8004.FeedbackRevoked, erc8004.ResponseAppended:
		d.Reputation = e.Address
	case erc8004.ValidationResponse:
		d.Validation = e.Address
	case erc8004.Registered, erc8004.URIUpdated, erc8004.MetadataSet, erc8004.MetadataUpdate, erc8004.Transfer:
		kind, d.Identity = job.KindAgentUpdated, e.Address
	default:
		return nil, fmt.Errorf("%s: %w", e.Kind, errNotDelivered)
	}
	w.text("type", string(kind))
	w.uint("chainId", chainID)
	w.address("identityRegistry", d.Identity)
	if kind != job.KindValidationResponse && kind != job.KindAgentUpdated {
		w.address("reputationRegistry", d.Reputation)
	}
	w.big("agentId", e.AgentID)
	switch kind {
	case job.KindNewFeedback:
		w.client(e)
		if e.LegacyScore {
			w.big("score", e.Value)
		} else {
			w.big("value", e.Value)
			w.uint("valueDecimals", uint64(e.ValueDecimals))
		}
		w.text("tag1", e.Tag1)
		w.text("tag2", e.Tag2)
		w.text("endpoint", e.Endpoint)
		w.text("feedbackURI", e.FeedbackURI)
		w.hash("feedbackHash", e.FeedbackHash)
	case job.KindFeedbackRevoked:
		w.client(e)
		w.text("reason", job.RevokedByClient)
	case job.KindResponseAppended:
		w.client(e)
		w.address("responder", e.Responder)
		w.text("responseURI", e.ResponseURI)
		w.hash("responseHash", e.ResponseHash)
	case job.KindValidationResponse:
		w.address("validationRegistry", d.Validation)
		w.address("validatorAddress", e.Validator)
		w.hash("requestHash", e.RequestHash)
		w.uint("response", uint64(e.Response))
		w.text("responseURI", e.ResponseURI)
		w.hash("responseHash", e.ResponseHash)
		w.text("tag", e.Tag)
	}
	w.uint("blockNumber", e.BlockNumber)
	w.hash("blockHash", e.BlockHash)
	w.hash("transactionHash", e.TxHash)
	w.uint("logIndex", uint64(e.LogIndex))
	if blockTime != 0 {
		w.uint("timestamp", blockTime)
	}
	return append(w.buf.Bytes(), '}'), nil
}

// Job turns an event into the job that Parse makes of its line. Beside the refusals of JobLine the error is job.Parse's.
func Job(e erc8004.Event, chainID uint64, d erc8004.Deployment, blockTime uint64, limits job.Limits) (job.Job, error) {
	text, err := JobLine(e, chainID, d, blockTime)
	if err != nil {
		return job.Job{}, err
	}
	return job.Parse(text, limits)
}

// line writes a flat JSON object. Unlike encoding/json it keeps bytes that are not UTF-8.
type line struct{ buf bytes.Buffer }

func (w *line) key(name string) {
	if w.buf.Len() == 0 {
		w.buf.WriteByte('{')
	} else {
		w.buf.WriteByte(',')
	}
	w.buf.WriteString(`"` + name + `":`)
}

func (w *line) text(name, value string) {
	w.key(name)
	w.buf.WriteByte('"')
	for _, b := range []byte(value) {
		switch {
		case b == '"' || b == '\\':
			w.buf.WriteByte('\\')
			w.buf.WriteByte(b)
		case b < 0x20:
			fmt.Fprintf(&w.buf, `\u%04x`, b)
		default:
			w.buf.WriteByte(b)
		}
	}
	w.buf.WriteByte('"')
}

func (w *line) uint(name string, v uint64) {
	w.key(name)
	w.buf.WriteString(strconv.FormatUint(v, 10))
}

func (w *line) big(name string, v *big.Int) {
	w.key(name)
	w.buf.WriteString(`"` + v.String() + `"`)
}

func (w *line) hash(name string, h common.Hash) { w.text(name, h.Hex()) }

func (w *line) address(name string, a common.Address) { w.text(name, a.Hex()) }

func (w *line) client(e erc8004.Event) {
	w.address("clientAddress", e.Client)
	// As a string: an index may be wider than 53 bits.
	w.text("feedbackIndex", strconv.FormatUint(e.FeedbackIndex, 10))
}
