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
	// maxExact is the largest integer that every JSON reader keeps exactly (RFC 8259 §6).
	maxExact = 1<<53 - 1
	maxText  = MaxBytes // a string is bounded by the size of its job
)

// fieldReader reads the fields of an object. It keeps the first refusal in err, so that its callers check only once,
// after the last field.
type fieldReader struct {
	object  *strictjson.Object
	path    string
	limits  Limits
	asked   []string // the names of all fields that were requested
	missing *Refusal // the refusal for the first required field that is missing (require)
	err     *Refusal // the refusal for the first field that is present and wrong (fail); nil: none

	// For the old backend's form: oldNames maps Herald's field names to the old ones, and made holds fields that are
	// computed from other old fields, by Herald's name.
	oldNames map[string]string
	made     map[string]*strictjson.Value
}

// fail keeps a refusal if it is the first one.
func (r *fieldReader) fail(refusal *Refusal) {
	if r.err == nil {
		r.err = refusal
	}
}

// get returns a field by Herald's name, or nil if it is absent or null. In the old form, an empty string counts as
// absent.
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

// getNonNull returns a member that is present and not null, or nil.
func getNonNull(o *strictjson.Object, name string) *strictjson.Value {
	if v := o.Get(name); v != nil && v.Data != nil {
		return v
	}
	return nil
}

// isFilled reports whether a member is present, not null, and not the empty string.
func isFilled(o *strictjson.Object, name string) bool {
	v := getNonNull(o, name)
	return v != nil && v.Data != ""
}

func (r *fieldReader) has(name string) bool { return r.get(name) != nil }

// pathOf returns the path of a field for a refusal, as the sender would write it, whether the field is present or not.
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
	case r.oldNames != nil: // the old form has no such field
		return name
	}
	return strictjson.Join(r.path, name)
}

// require stores a refusal in r.missing for the first of the named fields that is absent.
func (r *fieldReader) require(names ...string) {
	for _, name := range names {
		if !r.has(name) && r.missing == nil {
			r.missing = refuse(r.pathOf(name), "is missing")
		}
	}
}

// findUnknown returns a refusal for the first member that no method of r has read, or nil. of describes the object in
// the refusal.
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

// readInteger reads an integer from least to most. It returns 0 for an absent or refused integer, so that callers
// compute only with valid ones. If most is nil, the integer may have at most 256 bits.
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

// parseInteger parses a decimal string, or a JSON number with an integer value of at most 53 bits, which every JSON
// reader keeps exactly.
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

// readAgentID reads an ERC-721 token id, a uint256. It returns 0, which is a valid id, if the field is absent.
func (r *fieldReader) readAgentID(name string) *big.Int {
	return r.readInteger(name, new(big.Int), nil)
}

// readAddress reads 0x and 40 hex digits. An address in mixed case must have the right checksum (EIP-55). It returns
// the zero address if the field is absent or refused.
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

// readHash reads 0x and 64 hex digits. It returns the zero hash if the field is absent or refused.
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

// readKeyHash reads a hash that is part of the key. It refuses an absent or zero hash; why explains that in the
// refusal.
func (r *fieldReader) readKeyHash(name, why string) common.Hash {
	h := r.readHash(name)
	if h == (common.Hash{}) {
		r.fail(refuse(r.pathOf(name), "is missing or zero: %s", why))
	}
	return h
}

// readStrings reads a list of at most most strings. It returns nil if the field is absent.
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

// readObject reads an object with any members, and returns it with a reader for them. Both are nil if the field is
// absent or not an object.
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

// readKnown returns a reader for an object that may contain only the known fields, or nil if the field is absent or
// refused.
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
