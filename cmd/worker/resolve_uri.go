package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/url"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/agentherald/herald/internal/service"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/crypto"
)

// uriLimit is the largest document, in bytes: a feedback file's, a registration's is smaller.
const uriLimit = 2 << 20

// Kinds of content, by what the bytes look like.
const (
	kindRegistration = "registration"
	kindFeedback     = "feedback"
	kindJSON         = "json"
	kindHTML         = "html"
	kindOther        = "other"
)

// uriResolution is what `worker agent resolve --uri URI` found.
type uriResolution struct {
	URI       string       `json:"uri,omitempty"` // normalised, without query
	Source    string       `json:"source,omitempty"`
	CID       string       `json:"cid,omitempty"`
	DNSLink   bool         `json:"dnsLink,omitempty"`
	From      string       `json:"from,omitempty"`
	MediaType string       `json:"mediaType,omitempty"`
	Bytes     *int         `json:"bytes,omitempty"`
	Keccak256 string       `json:"keccak256,omitempty"`
	Hash      string       `json:"hashVerdict,omitempty"` // of --hash
	Kind      string       `json:"kind,omitempty"`
	Name      string       `json:"name,omitempty"` // a registration's
	Inactive  bool         `json:"inactive,omitempty"`
	MCP       []rankedMCP  `json:"mcp,omitempty"` // of a registration, best first
	Reason    retry.Reason `json:"reason,omitempty"`
	Verdict   string       `json:"verdict"`
	NextStep  string       `json:"nextStep,omitempty"`
	TookMs    float64      `json:"tookMs"`
}

// rankedMCP is an MCP entry of a registration and what would come of it alone.
type rankedMCP struct {
	From      string `json:"from"`
	Transport string `json:"transport"`
	Address   string `json:"address"`
	Version   string `json:"version,omitempty"`
	Callable  bool   `json:"callable"`
	Verdict   string `json:"verdict"`
}

func (c *agentResolveCmd) uri(a *app) error {
	hash, err := parseHash(c.Hash)
	if err != nil {
		return err
	}
	content, err := service.OpenContent(a.cfg, a.log)
	if err != nil {
		return err
	}
	defer content.Close()
	var doc ipfs.Document
	path, local := localPath(*c.URI)
	if local {
		if doc, err = readLocal(path); err != nil {
			return err
		}
	} else {
		doc, err = content.Fetcher.Fetch(a.ctx, *c.URI, uriLimit)
	}
	var r uriResolution
	var again error
	if err != nil {
		v := retry.Classify(err)
		r.Reason, r.Verdict = v.Reason, "there is no document ("+string(v.Reason)+"): "+v.Text
		var private *netguard.BlockedError
		switch {
		case errors.As(err, &private):
			r.Verdict = "The document was not fetched: its address is private (address_blocked): " + v.Text
		case v.Reason == retry.AddressBlocked:
			r.Verdict = "The document was not fetched: its address is refused (address_blocked): " + v.Text
		}
		if v.Ending == retry.Reject || v.Ending == retry.Hold { // what is there for the operator to mend
			r.NextStep = v.Reason.NextStep(retry.Subject{})
		}
		if v.Ending == retry.Wait || v.Ending == retry.Hold {
			r.Verdict, again = "the document was not fetched ("+string(v.Reason)+"): "+v.Text, errNotNow
		}
		if v.Ending == retry.Hold {
			again = errNotBefore
		}
	} else {
		r = describeDocument(doc)
		if c.Hash != "" {
			r.Hash = string(erc8004.VerifyHash(doc.Bytes, hash, doc.Immutable()))
		}
		r.look(doc.Bytes, entryJudge{commands: a.cfg.StdioCommands, guard: content.Guard})
	}
	if c.Check && again == nil && !r.usable() {
		again = errUnusable
	}
	if c.JSON {
		err = writeJSON(a, r)
	} else {
		err = r.print(a)
	}
	return cmp.Or(err, again)
}

