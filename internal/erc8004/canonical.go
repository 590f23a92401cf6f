package erc8004

import (
	"bytes"
	"cmp"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/agentherald/herald/internal/base/decode"
	"github.com/agentherald/herald/internal/base/strictjson"
)

// maxCanonicalBytes is the largest file, in bytes, that compareCanonical serializes. Sorting the names of a larger one
// takes too much time.
const maxCanonicalBytes = 256 << 10

// compareCanonical returns the first verdict of JCS, Agent0TS, Agent0Py and Compact in whose canonical form the JSON
// document content has the hash want. It returns Mismatch if no form has it, or if content is not JSON, is larger than
// maxCanonicalBytes or is refused by decode.Modest.
//
// The form of Agent0TS omits nested members whose name the top level of the document lacks, and all forms round some
// numbers. So a server can add such members or digits to the file without changing the hash. Therefore compareCanonical
// also returns Mismatch if a form matches that omits a part of content, and immutable is false.
func compareCanonical(content []byte, want common.Hash, immutable bool) Verdict {
	content = bytes.TrimPrefix(content, []byte("\xef\xbb\xbf"))
	if len(content) > maxCanonicalBytes || !decode.Modest(content) {
		return Mismatch
	}
	// Three kinds of documents are rejected, because no writer of a form produces them and readers interpret them in
	// different ways: objects with duplicate names, numbers beyond a double, and unpaired surrogates.
	root, fault := strictjson.Parse(content, strictjson.Options{})
	if fault != nil || strictjson.IsDamaged(content) || !isRepresentable(root) {
		return Mismatch
	}
	var top map[string]bool // the names of the document's own members
	if o, ok := root.Object(); ok {
		top = make(map[string]bool, len(o.Members))
		for _, m := range o.Members {
			top[m.Name] = true
		}
	}
	for _, form := range []struct {
		verdict Verdict
		write   canonicalForm
	}{
		{JCS, canonicalForm{order: compareUTF16}},
		{Agent0TS, canonicalForm{order: compareUTF16, keep: top}},
		{Agent0Py, canonicalForm{order: strings.Compare, python: true}},
		{Compact, canonicalForm{}},
	} {
		if crypto.Keccak256Hash(form.write.appendValue(nil, root)) != want {
			continue
		}
		if !immutable && (form.verdict == Agent0TS && dropsMembers(root, top) || form.write.roundsNumber(root)) {
			return Mismatch
		}
		return form.verdict
	}
	return Mismatch
}

// listParts returns the members of an object or the items of a list, and nil for any other value.
func listParts(v *strictjson.Value) []*strictjson.Value {
	switch data := v.Data.(type) {
	case *strictjson.Object:
		return data.Members
	case []*strictjson.Value:
		return data
	}
	return nil
}

// isRepresentable reports whether all numbers in v are in the range of a double.
func isRepresentable(v *strictjson.Value) bool {
	if n, ok := v.Data.(json.Number); ok {
		_, err := n.Float64()
		return err == nil
	}
	return !slices.ContainsFunc(listParts(v), func(part *strictjson.Value) bool { return !isRepresentable(part) })
}

// dropsMembers reports whether v contains, at any depth, an object with a member whose name is not in keep.
func dropsMembers(v *strictjson.Value, keep map[string]bool) bool {
	_, isObject := v.Object()
	return slices.ContainsFunc(listParts(v), func(part *strictjson.Value) bool {
		return isObject && !keep[part.Name] || dropsMembers(part, keep)
	})
}

// roundsNumber reports whether the form writes a number in v, at any depth, with other digits than v.
func (s canonicalForm) roundsNumber(v *strictjson.Value) bool {
	if n, ok := v.Data.(json.Number); ok {
		return significantDigits(n.String()) != significantDigits(s.formatNumber(n.String()))
	}
	return slices.ContainsFunc(listParts(v), s.roundsNumber)
}

// significantDigits returns the digits of a JSON number without zeros at both ends, point, sign and exponent.
func significantDigits(literal string) string {
	mantissa, _, _ := strings.Cut(strings.ToLower(literal), "e")
	return strings.Trim(strings.Replace(mantissa, ".", "", 1), "-0")
}

// canonicalForm describes one way to serialize a JSON document.
type canonicalForm struct {
	order  func(a, b string) int // compares members' names for sorting; nil: compareScriptNames
	keep   map[string]bool       // names: at any depth, members with another name are omitted; nil: none is omitted
	python bool                  // as Python's json.dumps: with spaces, ASCII only, and Python's number format
}

