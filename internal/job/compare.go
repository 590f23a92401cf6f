package job

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/big"

	"github.com/agentherald/herald/internal/strictjson"
)

// Sum tells two events, or two actions, apart.
type Sum [sha256.Size]byte

// EventSum is of all that the chain decides about: the event's content, and where the job says that it is (block,
// transaction, log, and the identity registry, which no event names). Jobs of one key that differ in it cannot all be
// right. The time is left out: it refutes no job, the agent is told the chain's, and so one position cannot be spelled
// in a thousand ways.
func (j Job) EventSum() Sum {
	sum := fmt.Appendf(nil, "%s|%d|%s|%s|%s", lowerHex(j.IdentityRegistry), j.BlockNumber, j.BlockHash.Hex(),
		j.TransactionHash.Hex(), j.formatLogIndex())
	for _, f := range j.contentFields() {
		sum = fmt.Appendf(sum, "|%q", fmt.Sprint(f.value))
	}
	return sha256.Sum256(sum)
}

// ActionSum is of how the job says to deliver, but for the headers, which are secret.
func (j Job) ActionSum() Sum {
	a := j.Action
	var template any
	if a.PayloadTemplate != nil {
		template = comparableJSON(a.PayloadTemplate)
	}
	a.PayloadTemplate = nil
	raw, _ := json.Marshal([]any{a, template}) // of strings, numbers and what was decoded from JSON: it cannot fail
	return sha256.Sum256(raw)
}

// comparableJSON is a JSON value in which what Postgres writes otherwise, the order of members and the form of numbers,
// is always the same.
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
			return "\x00" + r.RatString() // no string of a job holds NUL
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
