package job

import (
	"encoding/hex"
	"encoding/json"
	"math/big"
	"slices"
	"strings"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/base/strictjson"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/erc8004"
)

const (
	// maxExact is the largest integer that no JSON reader rounds (RFC 8259 §6).
	maxExact = 1<<53 - 1
	maxText  = MaxBytes // bytes of a string without a limit of its own
)

// fieldReader reads the fields of a JSON object by name. Its methods return a zero value for an absent or refused
// field. They store the first refusal in err, so that a caller reads all fields and then checks err once.
type fieldReader struct {
	object  *strictjson.Object
	path    string // path of object in the job, with which the paths in refusals begin; empty: object is the job
	limits  Limits
	asked   []string // the names with which get was called; findUnknown refuses members with other names
	missing *Refusal // the refusal for the first required field that is missing (require); nil: none
	err     *Refusal // the refusal for the first field that is present and wrong (fail); nil: none

	// oldNames and made are nil unless the job has the form of the old backend, the system that Herald replaces.
	// oldNames maps Herald's field names to the old backend's. made contains the values of fields that readActionJob
	// computed from other fields, by Herald's field names.
	oldNames map[string]string
	made     map[string]*strictjson.Value
}

// fail stores refusal in r.err if it is the first one.
func (r *fieldReader) fail(refusal *Refusal) {
	if r.err == nil {
		r.err = refusal
	}
}

// get returns the value of a field, and adds name to r.asked. name is the field's name in Herald's form, also in a job
// of the old backend. get returns nil if the field is absent or null, or if it is the empty string in a job of the old
// backend.
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

// getNonNull returns a member of o. It returns nil if the member is absent or null.
func getNonNull(o *strictjson.Object, name string) *strictjson.Value {
	if v := o.Get(name); v != nil && v.Data != nil {
		return v
	}
	return nil
}

// isFilled reports whether o has a member with this name that is neither null nor the empty string.
func isFilled(o *strictjson.Object, name string) bool {
	v := getNonNull(o, name)
	return v != nil && v.Data != ""
}

func (r *fieldReader) has(name string) bool { return r.get(name) != nil }

// pathOf returns the path that a refusal contains for a field. The field may be absent. In a job of the old backend the
// path contains the old field name.
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

// require checks that all named fields are present. If r.missing is nil, it stores a refusal for the first absent field
// there.
func (r *fieldReader) require(names ...string) {
	for _, name := range names {
		if !r.has(name) && r.missing == nil {
			r.missing = refuse(r.pathOf(name), "is missing")
		}
	}
}

// findUnknown returns a refusal for the first member of the object that no method of r has read before the call
// (r.asked). It returns nil if the object has no such member. The refusal suggests the field that was probably meant.
// owner is the name of the object in the refusal, such as "a NewFeedback job".
func (r *fieldReader) findUnknown(owner string) *Refusal {
	v := r.object.FirstUnknown(r.asked...)
	if v == nil {
		return nil
	}
	near := text.FindNearest(v.Name, r.asked, min(2, len(v.Name)/3))
	plain := strings.ReplaceAll(v.Name, "_", "") // feedback_uri is probably feedbackURI
	if i := slices.IndexFunc(r.asked, func(name string) bool { return strings.EqualFold(name, plain) }); i >= 0 {
		near = r.asked[i]
	}
	if near != "" {
		return refuse(v.Path(), "is not a field of %s: did you mean %s?", owner, near)
	}
	return refuse(v.Path(), "is not a field of %s", owner)
}

// readText reads a string. It refuses one that is longer than limit, in bytes.
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

// readBool reads a boolean. It returns fallback if the field is absent.
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

// readInteger reads an integer from least to most, in the forms that parseInteger accepts. If most is nil, the integer
// may have at most 256 bits. It returns 0 for an absent or refused field, never nil.
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

// parseInteger parses an integer: a decimal string, or a JSON number of at most maxExact. It refuses larger JSON
// numbers, because the sender's JSON library may have rounded them.
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
		n, ok := new(big.Rat).SetString(data.String()) // not huge: strictjson bounded its digits and exponent
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

// readUint is readInteger for an integer that fits into a uint64.
func (r *fieldReader) readUint(name string, least, most uint64) uint64 {
	return r.readInteger(name, new(big.Int).SetUint64(least), new(big.Int).SetUint64(most)).Uint64()
}

// readAgentID reads an agent's id, a uint256. It returns 0 if the field is absent or refused. Since 0 is also a valid
// id, callers check for an absent field with require.
func (r *fieldReader) readAgentID(name string) *big.Int {
	return r.readInteger(name, new(big.Int), nil)
}

// readAddress reads an address: 0x and 40 hex digits. It refuses the zero address, and an address in mixed case with a
// wrong checksum (EIP-55). It returns the zero address if the field is absent or refused.
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

// readKeyHash reads a hash that the job's key contains. It refuses an absent or zero hash. The refusal ends with why,
// the reason why the hash is needed.
func (r *fieldReader) readKeyHash(name, why string) common.Hash {
	h := r.readHash(name)
	if h == (common.Hash{}) {
		r.fail(refuse(r.pathOf(name), "is missing or zero: %s", why))
	}
	return h
}

// readStrings reads a list of strings. most is the largest accepted length of the list. It returns nil if the field is
// absent, not a list, or longer. If an element is not a string, it refuses the field, and the result contains "" for
// that element.
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

// readObject returns the object in the field called name, and a reader for its members, which may have any names. Both
// are nil if the field is absent or refused.
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

// readKnown returns a reader for the object in the field called name. It refuses an object with a member whose name is
// not in known. It returns nil if the field is absent or refused.
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