// appendValue appends v, serialized in this form, to b.
func (s canonicalForm) appendValue(b []byte, v *strictjson.Value) []byte {
	comma, colon := ",", ":"
	if s.python {
		comma, colon = ", ", ": "
	}
	switch data := v.Data.(type) {
	case *strictjson.Object:
		b = append(b, '{')
		first := true
		for _, m := range s.sortMembers(data.Members) {
			if s.keep != nil && !s.keep[m.Name] {
				continue
			}
			if !first {
				b = append(b, comma...)
			}
			first = false
			b = append(s.appendText(b, m.Name), colon...)
			b = s.appendValue(b, m)
		}
		return append(b, '}')
	case []*strictjson.Value:
		b = append(b, '[')
		for i, item := range data {
			if i > 0 {
				b = append(b, comma...)
			}
			b = s.appendValue(b, item)
		}
		return append(b, ']')
	case string:
		return s.appendText(b, data)
	case json.Number:
		return append(b, s.formatNumber(data.String())...)
	case bool:
		return strconv.AppendBool(b, data)
	}
	return append(b, "null"...)
}

// sortMembers returns the members in the order of this form.
func (s canonicalForm) sortMembers(members []*strictjson.Value) []*strictjson.Value {
	order := s.order
	if order == nil {
		order = compareScriptNames
	}
	return slices.SortedStableFunc(slices.Values(members),
		func(a, b *strictjson.Value) int { return order(a.Name, b.Name) })
}

// compareScriptNames compares names for a stable sort into the order in which JavaScript enumerates members: array
// indexes first, by value, then all other names in their original order. So it returns 0 for two names that are not
// indexes.
func compareScriptNames(a, b string) int {
	i, isA := parseArrayIndex(a)
	j, isB := parseArrayIndex(b)
	switch {
	case isA && isB:
		return cmp.Compare(i, j)
	case isA:
		return -1
	case isB:
		return 1
	}
	return 0
}

// parseArrayIndex parses a name that is an array index of JavaScript: an integer from 0 to 2^32-2 in decimal. It
// returns false for any other name.
func parseArrayIndex(name string) (uint64, bool) {
	i, err := strconv.ParseUint(name, 10, 32)
	return i, err == nil && i < math.MaxUint32 && strconv.FormatUint(i, 10) == name
}

// compareUTF16 compares names by their UTF-16 code units, as RFC 8785 requires. It allocates no memory, because sorting
// a document can call it a million times.
func compareUTF16(a, b string) int {
	for a != "" && b != "" {
		r, n := utf8.DecodeRuneInString(a)
		q, m := utf8.DecodeRuneInString(b)
		if r != q {
			return cmp.Compare(orderOfUnit(r), orderOfUnit(q))
		}
		a, b = a[n:], b[m:]
	}
	return cmp.Compare(len(a), len(b))
}

// orderOfUnit returns the rank of a character in the order of UTF-16 code units. In that order, characters above
// U+FFFF, whose first unit is 0xD800 to 0xDBFF, precede the characters from U+E000 to U+FFFF.
func orderOfUnit(r rune) rune {
	if r >= 0xE000 && r <= 0xFFFF {
		return r + utf8.MaxRune + 1
	}
	return r
}

// appendText appends a JSON string to b, with the escapes of JavaScript's JSON.stringify, or of Python's ensure_ascii
// if s.python is set.
func (s canonicalForm) appendText(b []byte, text string) []byte {
	const hex = "0123456789abcdef"
	escape := func(u uint16) {
		b = append(b, '\\', 'u', hex[u>>12], hex[u>>8&15], hex[u>>4&15], hex[u&15])
	}
	b = append(b, '"')
	for _, r := range text {
		short := strings.IndexRune("\"\\\b\f\n\r\t", r)
		switch {
		case short >= 0:
			b = append(b, '\\', `"\bfnrt`[short])
		case r < 0x20:
			escape(uint16(r))
		case s.python && r > 0x7e:
			for _, u := range utf16.AppendRune(nil, r) {
				escape(u)
			}
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return append(b, '"')
}

// formatNumber formats a JSON number in this form.
func (s canonicalForm) formatNumber(literal string) string {
	if s.python {
		return formatPythonNumber(literal)
	}
	return formatScriptNumber(literal)
}

// formatScriptNumber formats a JSON number as JavaScript does: with the fewest digits that identify the same double.
func formatScriptNumber(literal string) string {
	f, _ := strconv.ParseFloat(literal, 64) // isRepresentable rejected numbers beyond a double
	if f == 0 {
		return "0"
	}
	if a := math.Abs(f); a >= 1e-6 && a < 1e21 {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return strings.Replace(strings.Replace(strconv.FormatFloat(f, 'e', -1, 64), "e-0", "e-", 1), "e+0", "e+", 1)
}

// formatPythonNumber formats a JSON number as Python's json module does: an integer with all its digits, any other
// number as repr(float).
func formatPythonNumber(literal string) string {
	if !strings.ContainsAny(literal, ".eE") {
		if literal == "-0" {
			return "0"
		}
		return literal
	}
	f, _ := strconv.ParseFloat(literal, 64) // isRepresentable rejected numbers beyond a double
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64) // both languages use two digits for the exponent
	}
	text := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}
