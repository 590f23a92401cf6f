package servers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// maxDepth is more than anything in the file needs: servers, one server, its headers, a value.
const maxDepth = 8

// Error is one thing that is wrong with the file.
type Error struct {
	File    string
	Line    int    // 1-based; 0: the file as a whole
	Path    string // as in servers["8453:42"].url; empty: the file as a whole
	Problem string // what is wrong and what to write; never with a value
}

func (e *Error) Error() string {
	at := e.File
	if e.Line > 0 {
		at += ":" + strconv.Itoa(e.Line)
	}
	if e.Path != "" {
		at += ": " + e.Path
	}
	return at + ": " + e.Problem
}

// node is a JSON value and where it stands.
type node struct {
	value any // string, json.Number, bool, nil, *object or []*node
	line  int
	path  string
}

// object keeps its fields in the order of the file.
type object struct {
	names  []string
	fields map[string]*node
}

// reader makes nodes of a document that is known to be JSON.
type reader struct {
	file    string
	raw     []byte
	dec     *json.Decoder
	line    int // of counted
	counted int // bytes whose newlines are in line
}

// readTree reads one JSON document. All errors are *Error.
func readTree(file string, raw []byte) (*node, error) {
	r := &reader{file: file, raw: raw, dec: json.NewDecoder(bytes.NewReader(raw)), line: 1}
	r.dec.UseNumber()
	if !utf8.Valid(raw) {
		return nil, &Error{File: file, Problem: "is not UTF-8 text"}
	}
	var syntax *json.SyntaxError
	if err := json.Unmarshal(raw, new(json.RawMessage)); errors.As(err, &syntax) {
		return nil, &Error{File: file, Line: 1 + bytes.Count(raw[:min(max(int(syntax.Offset)-1, 0), len(raw))], []byte("\n")), Problem: "is not JSON: " + syntax.Error()}
	} else if err != nil {
		return nil, &Error{File: file, Problem: "is not JSON"}
	}
	return r.node("", 0)
}

// at is the line of what the decoder has just read: no JSON token goes over a line's end.
func (r *reader) at() int {
	end := min(int(r.dec.InputOffset()), len(r.raw))
	r.line += bytes.Count(r.raw[r.counted:end], []byte("\n"))
	r.counted = end
	return r.line
}

func (r *reader) fault(path, problem string) error {
	return &Error{File: r.file, Line: r.at(), Path: path, Problem: problem}
}

func (r *reader) node(path string, depth int) (*node, error) {
	token, err := r.dec.Token()
	if err != nil {
		return nil, r.fault(path, "is not JSON")
	}
	n := &node{value: token, line: r.at(), path: path}
	delim, ok := token.(json.Delim)
	if !ok {
		return n, nil
	}
	if depth >= maxDepth {
		return nil, r.fault(path, fmt.Sprintf("nests deeper than %d levels", maxDepth))
	}
	if delim == '{' {
		n.value, err = r.object(path, depth)
	} else {
		n.value, err = r.list(path, depth)
	}
	return n, err
}

func (r *reader) object(path string, depth int) (*object, error) {
	o := &object{fields: map[string]*node{}}
	for r.dec.More() {
		token, err := r.dec.Token()
		name, ok := token.(string)
		if err != nil || !ok {
			return nil, r.fault(path, "is not JSON")
		}
		at := join(path, name)
		if _, twice := o.fields[name]; twice {
			return nil, r.fault(at, "is there twice")
		}
		n, err := r.node(at, depth+1)
		if err != nil {
			return nil, err
		}
		o.names, o.fields[name] = append(o.names, name), n
	}
	_, err := r.dec.Token() // }
	return o, err
}

func (r *reader) list(path string, depth int) ([]*node, error) {
	var list []*node
	for r.dec.More() {
		n, err := r.node(fmt.Sprintf("%s[%d]", path, len(list)), depth+1)
		if err != nil {
			return nil, err
		}
		list = append(list, n)
	}
	_, err := r.dec.Token() // ]
	return list, err
}

// maxShownName is how much of a name in the file an error shows, in bytes.
const maxShownName = 120

// join is the path of a field: plain names after a dot, others quoted in brackets.
func join(path, name string) string {
	plain := name != ""
	for i := range len(name) {
		c := name[i]
		plain = plain && (c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || i > 0 && '0' <= c && c <= '9')
	}
	switch {
	case !plain || len(name) > maxShownName:
		return path + "[" + strconv.Quote(name[:min(len(name), maxShownName)]) + "]"
	case path == "":
		return name
	}
	return path + "." + name
}
