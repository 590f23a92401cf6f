package job

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/big"
)

// Sum tells two positions, or two actions, apart.
type Sum [sha256.Size]byte

// PositionSum is of where the job says that its event is: block, transaction, log, time, and the identity registry, which no event names
// either. Jobs of one event that differ in it cannot all be right.
func (j Job) PositionSum() Sum {
	return sha256.Sum256(fmt.Appendf(nil, "%s|%d|%s|%s|%s|%d", lower(j.IdentityRegistry), j.BlockNumber, j.BlockHash.Hex(),
		j.TransactionHash.Hex(), j.logIndex(), j.Timestamp))
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
