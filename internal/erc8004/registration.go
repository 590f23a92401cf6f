package erc8004

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/base/decode"
	"github.com/agentherald/herald/internal/base/strictjson"
)

// Bounds of a registration document. ParseRegistration rejects a document that is larger than MaxRegistrationBytes. It
// drops the elements of a list and the strings that exceed the other bounds, and sets Registration.Cut.
const (
	MaxRegistrationBytes = 1 << 20
	maxServices          = 256
	maxRegistrations     = 1024
	maxListed            = 256     // arguments of a command
	maxField             = 8 << 10 // bytes of a string
)

// Problem is the reason why bytes are not a registration document.
type Problem string

// The values of Problem.
const (
	ProblemTooLarge   Problem = "too_large"
	ProblemEmpty      Problem = "empty"
	ProblemHTML       Problem = "html" // a web page; many sites serve one with status 200 for any path
	ProblemNotJSON    Problem = "not_json"
	ProblemTooComplex Problem = "too_complex" // decode.Modest refuses it
	ProblemNotObject  Problem = "not_object"
)

// DocumentError is the error of ParseRegistration. Parsing the same bytes again returns the same error.
type DocumentError struct {
	Problem Problem
	Err     error // ProblemNotJSON: the parser's error, which quotes at most one character; otherwise nil
}

func (e *DocumentError) Error() string {
	text := map[Problem]string{
		ProblemTooLarge: fmt.Sprintf("the document is larger than %d bytes", MaxRegistrationBytes),
		ProblemEmpty:    "the document is empty",
		ProblemHTML:     "the document is a web page, not JSON",
		ProblemNotJSON:  "the document is not JSON",
		ProblemTooComplex: fmt.Sprintf("the document has more than %d JSON tokens, or is nested deeper than %d "+
			"levels", decode.MaxTokens, decode.MaxDepth),
		ProblemNotObject: "the document is JSON but not an object",
	}[e.Problem]
	if e.Err != nil {
		return text + ": " + e.Err.Error()
	}
	return text
}

func (e *DocumentError) Unwrap() error { return e.Err }

// Registration contains the parts of an agent's registration document that Herald reads. Strings are as in the
// document, unless a field says otherwise.
type Registration struct {
	Name          string
	Active        *bool // nil if it is missing or not a boolean
	Services      []Service
	Registrations []BackReference
	Cut           bool // a list or string exceeded a bound: the rest of the list, or the string, was dropped
}

// Service is one entry of the list services, of endpoints, the name of that list until January 2026, or the object
// capabilities.mcp of documents for the old backend.
type Service struct {
	MCPEntry        // Transport is as written, and usually empty
	Name     string // from `name` or `type`
	OddArgs  bool   // Args is incomplete: the document has an argument that is not a string or is too long
}

// BackReference is one entry of the list registrations, in which the document names an agent that it describes.
type BackReference struct {
	AgentRegistry string   // CAIP-10 form, "eip155:1:0x…", as written
	AgentID       *big.Int // nil if it is null or not a non-negative integer
}

// ParseRegistration parses a registration document. It accepts all shapes in use: services or endpoints; entries with
// name or type, and with endpoint, url or value; names in any case; and capabilities.mcp of the old backend. It treats
// members of the wrong type as absent, because many documents contain errors in members that Herald does not need. The
// error is a *DocumentError.
//
// It also parses /.well-known/agent-registration.json, the list of agents of a domain, which has the member
// registrations in the same form.
func ParseRegistration(b []byte) (Registration, error) {
	if len(b) > MaxRegistrationBytes {
		return Registration{}, &DocumentError{Problem: ProblemTooLarge}
	}
	b = bytes.TrimSpace(bytes.TrimPrefix(b, []byte("\xef\xbb\xbf")))
	switch {
	case len(b) == 0:
		return Registration{}, &DocumentError{Problem: ProblemEmpty}
	case b[0] == '<':
		return Registration{}, &DocumentError{Problem: ProblemHTML}
	case !decode.Modest(b):
		return Registration{}, &DocumentError{Problem: ProblemTooComplex}
	}
	root, fault := strictjson.Parse(b, strictjson.Options{LastWins: true})
	if fault != nil {
		return Registration{}, &DocumentError{Problem: ProblemNotJSON,
			Err: errors.New(strings.TrimPrefix(fault.Problem, "is not JSON: "))}
	}
	doc, ok := root.Object()
	if !ok {
		return Registration{}, &DocumentError{Problem: ProblemNotObject}
	}
	r := &documentReader{}
	r.out.Name = r.readText(doc, "name")
	r.out.Active = parseFlag(findMember(doc, "active"))
	r.readServices(doc, "services")
	r.readServices(doc, "endpoints")
	if entry := findObject(findObject(doc, "capabilities"), "mcp"); entry != nil {
		r.out.Services = append(r.out.Services, r.readService(entry, "MCP", "capabilities.mcp"))
	}
	r.readRegistrations(doc)
	return r.out, nil
}

// documentReader collects the parts of a document in out. Its methods treat members of the wrong type as absent.
type documentReader struct{ out Registration }

// readServices appends the entries of the list key to out.Services.
func (r *documentReader) readServices(doc *strictjson.Object, key string) {
	for i, v := range r.readList(doc, key, maxServices) {
		if entry, ok := v.Object(); ok {
			name := cmp.Or(r.readText(entry, "name"), r.readText(entry, "type"))
			r.out.Services = append(r.out.Services,
				r.readService(entry, strings.TrimSpace(name), fmt.Sprintf("%s[%d]", key, i)))
		}
	}
}

