package job

import (
	"cmp"
	"math/big"
	"strings"

	"github.com/ethereum/go-ethereum/common"
)

// Make validates and completes a job whose fields are those of an event on the chain. It applies the same rules as
// Parse. It returns the job with the default action, and with strings that Postgres can store (repairText). The error
// is a *Refusal that names the field.
func Make(j Job, l Limits) (Job, error) {
	j.Action = defaultAction(j.Kind)
	validation, feedback := j.Kind == KindValidationResponse, j.Kind == KindNewFeedback
	ofPair := !validation && j.Kind != KindAgentUpdated
	value := cmp.Or(j.Value, new(big.Int))
	var zero common.Address
	for _, check := range []struct {
		wrong       bool
		field, says string
	}{
		{j.ChainID == 0 || j.ChainID > maxInt64, "chainId", "is 0 or wider than 63 bits"},
		{j.AgentID == nil || j.AgentID.Sign() < 0 || j.AgentID.BitLen() > 256, "agentId",
			"is no number of at most 256 bits"},
		{j.IdentityRegistry == zero, "identityRegistry", "is the zero address"},
		{ofPair && j.ReputationRegistry == zero, "reputationRegistry", "is the zero address"},
		{validation && j.ValidationRegistry == zero, "validationRegistry", "is the zero address"},
		{j.BlockNumber > maxInt64, "blockNumber", "is wider than 63 bits"},
		{j.Timestamp < 0 || j.Timestamp > MaxTimestamp, "timestamp", "is beyond the year 9999"},
		{j.LogIndex != nil && *j.LogIndex > maxLogIndex, "logIndex", "is wider than 31 bits"},
		{ofPair && j.ClientAddress == zero, "clientAddress", "is the zero address"},
		{ofPair && j.FeedbackIndex == 0, "feedbackIndex", "must be at least 1"},
		{feedback && j.Value == nil, "value", "is missing"},
		{feedback && j.LegacyScore && (value.Sign() < 0 || value.Cmp(big.NewInt(maxPercent)) > 0), "score",
			"must be 0 to 100"},
		{feedback && value.CmpAbs(maxValue()) > 0, "value", "is beyond what a registry allows, 1e38"},
		{feedback && j.ValueDecimals > maxDecimals, "valueDecimals", "must be at most 18"},
		{j.Kind == KindResponseAppended && j.Responder == zero, "responder", "is the zero address"},
		{validation && j.ValidatorAddress == zero, "validatorAddress", "is the zero address"},
		{validation && j.RequestHash == (common.Hash{}), "requestHash", "is zero: it is the request's identity"},
		{(validation || j.Kind == KindResponseAppended) && j.TransactionHash == (common.Hash{}), "transactionHash",
			"is zero: the key is made of it"},
		{validation && j.Response > maxPercent, "response", "must be at most 100"},
	} {
		if check.wrong {
			return Job{}, refuse(check.field, "%s", check.says)
		}
	}
	if refusal := j.findUnlisted(l.withDefaults()); refusal != nil {
		return Job{}, refusal
	}
	length := 0
	for _, t := range []struct {
		field string
		text  *string
	}{{"tag1", &j.Tag1}, {"tag2", &j.Tag2}, {"endpoint", &j.Endpoint}, {"feedbackURI", &j.FeedbackURI},
		{"responseURI", &j.ResponseURI}, {"tag", &j.Tag}} {
		length += writtenLength(*t.text)
		if repaired := repairText(*t.text); repaired != *t.text {
			*t.text, j.Sanitized = repaired, append(j.Sanitized, t.field)
		}
	}
	if length > MaxBytes {
		return Job{}, refuseLength(int64(length), MaxBytes)
	}
	return j, nil
}

// repairText returns s with U+FFFD instead of each NUL and each byte that is not valid UTF-8, because Postgres cannot
// store them.
func repairText(s string) string {
	var b strings.Builder
	for _, r := range s { // range decodes a byte that is not UTF-8 as U+FFFD
		if r == 0 {
			r = '\uFFFD'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// writtenLength returns an upper bound of the length, in bytes, of s as a JSON string. It counts six bytes for a
// control character.
func writtenLength(s string) int {
	n := len(s)
	for i := range len(s) {
		switch {
		case s[i] < ' ':
			n += 5
		case s[i] == '"' || s[i] == '\\':
			n++
		}
	}
	return n
}
