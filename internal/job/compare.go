package job

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/big"

	"github.com/agentherald/herald/internal/strictjson"
)

// Sum is a hash that distinguishes events, or actions.
type Sum [sha256.Size]byte

// EventSum hashes everything that the chain determines: the event's content, and the position in the job (block,
// transaction, log, and the identity registry, which no event contains). Of several jobs with one key and different
// sums, at most one is right. The timestamp is excluded: it refutes no job, and the agent receives the chain's
// timestamp. Including it would let a sender express one position in many ways.
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

// comparableJSON returns a JSON value without the differences that Postgres introduces: the order of members and the
// format of numbers.
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
