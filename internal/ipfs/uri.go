package ipfs

import (
	"encoding/hex"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ipfs/boxo/verifcid"
	"github.com/ipfs/go-cid"
	"github.com/multiformats/go-multihash"

	"github.com/agentherald/herald/internal/base/netguard"
)

// Sources: how the bytes of a Document are identified (docs/agent.md).
const (
	SourceCID   = "cid"
	SourceIPNS  = "ipns"
	SourceData  = "data"
	SourceHTTPS = "https"
	SourceHTTP  = "http"
	SourceAr    = "ar"
)

// maxURI bounds every URI that does not contain the document itself.
const maxURI = 8 << 10

// maxSegments bounds the path below a CID, because each segment needs a directory block.
const maxSegments = 32

// reference is the meaning of a URI, independent of its spelling.
type reference struct {
	source string
	// shown names the document for display: shortened, without query.
	shown string

	// SourceData
	bytes     []byte
	mediaType string

	// SourceCID
	cid      cid.Cid
	segments []segment

	// SourceIPNS: key or domain, together with segments. With anew, its cached content is not used.
	name string
	anew bool

	// SourceHTTPS, SourceHTTP; for SourceCID and SourceIPNS the gateway URL that was rewritten, which serves as an
	// unverified last resort, or nil
	web *url.URL

	// SourceAr: transaction and path
	arweave string
}

// segment is one name in a path. Percent-decoding is a guess (a file may be called "100%25"), so the literal spelling
// is kept.
type segment struct{ decoded, literal string }

// uri returns the normalised spelling.
func (r *reference) uri() string {
	switch r.source {
	case SourceCID:
		return "ipfs://" + r.cid.String() + r.path()
	case SourceIPNS:
		return "ipns://" + r.name + r.path()
	case SourceAr:
		return "ar://" + r.arweave
	case SourceData:
		return "data:"
	}
	return r.web.String()
}

// key returns the cache key of the content. It includes the literal spelling of segments, because a name is looked up
// decoded first and then literally.
func (r *reference) key() string {
	k := r.uri()
	for _, s := range r.segments {
		if s.literal != s.decoded {
			k += "\x00" + s.literal
		} else {
			k += "\x00"
		}
	}
	return k
}

// path returns the escaped path below the root. It is empty or starts with a slash.
func (r *reference) path() string {
	var b strings.Builder
	for _, s := range r.segments {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(s.decoded))
	}
	return b.String()
}

// parseReference parses a URI as it occurs on chain. limit is the maximum decoded size of a document that is in the
// URI itself. Errors: *NoDocumentError, *InvalidError, *TooLargeError.
func parseReference(uri string, limit int64) (*reference, error) {
	s := strings.TrimFunc(uri, isBlank)
	if s == "" {
		return nil, &NoDocumentError{Why: "the URI is empty"}
	}
	if s[0] == '{' {
		if int64(len(s)) > limit {
			return nil, &TooLargeError{URI: "the inline document", Limit: limit}
		}
		return &reference{source: SourceData, shown: "inline JSON", bytes: []byte(s), mediaType: "application/json"},
			nil
	}
	scheme, rest := splitScheme(s)
	if scheme == "data" {
		b, mediaType, err := decodeData(rest, limit)
		if err != nil {
			return nil, err
		}
		return &reference{source: SourceData, shown: "data URI", bytes: b, mediaType: mediaType}, nil
	}
	shown := shortenText(cutQuery(s))
	if len(s) > maxURI {
		return nil, &NoDocumentError{URI: shown, Why: "it is longer than any URI that is followed (8 KiB)"}
	}
	if !utf8.ValidString(s) || strings.ContainsFunc(s, isUnprintable) {
		return nil, &NoDocumentError{URI: shown, Why: "it contains control characters or is not UTF-8"}
	}
	switch scheme {
	case "ipfs", "ipns":
		return parseImmutable(scheme, rest, shown)
	case "http", "https":
		return webReference(scheme, rest, shown)
	case "ar":
		id, _, _ := strings.Cut(strings.TrimLeft(rest, "/"), "#")
		if id == "" || strings.HasPrefix(id, "?") {
			return nil, &NoDocumentError{URI: shown, Why: "it names no Arweave transaction"}
		}
		if hasDots(strings.Split(cutQuery(id), "/")) {
			return nil, &InvalidError{URI: shown, Why: "its path contains . or .. segments"}
		}
		return &reference{source: SourceAr, shown: shown, arweave: cutQuery(id)}, nil
	case "":
		if looksLikePath(s) {
			return parseImmutable("ipfs", s, shown)
		}
		first, _, _ := strings.Cut(cutQuery(s), "/")
		if looksLikeCID(first) {
			if _, err := decodeCID(first); err == nil {
				return parseImmutable("ipfs", s, shown)
			}
		}
		return nil, &NoDocumentError{URI: shown, Why: "it is text, not a URI"}
	}
	return nil, &NoDocumentError{URI: shown, Why: "the scheme " + shortenText(scheme) + " is not read"}
}

