package records

import (
	"strings"

	"github.com/google/uuid"
)

// ParseShortID returns the first and the last id that begin with s: with at least 8 hexadecimal digits.
func ParseShortID(s string) (first, last uuid.UUID, ok bool) {
	if id, err := uuid.Parse(s); err == nil {
		return id, id, true
	}
	digits := strings.ReplaceAll(s, "-", "")
	rest := max(32-len(digits), 0)
	first, err := uuid.Parse(digits + strings.Repeat("0", rest))
	last, _ = uuid.Parse(digits + strings.Repeat("f", rest))
	return first, last, err == nil && rest <= 24
}
