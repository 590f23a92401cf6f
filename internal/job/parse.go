package job

import (
	"errors"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/ethereum/go-ethereum/common"
)

// Bounds of a job (DESIGN §3).
const (
	MaxBytes     = 256 << 10
	maxMetaBytes = 4 << 10
	minTimeoutMs = 1000
	maxArgs      = 64
	maxHeaders   = 32
)

// Limits are what an installation lets a job ask for.
type Limits struct {
	// MaxTimeout clamps action.timeoutMs. Needed.
	MaxTimeout time.Duration
	// Tools widens what a job may name beyond agent.receive* and its aliases.
	Tools []string
	// Registries gives a chain's registries when the job does not. Default: the known deployments.
	Registries func(chainID uint64) (erc8004.Deployment, bool)
}

// Parse reads one job, in Herald's form or as the old backend's ActionJob. The error is a *Refusal that names the field.
func Parse(raw []byte, l Limits) (Job, error) {
	if l.MaxTimeout <= 0 {
		return Job{}, errors.New("job: limits need a longest timeout")
	}
	if l.Registries == nil {
		l.Registries = erc8004.Known
	}
	if len(raw) > MaxBytes {
		return Job{}, refuse("", "is %d bytes long; a job may have %d", len(raw), MaxBytes)
	}
	t, r := decode(raw)
	if r != nil {
		return Job{}, r
	}
	root, ok := t.root.value.(*object)
	if !ok {
		return Job{}, refuse("", "is not a JSON object")
	}
	parse := native
	if isActionJob(root) {
		parse = actionJob
	}
	j, r := parse(root, l)
	if r != nil {
		return Job{}, r
	}
	j.Sanitized = t.sanitized
	return j, nil
}

// fields says which fields a kind has, and which of them it cannot do without.
type fields struct{ required, optional []string }

var (
	everyKind = fields{
		required: []string{"type", "chainId", "agentId"},
		optional: []string{"identityRegistry", "blockNumber", "blockHash", "transactionHash", "logIndex", "timestamp", "action", "meta"},
	}
	kindFields = map[Kind]fields{
		KindNewFeedback: {
			required: []string{"clientAddress", "feedbackIndex"},
			optional: []string{"reputationRegistry", "value", "valueDecimals", "score", "tag1", "tag2", "endpoint", "feedbackURI", "feedbackHash"},
		},
		KindFeedbackRevoked: {
			required: []string{"clientAddress", "feedbackIndex"},
			optional: []string{"reputationRegistry", "reason"},
		},
		KindResponseAppended: {
			required: []string{"clientAddress", "feedbackIndex", "responder"},
			optional: []string{"reputationRegistry", "responseURI", "responseHash"},
		},
		KindValidationResponse: {
			required: []string{"validatorAddress", "requestHash", "response"},
			optional: []string{"validationRegistry", "responseURI", "responseHash", "tag"},
		},
		KindAgentUpdated: {optional: []string{"reputationRegistry"}},
	}
)

// native reads DESIGN §3's form.
func native(root *object, l Limits) (Job, *Refusal) {
	s := &scan{o: root, limits: l}
	j := Job{Kind: Kind(s.text("type", maxText))}
	own, known := kindFields[j.Kind]
	switch {
	case s.err != nil:
		return j, s.err
	case !s.has("type"):
		return j, refuse("type", "is missing")
	case !known:
		return j, refuse("type", "must be NewFeedback, FeedbackRevoked, ResponseAppended, ValidationResponse or AgentUpdated")
	}
	if r := s.shape(own); r != nil {
		return j, r
	}
	j.ChainID = s.chainID("chainId")
	j.AgentID = s.agentID("agentId")
	s.registries(&j)
	s.event(&j)
	s.position(&j)
	j.Meta = s.meta("meta")
	j.Action = s.action("action", j.Kind)
	if s.err != nil {
		return j, s.err
	}
	return j, nil
}

// shape refuses fields that the kind does not have, and the lack of those that it needs.
func (s *scan) shape(own fields) *Refusal {
	allowed := map[string]bool{}
	for _, list := range [][]string{everyKind.required, everyKind.optional, own.required, own.optional} {
		for _, name := range list {
			allowed[name] = true
		}
	}
	for _, name := range s.o.names {
		if !allowed[name] {
			return refuse(s.o.fields[name].path, "is not a field of a %s job", s.text("type", maxText))
		}
	}
	for _, list := range [][]string{everyKind.required, own.required} {
		for _, name := range list {
			if !s.has(name) {
				return refuse(name, "is missing")
			}
		}
	}
	return nil
}

