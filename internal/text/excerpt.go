package text

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Excerpt is foreign text for a message: one line, valid UTF-8, nothing that turns or hides text, about n bytes at
// most.
func Excerpt(s string, n int) string {
	cut := len(s) > n
	if cut {
		s = s[:n]
	}
	s = strings.Map(func(r rune) rune {
		switch {
		case r == utf8.RuneError:
			return '?'
		case unicode.IsControl(r), unicode.Is(unicode.Cf, r), r == '\u2028', r == '\u2029':
			return ' '
		}
		return r
	}, s)
	s = strings.TrimSpace(s)
	if cut {
		s += " …"
	}
	return s
}

// Sanitize removes the characters that make text read differently from what it is: control characters but tab and
// line feed, and the bidirectional embeddings, overrides and isolates. The marks (LRM, RLM, ALM) stay: ordinary
// Arabic and Hebrew text needs them, and they override nothing.
func Sanitize(s string) string {
	if strings.IndexFunc(s, misleads) < 0 {
		return s
	}
	return strings.Map(func(r rune) rune {
		if misleads(r) {
			return -1
		}
		return r
	}, s)
}

// misleads: Unicode Cc but tab and line feed, and LRE RLE PDF LRO RLO, LRI RLI FSI PDI.
func misleads(r rune) bool {
	switch {
	case r == '\t' || r == '\n':
		return false
	case r < 0x20, r >= 0x7f && r <= 0x9f:
		return true
	}
	return r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069
}
