package text

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Excerpt returns untrusted text for a message: one line of valid UTF-8 without invisible or direction-changing
// characters, of about n bytes at most.
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

// Sanitize removes characters that make text look different from its content: control characters except tab and line
// feed, bidirectional embeddings, overrides and isolates, and tag characters. It keeps the marks LRM, RLM and ALM,
// because ordinary Arabic and Hebrew text needs them and they override nothing. Tag characters repeat ASCII invisibly,
// so they could hide instructions to an agent from people. Without them, the flags of England, Scotland and Wales
// become black flags.
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

// misleads reports whether r is in Unicode category Cc, except tab and line feed, is one of LRE, RLE, PDF, LRO, RLO,
// LRI, RLI, FSI and PDI, or is in the block Tags.
func misleads(r rune) bool {
	switch {
	case r == '\t' || r == '\n':
		return false
	case r < 0x20, r >= 0x7f && r <= 0x9f:
		return true
	}
	return r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r >= 0xe0000 && r <= 0xe007f
}
