package job

import (
	"encoding/hex"
	"encoding/json"
	"math/big"
	"slices"
	"strings"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/strictjson"
)

const (
	// maxExact is the largest integer that every JSON reader keeps (RFC 8259 §6).
	maxExact = 1<<53 - 1
	maxText  = MaxBytes // a string is bounded by its job
)

// fieldReader reads the members of an object and keeps the first refusal, so that its users need not stop at each line.
type fieldReader struct {
	object  *strictjson.Object
	path    string
	limits  Limits
	asked   []string // the names of all fields that the object could have
	missing *Refusal // of the first required field that is not there
	err     *Refusal

	// For the old backend's form: what our fields are called there, and those that are made of others.
	oldNames map[string]string
	made     map[string]*strictjson.Value
}

func (r *fieldReader) fail(refusal *Refusal) {
	if r.err == nil {
		r.err = refusal
	}
}

// get gives a field that is there and not null.
func (r *fieldReader) get(name string) *strictjson.Value {
	r.asked = append(r.asked, name)
	if r.oldNames == nil {
		return getNonNull(r.object, name)
	}
	if old, ok := r.oldNames[name]; ok && isFilled(r.object, old) {
		return r.object.Get(old)
	}
	if v := r.made[name]; v != nil && v.Data != nil {
		return v
	}
	return nil
}

// getNonNull gives a member that is not null.
func getNonNull(o *strictjson.Object, name string) *strictjson.Value {
	if v := o.Get(name); v != nil && v.Data != nil {
		return v
	}
	return nil
}

// isFilled tells a member that is there and not the empty string.
func isFilled(o *strictjson.Object, name string) bool {
	v := getNonNull(o, name)
	return v != nil && v.Data != ""
}

func (r *fieldReader) has(name string) bool { return r.get(name) != nil }

// pathOf is the path of a field, there or not.
func (r *fieldReader) pathOf(name string) string {
	if v := r.get(name); v != nil {
		return v.Path()
	}
	if v := r.made[name]; v != nil {
		return v.Path()
	}
	old, ok := r.oldNames[name]
	switch {
	case ok:
		name = old
	case r.oldNames != nil: // the old form cannot say it
		return name
	}
	return strictjson.Join(r.path, name)
}

func (r *fieldReader) require(names ...string) {
	for _, name := range names {
		if !r.has(name) && r.missing == nil {
			r.missing = refuse(r.pathOf(name), "is missing")
		}
	}
}

// findUnknown refuses the first field that nobody asked for.
func (r *fieldReader) findUnknown(of string) *Refusal {
	if v := r.object.FirstUnknown(r.asked...); v != nil {
		return refuse(v.Path(), "is not a field of %s", of)
	}
	return nil
}

func (r *fieldReader) readText(name string, limit int) string {
	v := r.get(name)
	if v == nil {
		return ""
	}
	text, ok := v.Data.(string)
	switch {
	case !ok:
		r.fail(refuse(v.Path(), "must be a string"))
	case len(text) > limit:
		r.fail(refuse(v.Path(), "is longer than %d bytes", limit))
	}
	return text
}

func (r *fieldReader) readBool(name string, fallback bool) bool {
	v := r.get(name)
	if v == nil {
		return fallback
	}
	b, ok := v.Data.(bool)
	if !ok {
		r.fail(refuse(v.Path(), "must be true or false"))
	}
	return b
}

// readInteger reads an integer from least to most; an absent one is 0. Refused ones are 0 too, so that nobody computes
// with them.
func (r *fieldReader) readInteger(name string, least, most *big.Int) *big.Int {
	v := r.get(name)
	if v == nil {
		return new(big.Int)
	}
	n, refusal := parseInteger(v)
	switch {
	case refusal != nil:
		r.fail(refusal)
	case n.Cmp(least) < 0 && least.Sign() == 0:
		r.fail(refuse(v.Path(), "must not be negative"))
	case n.Cmp(least) < 0:
		r.fail(refuse(v.Path(), "must be at least %s", least))
	case most == nil && n.BitLen() > 256:
		r.fail(refuse(v.Path(), "is %d bits wide; an id has at most 256", n.BitLen()))
	case most != nil && n.Cmp(most) > 0:
		r.fail(refuse(v.Path(), "must be at most %s", most))
	default:
		return n
	}
	return new(big.Int)
}

