package job

import (
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/strictjson"
)

// Bounds of a job (DESIGN §3).
const (
	MaxBytes     = 256 << 10
	maxMetaBytes = 4 << 10
	maxDepth     = 2 + 32 // so that meta and payloadTemplate have 32 levels of their own
	maxExponent  = 300    // of a number: jsonb holds numeric, which ends before JSON does
	maxDigits    = 400    // of a number as it is written
	maxSanitized = 32     // paths that are kept; a hostile job can have a hundred thousand
)

// Bounds of an event's fields: those of the database, of the registries, and of a date that can be shown.
const (
	maxInt64    = 1<<63 - 1
	maxLogIndex = 1<<31 - 1
	maxPercent  = 100
	maxDecimals = 18
	year9999    = 253402300799
)

// maxValue is how the registry bounds an int128.
func maxValue() *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(38), nil) }

// Refusal says which field of a job is wrong and why. Nothing of a refused job is stored.
type Refusal struct {
	Path    string // "action.payloadTemplate.a[0]"; empty: the job as a whole
	Problem string
}

// Error is "<path>: <problem>", or the problem alone when it is the whole job's.
func (r *Refusal) Error() string {
	if r.Path == "" {
		return r.Problem
	}
	return r.Path + ": " + r.Problem
}

func refuse(path, format string, args ...any) *Refusal {
	return &Refusal{Path: path, Problem: fmt.Sprintf(format, args...)}
}

// Limits are what an installation lets a job ask for.
type Limits struct {
	// MaxTimeout clamps action.timeoutMs. Default 30 s, as HERALD_CALL_TIMEOUT.
	MaxTimeout time.Duration
	// Tools widens what a job may name beyond agent.receive* and its aliases; exact names.
	Tools []string
	// Registries lists the registries of a chain; a job may name no others, and means the first of each kind if it
	// names none. False: nothing is known of the chain, and what the job names is taken. Default: the known
	// deployments.
	Registries func(chainID uint64) (_ erc8004.Registries, known bool)
}

func (l Limits) withDefaults() Limits {
	if l.MaxTimeout <= 0 {
		l.MaxTimeout = 30 * time.Second
	}
	if l.Registries == nil {
		l.Registries = erc8004.ListedRegistries
	}
	return l
}

// Parse reads one job, in Herald's form or as the old backend's ActionJob. The error is a *Refusal that names the
// field.
//
// Beside a refusal the Job is zero, unless all was well that its key is made of: then it holds the event without action
// and meta, so that an intake which has nobody to answer can store a rejected row under the event's own Key.
func Parse(line []byte, l Limits) (Job, error) {
	l = l.withDefaults()
	if len(line) > MaxBytes {
		return Job{}, refuseLength(int64(len(line)), MaxBytes)
	}
	root, sanitized, refusal := readJSON(line)
	if refusal != nil {
		return Job{}, refusal
	}
	o, ok := root.Object()
	if !ok {
		return Job{}, refuse("", "is not a JSON object")
	}
	read := readNative
	if isActionJob(o) {
		read = readActionJob
	}
	j, refusal := read(o, l)
	if refusal != nil {
		return j, refusal
	}
	j.Sanitized = sanitized
	return j, nil
}

// readJSON reads one value that Postgres can store, with the paths of the strings that had to be repaired for it, at
// most maxSanitized.
func readJSON(raw []byte) (root *strictjson.Value, sanitized []string, _ *Refusal) {
	root, fault := strictjson.Parse(raw, strictjson.Options{MaxDepth: maxDepth, MaxDigits: maxDigits,
		MaxExponent: maxExponent,
		Repaired: func(v *strictjson.Value) {
			if len(sanitized) < maxSanitized {
				sanitized = append(sanitized, v.Path())
			}
		}})
	if fault != nil {
		return nil, nil, &Refusal{Path: fault.Path, Problem: fault.Problem}
	}
	return root, sanitized, nil
}

func refuseLength(length int64, limit int) *Refusal {
	return refuse("", "is %d bytes long; a job may have %d", length, limit)
}

