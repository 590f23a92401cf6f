package ipfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/sync/singleflight"

	"github.com/agentherald/herald/internal/base/netguard"
)

// Config configures a Fetcher. Zero values select the defaults.
type Config struct {
	// Gateways (IPFS_GATEWAYS) are trustless gateways, in the order in which they are asked, written as https://host
	// or http://127.0.0.1:8080. They need not be trusted and may be on loopback. By default there are no gateways.
	// Then ipfs documents are unavailable, except unverified ones from the gateway URL that named them.
	Gateways []string

	// Arweave is the https gateway for ar:// documents. It is dialled through Guard. By default it is empty, and
	// ar:// URIs return a *NoGatewayError.
	Arweave string

	// Guard dials the hosts of untrusted URIs. It is required.
	Guard *netguard.Guard

	// Timeout bounds a whole fetch. The default is 15 s.
	Timeout time.Duration
	// TryTimeout bounds one request to one gateway. The default is 5 s.
	TryTimeout time.Duration
	// Hedge is how long a gateway is waited for before the next one is asked as well. The default is 500 ms.
	Hedge time.Duration

	// LookupTXT looks up DNS records for ipns://domain. The default is net.DefaultResolver's.
	LookupTXT func(ctx context.Context, name string) ([]string, error)

	// CacheBytes bounds the cache of verified content. The default is 16 MiB. A negative value disables the cache.
	CacheBytes int64

	Logger *slog.Logger     // default: discard
	Now    func() time.Time // default: time.Now
}

// Document is the content at a URI.
type Document struct {
	// Bytes are shared with other callers and the cache. They must not be modified.
	Bytes []byte
	// MediaType is the type that the server or the data URI states, without parameters. It is untrusted, and empty
	// for ipfs.
	MediaType string
	// Source is how Bytes are identified: one of the Source constants.
	Source string
	// CID is the verified root. It is set only for Source "cid" and "ipns".
	CID string
	// DNSLink is true for Source "ipns" if the name is a domain. The content of the domain was looked up in DNS, so
	// the DNS servers decide which content it is.
	DNSLink bool
	// Validators are those of a web server's answer, for FetchIf.
	Validators Validators
	// URI is the normalised spelling; "data:" for content that is in the URI itself. It may contain an untrusted
	// query and must not be logged.
	URI string
	// From is the host that served the document, for display. It is empty if nothing was fetched.
	From string
	// Origin is the scheme, host and port of the server that answered. It is set only for Source "https" and "http".
	// It is empty if a redirect led to another origin, and for content of others that a gateway served.
	Origin netguard.Origin
	// LastResort is true if the URI names content of IPFS that no gateway could serve verified, and the gateway in the
	// URI served these bytes. Unless a hash proves them, they may be other bytes than the URI names.
	LastResort bool
	// Took is how long this caller waited; near zero for a cached document.
	Took time.Duration
}

// Immutable reports whether the URI itself fixes the document's bytes, so that only the author of the URI chose them.
func (d Document) Immutable() bool { return d.Source == SourceCID || d.Source == SourceData }

