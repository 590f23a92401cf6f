package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/ethereum/go-ethereum/crypto"
)

// Kinds of content, recognized by the bytes.
const (
	KindRegistration = "registration"
	KindFeedback     = "feedback"
	KindJSON         = "json"
	KindHTML         = "html"
	KindOther        = "other"
)

// MCPEntry is an MCP entry of a registration, and whether it could be called if it were the only one.
type MCPEntry struct {
	From      string `json:"from"`
	Transport string `json:"transport"`
	Address   string `json:"address"`
	Version   string `json:"version,omitempty"`
	Callable  bool   `json:"callable"`
	Verdict   string `json:"verdict"`
}

// DescribeDocument describes a document. For each MCP entry of a registration it says whether Herald could call it:
// commands are those that may be started, and guard decides which addresses may be dialled.
func DescribeDocument(doc ipfs.Document, commands [][]string, guard *netguard.Guard) Document {
	size := len(doc.Bytes)
	d := Document{URI: withoutQuery(doc.URI), Source: doc.Source, CID: doc.CID, DNSLink: doc.DNSLink, From: doc.From,
		MediaType: doc.MediaType, Bytes: &size, Keccak256: crypto.Keccak256Hash(doc.Bytes).Hex(),
		TookMs: milliseconds(doc.Took)}
	d.describeBytes(doc.Bytes, entryJudge{commands, guard})
	return d
}

// describeBytes sets the kind and the verdict of the document.
func (r *Document) describeBytes(b []byte, judge entryJudge) {
	reg, err := erc8004.ParseRegistration(b)
	var problem *erc8004.DocumentError
	switch {
	case errors.As(err, &problem):
		r.Kind, r.Verdict = describeProblem(b, problem)
	case looksLikeFeedback(b):
		r.Kind, r.Verdict = KindFeedback, "a JSON object that looks like a feedback file"
	case len(reg.Services) == 0 && len(reg.Registrations) == 0:
		r.Kind, r.Verdict = KindJSON, "a JSON object, neither a registration document "+
			"nor a feedback file by its members"
	default:
		r.Kind, r.Name, r.Inactive = KindRegistration, reg.Name, reg.Inactive()
		for _, e := range reg.ListMCPEntries() {
			r.MCP = append(r.MCP, judge.describeEntry(e))
		}
		r.Verdict = describeRegistration(reg, r.MCP)
	}
}

func describeProblem(b []byte, e *erc8004.DocumentError) (kind, words string) {
	switch e.Problem {
	case erc8004.ProblemHTML:
		return KindHTML, "a web page, which is no document"
	case erc8004.ProblemNotObject:
		return KindJSON, "JSON but not an object: neither a registration document nor a feedback file"
	case erc8004.ProblemTooLarge, erc8004.ProblemTooComplex:
		if json.Valid(b) {
			return KindJSON, "JSON, but as a registration document refused: " + e.Error()
		}
	case erc8004.ProblemEmpty:
		return KindOther, "nothing: the document is empty"
	}
	if !utf8.Valid(b) {
		return KindOther, "neither JSON nor text"
	}
	return KindOther, "text, not JSON"
}

// looksLikeFeedback reports whether b is a JSON object with at least two of the members that ERC-8004 defines for a
// feedback file.
func looksLikeFeedback(b []byte) bool {
	var members map[string]json.RawMessage
	if json.Unmarshal([]byte(strings.TrimPrefix(string(b), "\ufeff")), &members) != nil {
		return false
	}
	n := 0
	for name := range members {
		switch strings.ToLower(name) {
		case "agentregistry", "agentid", "clientaddress", "value", "score", "feedbackauth", "proofofparticipation":
			n++
		}
	}
	return n > 1
}

func describeRegistration(reg erc8004.Registration, entries []MCPEntry) string {
	callable := 0
	for _, e := range entries {
		if e.Callable {
			callable++
		}
	}
	words := fmt.Sprintf(
		"a registration document; MCP entries: %d, that can be called: %d, agents named in registrations[]: %d",
		len(entries), callable, len(reg.Registrations))
	if reg.Inactive() {
		words += "; it says that the agent is inactive"
	}
	return words
}

// entryJudge decides whether the resolver and the guard accept one MCP entry.
type entryJudge struct {
	commands [][]string
	guard    *netguard.Guard
}

func (j entryJudge) describeEntry(e erc8004.MCPEntry) MCPEntry {
	out := MCPEntry{From: e.From, Transport: e.Transport, Address: withoutQuery(e.URL), Version: e.Version}
	if e.URL == "" {
		out.Address = "stdio:" + e.Command
	}
	if err := j.checkEntry(e); err != nil {
		v := classify.Error(err)
		if refused, ok := errors.AsType[*resolver.TransportRefusedError](err); ok {
			v.Text = refused.Why // without its position in the document
		}
		out.Verdict = fmt.Sprintf("%s (%s)", v.Text, v.Reason)
		return out
	}
	out.Callable, out.Verdict = true, "can be called"
	if e.Templated() {
		out.Verdict = "can be called, with the agent's id in the place of {agentId}"
	}
	return out
}

func (j entryJudge) checkEntry(e erc8004.MCPEntry) error {
	if err := resolver.CheckTransport(e, j.commands); err != nil || e.URL == "" {
		return err
	}
	u, err := url.Parse(e.Substitute(new(big.Int)).URL)
	if err != nil {
		return err
	}
	return j.guard.CheckURL(u)
}
