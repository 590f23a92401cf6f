package job

import (
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/base/decode"
	"github.com/agentherald/herald/internal/base/strictjson"
	"github.com/agentherald/herald/internal/erc8004"
)

// Bounds of a job (docs/reference/jobs.md).
const (
	MaxBytes     = 256 << 10 // bytes of a job
	maxTokens    = 10_000    // names, values and brackets in it: each needs some 250 bytes of memory
	maxMetaBytes = 4 << 10   // bytes of its meta, as compact JSON
	maxDepth     = 2 + 32    // nesting of objects and lists: 32 levels within meta and payloadTemplate
	maxExponent  = 300       // decimal exponent of a number: Postgres' numeric has a smaller range than JSON
	maxDigits    = 400       // digits of a number as it is written
	maxSanitized = 32        // paths in Job.Sanitized, because a hostile job can contain 100,000 invalid strings
)

// Bounds of an event's fields. maxInt64 and maxLogIndex are the largest values of Postgres' bigint and integer.
// maxPercent and maxDecimals are the largest values that the registries accept for a score or response and for
// valueDecimals. MaxTimestamp is the last Unix second of the year 9999, the latest date that can be shown.
const (
	maxInt64     = 1<<63 - 1
	maxLogIndex  = 1<<31 - 1
	maxPercent   = 100
	maxDecimals  = 18
	MaxTimestamp = 253402300799
)

// maxValue returns 1e38, the largest |value| that a registry accepts.
func maxValue() *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(38), nil) }

// Refusal is the error for an invalid job. It names the invalid field and the problem.
type Refusal struct {
	Path    string // of the field, such as "action.payloadTemplate.a[0]"; empty: the job as a whole
	Problem string // a predicate about the field, such as "is missing"
}

// Error returns "<path>: <problem>", or only the problem if Path is empty.
func (r *Refusal) Error() string {
	if r.Path == "" {
		return r.Problem
	}
	return r.Path + ": " + r.Problem
}

func refuse(path, format string, args ...any) *Refusal {
	return &Refusal{Path: path, Problem: fmt.Sprintf(format, args...)}
}

// Limits are the rules for jobs that the settings of an installation determine.
type Limits struct {
	// MaxTimeout bounds action.timeoutMs (HERALD_CALL_TIMEOUT). Default 30 s.
	MaxTimeout time.Duration
	// Tools contains the tool names that a job may contain (HERALD_TOOLS) in addition to those that are always
	// accepted (readTool).
	Tools []string
	// Registries returns the registries of a chain, a list for each type of registry. If known is true, a job must name
	// one of the list for its type; a job that names none gets the first one. If known is false, a job may contain any
	// registry. The default, erc8004.ListedRegistries, returns the public deployments of ERC-8004.
	Registries func(chainID uint64) (_ erc8004.Registries, known bool)
}

// withDefaults returns l with the defaults for MaxTimeout and Registries.
func (l Limits) withDefaults() Limits {
	if l.MaxTimeout <= 0 {
		l.MaxTimeout = 30 * time.Second
	}
	if l.Registries == nil {
		l.Registries = erc8004.ListedRegistries
	}
	return l
}

