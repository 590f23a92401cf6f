package secret

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
)

// mask is what a secret prints as, whatever its length.
const mask = "******"

// Secret is a text that prints as asterisks: through fmt, json, text and slog. Reveal is the only way to its bytes,
// so that every place that uses one can be found. The zero value is the empty secret.
type Secret struct {
	_ [0]func() // not comparable: == would compare pointers, and not in constant time

	// A pointer, since fmt prints fields that it cannot call methods on (unexported ones, or after %p) as they are:
	// it does not follow a pointer there.
	value *string
}

// New wraps a text.
func New(s string) Secret { return Secret{value: &s} }

// Reveal returns the text. Do not log it, store it in clear or put it into an error.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// IsZero tells whether there is no secret at all.
func (s Secret) IsZero() bool { return s.Reveal() == "" }

// Compare tells whether given is the secret, in a time that depends on neither its text nor its length.
func (s Secret) Compare(given string) bool {
	a, b := sha256.Sum256([]byte(s.Reveal())), sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// String implements fmt.Stringer.
func (s Secret) String() string { return mask }

// GoString implements fmt.GoStringer.
func (s Secret) GoString() string { return mask }

// Format implements fmt.Formatter, so that no verb (%x, %d, %q) goes around String.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, mask) }

// MarshalJSON implements json.Marshaler.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(mask) }

// MarshalText implements encoding.TextMarshaler.
func (s Secret) MarshalText() ([]byte, error) { return []byte(mask), nil }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(mask) }
