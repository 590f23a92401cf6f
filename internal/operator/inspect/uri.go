package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/resolver"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/crypto"
)

// MaxDocument is the largest document, in bytes: a feedback file's, a registration's is smaller.
const MaxDocument = 2 << 20

// Kinds of content, by what the bytes look like.
const (
	KindRegistration = "registration"
	KindFeedback     = "feedback"
	KindJSON         = "json"
	KindHTML         = "html"
	KindOther        = "other"
)

// Document is what a URI led to, and what the bytes there are.
type Document struct {
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
	MCP       []MCPEntry   `json:"mcp,omitempty"` // of a registration, best first
	Reason    retry.Reason `json:"reason,omitempty"`
	Verdict   string       `json:"verdict"`
	NextStep  string       `json:"nextStep,omitempty"`
	TookMs    float64      `json:"tookMs"`

	again error // why it could not be fetched, when it is there perhaps another time
}

// MCPEntry is an MCP entry of a registration and what would come of it alone.
type MCPEntry struct {
	From      string `json:"from"`
	Transport string `json:"transport"`
	Address   string `json:"address"`
	Version   string `json:"version,omitempty"`
	Callable  bool   `json:"callable"`
	Verdict   string `json:"verdict"`
}

// ResolveURI fetches a document of whatever kind, without a chain, and says what it is. A path or file:// is read
// from this machine. hash is a feedbackHash that the bytes are compared with; "": none.
func (o *Operator) ResolveURI(ctx context.Context, uri, hash string) (r Document, err error) {
	wanted, err := parseHash(hash)
	if err != nil {
		return r, err
	}
	content, err := o.Backend.OpenContent()
	if err != nil {
		return r, err
	}
	defer content.Close()

	var doc ipfs.Document
	if path, local := localPath(uri); local {
		if doc, err = readLocal(path); err != nil {
			return r, err
		}
	} else if doc, err = content.Fetcher.Fetch(ctx, uri, MaxDocument); err != nil {
		return explainUnfetched(err), nil
	}
	r = DescribeDocument(doc, o.Settings.StdioCommands, content.Guard)
	if hash != "" {
		r.Hash = string(erc8004.VerifyHash(doc.Bytes, wanted, doc.Immutable()))
	}
	return r, nil
}

// explainUnfetched says why there is no document, and what is to be done about it.
func explainUnfetched(err error) (r Document) {
	v := retry.Classify(err)
	r.Reason = v.Reason
	why := fmt.Sprintf("(%s): %s", v.Reason, v.Text)
	var private *netguard.BlockedError
	switch {
	case v.Ending == retry.Wait:
		r.Verdict, r.again = "the document was not fetched "+why, ErrNotNow
	case v.Ending == retry.Hold:
		r.Verdict, r.again = "the document was not fetched "+why, errNotBefore
	case errors.As(err, &private):
		r.Verdict = "The document was not fetched: its address is private " + why
	case v.Reason == retry.AddressBlocked:
		r.Verdict = "The document was not fetched: its address is refused " + why
	default:
		r.Verdict = "there is no document " + why
	}
	if v.Ending == retry.Reject || v.Ending == retry.Hold { // what is there for the operator to mend
		r.NextStep = v.Reason.NextStep(retry.Subject{})
	}
	return r
}

// End is how a command ends that found this; check: it fails unless the document is one that can be used.
func (r Document) End(check bool) error {
	if check && r.again == nil && !r.isUsable() {
		return errUnusable
	}
	return r.again
}

// isUsable tells whether a delivery can go by the document: a registration of an active agent with an entry that can be
// called, or a feedback file that its hash fits. Whoever gives a hash means a feedback file, which may be of any
// form.
func (r Document) isUsable() bool {
	switch {
	case r.Hash == string(erc8004.Mismatch) || r.Kind == "":
		return false
	case r.Hash != "" || r.Kind == KindFeedback:
		return true
	}
	return r.Kind == KindRegistration && !r.Inactive &&
		slices.ContainsFunc(r.MCP, func(e MCPEntry) bool { return e.Callable })
}

// SourceFile is the source of a document that the operator named on this machine. No URI of a chain is read like that.
const SourceFile = "file"

// localPath tells whether --uri names a file of this machine: file://, or what reads like a path or is the name of a
// file here.
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
	b, err := io.ReadAll(io.LimitReader(f, MaxDocument+1))
	if err == nil && len(b) > MaxDocument {
		err = fmt.Errorf("it is longer than %d bytes, which is more than Herald fetches", MaxDocument)
	}
	if err != nil {
		return ipfs.Document{}, fmt.Errorf("--uri: read %s: %w", path, err)
	}
	return ipfs.Document{Bytes: b, Source: SourceFile, URI: path, Took: time.Since(began)}, nil
}

// parseHash takes 0x and 64 hex digits; empty is zero.
func parseHash(s string) (common.Hash, error) {
	if s == "" {
		return common.Hash{}, nil
	}
	b, err := hexutil.Decode(s)
	if err != nil || len(b) != common.HashLength {
		return common.Hash{}, NewMisuse("--hash %q is no hash: 0x and 64 hex digits", s)
	}
	return common.BytesToHash(b), nil
}

// DescribeDocument says what a document is, and of a registration's MCP entries which could be called: commands are
// those that may be run, guard says which addresses may be dialled.
func DescribeDocument(doc ipfs.Document, commands [][]string, guard *netguard.Guard) Document {
	size := len(doc.Bytes)
	d := Document{URI: withoutQuery(doc.URI), Source: doc.Source, CID: doc.CID, DNSLink: doc.DNSLink, From: doc.From,
		MediaType: doc.MediaType, Bytes: &size, Keccak256: crypto.Keccak256Hash(doc.Bytes).Hex(),
		TookMs: milliseconds(doc.Took)}
	d.describeBytes(doc.Bytes, entryJudge{commands, guard})
	return d
}

// describeBytes says what the bytes are.
func (r *Document) describeBytes(b []byte, judge entryJudge) {
	reg, err := erc8004.ParseRegistration(b)
	var problem *erc8004.DocumentError
	switch {
	case errors.As(err, &problem):
		r.Kind, r.Verdict = describeProblem(b, problem)
	case looksLikeFeedback(b):
		r.Kind, r.Verdict = KindFeedback, "a JSON object that looks like a feedback file"
	case len(reg.Services) == 0 && len(reg.Registrations) == 0:
		r.Kind, r.Verdict = KindJSON, "a JSON object, neither a registration document nor a feedback file by its members"
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

func describeRegistration(reg erc8004.Registration, entries []MCPEntry) string {
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

func (j entryJudge) describeEntry(e erc8004.MCPEntry) MCPEntry {
	out := MCPEntry{From: e.From, Transport: e.Transport, Address: withoutQuery(e.URL), Version: e.Version}
	if e.URL == "" {
		out.Address = "stdio:" + e.Command
	}
	if err := j.checkEntry(e); err != nil {
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