// Fetcher fetches documents. It is safe for concurrent use.
type Fetcher struct {
	cfg      Config
	gateways []*gateway
	arweave  *url.URL
	client   *http.Client // for gateways
	guarded  *http.Client // for untrusted hosts
	cache    *cache
	failures *failures
	names    *lru.Cache[string, nameRecord]

	// Fetches run with a context of their own, so that one caller's cancellation does not affect the other callers.
	ctx     context.Context
	cancel  context.CancelFunc
	flights singleflight.Group
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// New validates the configuration and returns a Fetcher. It makes no request.
func New(cfg Config) (*Fetcher, error) {
	if cfg.Guard == nil {
		return nil, errors.New("ipfs: no guard for strangers' addresses was given")
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, 15*time.Second)
	cfg.TryTimeout = cmp.Or(cfg.TryTimeout, 5*time.Second)
	cfg.Hedge = cmp.Or(cfg.Hedge, 500*time.Millisecond)
	cfg.CacheBytes = cmp.Or(cfg.CacheBytes, 16<<20)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.LookupTXT == nil {
		cfg.LookupTXT = net.DefaultResolver.LookupTXT
	}
	names, _ := lru.New[string, nameRecord](maxNames) // fails only for a size below 1
	f := &Fetcher{
		cfg:    cfg,
		client: gatewayClient(cfg.TryTimeout),
		guarded: cfg.Guard.Client(netguard.Limits{
			Header: headerTimeout(cfg.Timeout), Total: cfg.Timeout,
		}, maxRedirects),
		cache:    newCache(max(0, cfg.CacheBytes)),
		failures: newFailures(cfg.Now),
		names:    names,
	}
	for _, s := range cfg.Gateways {
		base, err := parseGateway(s)
		if err != nil {
			return nil, err
		}
		f.gateways = append(f.gateways, newGateway(base, f.client, cfg.TryTimeout, cfg.Now))
	}
	if cfg.Arweave != "" {
		var err error
		if f.arweave, err = parseGateway(cfg.Arweave); err != nil {
			return nil, err
		}
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	return f, nil
}

// Close cancels running fetches, waits for them, and closes connections.
func (f *Fetcher) Close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.cancel()
	f.running.Wait()
	f.client.CloseIdleConnections()
	f.guarded.CloseIdleConnections()
}

// Fetch returns the document at uri, of at most limit bytes. ctx and Config.Timeout both bound the time.
//
// Errors: *NoDocumentError, *NotFoundError, *UnavailableError, *NoGatewayError, *TooLargeError, *InvalidError, and
// netguard's *BlockedError and *RefusedURLError, wrapped; ctx's own error if ctx ended.
func (f *Fetcher) Fetch(ctx context.Context, uri string, limit int64) (Document, error) {
	return f.FetchIf(ctx, uri, limit, Validators{})
}

// FetchIf is Fetch for a caller that has the version of the document with the validators v. It returns ErrUnchanged
// if the web server reports that the document is unchanged. For documents that no web server serves, v is ignored.
func (f *Fetcher) FetchIf(ctx context.Context, uri string, limit int64, v Validators) (Document, error) {
	return f.fetchShared(ctx, uri, limit, v, false)
}

// FetchAnew is Fetch for a caller that got a document which may be outdated. It looks names up again, although their
// content is cached.
func (f *Fetcher) FetchAnew(ctx context.Context, uri string, limit int64) (Document, error) {
	return f.fetchShared(ctx, uri, limit, Validators{}, true)
}

// fetchShared fetches the document at uri. Callers that ask the same at the same time share one fetch.
func (f *Fetcher) fetchShared(
	ctx context.Context, uri string, limit int64, v Validators, anew bool,
) (Document, error) {
	if limit <= 0 {
		return Document{}, fmt.Errorf("ipfs: a limit of %d bytes was asked for", limit)
	}
	start := f.cfg.Now()
	ref, err := parseReference(uri, limit)
	if err != nil {
		return Document{}, err
	}
	if ref.source == SourceData {
		return Document{Bytes: ref.bytes, MediaType: ref.mediaType, Source: SourceData, URI: ref.uri(),
			Took: f.cfg.Now().Sub(start)}, nil
	}
	// The key of the flight contains the gateway URL, because other URLs of the same CID lack this last resort, and
	// the limit, because it affects the result.
	flight := strconv.FormatInt(limit, 10) + " " + ref.key()
	if ref.web != nil {
		flight += " " + ref.web.String()
	}
	if ref.anew = anew; anew {
		flight = "anew " + flight
	}
	anchored := ref.source == SourceCID || ref.source == SourceIPNS
	if !anchored {
		flight += "\x00" + v.ETag + "\x00" + v.LastModified
	}
	result := f.flights.DoChan(flight, func() (any, error) {
		if !f.beginFetch() {
			return Document{}, &UnavailableError{URI: ref.shown, Err: errors.New("the fetcher is closed")}
		}
		defer f.running.Done()
		ctx, cancel := context.WithTimeout(f.ctx, f.cfg.Timeout)
		defer cancel()
		if !anchored {
			return f.fetchReference(ctx, ref, limit, v)
		}
		var doc Document
		err := f.failures.try(flight, ref.source == SourceIPNS, func() (err error) {
			doc, err = f.fetchReference(ctx, ref, limit, v)
			return err
		})
		return doc, err
	})
	select {
	case r := <-result:
		if r.Err != nil {
			return Document{}, r.Err
		}
		doc := r.Val.(Document)
		doc.Took = f.cfg.Now().Sub(start)
		return doc, nil
	case <-ctx.Done():
		return Document{}, fmt.Errorf("fetching %s: %w", ref.shown,
			netguard.Explain("its server", 0, context.Cause(ctx)))
	}
}

// beginFetch registers a fetch for which Close waits. It returns false if the fetcher is closed.
func (f *Fetcher) beginFetch() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	f.running.Add(1)
	return true
}