// registries reads the addresses, or takes those of the chain. What a kind needs must be known in the end.
func (s *scan) registries(j *Job) {
	known, _ := s.limits.Registries(j.ChainID)
	take := func(name string, fallback common.Address, needed bool) common.Address {
		a := fallback
		if s.has(name) {
			a = s.address(name)
		}
		if needed && a == (common.Address{}) {
			s.fail(refuse(name, "is missing, and chain %d has no known one", j.ChainID))
		}
		return a
	}
	j.IdentityRegistry = take("identityRegistry", known.Identity, true)
	switch j.Kind {
	case KindValidationResponse:
		j.ValidationRegistry = take("validationRegistry", known.Validation, true)
	case KindAgentUpdated:
	default:
		j.ReputationRegistry = take("reputationRegistry", known.Reputation, true)
	}
}

// event reads what the kind itself says.
func (s *scan) event(j *Job) {
	switch j.Kind {
	case KindNewFeedback:
		s.rating(j)
		j.ClientAddress, j.FeedbackIndex = s.address("clientAddress"), s.index("feedbackIndex")
		j.Tag1, j.Tag2, j.Endpoint = s.text("tag1", maxText), s.text("tag2", maxText), s.text("endpoint", maxText)
		j.FeedbackURI, j.FeedbackHash = s.text("feedbackURI", maxText), s.hash("feedbackHash")
	case KindFeedbackRevoked:
		j.ClientAddress, j.FeedbackIndex = s.address("clientAddress"), s.index("feedbackIndex")
		j.Reason = s.text("reason", maxText)
		switch {
		case j.Reason == "":
			j.Reason = RevokedByClient
		case j.Reason != RevokedByClient && j.Reason != RevokedByReorg:
			s.fail(refuse("reason", "must be client or reorg"))
		case j.Reason == RevokedByReorg && !s.has("blockHash"):
			s.fail(refuse("blockHash", "is missing; a retraction names the block that vanished"))
		}
	case KindResponseAppended:
		j.ClientAddress, j.FeedbackIndex = s.address("clientAddress"), s.index("feedbackIndex")
		j.Responder = s.address("responder")
		j.ResponseURI, j.ResponseHash = s.text("responseURI", maxText), s.hash("responseHash")
	case KindValidationResponse:
		j.ValidatorAddress, j.RequestHash = s.address("validatorAddress"), s.hash("requestHash")
		j.Response = uint8(s.uint("response", 100))
		j.ResponseURI, j.ResponseHash = s.text("responseURI", maxText), s.hash("responseHash")
		j.Tag = s.text("tag", maxText)
	}
}

// rating reads value and valueDecimals, or the older score (0 to 100), not both.
func (s *scan) rating(j *Job) {
	switch {
	case s.has("score") && (s.has("value") || s.has("valueDecimals")):
		s.fail(refuse("score", "is the older form of value and valueDecimals: give one or the other"))
	case s.has("score"):
		j.LegacyScore, j.Value = true, s.integer("score", 100, false)
	case !s.has("value"):
		s.fail(refuse("value", "is missing (or score, its older form)"))
	case !s.has("valueDecimals"):
		s.fail(refuse("valueDecimals", "is missing"))
	default:
		j.Value = s.value("value")
		j.ValueDecimals = uint8(s.uint("valueDecimals", 18))
	}
}

// position reads where on the chain the event is.
func (s *scan) position(j *Job) {
	const maxBlock = 1<<63 - 1
	j.BlockNumber = s.uint("blockNumber", maxBlock)
	j.BlockHash, j.TransactionHash = s.hash("blockHash"), s.hash("transactionHash")
	j.Timestamp = int64(s.uint("timestamp", 253402300799)) // year 9999
	if s.has("logIndex") {
		i := uint(s.uint("logIndex", 1<<31-1))
		j.LogIndex = &i
	}
}

func (s *scan) meta(name string) []byte {
	n := s.node(name)
	if n == nil {
		return nil
	}
	if _, ok := n.value.(*object); !ok {
		s.fail(refuse(n.path, "must be an object"))
		return nil
	}
	raw := n.encode()
	if len(raw) > maxMetaBytes {
		s.fail(refuse(n.path, "is %d bytes long; it may have %d", len(raw), maxMetaBytes))
	}
	return raw
}
