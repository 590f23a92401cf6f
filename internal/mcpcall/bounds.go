package mcpcall

import (
	"encoding/json"
	"math"
	"math/big"
	"strconv"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// bounds checks minimum and maximum in place of the validator, which makes fractions of any size of both sides for every number: a
// quarter of the time that a feedback's validation took. What a comparison of machine numbers cannot decide is decided as the validator
// does it.
type bounds struct {
	minimum, maximum *big.Rat // as the schema has them; nil: none
	least, most      float64  // the same, exactly
}

// exactFloat: whole numbers below it are the same as a float64, and no other whole number rounds to one of them.
const exactFloat = 1 << 53

// takeBounds moves minimum and maximum of a compiled schema into an extension, when they are whole numbers of usual size and there is
// nothing else to say about numbers.
func takeBounds(s *jsonschema.Schema) {
	b := bounds{minimum: s.Minimum, maximum: s.Maximum, least: math.Inf(-1), most: math.Inf(1)}
	if s.MultipleOf != nil || s.ExclusiveMinimum != nil || s.ExclusiveMaximum != nil {
		return
	}
	if b.minimum == nil && b.maximum == nil || !whole(b.minimum, &b.least) || !whole(b.maximum, &b.most) {
		return
	}
	s.Minimum, s.Maximum = nil, nil
	s.Extensions = append(s.Extensions, b)
}

// whole stores a bound; no bound is well too.
func whole(r *big.Rat, to *float64) bool {
	if r == nil {
		return true
	}
	*to, _ = r.Float64()
	return r.IsInt() && math.Abs(*to) < exactFloat
}

// Validate is called for every value that the schema applies to. Numbers come as json.Number only, see decoded.
func (b bounds) Validate(ctx *jsonschema.ValidatorContext, v any) {
	n, ok := v.(json.Number)
	if !ok {
		return
	}
	// Rounding keeps the order: what is truly beyond a bound never rounds to a value inside it. Only on the bound it cannot be told.
	if f, err := strconv.ParseFloat(string(n), 64); err == nil {
		onBound := f == b.least || f == b.most
		if i, err := strconv.ParseInt(string(n), 10, 64); onBound && err == nil {
			onBound = i >= exactFloat || i <= -exactFloat // else it is that whole number
		}
		if !onBound && f >= b.least && f <= b.most {
			return
		}
	}
	r, ok := new(big.Rat).SetString(string(n))
	if !ok {
		return
	}
	if b.minimum != nil && r.Cmp(b.minimum) < 0 {
		ctx.AddError(&kind.Minimum{Got: r, Want: b.minimum})
	}
	if b.maximum != nil && r.Cmp(b.maximum) > 0 {
		ctx.AddError(&kind.Maximum{Got: r, Want: b.maximum})
	}
}
