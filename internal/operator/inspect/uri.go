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

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/delivery/classify"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
)

// MaxDocument bounds a document in bytes. It is the limit of feedback files; that of registrations is lower.
const MaxDocument = 2 << 20

// Document describes the document at a URI.
type Document struct {
	URI       string         `json:"uri,omitempty"` // normalized, without query
	Source    string         `json:"source,omitempty"`
	CID       string         `json:"cid,omitempty"`
	DNSLink   bool           `json:"dnsLink,omitempty"`
	From      string         `json:"from,omitempty"`
	MediaType string         `json:"mediaType,omitempty"`
	Bytes     *int           `json:"bytes,omitempty"`
	Keccak256 string         `json:"keccak256,omitempty"`
	Hash      string         `json:"hashVerdict,omitempty"` // with --hash
	Kind      string         `json:"kind,omitempty"`
	Name      string         `json:"name,omitempty"` // of a registration
	Inactive  bool           `json:"inactive,omitempty"`
	MCP       []MCPEntry     `json:"mcp,omitempty"` // of a registration, best first
	Reason    outcome.Reason `json:"reason,omitempty"`
	Verdict   string         `json:"verdict"`
	NextStep  string         `json:"nextStep,omitempty"`
	TookMs    float64        `json:"tookMs"`

	again error // error of the command, if the document may be available later
}

// ResolveURI fetches and describes any document, without a chain. It reads a path or a file:// URI from this machine.
// If hash is not empty, it is compared with the hash of the bytes, as a feedbackHash is.
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

// explainUnfetched describes why the document could not be fetched, with advice for the operator.
func explainUnfetched(err error) (r Document) {
	v := classify.Error(err)
	r.Reason = v.Reason
	why := fmt.Sprintf("(%s): %s", v.Reason, v.Text)
	var private *netguard.BlockedError
	switch {
	case v.Ending == outcome.Waiting:
		r.Verdict, r.again = "the document was not fetched "+why, ErrNotNow
	case v.Ending == outcome.Held:
		r.Verdict, r.again = "the document was not fetched "+why, errNotBefore
	case errors.As(err, &private):
		r.Verdict = "The document was not fetched: its address is private " + why
	case v.Reason == outcome.AddressBlocked:
		r.Verdict = "The document was not fetched: its address is refused " + why
	default:
		r.Verdict = "there is no document " + why
	}
	if v.Ending == outcome.Rejected || v.Ending == outcome.Held { // the operator can do something about these
		r.NextStep = outcome.NextStep(v.Reason, outcome.Subject{})
	}
	return r
}

// End returns the error with which the command ends. With check it also fails if the document is not usable.
func (r Document) End(check bool) error {
	if check && r.again == nil && !r.isUsable() {
		return errUnusable
	}
	return r.again
}

// isUsable reports whether a delivery can use the document: a registration of an active agent with a callable entry, or
// a feedback file. With a hash any document that matches it counts as a feedback file, because those can have any form.
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

// SourceFile is the source of a document that was read from this machine. URIs from a chain never lead to such files.
const SourceFile = "file"

// localPath reports whether --uri names a file of this machine, and returns its path. It accepts file:// URIs, texts
// that begin like a path, and names of existing files.
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

// parseHash parses 0x and 64 hex digits. An empty s is the zero hash.
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
