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

	"github.com/agentherald/herald/internal/decode"
	"github.com/agentherald/herald/internal/strictjson"
)

// maxCanonicalBytes bounds a file that is brought into a canonical form, as sorting its names costs time. Of one beyond
// it, or beyond decode.Modest, only the exact bytes count.
const maxCanonicalBytes = 256 << 10

// compareCanonical tries the forms of a JSON document that writers hash instead of the bytes they publish. A document
// that says more than such a form commits to is a Mismatch: whoever serves the file could have added it.
func compareCanonical(content []byte, want common.Hash, immutable bool) Verdict {
	content = bytes.TrimPrefix(content, []byte("\xef\xbb\xbf"))
	if len(content) > maxCanonicalBytes || !utf8.Valid(content) || !decode.Modest(content) {
		return Mismatch
	}
	// Refused is what no writer of a form produces and what readers understand differently from the hash: two members
	// of one name, and numbers beyond a double.
	root, fault := strictjson.Parse(content, strictjson.Options{})
	if fault != nil || !isRepresentable(root) {
		return Mismatch
	}
	var top map[string]bool // the members of the document itself
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
		if form.verdict == Agent0TS && !immutable && dropsMembers(root, top) {
			return Mismatch
		}
		return form.verdict
	}
	return Mismatch
}

// listParts lists the members of an object, or the items of a list.
func listParts(v *strictjson.Value) []*strictjson.Value {
	switch data := v.Data.(type) {
	case *strictjson.Object:
		return data.Members
	case []*strictjson.Value:
		return data
	}
	return nil
}

// isRepresentable tells whether all numbers are within a double.
func isRepresentable(v *strictjson.Value) bool {
	if n, ok := v.Data.(json.Number); ok {
		_, err := n.Float64()
		return err == nil
	}
	return !slices.ContainsFunc(listParts(v), func(part *strictjson.Value) bool { return !isRepresentable(part) })
}

// dropsMembers tells whether a form that keeps only the named members leaves out any of v's.
func dropsMembers(v *strictjson.Value, keep map[string]bool) bool {
	_, isObject := v.Object()
	return slices.ContainsFunc(listParts(v), func(part *strictjson.Value) bool {
		return isObject && !keep[part.Name] || dropsMembers(part, keep)
	})
}

// canonicalForm is a way to write a document down again.
type canonicalForm struct {
	order  func(a, b string) int // of the members; nil: as JavaScript enumerates them
	keep   map[string]bool       // the only members to write, at any depth; nil: all
	python bool                  // as json.dumps: spaces, ASCII only, Python's numbers
}

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
		if s.python {
			return append(b, formatPythonNumber(data.String())...)
		}
		return append(b, formatScriptNumber(data.String())...)
	case bool:
		return strconv.AppendBool(b, data)
	}
	return append(b, "null"...)
}

func (s canonicalForm) sortMembers(members []*strictjson.Value) []*strictjson.Value {
	order := s.order
	if order == nil {
		order = compareScriptNames
	}
	return slices.SortedStableFunc(slices.Values(members),
		func(a, b *strictjson.Value) int { return order(a.Name, b.Name) })
}

// compareScriptNames puts numbers first, as JavaScript enumerates them; all other names are equal, so that a stable
// sort keeps their order.
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

// parseArrayIndex reads a name that JavaScript enumerates before all others, by its number: 0 to 2^32-2.
func parseArrayIndex(name string) (uint64, bool) {
	i, err := strconv.ParseUint(name, 10, 32)
	return i, err == nil && i < math.MaxUint32 && strconv.FormatUint(i, 10) == name
}

// compareUTF16 compares names by their UTF-16 code units, without writing them down: sorting does so a million times.
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

// orderOfUnit puts the characters that two units stand for, beginning with 0xD800 to 0xDBFF, before those of one unit
// above that.
func orderOfUnit(r rune) rune {
	if r >= 0xE000 && r <= 0xFFFF {
		return r + utf8.MaxRune + 1
	}
	return r
}

// appendText writes a string with the escapes of JSON.stringify, or of Python with ensure_ascii.
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

// formatScriptNumber writes a number as ECMAScript does: the shortest digits that name the same double.
func formatScriptNumber(literal string) string {
	f, _ := strconv.ParseFloat(literal, 64) // isRepresentable refused what is beyond a double
	if f == 0 {
		return "0"
	}
	if a := math.Abs(f); a >= 1e-6 && a < 1e21 {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return strings.Replace(strings.Replace(strconv.FormatFloat(f, 'e', -1, 64), "e-0", "e-", 1), "e+0", "e+", 1)
}

// formatPythonNumber writes a number as Python's json does: integers keep all their digits, the rest is repr(float).
func formatPythonNumber(literal string) string {
	if !strings.ContainsAny(literal, ".eE") {
		if literal == "-0" {
			return "0"
		}
		return literal
	}
	f, _ := strconv.ParseFloat(literal, 64) // isRepresentable refused what is beyond a double
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64) // two digits of exponent in both languages
	}
	text := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}
