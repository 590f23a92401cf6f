package erc8004

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"strconv"
	"strings"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/decode"
)

// Bounds of a registration document. What is over a count is ignored and noted in Registration.Cut; what is over a size or
// depth is refused.
const (
	MaxRegistrationBytes = 1 << 20
	maxServices          = 256
	maxRegistrations     = 1024
	maxListed            = 256     // tools of a service, arguments of a command
	maxField             = 8 << 10 // bytes of one string that is kept
)

// Problem is why a document is no registration.
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

// DocumentError says that bytes are no registration document. Trying again changes nothing until the document does.
type DocumentError struct {
	Problem Problem
	Err     error // the parser's, for not_json; it quotes nothing but a position or a character
}

func (e *DocumentError) Error() string {
	text := map[Problem]string{
		ProblemTooLarge:   fmt.Sprintf("the document is larger than %d bytes", MaxRegistrationBytes),
		ProblemEmpty:      "the document is empty",
		ProblemHTML:       "the document is a web page, not JSON",
		ProblemNotJSON:    "the document is not JSON",
		ProblemTooComplex: fmt.Sprintf("the document has more than %d JSON tokens, or is nested deeper than %d levels", decode.MaxTokens, decode.MaxDepth),
		ProblemNotObject:  "the document is JSON but not an object",
	}[e.Problem]
	if e.Err != nil {
		return text + ": " + e.Err.Error()
	}
	return text
}

func (e *DocumentError) Unwrap() error { return e.Err }

// Registration is an agent's registration document, the parts that Herald reads. Strings are the author's.
type Registration struct {
	Name          string
	Description   string
	Active        *bool // nil: not said, or not with a boolean
	Services      []Service
	Registrations []BackReference
	Cut           bool // lists or strings were over a bound; the rest of them was left out
}

// Service is one entry of services[] (or endpoints[], its name until January 2026), or the old capabilities.mcp.
type Service struct {
	From      string // where it stood: "services[2]", "endpoints[0]", "capabilities.mcp"
	Name      string // of the entry's `name` or `type`
	Endpoint  string // of `endpoint`, `url` or `value`, trimmed, scheme in lower case
	Version   string // for MCP: the protocol revision
	Transport string // as written; usually absent
	Command   string
	Args      []string
	OddArgs   bool // args held something that is no string, so the command is not what the author meant
	Tools     []string
	AuthType  string // authentication.type: "bearer", …
	// TokenHeader is authentication.tokenHeader, the header that the agent wants the token in.
	TokenHeader string
}

// BackReference is one entry of registrations[]: the document names the agent that it belongs to.
type BackReference struct {
	AgentRegistry string   // CAIP-10 form, "eip155:1:0x…", as written
	AgentID       *big.Int // nil: null, or no non-negative integer
}

// object is a JSON object whose members are still unparsed.
type object map[string]json.RawMessage

// ParseRegistration reads a registration document in any of the shapes seen: with services or endpoints, entries with name or
// type and endpoint, url or value, names in any case, and the capabilities.mcp of the old backend. Members of the wrong type
// are taken as absent, because documents that are right in what matters often are wrong elsewhere. The error is a
// *DocumentError.
//
// It reads /.well-known/agent-registration.json as well, of which only registrations[] counts.
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
	case !json.Valid(b):
		return Registration{}, &DocumentError{Problem: ProblemNotJSON, Err: whyInvalid(b)}
	case b[0] != '{':
		return Registration{}, &DocumentError{Problem: ProblemNotObject}
	}
	var doc object
	if err := json.Unmarshal(b, &doc); err != nil {
		return Registration{}, &DocumentError{Problem: ProblemNotJSON, Err: err}
	}
	p := &documentReader{}
	p.out.Name, p.out.Description = p.text(doc, "name"), p.text(doc, "description")
	p.out.Active = flag(doc.member("active"))
	p.services(doc, "services")
	p.services(doc, "endpoints")
	p.capabilities(doc)
	p.registrations(doc)
	return p.out, nil
}

type documentReader struct{ out Registration }

func (p *documentReader) services(doc object, key string) {
	p.each(doc.member(key), maxServices, func(i int, raw json.RawMessage) {
		var entry object
		if json.Unmarshal(raw, &entry) != nil || entry == nil {
			return
		}
		name := p.text(entry, "name")
		if name == "" {
			name = p.text(entry, "type")
		}
		p.out.Services = append(p.out.Services, p.service(entry, strings.TrimSpace(name), fmt.Sprintf("%s[%d]", key, i)))
	})
}

func (p *documentReader) capabilities(doc object) {
	var capabilities, entry object
	if json.Unmarshal(doc.member("capabilities"), &capabilities) != nil || json.Unmarshal(capabilities.member("mcp"), &entry) != nil || entry == nil {
		return
	}
	p.out.Services = append(p.out.Services, p.service(entry, "MCP", "capabilities.mcp"))
}