// Parse parses one job, in Herald's form or in that of the old backend, the system that Herald replaces. The error is a
// *Refusal that names the field.
//
// With the error, Parse returns the zero Job. But if the event is valid, and only the action, meta or an unknown field
// is refused, it returns the Job without action and meta. The intake of jobs in Redis stores kind and agent of that Job
// in a rejected row, so that an operator sees which agent the job concerns.
func Parse(line []byte, l Limits) (Job, error) {
	l = l.withDefaults()
	if len(line) > MaxBytes {
		return Job{}, refuseLength(int64(len(line)), MaxBytes)
	}
	counter := decode.Counter{Limit: maxTokens}
	if !counter.Add(line) && counter.Tokens() > maxTokens { // otherwise it nests too deep, which readJSON explains
		return Job{}, refuse("", "has more than %d names, values and brackets", maxTokens)
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

// readJSON parses one JSON value and replaces NUL and invalid UTF-8 in its strings, which Postgres cannot store.
// sanitized contains the paths of the changed strings, at most maxSanitized of them.
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

// refuseLength returns the refusal of a job of length bytes where limit bytes are allowed.
func refuseLength(length int64, limit int) *Refusal {
	return refuse("", "is %d bytes long; a job may have %d", length, limit)
}

// readNative reads a job in Herald's form. With a refusal it returns the Job that Parse describes. If there are several
// errors, it reports an unknown field first: its name may be a misspelling of a field that is then reported as missing.
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

// readEvent reads all fields of a job except action and meta. With a refusal, the returned Job contains only its Kind,
// or nothing if the type is invalid.
func (r *fieldReader) readEvent() (Job, *Refusal) {
	j := Job{Kind: Kind(r.readText("type", maxText))}
	switch {
	case r.err != nil:
		return Job{}, r.err
	case !r.has("type"):
		return Job{}, refuse(r.pathOf("type"), "is missing")
	case DefaultTool(j.Kind) == "" && j.Kind != KindAgentUpdated:
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

// readRegistries reads the three registries of a job. Limits.Registries returns the addresses that are known for the
// job's chain, and whether the chain is known. For the registry that the job's kind needs:
//   - known chain: an absent registry is the first of the addresses; a present one has to be among them;
//   - unknown chain: any registry is accepted, but an absent one is refused.
//
// If the job names a reputation or validation registry of October 2025, the default identity registry is the one that
// was deployed with it. Registries that the kind does not need are stored unchecked, so that a sender may send all
// three with every job.
func (r *fieldReader) readRegistries(j *Job) {
	for _, registry := range j.registries(r.limits) {
		switch {
		case r.has(registry.field):
			*registry.address = r.readAddress(registry.field)
		case registry.needed && !registry.known && registry.field == "identityRegistry":
			r.fail(refuse(r.pathOf("chainId"), "is %d, whose registries are unknown: set IDENTITY_REGISTRY_%[1]d and "+
				"REPUTATION_REGISTRY_%[1]d, or name the registries in the job", j.ChainID))
		case registry.needed && len(registry.listed) == 0:
			r.fail(refuse(r.pathOf(registry.field), "is missing, and chain %d has no known one: set %s_%[1]d",
				j.ChainID, registry.setting))
		case registry.needed:
			*registry.address = registry.listed[0]
		}
	}
	old, _ := erc8004.LegacyDeployment(j.ChainID)
	emitter, oldEmitter := j.ReputationRegistry, old.Reputation
	if j.Kind == KindValidationResponse {
		emitter, oldEmitter = j.ValidationRegistry, old.Validation
	}
	if !r.has("identityRegistry") && emitter == oldEmitter && emitter != (common.Address{}) {
		j.IdentityRegistry = old.Identity
	}
	if unlisted := j.findUnlisted(r.limits); unlisted != nil {
		r.fail(refuse(r.pathOf(unlisted.Path), "%s", unlisted.Problem))
	}
}

// registry is one of the three registry fields of a job, with the addresses that it may contain.
type registry struct {
	field, setting string           // name of the field; prefix of the environment variable with its addresses
	address        *common.Address  // points to the field of the Job
	listed         []common.Address // the chain's registries of this kind, the default first
	known          bool             // the field must contain an address of listed
	needed         bool             // the job's kind needs this registry
}

// registries returns the three registry fields of the job. Each has the addresses that l.Registries returns for the
// job's chain.
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

// findUnlisted returns a refusal if a registry that the job's kind needs is not among the known registries of the
// chain. It returns nil if they are not known.
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

// readContent reads the fields that only the job's kind has. It refuses a response or a validation without
// transactionHash and logIndex, and a retraction without blockHash, because their keys contain these fields.
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
			j.Reason = RevokedByClient // the event FeedbackRevoked means that the client withdrew the feedback
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
		r.readKeyHash("transactionHash", "it identifies the response")
	case KindValidationResponse:
		r.require("validatorAddress", "requestHash", "response", "transactionHash", "logIndex")
		j.ValidatorAddress = r.readAddress("validatorAddress")
		j.RequestHash = r.readKeyHash("requestHash", "it is the request's identity")
		j.Response = uint8(r.readUint("response", 0, maxPercent))
		j.ResponseURI, j.ResponseHash = r.readText("responseURI", maxText), r.readHash("responseHash")
		j.Tag = r.readText("tag", maxText)
		r.readKeyHash("transactionHash", "it identifies the validation")
	}
}

// readPair reads clientAddress and feedbackIndex. Both are required.
func (r *fieldReader) readPair(j *Job) {
	r.require("clientAddress", "feedbackIndex")
	j.ClientAddress, j.FeedbackIndex = r.readAddress("clientAddress"), r.readUint("feedbackIndex", 1, 1<<64-1)
}

// readRating reads value and valueDecimals, or score (0 to 100), their older form. It refuses a job with both forms or
// none.
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

// readPosition reads the position of the event on the chain: block, transaction and log index, and the block's
// timestamp. All are optional here.
func (r *fieldReader) readPosition(j *Job) {
	j.BlockNumber = r.readUint("blockNumber", 0, maxInt64)
	j.BlockHash, j.TransactionHash = r.readHash("blockHash"), r.readHash("transactionHash")
	j.Timestamp = int64(r.readUint("timestamp", 0, MaxTimestamp))
	if r.has("logIndex") {
		i := uint(r.readUint("logIndex", 0, maxLogIndex))
		j.LogIndex = &i
	}
}

// readMeta reads meta, an object of at most maxMetaBytes, and returns its compact JSON. It returns nil if the field is
// absent or not an object.
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

// firstOf returns the first refusal that is not nil. It returns nil if all are nil.
func firstOf(refusals ...*Refusal) *Refusal {
	for _, r := range refusals {
		if r != nil {
			return r
		}
	}
	return nil
}
