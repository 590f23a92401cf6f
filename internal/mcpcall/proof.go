package mcpcall

import (
	"encoding/json"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// proof accepts values that plainly satisfy a schema, so that the validator need not be asked. It never refuses anything: what is wrong
// and what it does not know is the validator's to say. The nil proof accepts nothing.
//
// The validator follows some forty pointers for each schema and value. By the time of the next call the processor's caches have
// forgotten them, and a feedback that validates in 2 µs over and over takes 16 µs between two calls; a proof is a cache line for each
// value.
type proof struct {
	types       types
	text        *textProof   // nil: says nothing about strings
	least, most float64      // of a number; infinite: no bound
	object      *objectProof // nil: says nothing about objects
	also        *alsoProof   // nil: nothing besides
}

// textProof is about strings.
type textProof struct {
	shortest, longest int      // runes
	pattern           *pattern // nil: any
	words             []string // it is one of them; nil: any
}

// objectProof is about an object's properties.
type objectProof struct {
	properties map[string]*proof
	required   []string
	closed     bool // a property beside these is not accepted
}

// alsoProof holds what the same value must satisfy besides: all of these, and one of those if there are any.
type alsoProof struct {
	all, any []*proof
}

const (
	// maxProof bounds a proof: its parts, and the names and words in them. A schema that needs more has none, as one that refers to itself.
	maxProof = 512
	// exactFloat: whole numbers below it are the same as a float64, and no other whole number rounds to one of them.
	exactFloat = 1 << 53
)

// prove returns a proof of s, nil when there is none. room is how much more of maxProof there is; below 0 there is no proof at all.
func prove(s *jsonschema.Schema, room *int) *proof {
	*room -= 1 + len(s.Properties) + len(s.Required)
	if s.Enum != nil {
		*room -= len(s.Enum.Values)
	}
	if *room < 0 || !understood(s) || never(s) {
		return nil
	}
	p := &proof{types: declared(s), least: math.Inf(-1), most: math.Inf(1)}
	if s.Bool != nil {
		return p
	}
	var ok bool
	if p.text, ok = proveText(s); !ok || !exactBound(s.Minimum, &p.least) || !exactBound(s.Maximum, &p.most) {
		return nil
	}
	if s.Enum != nil {
		p.types &= typeString | typeNull // no others are compared here
		if !slices.Contains(s.Enum.Values, nil) {
			p.types &^= typeNull
		}
	}
	p.object = proveObject(s, room)
	var also alsoProof
	for part := range together(s) {
		also.all = append(also.all, prove(part, room))
	}
	for _, member := range s.AnyOf {
		also.any = append(also.any, prove(member, room))
	}
	if *room < 0 {
		return nil
	}
	if also.all != nil || also.any != nil {
		p.also = &also
	}
	return p
}

// proveText returns nil when s says nothing about strings.
func proveText(s *jsonschema.Schema) (t *textProof, ok bool) {
	t = &textProof{longest: math.MaxInt}
	if s.MinLength != nil {
		t.shortest = *s.MinLength
	}
	if s.MaxLength != nil {
		t.longest = *s.MaxLength
	}
	if s.Pattern != nil {
		if t.pattern, ok = s.Pattern.(*pattern); !ok {
			return nil, false
		}
	}
	if s.Enum != nil {
		t.words = []string{}
		for _, v := range s.Enum.Values {
			if word, ok := v.(string); ok {
				t.words = append(t.words, word)
			}
		}
	}
	if t.shortest <= 0 && t.longest == math.MaxInt && t.pattern == nil && t.words == nil {
		return nil, true
	}
	return t, true
}

// proveObject returns nil when s says nothing about objects.
func proveObject(s *jsonschema.Schema, room *int) *objectProof {
	open, isBool := s.AdditionalProperties.(bool)
	o := objectProof{required: s.Required, closed: s.AdditionalProperties != nil && (!isBool || !open)}
	if len(s.Properties) > 0 {
		o.properties = make(map[string]*proof, len(s.Properties))
		for name, of := range s.Properties {
			o.properties[name] = prove(of, room)
		}
	}
	if !o.closed && o.properties == nil && o.required == nil {
		return nil
	}
	return &o
}

// understood: s says nothing but what prove reads, or nothing about what is valid.
func understood(s *jsonschema.Schema) bool {
	rest := *s
	rest.Bool, rest.Types, rest.Enum, rest.Ref, rest.AllOf, rest.AnyOf = nil, nil, nil, nil, nil, nil
	rest.Required, rest.Properties, rest.AdditionalProperties = nil, nil, nil
	rest.MinLength, rest.MaxLength, rest.Pattern, rest.Minimum, rest.Maximum = nil, nil, nil, nil, nil
	rest.Format = nil // the budget
	rest.DraftVersion, rest.Location, rest.ID, rest.Anchor, rest.DynamicAnchor, rest.RecursiveAnchor = 0, "", "", "", "", false
	rest.Title, rest.Description, rest.Comment, rest.Default, rest.Examples = "", "", "", nil, nil
	rest.ReadOnly, rest.WriteOnly, rest.Deprecated = false, false, false
	v := reflect.ValueOf(&rest).Elem()
	for i := range v.NumField() {
		if v.Type().Field(i).IsExported() && !v.Field(i).IsZero() {
			return false
		}
	}
	return true
}

// exactBound stores a bound and reports whether a float64 holds it, and any whole number beside it; no bound is well too.
func exactBound(r *big.Rat, to *float64) bool {
	if r == nil {
		return true
	}
	f, exact := r.Float64()
	*to = f
	return exact && math.Abs(f) < exactFloat
}

// proves reports whether args are plainly valid; if not, validate is to be asked.
func (s *inputSchema) proves(args map[string]any) (proven bool) {
	if s.proof == nil || !plain(args, true) {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.budget.start()
	defer func() {
		if recover() != nil { // the budget was spent
			proven = false
		}
	}()
	return s.proof.accepts(args, &s.budget)
}

// accepts reports whether v, which is plain, is sure to be valid. It spends b.
func (p *proof) accepts(v any, b *budget) bool {
	if p == nil {
		return false
	}
	switch v := v.(type) {
	case nil:
		if p.types&typeNull == 0 {
			return false
		}
	case bool:
		if p.types&typeBool == 0 {
			return false
		}
	case string:
		b.charge(1 + len(v)>>6)
		if p.types&typeString == 0 || p.text != nil && !p.text.accepts(v, b) {
			return false
		}
	case json.Number:
		b.charge(1)
		if !p.acceptsNumber(string(v)) {
			return false
		}
	case map[string]any:
		b.charge(1 + len(v))
		if p.types&typeObject == 0 || p.object != nil && !p.object.accepts(v, b) {
			return false
		}
	case json.RawMessage:
		b.charge(1)
		if !p.acceptsRaw(v) {
			return false
		}
	default:
		return false
	}
	return p.also == nil || p.also.accepts(v, b)
}

func (t *textProof) accepts(v string, b *budget) bool {
	if t.shortest > 0 || t.longest < math.MaxInt {
		if n := utf8.RuneCountInString(v); n < t.shortest || n > t.longest {
			return false
		}
	}
	if t.words != nil {
		b.charge(len(t.words) >> 4)
		if !slices.Contains(t.words, v) {
			return false
		}
	}
	return t.pattern == nil || t.pattern.MatchString(v)
}

// acceptsRaw: raw JSON is not decoded; where the schema says no more than of which type it is to be, its first byte is enough.
func (p *proof) acceptsRaw(v json.RawMessage) bool {
	var t types
	switch firstByte(v) {
	case '{':
		t = typeObject
	case '[':
		t = typeArray
	case '"':
		t = typeString
	case 't', 'f':
		t = typeBool
	case 'n':
		t = typeNull
	}
	return t&p.types != 0 && (t != typeObject || p.object == nil) && (t != typeString || p.text == nil)
}

// acceptsNumber: rounding keeps the order, so a number that rounds to one inside the bounds is inside. On a bound it can be told of whole
// numbers only.
func (p *proof) acceptsNumber(n string) bool {
	whole := strings.Trim(strings.TrimPrefix(n, "-"), "0123456789") == "" // an empty one is no number for ParseFloat either
	if whole && p.types&typeInteger == 0 || !whole && p.types&typeFraction == 0 {
		return false
	}
	f, err := strconv.ParseFloat(n, 64)
	return err == nil && (f > p.least || whole && f == p.least) && (f < p.most || whole && f == p.most)
}

func (o *objectProof) accepts(v map[string]any, b *budget) bool {
	for _, name := range o.required {
		if _, ok := v[name]; !ok {
			return false
		}
	}
	for name, value := range v {
		if of, known := o.properties[name]; known && !of.accepts(value, b) || !known && o.closed {
			return false
		}
	}
	return true
}

func (a *alsoProof) accepts(v any, b *budget) bool {
	for _, of := range a.all {
		if !of.accepts(v, b) {
			return false
		}
	}
	return a.any == nil || slices.ContainsFunc(a.any, func(of *proof) bool { return of.accepts(v, b) })
}
