package secret

import (
	"encoding/binary"
	"encoding/hex"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxEscapes is the maximum nesting of escapes that are decoded. JSON in the text of a JSON answer has two levels.
const maxEscapes = 2

// The minimum lengths of secrets that are masked, in bytes. Secrets of at least shortestAnywhere are masked everywhere.
// Shorter ones are masked only as separate words, because ordinary words contain such short strings. Secrets shorter
// than shortestWord are not masked: that would garble every text and would not protect them.
const (
	shortestAnywhere = 8
	shortestWord     = 4
)

// Masker replaces secrets in a text by asterisks. It also finds secrets in escaped form, because JSON may write any
// character as an escape, and Postgres decodes the escapes. A nil Masker masks nothing. It is safe for concurrent use.
type Masker struct{ anywhere, words []string }

// NewMasker returns a Masker for texts and names. names are masked only as separate words regardless of their length,
// because a user name may be part of a tool's name by coincidence. NewMasker returns nil if all strings are too short.
func NewMasker(texts []string, names ...string) *Masker {
	var m Masker
	for _, t := range texts {
		if len(t) >= shortestAnywhere {
			m.anywhere = append(m.anywhere, t)
		} else {
			names = append(names, t)
		}
	}
	for _, t := range names {
		switch t {
		case "true", "false", "null": // JSON's own
			continue
		}
		if len(t) >= shortestWord {
			m.words = append(m.words, t)
		}
	}
	if m.anywhere == nil && m.words == nil {
		return nil
	}
	return &m
}

// WithoutWords returns a Masker that masks only secrets of at least shortestAnywhere bytes. It is for identifiers, in
// which a short word is probably not a secret.
func (m *Masker) WithoutWords() *Masker {
	if m == nil || m.anywhere == nil {
		return nil
	}
	return &Masker{anywhere: m.anywhere}
}

// Replace returns s with its secrets masked. Overlapping secrets become one mask.
func (m *Masker) Replace(s string) string {
	if m == nil {
		return s
	}
	spans := m.findSecrets(s, maxEscapes)
	if len(spans) == 0 {
		return s
	}
	var out strings.Builder
	done := 0
	for _, x := range spans {
		out.WriteString(s[done:x.from])
		out.WriteString(mask)
		done = x.to
	}
	out.WriteString(s[done:])
	return out.String()
}

// span is a range of bytes in a text.
type span struct{ from, to int }

// findSecrets returns the ranges of s that contain secrets, in order and without overlaps. It decodes at most depth
// levels of escapes. An agent chooses s and can choose secrets too (session ids). So the memory of findSecrets is
// bounded: it merges ranges early, and stores no offset for each byte.
func (m *Masker) findSecrets(s string, depth int) []span {
	found := m.findPlain(s)
	if depth == 0 {
		return found
	}
	for _, e := range escapes {
		if read := e.unescape(s); read != s {
			inner := m.findSecrets(read, depth-1)
			e.mapSpans(s, inner)
			found = mergeSpans(found, inner)
		}
	}
	return found
}

// mergeSpans merges two lists of spans that are in order and have no overlaps. It joins spans that overlap.
func mergeSpans(a, b []span) []span {
	if len(a) == 0 {
		return b
	}
	merged := make([]span, 0, max(len(a), len(b)))
	for len(a)+len(b) > 0 {
		from := &a
		if len(a) == 0 || len(b) > 0 && b[0].from < a[0].from {
			from = &b
		}
		x := (*from)[0]
		*from = (*from)[1:]
		if last := len(merged) - 1; last >= 0 && x.from < merged[last].to {
			merged[last].to = max(merged[last].to, x.to)
			continue
		}
		merged = append(merged, x)
	}
	return merged
}

// findPlain returns the ranges of s that contain unescaped secrets, in order and without overlaps.
func (m *Masker) findPlain(s string) (found []span) {
	find := func(t string, fits func(x span) bool) {
		var of []span // in order, because each search begins after the last range
		for at := 0; ; {
			i := strings.Index(s[at:], t)
			if i < 0 {
				break
			}
			x := span{at + i, at + i + len(t)}
			if at = x.from + 1; fits(x) {
				of, at = append(of, x), x.to
			}
		}
		found = mergeSpans(found, of)
	}
	for _, t := range m.anywhere {
		find(t, func(span) bool { return true })
	}
	for _, t := range m.words {
		find(t, func(x span) bool { return !isInsideWord(s, x.from) && !isInsideWord(s, x.to) })
	}
	return found
}

// isInsideWord reports whether the bytes before and at i belong to the same word.
func isInsideWord(s string, i int) bool {
	inWord := func(c byte) bool {
		return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c >= utf8.RuneSelf
	}
	return i > 0 && i < len(s) && inWord(s[i-1]) && inWord(s[i])
}

// escape is an escape syntax. begins is the first byte of an escape. readOne decodes the escape at the start of s. It
// returns the rune and the length of the escape, or the length 0 if s does not start with an escape.
type escape struct {
	begins  byte
	readOne func(s string) (r rune, n int)
}

var escapes = []escape{{'\\', readBackslash}, {'%', readPercent}, {'&', readEntity}}

// unescape returns s with the escapes decoded.
func (e escape) unescape(s string) string {
	var out strings.Builder
	done := 0 // number of bytes of s that are in out
	for i := strings.IndexByte(s, e.begins); i >= 0; {
		next := i + 1
		if r, n := e.readOne(s[i:]); n > 0 {
			if done == 0 {
				out.Grow(len(s)) // no escape is shorter than its rune
			}
			out.WriteString(s[done:i])
			out.WriteRune(r)
			next = i + n
			done = next
		}
		if i = strings.IndexByte(s[next:], e.begins); i >= 0 {
			i += next
		}
	}
	if done == 0 {
		return s
	}
	out.WriteString(s[done:])
	return out.String()
}

// mapSpans replaces offsets in unescape(s) by the offsets in s from which they originate. spans are in order and do not
// overlap, so one pass over s is enough.
func (e escape) mapSpans(s string, spans []span) {
	i, read := 0, 0 // the same position in s and in unescape(s)
	next := indexOrEnd(s, e.begins)
	mapOffset := func(offset int) int {
		for {
			if next < i {
				next = i + indexOrEnd(s[i:], e.begins)
			}
			if offset < read+next-i || next == len(s) {
				return i + offset - read
			}
			i, read = next, read+next-i
			r, n := e.readOne(s[i:])
			width := utf8.RuneLen(r)
			if n == 0 { // this byte begins no escape
				n, width = 1, 1
			}
			if offset < read+width {
				return i
			}
			i, read = i+n, read+width
		}
	}
	for k := range spans {
		spans[k] = span{mapOffset(spans[k].from), mapOffset(spans[k].to)}
	}
}

// indexOrEnd returns the offset of the first b in s, or len(s).
func indexOrEnd(s string, b byte) int {
	if i := strings.IndexByte(s, b); i >= 0 {
		return i
	}
	return len(s)
}

// readBackslash decodes the escapes of JSON (RFC 8259 §7), and \x and \' of programming languages.
func readBackslash(s string) (rune, int) {
	if len(s) < 2 {
		return 0, 0
	}
	switch c := s[1]; c {
	case '"', '\\', '/', '\'':
		return rune(c), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'x':
		return readHexDigits(s, 2, 2)
	case 'u':
		r, n := readHexDigits(s, 2, 4)
		if n == 0 || !utf16.IsSurrogate(r) {
			return r, n
		}
		if strings.HasPrefix(s[n:], `\u`) {
			if low, m := readHexDigits(s[n:], 2, 4); m > 0 && utf16.DecodeRune(r, low) != utf8.RuneError {
				return utf16.DecodeRune(r, low), n + m
			}
		}
	}
	return 0, 0
}

// readPercent decodes the escapes of URLs (RFC 3986 §2.1) that are ASCII characters.
func readPercent(s string) (rune, int) {
	if r, n := readHexDigits(s, 1, 2); r < utf8.RuneSelf {
		return r, n
	}
	return 0, 0
}

// entities are the named entities that encoders of HTML and XML use.
var entities = map[string]rune{"amp": '&', "lt": '<', "gt": '>', "quot": '"', "apos": '\''}

// readEntity decodes the character references of HTML and XML.
func readEntity(s string) (rune, int) {
	const longest = 10
	end := strings.IndexByte(s[:min(len(s), longest)], ';')
	if end < 2 {
		return 0, 0
	}
	name := s[1:end]
	if r, ok := entities[name]; ok {
		return r, end + 1
	}
	number, base := strings.CutPrefix(name, "#")
	if !base {
		return 0, 0
	}
	radix := 10
	if hex := strings.TrimLeft(number, "xX"); hex != number {
		number, radix = hex, 16
	}
	if n, err := strconv.ParseUint(number, radix, 21); err == nil && utf8.ValidRune(rune(n)) {
		return rune(n), end + 1
	}
	return 0, 0
}

// readHexDigits decodes count hexadecimal digits, 2 or 4, that follow the first after bytes of s.
func readHexDigits(s string, after, count int) (rune, int) {
	if len(s) < after+count {
		return 0, 0
	}
	var unit [2]byte
	if _, err := hex.Decode(unit[2-count/2:], []byte(s[after:after+count])); err != nil {
		return 0, 0
	}
	return rune(binary.BigEndian.Uint16(unit[:])), after + count
}
