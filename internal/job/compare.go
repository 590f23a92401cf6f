package job

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/big"

	"github.com/agentherald/herald/internal/strictjson"
)

// Sum is a hash. Two events, or two actions, with different sums are different.
type Sum [sha256.Size]byte

// EventSum hashes everything that the chain determines: the event's content, and its position in the job (block,
// transaction, log, and the identity registry, which no event contains). Of several jobs with one key and different
// sums, at most one is right. The timestamp is not hashed. A wrong timestamp does not make a job wrong, because the
// agent receives the chain's timestamp; and if it were hashed, a sender could submit many different jobs with one
// position.
func (j Job) EventSum() Sum {
	sum := fmt.Appendf(nil, "%s|%d|%s|%s|%s", lowerHex(j.IdentityRegistry), j.BlockNumber, j.BlockHash.Hex(),
		j.TransactionHash.Hex(), j.formatLogIndex())
	for _, f := range j.contentFields() {
		sum = fmt.Appendf(sum, "|%q", fmt.Sprint(f.value))
	}
	return sha256.Sum256(sum)
}

// ActionSum hashes the job's action, without the headers, which are secret.
func (j Job) ActionSum() Sum {
	a := j.Action
	var template any
	if a.PayloadTemplate != nil {
		template = comparableJSON(a.PayloadTemplate)
	}
	a.PayloadTemplate = nil
	raw, _ := json.Marshal([]any{a, template}) // encoding strings, numbers and decoded JSON cannot fail
	return sha256.Sum256(raw)
}

// comparableJSON decodes raw into a value that is equal for the JSON that was sent and for the JSON that Postgres
// returns: without the order of members and the format of numbers. It returns raw as a string if readJSON refuses it.
func comparableJSON(raw json.RawMessage) any {
	v, _, refusal := readJSON(raw)
	if refusal != nil {
		return string(raw)
	}
	return comparableValue(v)
}

func comparableValue(v *strictjson.Value) any {
	switch data := v.Data.(type) {
	case json.Number:
		if r, ok := new(big.Rat).SetString(data.String()); ok {
			return "\x00" + r.RatString() // no string of a job contains NUL
		}
	case *strictjson.Object:
		out := make(map[string]any, len(data.Members))
		for _, m := range data.Members {
			out[m.Name] = comparableValue(m)
		}
		return out
	case []*strictjson.Value:
		out := make([]any, len(data))
		for i, e := range data {
			out[i] = comparableValue(e)
		}
		return out
	}
	return v.Data
}
