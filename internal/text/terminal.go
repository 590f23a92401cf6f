package text

import (
	"strings"
	"unicode"
)

// maxShort is how many characters Shorten leaves.
const maxShort = 120

// Printable keeps strangers' text from driving the operator's terminal: control and direction characters become "·".
func Printable[S ~string](s S) string {
	return strings.Map(func(r rune) rune {
		if DrivesTerminal(r) {
			return '·'
		}
		return r
	}, string(s))
}

// DrivesTerminal tells control characters, and those that change the direction of text.
func DrivesTerminal(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }

// Shorten cuts a text so that it fits a line of a table or a sentence.
func Shorten(s string) string { return Cut(s, maxShort, "…") }

// Cut leaves at most most characters of a text; mark says that there were more.
func Cut(s string, most int, mark string) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + mark
	}
	return s
}
