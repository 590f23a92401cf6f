package job

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxDepth     = 2 + 32 // nesting of a job, so that meta and payloadTemplate have 32 levels of their own
	maxExponent  = 300    // of a number: jsonb holds numeric, which ends before JSON does
	maxDigits    = 400    // of a number as it is written
	maxPathBytes = 512
	maxSanitized = 32 // paths that are kept; a hostile job can have a hundred thousand
)

// Refusal says which field of a job is wrong and why. Nothing of a refused job is stored.
type Refusal struct {
	Path    string // "action.payloadTemplate.a[0]"; empty: the job as a whole
	Problem string
}

// Error is "<path>: <problem>", or the problem alone when it is the whole job's.
func (r *Refusal) Error() string {
	if r.Path == "" {
		return r.Problem
	}
	return r.Path + ": " + r.Problem
}

func refuse(path, format string, args ...any) *Refusal {
	return &Refusal{Path: path, Problem: fmt.Sprintf(format, args...)}
}

// node is one JSON value. Strings in it are storable already. Its path is worked out when asked for: written into each of a
// hundred thousand nodes, a path of 34 long names would need a thousand times the job's size.
type node struct {
	parent *node
	name   string // in its object
	index  int    // in its list; -1 in an object
	at     string // instead of the path, for nodes that are made of others
	value  any    // string, json.Number, bool, nil, []*node, *object
}

type object struct {
	names  []string // in the order of the input
	fields map[string]*node
}

// put adds a field, unless it is there.
func (o *object) put(name string, n *node) {
	if _, there := o.fields[name]; !there {
		o.names, o.fields[name] = append(o.names, name), n
	}
}

// path is where the value stands: "action.payloadTemplate.a[0]".
func (n *node) path() string {
	if n.at != "" {
		return n.at
	}
	var line []*node
	for ; n.parent != nil; n = n.parent {
		line = append(line, n)
	}
	var path string
	for i := len(line) - 1; i >= 0; i-- {
		if line[i].index >= 0 {
			path += "[" + strconv.Itoa(line[i].index) + "]"
		} else {
			path = join(path, line[i].name)
		}
		if len(path) > maxPathBytes {
			return cut(path, maxPathBytes)
		}
	}
	return path
}

// join appends a field's name; one that would not be read as a name is quoted.
func join(path, name string) string {
	plain := name != "" && len(name) <= 64
	for _, r := range name {
		plain = plain && (r == '_' || r == '-' || r == '$' || unicode.IsLetter(r) || unicode.IsDigit(r))
	}
	switch {
	case !plain:
		return path + "[" + quote(name) + "]"
	case path == "":
		return name
	}
	return path + "." + name
}

// quote shows foreign text in a message: bounded, and with everything escaped that is not printable.
func quote(s string) string { return strconv.Quote(cut(s, 64)) }

// cut bounds s to about limit bytes, between characters.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit] + "…"
}

// decoder reads a job token by token, so that what encoding/json passes over in silence is seen: a name that comes twice, a
// string that it repaired, depth, numbers beyond keeping.
type decoder struct {
	raw       []byte
	json      *json.Decoder
	sanitized []string // paths of strings that were made storable, at most maxSanitized
}

// decode reads exactly one JSON value.
func decode(raw []byte) (root *node, sanitized []string, refusal *Refusal) {
	d := &decoder{raw: raw, json: json.NewDecoder(bytes.NewReader(raw))}
	d.json.UseNumber()
	root = &node{index: -1}
	if r := d.value(root, 0); r != nil {
		return nil, nil, r
	}
	if _, err := d.json.Token(); !errors.Is(err, io.EOF) {
		return nil, nil, refuse("", "has text after the end of its JSON")
	}
	return root, d.sanitized, nil
}

