package strictjson

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"unicode"
	"unicode/utf8"
)

const (
	maxPathBytes = 512
	maxNameBytes = 64 // of a name within a path
	smallObject  = 8  // number of members; a larger object has an index
)

// Value is one JSON value.
type Value struct {
	Data any    // string, json.Number, bool, nil, *Object or []*Value
	Name string // name of the member, if in an object
	End  int    // offset in the document after the value's token; for an object or a list, after the opening bracket

	// The path is computed on demand. Stored in each of a hundred thousand values, a path of 34 long names would need a
	// thousand times the size of the document.
	parent *Value
	index  int    // index in its list; -1 if in an object
	at     string // path of a value from New
}

// New returns a value that is not part of a document. Its Path is path, which error messages show as the source of the
// value.
func New(path string, data any) *Value { return &Value{Data: data, index: -1, at: path} }

// Object returns v's members if v is an object, otherwise nil and false.
func (v *Value) Object() (*Object, bool) {
	o, ok := v.Data.(*Object)
	return o, ok
}

// Object is a JSON object. Its members are in the order of the document.
type Object struct {
	Members []*Value
	byName  map[string]*Value // nil for a small object
}

// Get returns the member with this name, or nil if the object has none.
func (o *Object) Get(name string) *Value {
	if o.byName != nil {
		return o.byName[name]
	}
	for _, m := range o.Members {
		if m.Name == name {
			return m
		}
	}
	return nil
}

// FirstUnknown returns the first member whose name is not in known, or nil if all names are.
func (o *Object) FirstUnknown(known ...string) *Value {
	for _, m := range o.Members {
		if !slices.Contains(known, m.Name) {
			return m
		}
	}
	return nil
}

func (o *Object) add(m *Value) {
	o.Members = append(o.Members, m)
	switch {
	case o.byName != nil:
		o.byName[m.Name] = m
	case len(o.Members) > smallObject:
		o.byName = make(map[string]*Value, 2*len(o.Members))
		for _, m := range o.Members {
			o.byName[m.Name] = m
		}
	}
}

// Path returns the location of the value, such as "action.payloadTemplate.a[0]"; "" for the whole document.
func (v *Value) Path() string {
	if v.at != "" {
		return v.at
	}
	var way []*Value
	for ; v.parent != nil; v = v.parent {
		way = append(way, v)
	}
	path := ""
	for _, v := range slices.Backward(way) {
		if v.index >= 0 {
			path += "[" + strconv.Itoa(v.index) + "]"
		} else {
			path = Join(path, v.Name)
		}
		if len(path) > maxPathBytes {
			return cut(path, maxPathBytes)
		}
	}
	return path
}

// Join appends a member's name to a path. It quotes names that contain other characters than letters, digits, _, - and
// $.
func Join(path, name string) string {
	plain := name != "" && len(name) <= maxNameBytes
	for _, r := range name {
		plain = plain && (r == '_' || r == '-' || r == '$' || unicode.IsLetter(r) || unicode.IsDigit(r))
	}
	switch {
	case !plain:
		return path + "[" + Quote(name) + "]"
	case path == "":
		return name
	}
	return path + "." + name
}

// Quote returns untrusted text for a message: shortened, and with unprintable characters escaped.
func Quote(s string) string { return strconv.Quote(cut(s, maxNameBytes)) }

// cut shortens s to about limit bytes, at a character boundary.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit] + "…"
}

// Plain returns the value as encoding/json decodes it with UseNumber: maps, slices, strings, json.Number, bool and nil.
func (v *Value) Plain() any {
	switch data := v.Data.(type) {
	case *Object:
		out := make(map[string]any, len(data.Members))
		for _, m := range data.Members {
			out[m.Name] = m.Plain()
		}
		return out
	case []*Value:
		out := make([]any, len(data))
		for i, e := range data {
			out[i] = e.Plain()
		}
		return out
	}
	return v.Data
}

// Encode returns the value as compact JSON.
func (v *Value) Encode() json.RawMessage {
	var b bytes.Buffer
	v.write(&b)
	return b.Bytes()
}

func (v *Value) write(b *bytes.Buffer) {
	separate := func(i int) {
		if i > 0 {
			b.WriteByte(',')
		}
	}
	switch data := v.Data.(type) {
	case *Object:
		b.WriteByte('{')
		for i, m := range data.Members {
			separate(i)
			writeString(b, m.Name)
			b.WriteByte(':')
			m.write(b)
		}
		b.WriteByte('}')
	case []*Value:
		b.WriteByte('[')
		for i, e := range data {
			separate(i)
			e.write(b)
		}
		b.WriteByte(']')
	case string:
		writeString(b, data)
	case json.Number:
		b.WriteString(data.String())
	case bool:
		b.WriteString(strconv.FormatBool(data))
	default:
		b.WriteString("null")
	}
}

// writeString escapes only the characters that JSON requires to be escaped.
func writeString(b *bytes.Buffer, s string) {
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s)       // a string always encodes
	b.Truncate(b.Len() - 1) // Encode ends with a newline
}
