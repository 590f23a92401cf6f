package text

import (
	"strings"
	"unicode"
)

// maxShort is the maximum length of the result of Shorten, in characters.
const maxShort = 120

// Printable replaces control and direction characters by "·", so that untrusted text cannot control the operator's
// terminal.
func Printable[S ~string](s S) string {
	return strings.Map(func(r rune) rune {
		if DrivesTerminal(r) {
			return '·'
		}
		return r
	}, string(s))
}

// DrivesTerminal reports whether r is a control character or changes the direction of text.
func DrivesTerminal(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }

// Shorten cuts a text to fit a line of a table or a sentence.
func Shorten(s string) string { return Cut(s, maxShort, "…") }

// Cut returns at most most characters of a text, followed by mark if it removed any.
func Cut(s string, most int, mark string) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + mark
	}
	return s
}
