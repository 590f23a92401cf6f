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

	"github.com/agentherald/herald/internal/decode"
	"github.com/agentherald/herald/internal/strictjson"
)

// Bounds of a registration document. Elements beyond a count are ignored, which sets Registration.Cut. A document
// beyond a size or depth is rejected.
const (
	MaxRegistrationBytes = 1 << 20
	maxServices          = 256
	maxRegistrations     = 1024
	maxListed            = 256     // arguments of a command
	maxField             = 8 << 10 // bytes of one string that is kept
)

// Problem is the reason why a document is not a registration document.
type Problem string

// The problems of a document.
const (
	ProblemTooLarge   Problem = "too_large"
	ProblemEmpty      Problem = "empty"
	ProblemHTML       Problem = "html" // a web page, which many sites serve with status 200 for any path
	ProblemNotJSON    Problem = "not_json"
	ProblemTooComplex Problem = "too_complex"
	ProblemNotObject  Problem = "not_object"
)

// DocumentError means that bytes are not a registration document. A retry returns the same error until the document
// changes.
type DocumentError struct {
	Problem Problem
	Err     error // the parser's error, for not_json; it quotes only a position or a character
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

// Registration contains the parts of an agent's registration document that Herald reads. Strings are as the author
// wrote them.
type Registration struct {
	Name          string
	Active        *bool // nil if it is missing or not a boolean
	Services      []Service
	Registrations []BackReference
	Cut           bool // a list or string exceeded a bound, and the excess was dropped
}

// Service is one entry of services[] (or endpoints[], its name until January 2026), or the old capabilities.mcp.
type Service struct {
	From      string // position in the document: "services[2]", "endpoints[0]", "capabilities.mcp"
	Name      string // from `name` or `type`
	Endpoint  string // from `endpoint`, `url` or `value`, trimmed, scheme in lower case
	Version   string // for MCP: the protocol revision
	Transport string // as written; usually empty
	Command   string
	Args      []string
	OddArgs   bool // args contained an element that is not a string, so the command is incomplete
	// TokenHeader is authentication.tokenHeader: the header in which the agent expects the token.
	TokenHeader string
}

// BackReference is one entry of registrations[], in which the document names its agent.
type BackReference struct {
	AgentRegistry string   // CAIP-10 form, "eip155:1:0x…", as written
	AgentID       *big.Int // nil if it is null or not a non-negative integer
}

// ParseRegistration parses a registration document in all known shapes: with services or endpoints; entries with name
// or type, and with endpoint, url or value; names in any case; and the capabilities.mcp of the old backend. It treats
// members of the wrong type as absent, because many documents have errors in members that Herald does not need. The
// error is a *DocumentError.
//
// It also parses /.well-known/agent-registration.json, of which the caller uses only registrations[].
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

// documentReader reads members and treats those of the wrong type as absent.
type documentReader struct{ out Registration }

func (r *documentReader) readServices(doc *strictjson.Object, key string) {
	for i, v := range r.readList(doc, key, maxServices) {
		if entry, ok := v.Object(); ok {
			name := cmp.Or(r.readText(entry, "name"), r.readText(entry, "type"))
			r.out.Services = append(r.out.Services,
				r.readService(entry, strings.TrimSpace(name), fmt.Sprintf("%s[%d]", key, i)))
		}
	}
}

func (r *documentReader) readService(entry *strictjson.Object, name, from string) Service {
	s := Service{From: from, Name: name, Transport: r.readText(entry, "transport"),
		Command: r.readText(entry, "command")}
	s.Version = strings.TrimSpace(r.readText(entry, "version"))
	if s.Version == "" {
		// agent0-ts stores everything except type and value in meta, and some authors publish its internal form
		// unchanged.
		s.Version = strings.TrimSpace(r.readText(findObject(entry, "meta"), "version"))
	}
	for _, key := range []string{"endpoint", "url", "value"} {
		if s.Endpoint = lowerURLScheme(strings.TrimSpace(r.readText(entry, key))); s.Endpoint != "" {
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

// readList returns the first elements of a list, at most most. It returns nil if the member is not a list.
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

// takeText returns the text of a string, and "" for anything else. It drops a string that is too long instead of
// cutting it, because a part of an address is another address.
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

// findMember returns the member with the given name, or one whose name differs only in case. Among several of those,
// it returns the alphabetically first, so that parsing is deterministic.
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

// findObject returns a member that is an object, or nil.
func findObject(o *strictjson.Object, name string) *strictjson.Object {
	if v := findMember(o, name); v != nil {
		o, _ := v.Object()
		return o
	}
	return nil
}

// parseFlag parses true and false, as booleans or as strings. It returns nil for anything else.
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

// parseDecimal parses a non-negative integer of at most 256 bits. It returns nil for anything else.
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

// lowerURLScheme returns s with its URL scheme in lower case, or unchanged if it has no scheme.
func lowerURLScheme(s string) string {
	scheme, rest, ok := strings.Cut(s, ":")
	if !ok || strings.ContainsAny(scheme, "/?# ") {
		return s
	}
	return strings.ToLower(scheme) + ":" + rest
}

// NamesAgent reports whether the document's registrations[] contain this agent. By listing the agent, the document
// consents to being its document, because anyone can set a tokenURI to any address. The registry's address is
// compared without regard to case.
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

// Inactive reports whether the author switched the agent off. A missing or invalid `active` does not switch it off.
func (r Registration) Inactive() bool { return r.Active != nil && !*r.Active }
