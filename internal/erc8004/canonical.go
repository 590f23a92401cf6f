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

// maxCanonicalBytes bounds a file that is converted to canonical forms, because sorting its names takes time. Of a
// larger file, or one beyond decode.Modest, only the exact bytes are hashed.
const maxCanonicalBytes = 256 << 10

// compareCanonical hashes a JSON document in the canonical forms that writers hash instead of the published bytes. If
// the document contains data that the matching form does not commit to, the verdict is Mismatch, because the server
// of the file could have added that data.
func compareCanonical(content []byte, want common.Hash, immutable bool) Verdict {
	content = bytes.TrimPrefix(content, []byte("\xef\xbb\xbf"))
	if len(content) > maxCanonicalBytes || !utf8.Valid(content) || !decode.Modest(content) {
		return Mismatch
	}
	// Two kinds of documents are rejected, because no writer of a form produces them and readers interpret them in
	// different ways: objects with duplicate names, and numbers beyond a double.
	root, fault := strictjson.Parse(content, strictjson.Options{})
	if fault != nil || !isRepresentable(root) {
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
		if form.verdict == Agent0TS && !immutable && dropsMembers(root, top) {
			return Mismatch
		}
		return form.verdict
	}
	return Mismatch
}

// listParts returns the members of an object or the items of a list.
func listParts(v *strictjson.Value) []*strictjson.Value {
	switch data := v.Data.(type) {
	case *strictjson.Object:
		return data.Members
	case []*strictjson.Value:
		return data
	}
	return nil
}

// isRepresentable reports whether all numbers fit into a double.
func isRepresentable(v *strictjson.Value) bool {
	if n, ok := v.Data.(json.Number); ok {
		_, err := n.Float64()
		return err == nil
	}
	return !slices.ContainsFunc(listParts(v), func(part *strictjson.Value) bool { return !isRepresentable(part) })
}

// dropsMembers reports whether a form that keeps only the named members would omit a member of v.
func dropsMembers(v *strictjson.Value, keep map[string]bool) bool {
	_, isObject := v.Object()
	return slices.ContainsFunc(listParts(v), func(part *strictjson.Value) bool {
		return isObject && !keep[part.Name] || dropsMembers(part, keep)
	})
}

// canonicalForm describes how to serialize a document.
type canonicalForm struct {
	order  func(a, b string) int // of the members; nil: the order in which JavaScript enumerates them
	keep   map[string]bool       // the only members to write, at any depth; nil: all members
	python bool                  // as json.dumps does: with spaces, ASCII only, and Python's number format
}

// appendValue appends v in this form to b.
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

// sortMembers returns the members in the order of this form.
func (s canonicalForm) sortMembers(members []*strictjson.Value) []*strictjson.Value {
	order := s.order
	if order == nil {
		order = compareScriptNames
	}
	return slices.SortedStableFunc(slices.Values(members),
		func(a, b *strictjson.Value) int { return order(a.Name, b.Name) })
}

// compareScriptNames sorts array indexes first, as JavaScript enumerates them. All other names compare as equal, so
// that a stable sort keeps their order.
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

// parseArrayIndex parses a name that JavaScript enumerates before all others: an integer from 0 to 2^32-2.
func parseArrayIndex(name string) (uint64, bool) {
	i, err := strconv.ParseUint(name, 10, 32)
	return i, err == nil && i < math.MaxUint32 && strconv.FormatUint(i, 10) == name
}

// compareUTF16 compares names by their UTF-16 code units. It allocates nothing, because sorting calls it a million
// times.
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

// orderOfUnit maps a character to its rank in UTF-16 order. Characters of two units, which begin with 0xD800 to
// 0xDBFF, sort before characters of one unit from 0xE000 on.
func orderOfUnit(r rune) rune {
	if r >= 0xE000 && r <= 0xFFFF {
		return r + utf8.MaxRune + 1
	}
	return r
}

// appendText writes a string with the escapes of JSON.stringify, or with those of Python's ensure_ascii.
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

// formatScriptNumber formats a number as ECMAScript does: with the fewest digits that identify the same double.
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

// formatPythonNumber formats a number as Python's json does: integers keep all digits, other numbers are repr(float).
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
