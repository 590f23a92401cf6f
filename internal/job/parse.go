package job

import (
	"encoding/json"
	"math/big"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/ethereum/go-ethereum/common"
)

// Bounds of a job (DESIGN §3).
const (
	MaxBytes     = 256 << 10
	maxMetaBytes = 4 << 10
)

// Limits are what an installation lets a job ask for.
type Limits struct {
	// MaxTimeout clamps action.timeoutMs. Default 30 s, as HERALD_CALL_TIMEOUT.
	MaxTimeout time.Duration
	// Tools widens what a job may name beyond agent.receive* and its aliases; exact names.
	Tools []string
	// Registries lists the registries of a chain; a job may name no others, and means the first of each kind if it names
	// none. False: nothing is known of the chain, and what the job names is taken. Default: the known deployments.
	Registries func(chainID uint64) (_ erc8004.Registries, known bool)
}

// Parse reads one job, in Herald's form or as the old backend's ActionJob. The error is a *Refusal that names the field.
//
// Beside a refusal the Job is zero, unless all was well that its key is made of: then it holds the event without action and
// meta, so that an intake which has nobody to answer can store a rejected row under the event's own Key.
func Parse(line []byte, l Limits) (Job, error) {
	if l.MaxTimeout <= 0 {
		l.MaxTimeout = 30 * time.Second
	}
	if l.Registries == nil {
		l.Registries = erc8004.Listed
	}
	if len(line) > MaxBytes {
		return Job{}, tooLong(int64(len(line)), MaxBytes)
	}
	root, sanitized, r := decode(line)
	if r != nil {
		return Job{}, r
	}
	o, ok := root.value.(*object)
	if !ok {
		return Job{}, refuse("", "is not a JSON object")
	}
	read := native
	if isActionJob(o) {
		read = actionJob
	}
	j, r := read(o, l)
	if r != nil {
		return j, r
	}
	j.Sanitized = sanitized
	return j, nil
}

func tooLong(length int64, limit int) *Refusal {
	return refuse("", "is %d bytes long; a job may have %d", length, limit)
}

// fields says which fields a kind has, and which of them it cannot do without. Null counts as absent.
type fields struct{ required, optional []string }

var everyKind = fields{
	required: []string{"type", "chainId", "agentId"},
	optional: []string{"identityRegistry", "reputationRegistry", "validationRegistry", "blockNumber", "blockHash",
		"transactionHash", "logIndex", "timestamp", "action", "meta"},
}

// fieldsOf lists what a kind has beside that. A response and a validation are told from others of their sort by their place in
// the chain, so they must say it; a retraction by the block that vanished (checked in event).
func fieldsOf(k Kind) (own fields, known bool) {
	switch k {
	case KindNewFeedback:
		own.required = []string{"clientAddress", "feedbackIndex"}
		own.optional = []string{"value", "valueDecimals", "score", "tag1", "tag2", "endpoint", "feedbackURI", "feedbackHash"}
	case KindFeedbackRevoked:
		own.required = []string{"clientAddress", "feedbackIndex"}
		own.optional = []string{"reason"}
	case KindResponseAppended:
		own.required = []string{"clientAddress", "feedbackIndex", "responder", "transactionHash", "logIndex"}
		own.optional = []string{"responseURI", "responseHash"}
	case KindValidationResponse:
		own.required = []string{"validatorAddress", "requestHash", "response", "transactionHash", "logIndex"}
		own.optional = []string{"responseURI", "responseHash", "tag"}
	case KindAgentUpdated:
	default:
		return fields{}, false
	}
	return own, true
}

// native reads DESIGN §3's form.
func native(root *object, l Limits) (Job, *Refusal) {
	j, s, r := readEvent(root, l, nil)
	if s == nil {
		return Job{}, r
	}
	action, meta := s.action("action", j.Kind), s.meta("meta")
	if r = firstOf(r, s.err); r != nil {
		return j, r
	}
	j.Action, j.Meta = action, meta
	return j, nil
}

// readEvent reads all but action and meta. Without a scan, nothing of the job is of use; with one, what its key is made of is
// right even when there is a refusal. names are the paths of the old form.
func readEvent(root *object, l Limits, names map[string]string) (Job, *scan, *Refusal) {
	s := &scan{o: root, limits: l, names: names}
	j := Job{Kind: Kind(s.text("type", maxText))}
	own, known := fieldsOf(j.Kind)
	switch {
	case s.err != nil:
		return Job{}, nil, s.err
	case !s.has("type"):
		return Job{}, nil, refuse(s.at("type"), "is missing")
	case !known:
		return Job{}, nil, refuse(s.at("type"), "must be NewFeedback, FeedbackRevoked, ResponseAppended, ValidationResponse or AgentUpdated")
	}
	// A misspelt name is better known as unknown than as missing.
	unknown := s.unknown(j.Kind, own)
	if missing := s.missing(own); missing != nil {
		return Job{}, nil, firstOf(unknown, missing)
	}
	j.ChainID, j.AgentID = s.chainID("chainId"), s.agentID("agentId")
	s.registries(&j)
	s.position(&j)
	s.event(&j)
	if s.err != nil {
		return Job{}, nil, firstOf(unknown, s.err)
	}
	return j, s, unknown
}

func (s *scan) unknown(k Kind, own fields) *Refusal {
	for _, name := range s.o.names {
		if !slices.Contains(everyKind.required, name) && !slices.Contains(everyKind.optional, name) &&
			!slices.Contains(own.required, name) && !slices.Contains(own.optional, name) {
			return refuse(s.at(name), "is not a field of a %s job", k)
		}
	}
	return nil
}