// splitScheme returns the scheme in lower case and the rest after its colon. The scheme is empty if s has none.
func splitScheme(s string) (scheme, rest string) {
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z':
		case i > 0 && ('0' <= c && c <= '9' || c == '+' || c == '-' || c == '.'):
		case i > 0 && c == ':':
			return strings.ToLower(s[:i]), s[i+1:]
		default:
			return "", s
		}
	}
	return "", s
}

// parseImmutable parses the part after ipfs: or ipns:, or a path without a scheme.
func parseImmutable(namespace, rest, shown string) (*reference, error) {
	rest = strings.TrimLeft(cutQuery(rest), "/")
	// Handles ipfs://ipfs/CID, /ipfs/ipfs/CID and so on, and ipfs://ipns/NAME.
	for {
		lower := strings.ToLower(rest)
		switch {
		case strings.HasPrefix(lower, "ipfs/"):
			namespace = "ipfs"
		case strings.HasPrefix(lower, "ipns/"):
			namespace = "ipns"
		default:
			root, path, _ := strings.Cut(rest, "/")
			return parseRooted(namespace, root, path, shown)
		}
		rest = strings.TrimLeft(rest[5:], "/")
	}
}

// parseRooted parses a CID or a name, and the path below it.
func parseRooted(namespace, root, path, shown string) (*reference, error) {
	if root == "" {
		return nil, &NoDocumentError{URI: shown, Why: "it names no content"}
	}
	r := &reference{shown: shown}
	if namespace == "ipns" {
		r.source, r.name = SourceIPNS, root
	} else {
		c, err := decodeCID(root)
		if err != nil {
			return nil, &InvalidError{URI: shown, Why: "its CID cannot be read", Err: err}
		}
		r.source, r.cid = SourceCID, c
	}
	for literal := range strings.SplitSeq(path, "/") {
		if literal == "" {
			continue
		}
		decoded := percentDecode(literal)
		if hasDots([]string{literal, decoded}) {
			return nil, &InvalidError{URI: shown, Why: "its path contains . or .. segments"}
		}
		if !utf8.ValidString(decoded) || strings.ContainsRune(decoded, 0) {
			decoded = literal
		}
		r.segments = append(r.segments, segment{decoded: decoded, literal: literal})
	}
	if len(r.segments) > maxSegments {
		return nil, &InvalidError{URI: shown, Why: "its path is too deep"}
	}
	return r, nil
}

// webReference parses http and https URLs, and recognises gateway URLs.
func webReference(scheme, rest, shown string) (*reference, error) {
	u, err := url.Parse(scheme + ":" + rest)
	if err != nil {
		// url.Parse quotes the URL in its error, including its query, so its error is dropped.
		return nil, &InvalidError{URI: shown, Why: "it is no URL that can be read"}
	}
	if u.Hostname() == "" {
		return nil, &NoDocumentError{URI: shown, Why: "it names no host"}
	}
	u.Fragment, u.RawFragment, u.RawQuery = "", "", netguard.EscapeQuery(u.RawQuery)
	shown = shownURL(u)
	if r := throughGateway(u, shown); r != nil {
		r.web = u
		return r, nil
	}
	if isPlaceholder(u.Hostname()) {
		return nil, &NoDocumentError{URI: shown, Why: "its host is reserved for examples"}
	}
	return &reference{source: scheme, shown: shown, web: u}, nil
}

// isPlaceholder reports whether a host is reserved for examples (RFC 2606) and was left in a template.
func isPlaceholder(host string) bool {
	labels := strings.Split(strings.ToLower(strings.TrimSuffix(host, ".")), ".")
	switch labels[len(labels)-1] {
	case "example", "invalid":
		return true
	case "com", "net", "org":
		return len(labels) > 1 && labels[len(labels)-2] == "example"
	}
	return false
}