func (p *documentReader) service(entry object, name, from string) Service {
	s := Service{From: from, Name: name, Version: strings.TrimSpace(p.text(entry, "version")), Transport: p.text(entry, "transport"), Command: p.text(entry, "command")}
	// agent0-ts keeps what is not type and value in meta, and some publish its own form as it stands.
	var meta object
	if json.Unmarshal(entry.member("meta"), &meta) == nil && s.Version == "" {
		s.Version = strings.TrimSpace(p.text(meta, "version"))
	}
	for _, key := range []string{"endpoint", "url", "value"} {
		if s.Endpoint = lowerScheme(strings.TrimSpace(p.text(entry, key))); s.Endpoint != "" {
			break
		}
	}
	p.each(entry.member("args"), maxListed, func(_ int, raw json.RawMessage) {
		var arg *string
		if json.Unmarshal(raw, &arg) != nil || arg == nil || len(*arg) > maxField {
			s.OddArgs = true
			return
		}
		s.Args = append(s.Args, *arg)
	})
	for _, list := range []json.RawMessage{entry.member("mcpTools"), entry.member("tools"), meta.member("mcpTools"), meta.member("tools")} {
		p.each(list, maxListed, func(_ int, raw json.RawMessage) {
			var named object
			if tool := p.string(raw); tool != "" {
				s.Tools = append(s.Tools, tool)
			} else if json.Unmarshal(raw, &named) == nil {
				if tool := p.text(named, "name"); tool != "" {
					s.Tools = append(s.Tools, tool)
				}
			}
		})
	}
	var auth object
	if json.Unmarshal(entry.member("authentication"), &auth) == nil {
		s.AuthType, s.TokenHeader = strings.TrimSpace(p.text(auth, "type")), strings.TrimSpace(p.text(auth, "tokenHeader"))
	}
	return s
}

func (p *documentReader) registrations(doc object) {
	p.each(doc.member("registrations"), maxRegistrations, func(_ int, raw json.RawMessage) {
		var entry object
		if json.Unmarshal(raw, &entry) != nil || entry == nil {
			return
		}
		ref := BackReference{AgentRegistry: strings.TrimSpace(p.text(entry, "agentRegistry"))}
		id := string(bytes.TrimSpace(entry.member("agentId")))
		if strings.HasPrefix(id, `"`) {
			id = strings.TrimSpace(p.text(entry, "agentId"))
		}
		ref.AgentID = decimal(id)
		p.out.Registrations = append(p.out.Registrations, ref)
	})
}

// each calls f for the first max elements of a JSON array. Anything else than an array has no elements.
func (p *documentReader) each(raw json.RawMessage, max int, f func(int, json.RawMessage)) {
	if trimmed := bytes.TrimSpace(raw); len(trimmed) == 0 || trimmed[0] != '[' {
		return
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if _, err := d.Token(); err != nil {
		return
	}
	for i := 0; d.More(); i++ {
		if i == max {
			p.out.Cut = true
			return
		}
		var element json.RawMessage
		if d.Decode(&element) != nil {
			return
		}
		f(i, element)
	}
}

func (p *documentReader) text(o object, key string) string { return p.string(o.member(key)) }

// string reads a JSON string; anything else is "". One that is too long is left out rather than shortened: half an address
// is another address.
func (p *documentReader) string(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	if len(s) > maxField {
		p.out.Cut = true
		return ""
	}
	return s
}

// member finds a member by its name, else by its name in another case; among several of those the first by the alphabet, so
// that the same document always reads the same.
func (o object) member(name string) json.RawMessage {
	if v, ok := o[name]; ok {
		return v
	}
	var found string
	for k := range o {
		if strings.EqualFold(k, name) && (found == "" || k < found) {
			found = k
		}
	}
	return o[found]
}

// flag reads true and false, also when they are written as strings.
func flag(raw json.RawMessage) *bool {
	text := strings.ToLower(strings.Trim(string(bytes.TrimSpace(raw)), `"`))
	if text != "true" && text != "false" {
		return nil
	}
	b := text == "true"
	return &b
}

// decimal reads a non-negative integer of at most 78 digits, which is what a uint256 needs.
func decimal(s string) *big.Int {
	if len(s) == 0 || len(s) > 78 {
		return nil
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return nil
		}
	}
	v, _ := new(big.Int).SetString(s, 10)
	if v.BitLen() > 256 {
		return nil
	}
	return v
}

func lowerScheme(s string) string {
	scheme, rest, ok := strings.Cut(s, ":")
	if !ok || strings.ContainsAny(scheme, "/?# ") {
		return s
	}
	return strings.ToLower(scheme) + ":" + rest
}

// whyInvalid returns the parser's complaint about text that is no JSON.
func whyInvalid(b []byte) error {
	var v json.RawMessage
	err := json.Unmarshal(b, &v)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return fmt.Errorf("at byte %s: %w", strconv.FormatInt(syntax.Offset, 10), syntax)
	}
	if err == nil {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Names says whether the document's registrations[] name this agent, which is how it consents to being the agent's
// document: anybody can point a tokenURI at it. The registry's address is compared without regard to case.
func (r Registration) Names(chainID uint64, identity common.Address, agentID *big.Int) bool {
	want := fmt.Sprintf("eip155:%d:%s", chainID, identity.Hex())
	for _, ref := range r.Registrations {
		if ref.AgentID != nil && agentID != nil && ref.AgentID.Cmp(agentID) == 0 && strings.EqualFold(ref.AgentRegistry, want) {
			return true
		}
	}
	return false
}

// Inactive says whether the author switched the agent off. A missing or odd `active` does not.
func (r Registration) Inactive() bool { return r.Active != nil && !*r.Active }