func (s *scan) missing(own fields) *Refusal {
	for _, list := range [][]string{everyKind.required, own.required} {
		for _, name := range list {
			if !s.has(name) {
				return refuse(s.at(name), "is missing")
			}
		}
	}
	return nil
}

// registries reads the addresses, or takes those of the chain. What a kind needs must be known in the end, and be the
// chain's; others are kept when they are given, so that an enqueuer may send the same three with every job.
func (s *scan) registries(j *Job) {
	listed, known := s.limits.Registries(j.ChainID)
	take := func(name, setting string, listed []common.Address, needed bool) common.Address {
		if !s.has(name) {
			if needed && len(listed) == 0 {
				s.fail(refuse(s.at(name), "is missing, and chain %d has no known one", j.ChainID))
			}
			if !needed || len(listed) == 0 {
				return common.Address{}
			}
			return listed[0]
		}
		a := s.address(name)
		if needed && known && !slices.Contains(listed, a) {
			s.fail(refuse(s.at(name), "%s is not among the registries of chain %d: if its events are to count, list it in %s_%d",
				a, j.ChainID, setting, j.ChainID))
		}
		return a
	}
	validation := j.Kind == KindValidationResponse
	j.IdentityRegistry = take("identityRegistry", "IDENTITY_REGISTRY", listed.Identity, true)
	j.ReputationRegistry = take("reputationRegistry", "REPUTATION_REGISTRY", listed.Reputation, !validation &&
		j.Kind != KindAgentUpdated)
	j.ValidationRegistry = take("validationRegistry", "VALIDATION_REGISTRY", listed.Validation, validation)
}

// event reads what the kind itself says.
func (s *scan) event(j *Job) {
	switch j.Kind {
	case KindNewFeedback:
		j.ClientAddress, j.FeedbackIndex = s.address("clientAddress"), s.index("feedbackIndex")
		s.rating(j)
		j.Tag1, j.Tag2, j.Endpoint = s.text("tag1", maxText), s.text("tag2", maxText), s.text("endpoint", maxText)
		j.FeedbackURI, j.FeedbackHash = s.text("feedbackURI", maxText), s.hash("feedbackHash")
	case KindFeedbackRevoked:
		j.ClientAddress, j.FeedbackIndex = s.address("clientAddress"), s.index("feedbackIndex")
		switch j.Reason = s.text("reason", maxText); j.Reason {
		case "":
			j.Reason = RevokedByClient // what the event itself means; a reorg has to say so
		case RevokedByClient:
		case RevokedByReorg:
			s.keyHash("blockHash", "a retraction names the block that vanished")
		default:
			s.fail(refuse(s.at("reason"), "must be client or reorg"))
		}
	case KindResponseAppended:
		j.ClientAddress, j.FeedbackIndex = s.address("clientAddress"), s.index("feedbackIndex")
		j.Responder = s.address("responder")
		j.ResponseURI, j.ResponseHash = s.text("responseURI", maxText), s.hash("responseHash")
		s.keyHash("transactionHash", "a response is told from others by it")
	case KindValidationResponse:
		j.ValidatorAddress = s.address("validatorAddress")
		j.RequestHash = s.keyHash("requestHash", "it is the request's identity")
		j.Response = uint8(s.uint("response", 0, 100))
		j.ResponseURI, j.ResponseHash = s.text("responseURI", maxText), s.hash("responseHash")
		j.Tag = s.text("tag", maxText)
		s.keyHash("transactionHash", "a validation is told from others by it")
	}
}

// rating reads value and valueDecimals, or the older score (0 to 100), not both.
func (s *scan) rating(j *Job) {
	switch {
	case s.has("score") && (s.has("value") || s.has("valueDecimals")):
		s.fail(refuse(s.at("score"), "is the older form of value and valueDecimals: give one or the other"))
	case s.has("score"):
		j.LegacyScore, j.Value = true, s.whole("score", new(big.Int), big.NewInt(100))
	case !s.has("value"):
		s.fail(refuse(s.at("value"), "is missing (or score, its older form)"))
	case !s.has("valueDecimals"):
		s.fail(refuse(s.at("valueDecimals"), "is missing"))
	default:
		j.Value = s.value("value")
		j.ValueDecimals = uint8(s.uint("valueDecimals", 0, 18))
	}
}

// position reads where on the chain the event is. The bounds are those of the database and of a date that can be shown.
func (s *scan) position(j *Job) {
	const year9999 = 253402300799
	j.BlockNumber = s.uint("blockNumber", 0, 1<<63-1)
	j.BlockHash, j.TransactionHash = s.hash("blockHash"), s.hash("transactionHash")
	j.Timestamp = int64(s.uint("timestamp", 0, year9999))
	if s.has("logIndex") {
		i := uint(s.uint("logIndex", 0, 1<<31-1))
		j.LogIndex = &i
	}
}

func (s *scan) meta(name string) json.RawMessage {
	n := s.object(name)
	if n == nil {
		return nil
	}
	raw := n.encode()
	if len(raw) > maxMetaBytes {
		s.fail(refuse(n.path(), "is %d bytes long; it may have %d", len(raw), maxMetaBytes))
	}
	return raw
}

func firstOf(refusals ...*Refusal) *Refusal {
	for _, r := range refusals {
		if r != nil {
			return r
		}
	}
	return nil
}
