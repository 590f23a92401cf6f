package secret

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxEscapes is how many escapes are looked through, one in the other: JSON in the text of a JSON answer is two.
const maxEscapes = 2

// How long a secret has to be to be masked: shortestAnywhere in the middle of other text too, a shorter one only
// where it stands as a word of its own, since four letters are part of ordinary words. What is shorter than
// shortestWord stays: it would garble every text, and is no secret that a mask could keep.
const (
	shortestAnywhere = 8
	shortestWord     = 4
)

// Masker puts asterisks where a text holds a secret, as it is or as an encoder spells it: JSON is free to write any
// character as an escape, and Postgres undoes that. A nil one masks nothing. Safe for concurrent use.
type Masker struct{ anywhere, words []string }

// NewMasker masks texts, and names as words only, however long they are: a user's name is part of tools' names by
// accident. It is nil when none of them is long enough.
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

// WithoutWords masks only what is masked anywhere: for names that something is called by, where a word is more likely
// no secret.
func (m *Masker) WithoutWords() *Masker {
	if m == nil || m.anywhere == nil {
		return nil
	}
	return &Masker{anywhere: m.anywhere}
}

// Replace is s without the secrets. Those that overlap become one mask.
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

// span is a part of a text, in bytes.
type span struct{ from, to int }

// findEscaped finds secrets that are there once escapes are read, at most depth of them in one another.
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

// findPlain finds secrets as they are.
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

// isInsideWord tells whether the bytes before and at i belong to one word.
func isInsideWord(s string, i int) bool {
	inWord := func(c byte) bool {
		return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c >= utf8.RuneSelf
	}
	return i > 0 && i < len(s) && inWord(s[i-1]) && inWord(s[i])
}

// escape is a way to spell characters that begins with one of its own. one reads the first of s: the rune that it
// stands for, -1 for a byte that is none by itself, and its length; 0: s begins with none.
type escape struct {
	begins  byte
	readOne func(s string) (r rune, n int)
}

var escapes = []escape{{'\\', readBackslash}, {'%', readPercent}, {'&', readEntity}}

// unescape is s with the escapes read.
func (e escape) unescape(s string) string {
	var out []byte
	done := 0 // so much of s is in out
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

// mapOffsets tells where in s each byte of read(s) comes from, and its end.
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

// readBackslash reads the escapes of JSON (RFC 8259 §7), and \x and \' of programming languages.
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

// readPercent reads the escapes of URLs (RFC 3986 §2.1) as far as they are ASCII.
func readPercent(s string) (rune, int) {
	if r, n := readHexDigits(s, 1, 2); r < utf8.RuneSelf {
		return r, n
	}
	return 0, 0
}

// entities are those that every encoder of HTML and XML writes.
var entities = map[string]rune{"amp": '&', "lt": '<', "gt": '>', "quot": '"', "apos": '\''}

// readEntity reads the character references of HTML and XML.
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

// readHexDigits reads count hexadecimal digits after the first bytes of s.
func readHexDigits(s string, after, count int) (rune, int) {
	if len(s) < after+count {
		return 0, 0
	}
	var r rune
	for _, c := range []byte(s[after : after+count]) {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, 0
		}
		r = r<<4 | rune(c)
	}
	return r, after + count
}
