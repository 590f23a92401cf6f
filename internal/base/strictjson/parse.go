package strictjson

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

// Options restrict the accepted documents. The zero value accepts every document without duplicate names.
type Options struct {
	// MaxDepth bounds the nesting of objects and lists; 0: unlimited.
	MaxDepth int
	// MaxDigits bounds the characters of a number, also after it is rewritten without its exponent. MaxExponent bounds
	// the exponent. If MaxDigits is 0, neither applies.
	MaxDigits, MaxExponent int
	// LastWins accepts duplicate names and keeps the last value, as encoding/json does. Otherwise a duplicate name is a
	// fault.
	LastWins bool
	// Repaired, if not nil, is called for each value in which, or in whose name, characters were replaced by U+FFFD.
	// encoding/json replaces invalid UTF-8 and unpaired surrogates in any case. NUL, which Postgres cannot store, is
	// replaced only if Repaired is set.
	Repaired func(*Value)
}

// Kind classifies a fault, for callers whose errors must not contain any part of the document.
type Kind int

// The kinds of faults.
const (
	NotJSON   Kind = iota
	Duplicate      // an object contains a name twice
	TooDeep
	BadNumber
)

// Fault is the first fault in a document.
type Fault struct {
	Kind    Kind
	Path    string // of the value, as Value.Path returns it; empty: the whole document
	Offset  int    // number of bytes of the document that were read up to the fault
	Problem string // a predicate whose subject is the path: "is given twice"
}

// Parse parses raw, which must be exactly one JSON value. It returns the first fault, or nil.
func Parse(raw []byte, opt Options) (*Value, *Fault) {
	p := &parser{raw: raw, dec: json.NewDecoder(bytes.NewReader(raw)), opt: opt}
	p.dec.UseNumber()
	root := &Value{index: -1}
	if f := p.readValue(root, 0); f != nil {
		return nil, f
	}
	if _, err := p.dec.Token(); !errors.Is(err, io.EOF) {
		return nil, p.fault(NotJSON, root, "has text after the end of its JSON")
	}
	return root, nil
}

// parser parses a document token by token.
type parser struct {
	raw []byte
	dec *json.Decoder
	opt Options
}

func (p *parser) fault(kind Kind, v *Value, format string, args ...any) *Fault {
	return &Fault{Kind: kind, Path: v.Path(), Offset: int(p.dec.InputOffset()), Problem: fmt.Sprintf(format, args...)}
}

func (p *parser) readValue(v *Value, depth int) *Fault {
	token, literal, f := p.readToken(v)
	if f != nil {
		return f
	}
	v.Data, v.End = token, int(p.dec.InputOffset())
	switch token := token.(type) {
	case json.Delim:
		if p.opt.MaxDepth > 0 && depth >= p.opt.MaxDepth {
			return p.fault(TooDeep, v, "is nested deeper than %d levels", p.opt.MaxDepth)
		}
		if token == '{' {
			return p.readObject(v, depth)
		}
		return p.readList(v, depth)
	case string:
		v.Data = p.repairText(v, token, literal)
	case json.Number:
		if !p.takesNumber(token) {
			return p.fault(BadNumber, v, "is a number too long or too large to be kept")
		}
	}
	return nil
}

// readObject reads the members of an object after its opening brace.
func (p *parser) readObject(v *Value, depth int) *Fault {
	o := &Object{}
	v.Data = o
	for p.dec.More() {
		token, literal, f := p.readToken(v)
		if f != nil {
			return f
		}
		name, _ := token.(string) // the decoder accepts only strings as names
		m := &Value{parent: v, Name: name, index: -1}
		m.Name = p.repairText(m, name, literal)
		known := o.Get(m.Name)
		if known != nil && !p.opt.LastWins {
			return p.fault(Duplicate, m, "is given twice")
		}
		if f := p.readValue(m, depth+1); f != nil {
			return f
		}
		if known != nil {
			known.Data, known.End = m.Data, m.End
		} else {
			o.add(m)
		}
	}
	_, _, f := p.readToken(v)
	return f
}

