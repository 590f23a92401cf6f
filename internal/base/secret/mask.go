package secret

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"slices"
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
	spans := append(m.findPlain(s), m.findEscaped(s, maxEscapes)...)
	if len(spans) == 0 {
		return s
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	var out strings.Builder
	done := 0
	for _, x := range spans {
		if x.from >= done {
			out.WriteString(s[done:x.from])
			out.WriteString(mask)
		}
		done = max(done, x.to)
	}
	out.WriteString(s[done:])
	return out.String()
}

// span is a range of bytes in a text.
type span struct{ from, to int }

// findEscaped finds secrets that appear after decoding at most depth levels of escapes.
func (m *Masker) findEscaped(s string, depth int) (found []span) {
	for _, e := range escapes {
		read := e.unescape(s)
		if read == s {
			continue
		}
		inner := m.findPlain(read)
		if depth > 1 {
			inner = append(inner, m.findEscaped(read, depth-1)...)
		}
		if len(inner) == 0 {
			continue
		}
		at := e.mapOffsets(s)
		for _, x := range inner {
			found = append(found, span{at[x.from], at[x.to]})
		}
	}
	return found
}

// findPlain finds unescaped secrets.
func (m *Masker) findPlain(s string) (found []span) {
	find := func(t string, fits func(x span) bool) {
		for at := 0; ; {
			i := strings.Index(s[at:], t)
			if i < 0 {
				return
			}
			x := span{at + i, at + i + len(t)}
			if at = x.from + 1; fits(x) {
				found, at = append(found, x), x.to
			}
		}
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
	var out []byte
	done := 0 // number of bytes of s that are in out
	for i := strings.IndexByte(s, e.begins); i >= 0; {
		next := i + 1
		if r, n := e.readOne(s[i:]); n > 0 {
			out = utf8.AppendRune(append(out, s[done:i]...), r)
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
	return string(append(out, s[done:]...))
}

// mapOffsets returns, for each byte of unescape(s) and for its end, the offset in s from which it originates.
func (e escape) mapOffsets(s string) []int {
	at := make([]int, 0, len(s)+1)
	for i := 0; i < len(s); {
		n, width := 0, 1
		if s[i] == e.begins {
			var r rune
			if r, n = e.readOne(s[i:]); n > 0 {
				width = utf8.RuneLen(r)
			}
		}
		for range width {
			at = append(at, i)
		}
		i += max(n, 1)
	}
	return append(at, len(s))
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
