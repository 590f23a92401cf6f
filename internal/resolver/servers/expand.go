package servers

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxValue bounds one value after the replacement of its variables, in bytes.
const maxValue = 64 << 10

// expandVariables replaces ${NAME} by the value of the variable NAME, and $${ by a literal ${. If that fails it returns
// a description of the problem.
func expandVariables(s string, env func(string) (string, bool)) (_, problem string) {
	var out strings.Builder
	for s != "" {
		i := strings.Index(s, "${")
		if i < 0 {
			out.WriteString(s)
			break
		}
		if i > 0 && s[i-1] == '$' {
			out.WriteString(s[:i-1] + "${")
			s = s[i+2:]
			continue
		}
		out.WriteString(s[:i])
		name, rest, closed := strings.Cut(s[i+2:], "}")
		if !closed || !isVariable(name) {
			return "", "has a ${ that begins no name of a variable: ${NAME} is replaced, and $${ is a plain ${"
		}
		value, ok := env(name)
		if !ok || value == "" {
			return "", fmt.Sprintf("names ${%s}, which is not set in the environment of this process", name)
		}
		if out.WriteString(value); out.Len() > maxValue {
			break
		}
		s = rest
	}
	v := out.String()
	switch {
	case len(v) > maxValue:
		return "", fmt.Sprintf("is longer than %d bytes with its expanded names", maxValue)
	case strings.ContainsRune(v, 0) || !utf8.ValidString(v):
		return "", "has a NUL, or is not UTF-8 text with its expanded names"
	}
	return v, ""
}

// isVariable reports whether s is a valid name of an environment variable of bounded length. The bound matters if a
// closing brace is missing.
func isVariable(s string) bool {
	if s == "" || len(s) > maxName || '0' <= s[0] && s[0] <= '9' {
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) < 0
}
