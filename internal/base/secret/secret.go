package secret

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
)

// mask is the printed form of every secret, regardless of its length.
const mask = "******"

// Secret is a string that fmt, json, text and slog print as asterisks. Only Reveal returns its text, so that all uses
// can be found. The zero value is the empty secret.
type Secret struct {
	_ [0]func() // prevents ==, which would compare pointers, and not in constant time

	// value is a pointer, because fmt prints the content of fields whose methods it cannot call (unexported ones, or
	// with %p), but does not follow a pointer there.
	value *string
}

// New returns a Secret with the text s.
func New(s string) Secret { return Secret{value: &s} }

// Reveal returns the text. Do not log it, store it unencrypted or put it into an error.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// IsZero reports whether the secret is empty.
func (s Secret) IsZero() bool { return s.Reveal() == "" }

// Compare reports whether given equals the secret. It compares their SHA-256 sums in constant time.
func (s Secret) Compare(given string) bool {
	a, b := sha256.Sum256([]byte(s.Reveal())), sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// String implements fmt.Stringer.
func (s Secret) String() string { return mask }

// GoString implements fmt.GoStringer.
func (s Secret) GoString() string { return mask }

// Format implements fmt.Formatter, so that all verbs, such as %x, %d and %q, print asterisks.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, mask) }

// MarshalJSON implements json.Marshaler.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(mask) }

// MarshalText implements encoding.TextMarshaler.
func (s Secret) MarshalText() ([]byte, error) { return []byte(mask), nil }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue(mask) }