// throughGateway recognises the forms of gateway URLs that contain a CID or a name: host/ipfs/CID/path,
// CID.ipfs.host/path, /api/v0/cat?arg=CID. It returns nil for any other URL.
func throughGateway(u *url.URL, shown string) *reference {
	path := strings.TrimLeft(u.EscapedPath(), "/")
	first, below, _ := strings.Cut(path, "/")
	switch strings.ToLower(first) {
	case "ipfs", "ipns":
		if r, err := parseImmutable(strings.ToLower(first), below, shown); err == nil && !r.isNameless() {
			return r
		}
		return nil
	case "api":
		if arg := u.Query().Get("arg"); arg != "" && strings.EqualFold(strings.TrimRight(path, "/"), "api/v0/cat") {
			if r, err := parseImmutable("ipfs", arg, shown); err == nil {
				return r
			}
		}
		return nil
	}
	labels := strings.Split(u.Hostname(), ".")
	if len(labels) < 3 {
		return nil
	}
	root := labels[0]
	switch strings.ToLower(labels[1]) {
	case "ipfs":
		// Host names are case-insensitive, so only bases in lower case can occur.
		root = strings.ToLower(root)
		if !looksLikeCID(root) {
			return nil
		}
	case "ipns":
		root = strings.ToLower(root)
		if _, err := cid.Decode(root); err != nil {
			// A domain folded into one label: "-" is ".", "--" is "-".
			root = strings.ReplaceAll(root, "--", "\x00")
			root = strings.ReplaceAll(root, "-", ".")
			root = strings.ReplaceAll(root, "\x00", "-")
		}
	default:
		return nil
	}
	if r, err := parseRooted(strings.ToLower(labels[1]), root, path, shown); err == nil && !r.isNameless() {
		return r
	}
	return nil
}

// isNameless reports whether an ipns reference has no name that can be looked up, so that its URL is no gateway's.
func (r *reference) isNameless() bool {
	return r.source == SourceIPNS && !isKey(r.name) && !isDomain(canonicalName(r.name))
}

// bindingHashes returns the hash functions whose CIDs prove content: those of boxo except SHA-1, for which anyone can
// create two blocks with the same hash. boxo already rejects digests under 20 bytes, MD5 and similar functions.
func bindingHashes() verifcid.Allowlist {
	return verifcid.NewOverridingAllowlist(verifcid.DefaultAllowlist, map[uint64]bool{multihash.SHA1: false})
}

// decodeCID decodes a CID in any base and rejects insecure hash functions. An identity CID may be as long as the URI,
// because its bytes are already in memory.
func decodeCID(s string) (cid.Cid, error) {
	c, err := cid.Decode(s)
	if err != nil {
		return cid.Undef, err
	}
	if c.Prefix().MhType == multihash.IDENTITY {
		return c, nil
	}
	return c, verifcid.ValidateCid(bindingHashes(), c)
}

// looksLikeCID reports whether s may be a CIDv0, or a CIDv1 in base32, base36 or base58. It keeps ordinary words that
// happen to decode in some base from being fetched.
func looksLikeCID(s string) bool {
	if len(s) < 8 {
		return false
	}
	return len(s) == 46 && strings.HasPrefix(s, "Qm") || strings.ContainsRune("bBkKz", rune(s[0]))
}

func looksLikePath(s string) bool {
	l := strings.ToLower(strings.TrimLeft(s, "/"))
	return strings.HasPrefix(l, "ipfs/") || strings.HasPrefix(l, "ipns/")
}

func cutQuery(s string) string {
	if i := strings.IndexAny(s, "?#"); i >= 0 {
		return s[:i]
	}
	return s
}

// hasDots reports whether a segment is "." or "..", literally or after decoding.
func hasDots(segments []string) bool {
	for _, s := range segments {
		if d := percentDecode(s); s == "." || s == ".." || d == "." || d == ".." {
			return true
		}
	}
	return false
}

// percentDecode decodes valid escapes and keeps everything else, because stray percent signs are common.
func percentDecode(s string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(s, "%")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		var c [1]byte
		if n, err := hex.Decode(c[:], []byte(after[:min(2, len(after))])); n == 1 && err == nil {
			b.WriteByte(c[0])
			after = after[2:]
		} else {
			b.WriteByte('%')
		}
		s = after
	}
}

// isBlank reports whether a character around a URI is ignored.
func isBlank(r rune) bool {
	return unicode.IsSpace(r) || isUnprintable(r) || r == utf8.RuneError
}

// isUnprintable reports whether r is a control character or an invisible formatting character, including bidi
// overrides and the byte order mark.
func isUnprintable(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) }
