package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/reason"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
)

// MaxDocument is the largest document, in bytes: a feedback file's, a registration's is smaller.
const MaxDocument = 2 << 20

// Document is what a URI led to, and what the bytes there are.
type Document struct {
	URI       string        `json:"uri,omitempty"` // normalised, without query
	Source    string        `json:"source,omitempty"`
	CID       string        `json:"cid,omitempty"`
	DNSLink   bool          `json:"dnsLink,omitempty"`
	From      string        `json:"from,omitempty"`
	MediaType string        `json:"mediaType,omitempty"`
	Bytes     *int          `json:"bytes,omitempty"`
	Keccak256 string        `json:"keccak256,omitempty"`
	Hash      string        `json:"hashVerdict,omitempty"` // of --hash
	Kind      string        `json:"kind,omitempty"`
	Name      string        `json:"name,omitempty"` // a registration's
	Inactive  bool          `json:"inactive,omitempty"`
	MCP       []MCPEntry    `json:"mcp,omitempty"` // of a registration, best first
	Reason    reason.Reason `json:"reason,omitempty"`
	Verdict   string        `json:"verdict"`
	NextStep  string        `json:"nextStep,omitempty"`
	TookMs    float64       `json:"tookMs"`

	again error // why it could not be fetched, when it is there perhaps another time
}

// ResolveURI fetches a document of whatever kind, without a chain, and says what it is. A path or file:// is read
// from this machine. hash is a feedbackHash that the bytes are compared with; "": none.
func ResolveURI(ctx context.Context, o *operator.Operator, uri, hash string) (r Document, err error) {
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
	case v.Reason == reason.AddressBlocked:
		r.Verdict = "The document was not fetched: its address is refused " + why
	default:
		r.Verdict = "there is no document " + why
	}
	if v.Ending == retry.Reject || v.Ending == retry.Hold { // what is there for the operator to mend
		r.NextStep = retry.NextStep(v.Reason, retry.Subject{})
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
		return common.Hash{}, operator.NewMisuse("--hash %q is no hash: 0x and 64 hex digits", s)
	}
	return common.BytesToHash(b), nil
}