// usable tells whether a delivery can go by the document: a registration of an active agent with an entry that can be called, or a
// feedback file that its hash fits. Whoever gives a hash means a feedback file, which may be of any form.
func (r *uriResolution) usable() bool {
	switch {
	case r.Hash == string(erc8004.Mismatch) || r.Kind == "":
		return false
	case r.Hash != "" || r.Kind == kindFeedback:
		return true
	}
	return r.Kind == kindRegistration && !r.Inactive && slices.ContainsFunc(r.MCP, func(e rankedMCP) bool { return e.Callable })
}

// sourceFile is the source of a document that the operator named on this machine. No URI of a chain is read like that.
const sourceFile = "file"

// localPath tells whether --uri names a file of this machine: file://, or what reads like a path or is the name of a file here.
func localPath(s string) (path string, local bool) {
	if u, err := url.Parse(s); err == nil && u.Scheme == "file" && (u.Host == "" || u.Host == "localhost") {
		return u.Path, true
	}
	switch {
	case strings.HasPrefix(s, "/ipfs/"), strings.HasPrefix(s, "/ipns/"):
		return "", false
	case strings.HasPrefix(s, "/"), strings.HasPrefix(s, "./"), strings.HasPrefix(s, "../"):
		return s, true
	}
	info, err := os.Stat(s)
	return s, err == nil && info.Mode().IsRegular()
}

// readLocal reads a file as if it had been fetched.
func readLocal(path string) (ipfs.Document, error) {
	began := time.Now()
	f, err := os.Open(path)
	if err != nil {
		return ipfs.Document{}, fmt.Errorf("--uri: %w", err)
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return ipfs.Document{}, cmp.Or(err, fmt.Errorf("--uri: %s is not a file", path))
	}
	b, err := io.ReadAll(io.LimitReader(f, uriLimit+1))
	if err == nil && len(b) > uriLimit {
		err = fmt.Errorf("it is longer than %d bytes, which is more than Herald fetches", uriLimit)
	}
	if err != nil {
		return ipfs.Document{}, fmt.Errorf("--uri: read %s: %w", path, err)
	}
	return ipfs.Document{Bytes: b, Source: sourceFile, URI: path, Took: time.Since(began)}, nil
}

// parseHash takes 0x and 64 hex digits; empty is zero.
func parseHash(s string) (common.Hash, error) {
	if s == "" {
		return common.Hash{}, nil
	}
	b, err := hexutil.Decode(s)
	if err != nil || len(b) != common.HashLength {
		return common.Hash{}, &misuseError{fmt.Sprintf("--hash %q is no hash: 0x and 64 hex digits", s)}
	}
	return common.BytesToHash(b), nil
}

func describeDocument(doc ipfs.Document) uriResolution {
	size := len(doc.Bytes)
	return uriResolution{URI: withoutQuery(doc.URI), Source: doc.Source, CID: doc.CID, DNSLink: doc.DNSLink, From: doc.From, MediaType: doc.MediaType,
		Bytes: &size, Keccak256: crypto.Keccak256Hash(doc.Bytes).Hex(), TookMs: milliseconds(doc.Took)}
}

// look says what the bytes are.
func (r *uriResolution) look(b []byte, judge entryJudge) {
	reg, err := erc8004.ParseRegistration(b)
	var problem *erc8004.DocumentError
	switch {
	case errors.As(err, &problem):
		r.Kind, r.Verdict = kindOfProblem(b, problem)
	case looksLikeFeedback(b):
		r.Kind, r.Verdict = kindFeedback, "a JSON object that looks like a feedback file"
	case len(reg.Services) == 0 && len(reg.Registrations) == 0:
		r.Kind, r.Verdict = kindJSON, "a JSON object, neither a registration document nor a feedback file by its members"
	default:
		r.Kind, r.Name, r.Inactive = kindRegistration, reg.Name, reg.Inactive()
		for _, e := range reg.MCP() {
			r.MCP = append(r.MCP, judge.entry(e))
		}
		r.Verdict = registrationWords(reg, r.MCP)
	}
}

func kindOfProblem(b []byte, e *erc8004.DocumentError) (kind, words string) {
	switch e.Problem {
	case erc8004.ProblemHTML:
		return kindHTML, "a web page, which is no document"
	case erc8004.ProblemNotObject:
		return kindJSON, "JSON but not an object: neither a registration document nor a feedback file"
	case erc8004.ProblemTooLarge, erc8004.ProblemTooComplex:
		if json.Valid(b) {
			return kindJSON, "JSON, but as a registration document refused: " + e.Error()
		}
	case erc8004.ProblemEmpty:
		return kindOther, "nothing: the document is empty"
	}
	if !utf8.Valid(b) {
		return kindOther, "neither JSON nor text"
	}
	return kindOther, "text, not JSON"
}