func (p *parser) readList(v *Value, depth int) *Fault {
	list := []*Value{}
	for p.dec.More() {
		e := &Value{parent: v, index: len(list)}
		if f := p.readValue(e, depth+1); f != nil {
			return f
		}
		list = append(list, e)
	}
	v.Data = list
	_, _, f := p.readToken(v)
	return f
}

// readToken returns the next token and its bytes, which include the separator before it. v is the value that a fault
// names.
func (p *parser) readToken(v *Value) (json.Token, []byte, *Fault) {
	from := p.dec.InputOffset()
	token, err := p.dec.Token()
	if err != nil {
		return nil, nil, p.notJSON(v, err)
	}
	return token, p.raw[from:p.dec.InputOffset()], nil
}

func (p *parser) notJSON(v *Value, err error) *Fault {
	at := int(p.dec.InputOffset())
	for at < len(p.raw) && strings.IndexByte(" \t\r\n,:", p.raw[at]) >= 0 {
		at++ // advance to the line of the invalid token
	}
	var syntax *json.SyntaxError
	f := p.fault(NotJSON, v, "is not JSON")
	switch f.Offset = at; {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		f.Problem += ": it ends too early"
	case errors.As(err, &syntax):
		f.Problem += fmt.Sprintf(": %s, near byte %d", syntax, p.dec.InputOffset())
	}
	return f
}

// repairText returns s without NUL, and calls Options.Repaired if it, or encoding/json, replaced a character. It
// returns s unchanged if Repaired is nil. literal is the token from which s was decoded.
func (p *parser) repairText(v *Value, s string, literal []byte) string {
	if p.opt.Repaired == nil {
		return s
	}
	repaired := strings.ReplaceAll(s, "\x00", "\uFFFD")
	if repaired != s || IsDamaged(literal) {
		if v.Name == s { // the path must contain the repaired name
			v.Name = repaired
		}
		p.opt.Repaired(v)
	}
	return repaired
}

// IsDamaged reports whether encoding/json replaces a part of a string, or of a string in a document, when it decodes
// text: invalid UTF-8 or an unpaired surrogate. text must be valid JSON.
func IsDamaged(text []byte) bool {
	if !utf8.Valid(text) {
		return true
	}
	for i := bytes.IndexByte(text, '\\'); i >= 0 && i+1 < len(text); {
		step := 2
		if u := readEscape(text[i:]); u >= 0xD800 && u < 0xE000 {
			low := readEscape(text[min(i+6, len(text)):])
			if u >= 0xDC00 || low < 0xDC00 || low >= 0xE000 {
				return true
			}
			step = 12
		}
		next := bytes.IndexByte(text[i+step:], '\\')
		if next < 0 {
			return false
		}
		i += step + next
	}
	return false
}

// readEscape returns the UTF-16 code unit of a \uXXXX at the start of b, or -1 if b does not start with one.
func readEscape(b []byte) int64 {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return -1
	}
	u, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return int64(u)
}

// takesNumber reports whether a number is within the bounds, also without its exponent, because Postgres returns
// numbers in that form.
func (p *parser) takesNumber(n json.Number) bool {
	if p.opt.MaxDigits == 0 {
		return true
	}
	mantissa, exponent, has := strings.Cut(strings.ToLower(n.String()), "e")
	e, err := strconv.Atoi(exponent)
	if has && (err != nil || e > p.opt.MaxExponent || e < -p.opt.MaxExponent) {
		return false
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	size := len(mantissa)
	switch {
	case e > 0:
		size = max(size, len(whole)+e)
	case e < 0:
		size = max(size+len("."), len("-0.")+len(fraction)-e)
	}
	return size <= p.opt.MaxDigits
}