// readNative reads DESIGN §3's form. Of several faults a misspelt name comes first: it is better known as unknown than
// as missing.
func readNative(o *strictjson.Object, l Limits) (Job, *Refusal) {
	r := &fieldReader{object: o, limits: l}
	j, refusal := r.readEvent()
	if j.Kind == "" {
		return Job{}, refusal
	}
	action, meta := r.readAction("action", j.Kind), r.readMeta("meta")
	unknown := r.findUnknown("a " + string(j.Kind) + " job")
	switch {
	case refusal != nil:
		return Job{}, firstOf(unknown, refusal)
	case unknown != nil || r.err != nil:
		return j, firstOf(unknown, r.err)
	}
	j.Action, j.Meta = action, meta
	return j, nil
}

// readEvent reads all but action and meta. Beside a refusal the job has no more than its Kind, and not even that when
// it is no known one.
func (r *fieldReader) readEvent() (Job, *Refusal) {
	j := Job{Kind: Kind(r.readText("type", maxText))}
	switch {
	case r.err != nil:
		return Job{}, r.err
	case !r.has("type"):
		return Job{}, refuse(r.pathOf("type"), "is missing")
	case defaultTool(j.Kind) == "" && j.Kind != KindAgentUpdated:
		return Job{}, refuse(r.pathOf("type"),
			"must be NewFeedback, FeedbackRevoked, ResponseAppended, ValidationResponse or AgentUpdated")
	}
	r.require("chainId", "agentId")
	j.ChainID, j.AgentID = r.readUint("chainId", 1, maxInt64), r.readAgentID("agentId")
	r.readRegistries(&j)
	r.readPosition(&j)
	r.readContent(&j)
	if refusal := firstOf(r.missing, r.err); refusal != nil {
		return Job{Kind: j.Kind}, refusal
	}
	return j, nil
}

// readRegistries reads the addresses, or takes those of the chain. What a kind needs must be known in the end, and be
// the chain's; others are kept when they are given, so that an enqueuer may send the same three with every job.
func (r *fieldReader) readRegistries(j *Job) {
	for _, registry := range j.registries(r.limits) {
		switch {
		case r.has(registry.field):
			*registry.address = r.readAddress(registry.field)
		case registry.needed && len(registry.listed) == 0:
			r.fail(refuse(r.pathOf(registry.field), "is missing, and chain %d has no known one", j.ChainID))
		case registry.needed:
			*registry.address = registry.listed[0]
		}
	}
	if unlisted := j.findUnlisted(r.limits); unlisted != nil {
		r.fail(refuse(r.pathOf(unlisted.Path), "%s", unlisted.Problem))
	}
}

// registry is one of a job's registries, and those of the chain of its kind.
type registry struct {
	field, setting string
	address        *common.Address
	listed         []common.Address
	known          bool // the chain's are known
	needed         bool
}

func (j *Job) registries(l Limits) []registry {
	listed, known := l.Registries(j.ChainID)
	validation := j.Kind == KindValidationResponse
	return []registry{
		{"identityRegistry", "IDENTITY_REGISTRY", &j.IdentityRegistry, listed.Identity, known, true},
		{"reputationRegistry", "REPUTATION_REGISTRY", &j.ReputationRegistry, listed.Reputation, known, !validation &&
			j.Kind != KindAgentUpdated},
		{"validationRegistry", "VALIDATION_REGISTRY", &j.ValidationRegistry, listed.Validation, known, validation},
	}
}

// findUnlisted refuses a registry that the kind needs and that is none of the chain's.
func (j *Job) findUnlisted(l Limits) *Refusal {
	for _, r := range j.registries(l) {
		if r.needed && r.known && !slices.Contains(r.listed, *r.address) {
			return refuse(r.field, "%s is not among the registries of chain %d: if its events are to count, list it "+
				"in %s_%d",
				*r.address, j.ChainID, r.setting, j.ChainID)
		}
	}
	return nil
}

