package text

import (
	"fmt"
	"strings"
)

// Count returns a number and the words for one or for many: "1 delivery is", "2 deliveries are".
func Count[N int | int64 | uint64](n N, one, many string) string {
	return fmt.Sprintf("%d %s", n, Plural(n, one, many))
}

// Plural returns the words for one or for many.
func Plural[N int | int64 | uint64](n N, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// JoinFirst joins at most most names and counts the others: "a, b and 3 more".
func JoinFirst(names []string, most int, separator string) string {
	out := strings.Join(names[:min(len(names), most)], separator)
	if n := len(names) - most; n > 0 {
		out += fmt.Sprintf(" and %d more", n)
	}
	return out
}