// parseInteger takes a decimal string, or a number whose value is a whole one that JSON readers keep exactly.
func parseInteger(v *strictjson.Value) (*big.Int, *Refusal) {
	switch data := v.Data.(type) {
	case string:
		digits := strings.TrimPrefix(data, "-")
		switch {
		case digits == "" || strings.Trim(digits, "0123456789") != "":
			return nil, refuse(v.Path(), "must be a whole decimal number")
		case len(digits) > maxDigits:
			return nil, refuse(v.Path(), "is a number of %d digits, far too wide", len(digits))
		}
		n, _ := new(big.Int).SetString(data, 10)
		return n, nil
	case json.Number:
		n, ok := new(big.Rat).SetString(data.String()) // bounded by maxDigits and maxExponent
		if !ok || !n.IsInt() {
			return nil, refuse(v.Path(), "must be a whole number")
		}
		if n.Num().CmpAbs(big.NewInt(maxExact)) > 0 {
			return nil, refuse(v.Path(), "is wider than 53 bits: give it as a decimal string, since a number may "+
				"have lost digits")
		}
		return new(big.Int).Set(n.Num()), nil
	}
	return nil, refuse(v.Path(), "must be a whole number or a decimal string")
}

func (r *fieldReader) readUint(name string, least, most uint64) uint64 {
	return r.readInteger(name, new(big.Int).SetUint64(least), new(big.Int).SetUint64(most)).Uint64()
}

// readAgentID reads an ERC-721 token id, uint256; 0 is an agent.
func (r *fieldReader) readAgentID(name string) *big.Int {
	return r.readInteger(name, new(big.Int), nil)
}

// readAddress takes 0x and 40 hex digits; one in mixed case must carry the right checksum (EIP-55).
func (r *fieldReader) readAddress(name string) common.Address {
	v := r.get(name)
	if v == nil {
		return common.Address{}
	}
	text, _ := v.Data.(string)
	a, problem := erc8004.ParseAddress(text)
	if problem != "" {
		r.fail(refuse(v.Path(), "%s", problem))
		return common.Address{}
	}
	return a
}

// readHash takes 0x and 64 hex digits; absent is zero.
func (r *fieldReader) readHash(name string) common.Hash {
	v := r.get(name)
	if v == nil {
		return common.Hash{}
	}
	text, _ := v.Data.(string)
	digits, ok := strings.CutPrefix(text, "0x")
	raw, err := hex.DecodeString(digits)
	if !ok || err != nil || len(raw) != common.HashLength {
		r.fail(refuse(v.Path(), "must be a hash: 0x and 64 hex digits"))
		return common.Hash{}
	}
	return common.BytesToHash(raw)
}

// readKeyHash reads a hash that the key is made of, so that it must say something.
func (r *fieldReader) readKeyHash(name, why string) common.Hash {
	h := r.readHash(name)
	if h == (common.Hash{}) {
		r.fail(refuse(r.pathOf(name), "is missing or zero: %s", why))
	}
	return h
}

// readStrings reads a list of strings.
func (r *fieldReader) readStrings(name string, most int) []string {
	v := r.get(name)
	if v == nil {
		return nil
	}
	list, ok := v.Data.([]*strictjson.Value)
	if !ok || len(list) > most {
		r.fail(refuse(v.Path(), "must be a list of at most %d strings", most))
		return nil
	}
	var out []string
	for _, e := range list {
		text, ok := e.Data.(string)
		if !ok {
			r.fail(refuse(e.Path(), "must be a string"))
		}
		out = append(out, text)
	}
	return out
}

// readObject reads an object with any members; nil when it is absent or something else.
func (r *fieldReader) readObject(name string) (*strictjson.Value, *fieldReader) {
	v := r.get(name)
	if v == nil {
		return nil, nil
	}
	o, ok := v.Object()
	if !ok {
		r.fail(refuse(v.Path(), "must be an object"))
		return nil, nil
	}
	return v, &fieldReader{object: o, limits: r.limits, path: v.Path()}
}

// readKnown reads an object that may have these fields only; nil when it is absent or refused.
func (r *fieldReader) readKnown(name string, known ...string) *fieldReader {
	v, in := r.readObject(name)
	if in == nil {
		return nil
	}
	in.asked = slices.Clone(known)
	if unknown := in.findUnknown(v.Path()); unknown != nil {
		r.fail(unknown)
		return nil
	}
	return in
}
