package resolver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/outcome"
)

// page is the data that was parsed from an agent's registration document. It is used again if the document's server
// reports that the document is unchanged.
type page struct {
	uri        string          // the tokenURI of the document
	validators ipfs.Validators // for a conditional request to the document's server; empty: it sent none
	target     Target          // without Steps; Binding is BoundByOrigin or ""
	err        error           // *SkipError, *outcome.Failure or *TransportRefusedError if no endpoint can be called
	shape      string          // Detail of the step "registration"
	choice     string          // Detail of the step "endpoint"; empty if no entry was looked for
}

// maxCachedURI bounds the tokenURI of a cached page, in bytes.
const maxCachedURI = 2 << 10

// maxName bounds Target.Name, in bytes.
const maxName = 100

// isCached reports whether the page may be cached: the document comes from a web server that sent validators, and its
// tokenURI is at most maxCachedURI long.
func (p *page) isCached() bool {
	return isWeb(p.target.DocumentSource) && p.validators != (ipfs.Validators{}) && len(p.uri) <= maxCachedURI
}

func isWeb(source string) bool { return source == ipfs.SourceHTTPS || source == ipfs.SourceHTTP }

// isPartial reports whether err, of parseDocument, is that of the first part of a document, which may be empty.
func isPartial(err error) bool {
	problem, ok := errors.AsType[*erc8004.DocumentError](err)
	return ok && (problem.Problem == erc8004.ProblemEmpty || problem.Problem == erc8004.ProblemNotJSON)
}

// resolveAgent resolves an agent without the cached outcome. If it fails, the target of the result contains the steps
// so far. old is the page of the previous result, or nil: if the document is unchanged, it is used again.
func (r *Resolver) resolveAgent(ctx context.Context, a Agent, old *page) (o result) {
	w := &trace{now: r.cfg.Now, began: r.cfg.Now()}
	defer func() { o.target.Steps = w.steps }()
	uri, err := r.readTokenURI(ctx, a, w)
	if err != nil {
		return result{err: err}
	}
	p, err := r.readDocument(ctx, a, uri, old, w)
	if err != nil {
		return result{err: err}
	}
	o = result{target: p.target.clone(), err: p.err}
	if p.isCached() {
		o.page = p
	}
	w.addStep("registration", "document", p.shape)
	if o.err == nil {
		o.err = r.checkBinding(ctx, a, &o.target, w)
	}
	if p.choice != "" {
		w.addStep("endpoint", o.target.From, p.choice)
	}
	return o
}

// readTokenURI reads the agent's tokenURI from the chain. It returns a *SkipError if the agent does not exist or the
// tokenURI is blank.
func (r *Resolver) readTokenURI(ctx context.Context, a Agent, w *trace) (string, error) {
	uri, err := r.cfg.Chain.TokenURI(ctx, a.ChainID, a.Registry, a.ID)
	source := "chain " + strconv.FormatUint(a.ChainID, 10)
	if err != nil {
		w.addStep("tokenURI", source, excerpt(err.Error()))
		var missing interface{ NoSuchAgent() bool }
		if errors.As(err, &missing) && missing.NoSuchAgent() {
			return "", &SkipError{Reason: outcome.AgentNotFound, Err: err}
		}
		return "", fmt.Errorf("reading tokenURI of agent %s: %w", a.cacheKey(), err)
	}
	w.addStep("tokenURI", source, describeURI(uri))
	if isBlank(uri) {
		return "", &SkipError{Reason: outcome.NoURI}
	}
	return uri, nil
}

// readDocument fetches and parses the registration document at uri. It returns old if uri is that of old and the server
// reports that the document is unchanged. For an invalid document it returns a page with an error. It returns an error
// itself if the document could not be fetched.
func (r *Resolver) readDocument(ctx context.Context, a Agent, uri string, old *page, w *trace) (*page, error) {
	var (
		doc ipfs.Document
		err error
	)
	if old != nil && old.uri == uri {
		doc, err = r.cfg.Fetcher.FetchIf(ctx, uri, r.cfg.Limit, old.validators)
	} else {
		old = nil
		doc, err = r.cfg.Fetcher.Fetch(ctx, uri, r.cfg.Limit)
	}
	if old != nil && errors.Is(err, ipfs.ErrUnchanged) {
		w.addStep("document", old.target.DocumentSource, "not changed since it was read, its server says")
		return old, nil
	}
	var reg erc8004.Registration
	var invalid error // of parseWhole
	if err == nil {
		doc, reg, invalid, err = r.parseWhole(ctx, doc, uri, r.cfg.Limit)
	}
	if err != nil {
		w.addStep("document", "not fetched", excerpt(err.Error()))
		if errors.Is(err, context.DeadlineExceeded) { // Config.Timeout: the chain used up most of it
			err = newUnavailable(withoutQuery(uri), err)
		}
		return nil, classifyFetchError(err)
	}
	source := doc.Source
	if doc.From != "" {
		source += " from " + doc.From
	}
	w.addStep("document", source, describeDocument(doc))
	var problem *erc8004.DocumentError
	if invalid != nil && (doc.LastResort || !errors.As(invalid, &problem)) {
		// Bytes of the last resort may not be the document.
		return nil, classifyFetchError(newUnavailable(withoutQuery(doc.URI), invalid))
	}
	p := r.findEntry(a, doc, reg, invalid)
	p.uri, p.validators = uri, doc.Validators
	return p, nil
}

