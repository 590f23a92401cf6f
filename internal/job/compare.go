package job

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/big"
)

// Sum tells two events, or two actions, apart.
type Sum [sha256.Size]byte

// EventSum is of all that the chain decides about: the event's content, and where the job says that it is (block, transaction, log, and the
// identity registry, which no event names). Jobs of one key that differ in it cannot all be right. The time is left out: it refutes no job,
// the agent is told the chain's, and so one position cannot be spelled in a thousand ways.
func (j Job) EventSum() Sum {
	sum := fmt.Appendf(nil, "%s|%d|%s|%s|%s", lower(j.IdentityRegistry), j.BlockNumber, j.BlockHash.Hex(), j.TransactionHash.Hex(), j.logIndex())
	for _, f := range j.content() {
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

// comparableJSON is a JSON value in which what Postgres writes otherwise, the order of members and the form of numbers, is always the same.
func comparableJSON(raw json.RawMessage) any {
	n, _, err := decode(raw)
	if err != nil {
		return string(raw)
	}
	return comparableValue(n.value)
}

func comparableValue(v any) any {
	switch v := v.(type) {
	case json.Number:
		if r, ok := new(big.Rat).SetString(v.String()); ok {
			return "\x00" + r.RatString() // no string of a job holds NUL
		}
	case *object:
		out := make(map[string]any, len(v.fields))
		for name, n := range v.fields {
			out[name] = comparableValue(n.value)
		}
		return out
	case []*node:
		out := make([]any, len(v))
		for i, n := range v {
			out[i] = comparableValue(n.value)
		}
		return out
	}
	return v
}
