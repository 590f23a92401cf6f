package job

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/big"

	"github.com/agentherald/herald/internal/base/strictjson"
)

// Sum is a SHA-256 hash, by which two events or two actions are compared.
type Sum [sha256.Size]byte

// EventSum returns the hash of the event as the job describes it: the event's content, its position (block, transaction
// and log index) and the identity registry. If several jobs have the same key and different sums, at most one of them
// describes the event correctly.
//
// The hash does not include the timestamp. A wrong timestamp in a job does no harm, because the agent receives the
// chain's. So two jobs that differ only in the timestamp have the same hash.
func (j Job) EventSum() Sum {
	sum := fmt.Appendf(nil, "%s|%d|%s|%s|%s", lowerHex(j.IdentityRegistry), j.BlockNumber, j.BlockHash.Hex(),
		j.TransactionHash.Hex(), j.formatLogIndex())
	for _, f := range j.contentFields() {
		sum = fmt.Appendf(sum, "|%q", fmt.Sprint(f.value))
	}
	return sha256.Sum256(sum)
}

// ActionSum returns the hash of the job's action without its headers, which are secret.
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

// comparableJSON decodes raw into a value in which the order of members and the spelling of numbers are lost. So the
// JSON that a sender wrote and the same JSON read from Postgres yield equal values. It returns raw as a string if
// readJSON refuses it.
func comparableJSON(raw json.RawMessage) any {
	v, _, refusal := readJSON(raw)
	if refusal != nil {
		return string(raw)
	}
	return comparableValue(v)
}

// comparableValue converts a parsed value for comparableJSON. A number becomes a string: NUL, which no string of a job
// contains, and the number as a reduced fraction, so that 1.0 and 1 are equal. An object becomes a map, and a list a
// slice. Other values remain.
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
