package job

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxDepth    = 32  // nesting of a job; Postgres and agents choke on far more
	maxExponent = 300 // of a number: jsonb holds numeric, which ends before JSON does
	maxDigits   = 400
)

// Refusal says which field of a job is wrong and why. Nothing of a refused job is stored.
type Refusal struct {
	Path    string // "action.payloadTemplate.a[0]"; empty: the job as a whole
	Problem string
}

func (r *Refusal) Error() string {
	if r.Path == "" {
		return r.Problem
	}
	return r.Path + ": " + r.Problem
}

func refuse(path, format string, args ...any) *Refusal {
	return &Refusal{Path: path, Problem: fmt.Sprintf(format, args...)}
}

// node is one JSON value with the path at which it stands. Strings are storable already.
type node struct {
	path  string
	value any // string, json.Number, bool, nil, []*node, *object
}

type object struct {
	names  []string // in the order of the input
	fields map[string]*node
}

// tree is a decoded job with the paths of strings that had to be repaired.
type tree struct {
	root      *node
	sanitized []string

	dec     *json.Decoder
	suspect bool // U+FFFD in a string may be a repair, not the sender's own
}

// decode reads exactly one JSON value: duplicate names, depth and absurd numbers are refused with their path.
func decode(raw []byte) (*tree, *Refusal) {
	t := &tree{dec: json.NewDecoder(bytes.NewReader(raw))}
	t.dec.UseNumber()
	t.suspect = !utf8.Valid(raw) || bytes.Contains(bytes.ToLower(raw), []byte(`\ud`))
	root, r := t.next("", 0)
	if r != nil {
		return nil, r
	}
	if _, err := t.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, refuse("", "there is text after the job's closing brace")
	}
	t.root = root
	return t, nil
}

func (t *tree) next(path string, depth int) (*node, *Refusal) {
	if depth > maxDepth {
		return nil, refuse(path, "is nested deeper than %d levels", maxDepth)
	}
	tok, err := t.dec.Token()
	if err != nil {
		return nil, notJSON(path, err)
	}
	n := &node{path: path}
	switch v := tok.(type) {
	case json.Delim:
		switch v {
		case '{':
			o, r := t.object(path, depth)
			n.value = o
			return n, r
		case '[':
			list, r := t.list(path, depth)
			n.value = list
			return n, r
		}
		return nil, refuse(path, "is not JSON")
	case string:
		n.value = t.clean(path, v)
	case json.Number:
		if !sane(v) {
			return nil, refuse(path, "is a number too long or too large to keep")
		}
		n.value = v
	default:
		n.value = v
	}
	return n, nil
}

func (t *tree) object(path string, depth int) (*object, *Refusal) {
	o := &object{fields: map[string]*node{}}
	for t.dec.More() {
		tok, err := t.dec.Token()
		if err != nil {
			return nil, notJSON(path, err)
		}
		name, ok := tok.(string)
		if !ok {
			return nil, refuse(path, "is not JSON: a field has no name")
		}
		name = t.clean(join(path, "(name)"), name)
		at := join(path, name)
		if _, twice := o.fields[name]; twice {
			return nil, refuse(at, "is given twice")
		}
		child, r := t.next(at, depth+1)
		if r != nil {
			return nil, r
		}
		o.names, o.fields[name] = append(o.names, name), child
	}
	if _, err := t.dec.Token(); err != nil {
		return nil, notJSON(path, err)
	}
	return o, nil
}

func (t *tree) list(path string, depth int) ([]*node, *Refusal) {
	list := []*node{}
	for t.dec.More() {
		child, r := t.next(path+"["+strconv.Itoa(len(list))+"]", depth+1)
		if r != nil {
			return nil, r
		}
		list = append(list, child)
	}
	if _, err := t.dec.Token(); err != nil {
		return nil, notJSON(path, err)
	}
	return list, nil
}

// clean makes a foreign string storable and notes where it had to.
func (t *tree) clean(path, s string) string {
	repaired := t.suspect && strings.ContainsRune(s, utf8.RuneError)
	if strings.ContainsRune(s, 0) {
		s, repaired = strings.ReplaceAll(s, "\x00", "\uFFFD"), true
	}
	if repaired {
		t.sanitized = append(t.sanitized, path)
	}
	return s
}

func notJSON(path string, err error) *Refusal {
	var syntax *json.SyntaxError
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return refuse(path, "is not JSON: it ends too early")
	case errors.As(err, &syntax):
		return refuse(path, "is not JSON: %s at byte %d", syntax.Error(), syntax.Offset)
	}
	return refuse(path, "is not JSON")
}

// sane keeps numbers within what Postgres' numeric takes.
func sane(n json.Number) bool {
	s := n.String()
	mantissa, exponent, has := strings.Cut(strings.ToLower(s), "e")
	if len(mantissa) > maxDigits {
		return false
	}
	if !has {
		return true
	}
	e, err := strconv.Atoi(strings.TrimPrefix(exponent, "+"))
	return err == nil && e <= maxExponent && e >= -maxExponent
}

func join(path, name string) string {
	// A name that is a path's own punctuation, empty or long would make the path unreadable.
	if name == "" || len(name) > 64 || strings.ContainsAny(name, ".[]\" \t\r\n") {
		if r := []rune(name); len(r) > 64 {
			name = string(r[:64]) + "…"
		}
		return path + "[" + strconv.Quote(name) + "]"
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

// encode writes a node as compact JSON, with its strings as they were made storable.
func (n *node) encode() json.RawMessage {
	var b bytes.Buffer
	n.write(&b)
	return b.Bytes()
}

func (n *node) write(b *bytes.Buffer) {
	switch v := n.value.(type) {
	case *object:
		b.WriteByte('{')
		for i, name := range v.names {
			if i > 0 {
				b.WriteByte(',')
			}
			writeString(b, name)
			b.WriteByte(':')
			v.fields[name].write(b)
		}
		b.WriteByte('}')
	case []*node:
		b.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			e.write(b)
		}
		b.WriteByte(']')
	case string:
		writeString(b, v)
	case json.Number:
		b.WriteString(v.String())
	case bool:
		b.WriteString(strconv.FormatBool(v))
	default:
		b.WriteString("null")
	}
}

func writeString(b *bytes.Buffer, s string) {
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s)       // a string always encodes
	b.Truncate(b.Len() - 1) // Encode ends with a newline
}