// fetchReference fetches a document, or returns verified content from the cache.
func (f *Fetcher) fetchReference(ctx context.Context, ref *reference, limit int64, v Validators) (Document, error) {
	switch ref.source {
	case SourceHTTP, SourceHTTPS:
		return f.fetchWeb(ctx, ref.web, limit, v)
	case SourceAr:
		if f.arweave == nil {
			return Document{}, &NoGatewayError{URI: ref.shown}
		}
		id, path, _ := strings.Cut(ref.arweave, "/")
		u := f.arweave.JoinPath(url.PathEscape(percentDecode(id)))
		for s := range strings.SplitSeq(path, "/") {
			u = u.JoinPath(url.PathEscape(percentDecode(s)))
		}
		doc, err := f.fetchWeb(ctx, u, limit, Validators{})
		if err == nil {
			doc.Source, doc.URI, doc.Origin = SourceAr, ref.uri(), ""
		}
		return doc, err
	}
	// The last resort needs time too.
	try, cancel := ctx, context.CancelFunc(func() {})
	if ref.web != nil {
		try, cancel = context.WithTimeout(ctx, f.cfg.Timeout*2/3)
	}
	defer cancel()
	doc, err := f.fetchVerified(try, ref, limit)
	if err != nil {
		return f.lastResort(ctx, ref, limit, err)
	}
	return doc, nil
}

// fetchVerified fetches the content of a CID, or the content to which a name leads now.
func (f *Fetcher) fetchVerified(ctx context.Context, ref *reference, limit int64) (Document, error) {
	if ref.source == SourceCID {
		return f.fetchContent(ctx, ref, limit)
	}
	target, dnsLink, err := f.followName(ctx, ref)
	if err != nil {
		return Document{}, err
	}
	doc, err := f.fetchContent(ctx, target, limit)
	if absent, ok := errors.AsType[*NotFoundError](err); ok && absent.Proven {
		return Document{}, &NotFoundError{URI: ref.shown, Asked: []string{"the name's directory"}} // it can change
	}
	doc.Source, doc.URI, doc.DNSLink = SourceIPNS, ref.uri(), dnsLink
	return doc, err
}

// fetchContent returns the content of a CID from the cache, or fetches it.
func (f *Fetcher) fetchContent(ctx context.Context, ref *reference, limit int64) (Document, error) {
	key := ref.key()
	if doc, ok := f.cache.get(key); ok {
		if int64(len(doc.Bytes)) > limit {
			return Document{}, &TooLargeError{URI: ref.shown, Limit: limit}
		}
		return doc, nil
	}
	content, from, err := f.immutableFile(ctx, ref, limit)
	doc := Document{Bytes: content, Source: SourceCID, CID: ref.cid.String(), URI: ref.uri(), From: from}
	if err == nil {
		f.cache.put(key, doc)
	}
	return doc, err
}

// lastResort fetches the gateway URL from which ref was rewritten, if there is one and verified content was not
// available. The result is unverified, as from any web server. If it fails as well, lastResort returns the first
// error.
func (f *Fetcher) lastResort(ctx context.Context, ref *reference, limit int64, err error) (Document, error) {
	known, ok := errors.AsType[fetchError](err)
	if ref.web == nil || !ok || known.isFinal() || ctx.Err() != nil {
		return Document{}, err
	}
	doc, webErr := f.fetchWeb(ctx, ref.web, limit, Validators{})
	if webErr == nil {
		doc.Origin, doc.LastResort = "", true // anyone may have stored this content at the gateway
		return doc, nil
	}
	var blocked *netguard.BlockedError
	var refused *netguard.RefusedURLError
	if len(f.gateways) == 0 && (errors.As(webErr, &blocked) || errors.As(webErr, &refused)) {
		return Document{}, webErr // no other way existed
	}
	return Document{}, err
}
