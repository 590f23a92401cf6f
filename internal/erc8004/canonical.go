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
)

// maxCanonicalBytes bounds a file that is brought into a canonical form, as sorting its names costs time. Of one beyond it, or beyond
// decode.Modest, only the exact bytes count.
const maxCanonicalBytes = 256 << 10

// canonicalVerdict tries the forms of a JSON document that writers hash instead of the bytes they publish. A document that
// says more than such a form commits to is a Mismatch: whoever serves the file could have added it.
func canonicalVerdict(content []byte, want common.Hash, immutable bool) Verdict {
	content = bytes.TrimPrefix(content, []byte("\xef\xbb\xbf"))
	if len(content) > maxCanonicalBytes || !utf8.Valid(content) || !decode.Modest(content) || !json.Valid(content) {
		return Mismatch
	}
	d := json.NewDecoder(bytes.NewReader(content))
	d.UseNumber()
	root, ok := readNode(d)
	if !ok {
		return Mismatch
	}
	top := make(map[string]bool, len(root.members))
	for _, m := range root.members {
		top[m.name] = true
	}
	for _, form := range []struct {
		verdict Verdict
		write   style
	}{
		{JCS, style{order: byUTF16}},
		{Agent0TS, style{order: byUTF16, keep: top}},
		{Agent0Py, style{order: strings.Compare, python: true}},
		{Compact, style{}},
	} {
		if crypto.Keccak256Hash(form.write.append(nil, root)) != want {
			continue
		}
		if form.verdict == Agent0TS && !immutable && dropsMembers(root, top) {
			return Mismatch
		}
		return form.verdict
	}
	return Mismatch
}

// node is a JSON value that remembers the order of its members and the digits of its numbers.
type node struct {
	value   json.Token // string, json.Number, bool, nil; json.Delim for '{' and '['
	members []member   // of an object
	items   []node     // of an array
}

type member struct {
	name  string
	value node
}

// dropsMembers tells whether a form that keeps only the named members leaves out any of n's.
func dropsMembers(n node, keep map[string]bool) bool {
	return slices.ContainsFunc(n.members, func(m member) bool { return !keep[m.name] || dropsMembers(m.value, keep) }) ||
		slices.ContainsFunc(n.items, func(item node) bool { return dropsMembers(item, keep) })
}

// readNode reads one value of a document whose depth is known to be bounded. It refuses what no writer of a form produces
// and what readers understand differently from the hash: two members of one name, and numbers beyond a double.
func readNode(d *json.Decoder) (node, bool) {
	t, err := d.Token()
	if err != nil {
		return node{}, false
	}
	n := node{value: t}
	if number, ok := t.(json.Number); ok {
		_, err = number.Float64()
	}
	switch t {
	case json.Delim('{'):
		seen := make(map[string]bool)
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return node{}, false
			}
			name, _ := key.(string)
			value, ok := readNode(d)
			if !ok {
				return node{}, false
			}
			if seen[name] {
				return node{}, false
			}
			seen[name] = true
			n.members = append(n.members, member{name, value})
		}
		_, err = d.Token()
	case json.Delim('['):
		for d.More() {
			item, ok := readNode(d)
			if !ok {
				return node{}, false
			}
			n.items = append(n.items, item)
		}
		_, err = d.Token()
	}
	return n, err == nil
}

// style says how to write a document down again.
type style struct {
	order  func(a, b string) int // of the members; nil: as JavaScript enumerates them
	keep   map[string]bool       // the only members to write, at any depth; nil: all
	python bool                  // as json.dumps: spaces, ASCII only, Python's numbers
}

func (s style) append(b []byte, n node) []byte {
	comma, colon := ",", ":"
	if s.python {
		comma, colon = ", ", ": "
	}
	switch v := n.value.(type) {
	case json.Delim:
		if v == '[' {
			b = append(b, '[')
			for i, item := range n.items {
				if i > 0 {
					b = append(b, comma...)
				}
				b = s.append(b, item)
			}
			return append(b, ']')
		}
		b = append(b, '{')
		first := true
		for _, m := range s.sorted(n.members) {
			if s.keep != nil && !s.keep[m.name] {
				continue
			}
			if !first {
				b = append(b, comma...)
			}
			first = false
			b = append(s.text(b, m.name), colon...)
			b = s.append(b, m.value)
		}
		return append(b, '}')
	case string:
		return s.text(b, v)
	case json.Number:
		if s.python {
			return append(b, pythonNumber(v.String())...)
		}
		return append(b, scriptNumber(v.String())...)
	case bool:
		return strconv.AppendBool(b, v)
	}
	return append(b, "null"...)
}

func (s style) sorted(members []member) []member {
	order := s.order
	if order == nil {
		order = func(a, b string) int {
			i, isA := arrayIndex(a)
			j, isB := arrayIndex(b)
			switch {
			case isA && isB:
				return int(i) - int(j)
			case isA:
				return -1
			case isB:
				return 1
			}
			return 0
		}
	}
	out := slices.Clone(members)
	slices.SortStableFunc(out, func(a, b member) int { return order(a.name, b.name) })
	return out
}

// arrayIndex reads a name that JavaScript enumerates before all others, by its number: 0 to 2^32-2.
func arrayIndex(name string) (uint64, bool) {
	i, err := strconv.ParseUint(name, 10, 32)
	return i, err == nil && i < math.MaxUint32 && strconv.FormatUint(i, 10) == name
}

// byUTF16 compares names by their UTF-16 code units, without writing them down: sorting does so a million times.
func byUTF16(a, b string) int {
	for a != "" && b != "" {
		r, n := utf8.DecodeRuneInString(a)
		q, m := utf8.DecodeRuneInString(b)
		if r != q {
			return cmp.Compare(unitOrder(r), unitOrder(q))
		}
		a, b = a[n:], b[m:]
	}
	return cmp.Compare(len(a), len(b))
}

// unitOrder puts the characters that two units stand for, beginning with 0xD800 to 0xDBFF, before those of one unit above that.
func unitOrder(r rune) rune {
	if r >= 0xE000 && r <= 0xFFFF {
		return r + utf8.MaxRune + 1
	}
	return r
}

// text writes a string with the escapes of JSON.stringify, or of Python with ensure_ascii.
func (s style) text(b []byte, text string) []byte {
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

// scriptNumber writes a number as ECMAScript does: the shortest digits that name the same double.
func scriptNumber(literal string) string {
	f, _ := strconv.ParseFloat(literal, 64) // readNode refused what is beyond a double
	if f == 0 {
		return "0"
	}
	if a := math.Abs(f); a >= 1e-6 && a < 1e21 {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return strings.Replace(strings.Replace(strconv.FormatFloat(f, 'e', -1, 64), "e-0", "e-", 1), "e+0", "e+", 1)
}

// pythonNumber writes a number as Python's json does: integers keep all their digits, the rest is repr(float).
func pythonNumber(literal string) string {
	if !strings.ContainsAny(literal, ".eE") {
		if literal == "-0" {
			return "0"
		}
		return literal
	}
	f, _ := strconv.ParseFloat(literal, 64) // readNode refused what is beyond a double
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64) // two digits of exponent in both languages
	}
	text := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}