// readService returns the Service in an object. name is its name, and from its position in the document.
func (r *documentReader) readService(entry *strictjson.Object, name, from string) Service {
	s := Service{Name: name, MCPEntry: MCPEntry{From: from, Transport: r.readText(entry, "transport"),
		Command: r.readText(entry, "command")}}
	s.Version = strings.TrimSpace(r.readText(entry, "version"))
	if s.Version == "" {
		// agent0-ts stores everything except type and value in meta, and some authors publish its internal form
		// unchanged.
		s.Version = strings.TrimSpace(r.readText(findObject(entry, "meta"), "version"))
	}
	for _, key := range []string{"endpoint", "url", "value"} {
		if s.URL = lowerURLScheme(strings.TrimSpace(r.readText(entry, key))); s.URL != "" {
			break
		}
	}
	for _, v := range r.readList(entry, "args", maxListed) {
		arg, ok := v.Data.(string)
		if !ok || len(arg) > maxField {
			s.OddArgs = true
			continue
		}
		s.Args = append(s.Args, arg)
	}
	s.TokenHeader = strings.TrimSpace(r.readText(findObject(entry, "authentication"), "tokenHeader"))
	return s
}

// readRegistrations appends the entries of the list registrations to out.Registrations.
func (r *documentReader) readRegistrations(doc *strictjson.Object) {
	for _, v := range r.readList(doc, "registrations", maxRegistrations) {
		entry, ok := v.Object()
		if !ok {
			continue
		}
		ref := BackReference{AgentRegistry: strings.TrimSpace(r.readText(entry, "agentRegistry"))}
		if id := findMember(entry, "agentId"); id != nil {
			number, _ := id.Data.(json.Number) // or it is a string
			ref.AgentID = parseDecimal(cmp.Or(number.String(), strings.TrimSpace(r.takeText(id))))
		}
		r.out.Registrations = append(r.out.Registrations, ref)
	}
}

// readList returns at most the first most elements of a list, and nil if the member is not a list.
func (r *documentReader) readList(o *strictjson.Object, key string, most int) []*strictjson.Value {
	v := findMember(o, key)
	if v == nil {
		return nil
	}
	list, _ := v.Data.([]*strictjson.Value)
	if len(list) > most {
		r.out.Cut = true
		list = list[:most]
	}
	return list
}

func (r *documentReader) readText(o *strictjson.Object, key string) string {
	return r.takeText(findMember(o, key))
}

// takeText returns the text of a string, and "" for any other value. For a string longer than maxField it returns ""
// and not a part, because a part of an address is another address.
func (r *documentReader) takeText(v *strictjson.Value) string {
	if v == nil {
		return ""
	}
	s, _ := v.Data.(string)
	if len(s) > maxField {
		r.out.Cut = true
		return ""
	}
	return s
}

// findMember returns the member with this name. If o has no such member, it returns one whose name differs only in
// case, and of several such members the alphabetically first. Otherwise, and for a nil o, it returns nil.
func findMember(o *strictjson.Object, name string) (found *strictjson.Value) {
	if o == nil {
		return nil
	}
	if v := o.Get(name); v != nil {
		return v
	}
	for _, m := range o.Members {
		if strings.EqualFold(m.Name, name) && (found == nil || m.Name < found.Name) {
			found = m
		}
	}
	return found
}

// findObject returns the member with this name (findMember) if it is an object, and nil otherwise.
func findObject(o *strictjson.Object, name string) *strictjson.Object {
	if v := findMember(o, name); v != nil {
		o, _ := v.Object()
		return o
	}
	return nil
}

// parseFlag parses a boolean, or the strings "true" and "false" in any case. It returns nil for any other value.
func parseFlag(v *strictjson.Value) *bool {
	if v == nil {
		return nil
	}
	b, ok := v.Data.(bool)
	if text, isText := v.Data.(string); isText {
		b, ok = strings.EqualFold(text, "true"), strings.EqualFold(text, "true") || strings.EqualFold(text, "false")
	}
	if !ok {
		return nil
	}
	return &b
}

// parseDecimal parses a non-negative decimal integer of at most 256 bits. It returns nil for any other text.
func parseDecimal(s string) *big.Int {
	if s == "" || len(s) > 78 || strings.Trim(s, "0123456789") != "" {
		return nil
	}
	v, _ := new(big.Int).SetString(s, 10)
	if v.BitLen() > 256 {
		return nil
	}
	return v
}

// lowerURLScheme returns s with its URL scheme in lower case. It returns s unchanged if it has no scheme.
func lowerURLScheme(s string) string {
	scheme, rest, ok := strings.Cut(s, ":")
	if !ok || strings.ContainsAny(scheme, "/?# ") {
		return s
	}
	return strings.ToLower(scheme) + ":" + rest
}

// NamesAgent reports whether the list registrations of the document contains the agent. Anyone can set the tokenURI of
// an agent to any document, so only this list shows that the document's author means the agent. The registry's address
// is compared in any case.
func (r Registration) NamesAgent(chainID uint64, identity common.Address, agentID *big.Int) bool {
	want := fmt.Sprintf("eip155:%d:%s", chainID, identity.Hex())
	for _, ref := range r.Registrations {
		if ref.AgentID != nil && agentID != nil && ref.AgentID.Cmp(agentID) == 0 &&
			strings.EqualFold(ref.AgentRegistry, want) {
			return true
		}
	}
	return false
}

// Inactive reports whether the document has "active": false. A missing or invalid active does not make an agent
// inactive.
func (r Registration) Inactive() bool { return r.Active != nil && !*r.Active }
