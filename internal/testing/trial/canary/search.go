package canary

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
)

// Secret is a text that must not occur anywhere.
type Secret struct {
	Name string
	Text string
}

// Finding is an occurrence of a secret.
type Finding struct {
	Secret string // the secret's name
	Form   string
	Place  string
	At     int    // offset in bytes
	Around string // the surrounding data, quoted
}

func (f Finding) String() string {
	return fmt.Sprintf("%s: at byte %d stands %s, %s: %s", f.Place, f.At, f.Secret, f.Form, f.Around)
}

// Needles are secrets that are prepared for the search. They are immutable and safe for concurrent use.
type Needles struct {
	filter [filterBits / 64]uint64 // hashes of the first eight bytes of all needles
	starts map[uint64][]needle     // by the first eight bytes
}

type needle struct {
	text   []byte
	secret string
	form   string
}

const filterBits = 1 << 20

func slot(v uint64) uint64 { return v * 0x9e3779b97f4a7c15 >> 44 } // the upper 20 bits

// NewNeedles returns needles for secrets of at least 16 bytes. Text must not contain parts that all secrets of its
// kind share, such as the beginning of a key's DER encoding: they would be found where they are allowed.
func NewNeedles(secrets ...Secret) (*Needles, error) {
	n := &Needles{starts: map[uint64][]needle{}}
	seen := map[string]bool{}
	for _, s := range secrets {
		if len(s.Text) < 2*shortest {
			return nil, fmt.Errorf("canary: %s is %d bytes long: pieces of it would be found by chance", s.Name, len(s.Text))
		}
		for _, f := range formsOf(s.Text) {
			for i := 0; i+f.piece <= len(f.text); i++ {
				if piece := f.text[i : i+f.piece]; !seen[piece] {
					seen[piece] = true
					n.add(needle{[]byte(piece), s.Name, f.name})
				}
			}
		}
	}
	return n, nil
}

func (n *Needles) add(one needle) {
	v := binary.LittleEndian.Uint64(one.text)
	n.filter[slot(v)/64] |= 1 << (slot(v) % 64)
	n.starts[v] = append(n.starts[v], one)
}

// Search returns the secrets that occur in data, each with its first position.
func (n *Needles) Search(place string, data []byte) []Finding {
	var found []Finding
	reported := map[string]bool{}
	for i := 0; i+shortest <= len(data); i++ {
		v := binary.LittleEndian.Uint64(data[i:])
		if h := slot(v); n.filter[h/64]&(1<<(h%64)) == 0 {
			continue
		}
		for _, one := range n.starts[v] {
			if !reported[one.secret] && bytes.HasPrefix(data[i:], one.text) {
				reported[one.secret] = true
				found = append(found, Finding{one.secret, one.form, place, i, around(data, i)})
			}
		}
	}
	return found
}

// around returns the data around a position, so that a reader can see which program wrote it.
func around(data []byte, at int) string {
	const before, after = 160, 80
	return fmt.Sprintf("%q", data[max(0, at-before):min(len(data), at+after)])
}

// letters are characters that no form changes.
const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// Random returns a new random text of n letters and digits.
func Random(n int) string {
	var b strings.Builder
	for range n {
		b.WriteByte(letters[rand.IntN(len(letters))])
	}
	return b.String()
}

// Token returns a new secret of 36 random letters and digits, with special after the first and second twelve of them,
// so that the secret contains characters that are escaped. Every piece of a token is unique, so that a finding names
// the right secret.
func Token(special string) string {
	const part = 12
	return Random(part) + special + Random(part) + special + Random(part)
}