// parseWhole is parseDocument for a document that was fetched from uri. If a web server sent only its first part, the
// server may have been replacing it. So parseWhole fetches it once more, and returns the second document. err is the
// error of that fetch, and invalid that of parseDocument.
func (r *Resolver) parseWhole(ctx context.Context, first ipfs.Document, uri string, limit int64,
) (doc ipfs.Document, reg erc8004.Registration, invalid, err error) {
	doc = first
	reg, invalid = r.parseDocument(ctx, doc)
	if isWeb(doc.Source) && isPartial(invalid) {
		if doc, err = r.cfg.Fetcher.Fetch(ctx, uri, limit); err == nil {
			reg, invalid = r.parseDocument(ctx, doc)
		}
	}
	return doc, reg, invalid, err
}

// parseDocument parses a registration document. It first waits until Config.Decoding has room for the document. The
// error is an *erc8004.DocumentError, or an *ipfs.UnavailableError if there was no room in time.
func (r *Resolver) parseDocument(ctx context.Context, doc ipfs.Document) (erc8004.Registration, error) {
	release, err := r.cfg.Decoding.Acquire(ctx, len(doc.Bytes))
	if err != nil {
		return erc8004.Registration{}, newUnavailable(withoutQuery(doc.URI), err)
	}
	defer release()
	return erc8004.ParseRegistration(doc.Bytes)
}

// findEntry returns the page of a registration document: it chooses the entry to call, or
// sets the page's error if no entry can be called. err is the error of parseDocument.
func (r *Resolver) findEntry(a Agent, doc ipfs.Document, reg erc8004.Registration, err error) *page {
	p := &page{target: Target{DocumentURI: withoutQuery(doc.URI), DocumentSource: doc.Source}}
	if err != nil {
		p.shape, p.err = excerpt(err.Error()), &SkipError{Reason: outcome.NoDocument, Err: err}
		return p
	}
	t, entries := &p.target, reg.ListMCPEntries()
	t.Name = text.Excerpt(reg.Name, maxName)
	p.shape = describeRegistration(reg, len(entries))
	if reg.Inactive() {
		p.err = outcome.Agent{Inactive: true}.Judge()
		return p
	}
	commands := slices.DeleteFunc(slices.Clone(r.cfg.StdioCommands), func(argv []string) bool {
		return r.cfg.MayRun != nil && !r.cfg.MayRun(a.ChainID, a.Registry, a.ID.String(), argv)
	})
	e, choice, err := chooseEntry(entries, a.ID, commands)
	p.choice = choice
	if err != nil {
		p.err = err
		return p
	}
	t.Transport, t.URL = e.Transport, e.URL
	if e.Transport == erc8004.TransportStdio { // the entry of a URL may have arguments of any size
		t.Command, t.Args = e.Command, e.Args
	}
	// These texts may be parts of larger ones, which the cached result must not keep in memory.
	t.ProtocolHint, t.TokenHeader = strings.Clone(parseProtocol(e.Version)), strings.Clone(e.TokenHeader)
	t.From = e.From
	if isServedByEndpoint(a, doc, reg, t.URL) {
		t.Binding = BoundByOrigin
	}
	return p
}

// classifyFetchError returns a *SkipError if err shows that the document does not exist or cannot be valid. Otherwise
// it wraps err, which may be temporary.
func classifyFetchError(err error) error {
	var (
		none    *ipfs.NoDocumentError
		invalid *ipfs.InvalidError
		large   *ipfs.TooLargeError
		absent  *ipfs.NotFoundError
	)
	if errors.As(err, &none) || errors.As(err, &invalid) || errors.As(err, &large) || errors.As(err, &absent) &&
		absent.Proven {
		return &SkipError{Reason: outcome.NoDocument, Err: err}
	}
	return fmt.Errorf("registration document: %w", err)
}

// isBlank reports whether s contains only white space and control characters.
func isBlank(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsSpace(r) && !unicode.IsControl(r) })
}