func (d *decoder) value(n *node, depth int) *Refusal {
	if depth > maxDepth {
		return refuse(n.path(), "is nested deeper than %d levels", maxDepth)
	}
	tok, literal, r := d.token(n)
	if r != nil {
		return r
	}
	switch v := tok.(type) {
	case json.Delim:
		if v == '{' {
			return d.object(n, depth)
		}
		return d.list(n, depth)
	case string:
		n.value = d.clean(n, v, literal)
	case json.Number:
		if !storable(v) {
			return refuse(n.path(), "is a number too long or too large to be kept")
		}
		n.value = v
	default:
		n.value = v
	}
	return nil
}

func (d *decoder) object(n *node, depth int) *Refusal {
	o := &object{fields: map[string]*node{}}
	n.value = o
	for d.json.More() {
		tok, literal, r := d.token(n)
		if r != nil {
			return r
		}
		child := &node{parent: n, index: -1}
		name, _ := tok.(string)           // the decoder takes nothing else for a name
		child.name = repair(name)         // before clean, which records the path
		_ = d.clean(child, name, literal) // a repaired name is reported like a repaired value
		if o.fields[child.name] != nil {
			return refuse(child.path(), "is given twice")
		}
		if r := d.value(child, depth+1); r != nil {
			return r
		}
		o.put(child.name, child)
	}
	_, _, r := d.token(n)
	return r
}

func (d *decoder) list(n *node, depth int) *Refusal {
	list := []*node{}
	for d.json.More() {
		child := &node{parent: n, index: len(list)}
		if r := d.value(child, depth+1); r != nil {
			return r
		}
		list = append(list, child)
	}
	n.value = list
	_, _, r := d.token(n)
	return r
}

// token also gives the bytes of the token, with the separator before it.
func (d *decoder) token(n *node) (json.Token, []byte, *Refusal) {
	from := d.json.InputOffset()
	tok, err := d.json.Token()
	if err != nil {
		return nil, nil, notJSON(n.path(), err, d.json.InputOffset())
	}
	return tok, d.raw[from:d.json.InputOffset()], nil
}

// clean makes a foreign string storable and notes where it had to.
func (d *decoder) clean(n *node, s string, literal []byte) string {
	if (damaged(literal) || strings.ContainsRune(s, 0)) && len(d.sanitized) < maxSanitized {
		d.sanitized = append(d.sanitized, n.path())
	}
	return repair(s)
}

// repair replaces what Postgres text cannot hold. Invalid UTF-8 and lone surrogates the decoder has replaced already.
func repair(s string) string { return strings.ReplaceAll(s, "\x00", "\uFFFD") }

// damaged tells whether the JSON decoder replaced something in a string literal: bytes that are not UTF-8, or a surrogate that
// is not half of a pair.
func damaged(literal []byte) bool {
	if !utf8.Valid(literal) {
		return true
	}
	for i := bytes.IndexByte(literal, '\\'); i >= 0 && i+1 < len(literal); {
		step := 2
		if u := escaped(literal[i:]); u >= 0xD800 && u < 0xE000 {
			low := escaped(literal[min(i+6, len(literal)):])
			if u >= 0xDC00 || low < 0xDC00 || low >= 0xE000 {
				return true
			}
			step = 12
		}
		next := bytes.IndexByte(literal[i+step:], '\\')
		if next < 0 {
			return false
		}
		i += step + next
	}
	return false
}

// escaped is the code unit of a \uXXXX at the beginning of b, else -1.
func escaped(b []byte) int64 {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	u, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return int64(u)
}

func notJSON(path string, err error, offset int64) *Refusal {
	var syntax *json.SyntaxError
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return refuse(path, "is not JSON: it ends too early")
	case errors.As(err, &syntax):
		return refuse(path, "is not JSON: %s, near byte %d", syntax.Error(), offset)
	}
	return refuse(path, "is not JSON")
}

// storable keeps numbers well within what Postgres' numeric takes.
func storable(n json.Number) bool {
	mantissa, exponent, has := strings.Cut(strings.ToLower(n.String()), "e")
	if len(mantissa) > maxDigits {
		return false
	}
	if !has {
		return true
	}
	e, err := strconv.Atoi(exponent)
	return err == nil && e <= maxExponent && e >= -maxExponent
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