// looksLikeFeedback: two of the members that the ERC has such a file begin with.
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

func registrationWords(reg erc8004.Registration, entries []rankedMCP) string {
	callable := 0
	for _, e := range entries {
		if e.Callable {
			callable++
		}
	}
	words := fmt.Sprintf("a registration document; MCP entries: %d, that can be called: %d, agents named in registrations[]: %d",
		len(entries), callable, len(reg.Registrations))
	if reg.Inactive() {
		words += "; it says that the agent is inactive"
	}
	return words
}

// entryJudge says of one MCP entry what the resolver and the guard make of it.
type entryJudge struct {
	commands [][]string
	guard    *netguard.Guard
}

func (j entryJudge) entry(e erc8004.MCPEntry) rankedMCP {
	out := rankedMCP{From: e.From, Transport: e.Transport, Address: withoutQuery(e.URL), Version: e.Version}
	if e.URL == "" {
		out.Address = "stdio:" + e.Command
	}
	if err := j.judge(e); err != nil {
		v := retry.Classify(err)
		var refused *resolver.TransportRefusedError
		if errors.As(err, &refused) {
			v.Text = refused.Why // without the place in the document: it stands alone there
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

func (j entryJudge) judge(e erc8004.MCPEntry) error {
	if err := resolver.Judge(e, j.commands); err != nil || e.URL == "" {
		return err
	}
	u, err := url.Parse(e.Substitute(new(big.Int)).URL)
	if err != nil {
		return err
	}
	return j.guard.CheckURL(u)
}

func (r *uriResolution) print(a *app) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, printable(value))
		}
	}
	row("uri", r.URI)
	row("source", strings.TrimSpace(r.Source+" "+anchorWords(r.Source, r.DNSLink)))
	row("cid", r.CID)
	row("from", r.From)
	row("media type", r.MediaType)
	if r.Bytes != nil {
		row("size", fmt.Sprintf("%d bytes in %s", *r.Bytes, tookWords(r.TookMs)))
	}
	row("keccak256", r.Keccak256)
	row("hash", hashWords(erc8004.Verdict(r.Hash)))
	row("name", r.Name)
	for i, e := range r.MCP {
		address := e.Address
		if e.Version != "" {
			address += " (" + e.Version + ")"
		}
		row(fmt.Sprintf("mcp %d", i+1), fmt.Sprintf("%s %s %s: %s", e.From, e.Transport, address, e.Verdict))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.out, "verdict: %s\n", printable(r.Verdict))
	if err == nil && r.NextStep != "" {
		_, err = fmt.Fprintf(a.out, "next: %s\n", r.NextStep)
	}
	return err
}

// anchorWords tell what the bytes are proven by.
func anchorWords(source string, dnsLink bool) string {
	switch {
	case source == ipfs.SourceCID:
		return "(verified against the CID)"
	case source == ipfs.SourceIPNS && dnsLink:
		return "(the name was looked up in DNS, DNSLink: not verified)"
	case source == ipfs.SourceIPNS:
		return "(verified against the name's signed record)"
	case source == sourceFile:
		return "(of this machine)"
	case source == ipfs.SourceData:
		return "(in the URI itself)"
	case source == "":
		return ""
	}
	return "(as its server has it now: not verified)"
}

// hashWords tell what a hash on chain says of the bytes.
func hashWords(v erc8004.Verdict) string {
	switch v {
	case "":
		return ""
	case erc8004.Raw:
		return "raw: keccak256 of exactly these bytes"
	case erc8004.SHA256:
		return "sha256: SHA-256 of exactly these bytes"
	case erc8004.NotGiven:
		return "not_given: a zero hash says nothing"
	case erc8004.Mismatch:
		return "mismatch: not of these bytes, nor of any known form of them"
	}
	return string(v) + ": keccak256 of another form of the same document"
}