// readContent reads what the kind itself says. A response and a validation are told from others of their sort by where
// they stand in the chain, so they must say it; a retraction by the block that vanished.
func (r *fieldReader) readContent(j *Job) {
	switch j.Kind {
	case KindNewFeedback:
		r.readPair(j)
		r.readRating(j)
		j.Tag1, j.Tag2, j.Endpoint = r.readText("tag1", maxText), r.readText("tag2", maxText),
			r.readText("endpoint", maxText)
		j.FeedbackURI, j.FeedbackHash = r.readText("feedbackURI", maxText), r.readHash("feedbackHash")
	case KindFeedbackRevoked:
		r.readPair(j)
		switch j.Reason = r.readText("reason", maxText); j.Reason {
		case "":
			j.Reason = RevokedByClient // what the event itself means; a reorg has to say so
		case RevokedByClient:
		case RevokedByReorg:
			r.readKeyHash("blockHash", "a retraction names the block that vanished")
		default:
			r.fail(refuse(r.pathOf("reason"), "must be client or reorg"))
		}
	case KindResponseAppended:
		r.readPair(j)
		r.require("responder", "transactionHash", "logIndex")
		j.Responder = r.readAddress("responder")
		j.ResponseURI, j.ResponseHash = r.readText("responseURI", maxText), r.readHash("responseHash")
		r.readKeyHash("transactionHash", "a response is told from others by it")
	case KindValidationResponse:
		r.require("validatorAddress", "requestHash", "response", "transactionHash", "logIndex")
		j.ValidatorAddress = r.readAddress("validatorAddress")
		j.RequestHash = r.readKeyHash("requestHash", "it is the request's identity")
		j.Response = uint8(r.readUint("response", 0, maxPercent))
		j.ResponseURI, j.ResponseHash = r.readText("responseURI", maxText), r.readHash("responseHash")
		j.Tag = r.readText("tag", maxText)
		r.readKeyHash("transactionHash", "a validation is told from others by it")
	}
}

func (r *fieldReader) readPair(j *Job) {
	r.require("clientAddress", "feedbackIndex")
	j.ClientAddress, j.FeedbackIndex = r.readAddress("clientAddress"), r.readUint("feedbackIndex", 1, 1<<64-1)
}

// readRating reads value and valueDecimals, or the older score (0 to 100), not both.
func (r *fieldReader) readRating(j *Job) {
	score, value, decimals := r.has("score"), r.has("value"), r.has("valueDecimals")
	switch {
	case score && (value || decimals):
		r.fail(refuse(r.pathOf("score"), "is the older form of value and valueDecimals: give one or the other"))
	case score:
		j.LegacyScore, j.Value = true, r.readInteger("score", new(big.Int), big.NewInt(maxPercent))
	case !value && r.oldNames != nil:
		r.fail(refuse(r.pathOf("score"), "is missing"))
	case !value:
		r.fail(refuse(r.pathOf("value"), "is missing (or score, its older form)"))
	case !decimals:
		r.fail(refuse(r.pathOf("valueDecimals"), "is missing"))
	default:
		j.Value = r.readInteger("value", new(big.Int).Neg(maxValue()), maxValue())
		j.ValueDecimals = uint8(r.readUint("valueDecimals", 0, maxDecimals))
	}
}

// readPosition reads where on the chain the event is.
func (r *fieldReader) readPosition(j *Job) {
	j.BlockNumber = r.readUint("blockNumber", 0, maxInt64)
	j.BlockHash, j.TransactionHash = r.readHash("blockHash"), r.readHash("transactionHash")
	j.Timestamp = int64(r.readUint("timestamp", 0, year9999))
	if r.has("logIndex") {
		i := uint(r.readUint("logIndex", 0, maxLogIndex))
		j.LogIndex = &i
	}
}

func (r *fieldReader) readMeta(name string) json.RawMessage {
	v, _ := r.readObject(name)
	if v == nil {
		return nil
	}
	raw := v.Encode()
	if len(raw) > maxMetaBytes {
		r.fail(refuse(v.Path(), "is %d bytes long; it may have %d", len(raw), maxMetaBytes))
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
