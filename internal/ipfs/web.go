package ipfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
)

// maxRedirects is the maximum number of redirects to a document.
const maxRedirects = 3

// Validators identify one version of a document on a web server (RFC 9110 §8.8). They are empty if the server sent
// none.
type Validators struct{ ETag, LastModified string }

// maxValidator bounds the size, in bytes, of a validator that is stored and sent back.
const maxValidator = 256

// validatorsOf returns the validators of a response. It drops those that are too long.
func validatorsOf(h http.Header) Validators {
	keep := func(s string) string {
		if len(s) > maxValidator {
			return ""
		}
		return s
	}
	return Validators{ETag: keep(h.Get("ETag")), LastModified: keep(h.Get("Last-Modified"))}
}

func (v Validators) set(h http.Header) {
	if v.ETag != "" {
		h.Set("If-None-Match", v.ETag)
	}
	if v.LastModified != "" {
		h.Set("If-Modified-Since", v.LastModified)
	}
}

// fetchWeb fetches a document over https or http through the guard. It returns ErrUnchanged if the document still has
// the validators v.
func (f *Fetcher) fetchWeb(ctx context.Context, u *url.URL, limit int64, v Validators) (Document, error) {
	shown := shownURL(u)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return Document{}, &InvalidError{URI: shown, Why: "no request can be made of it"}
	}
	req.Header.Set("Accept", "application/json, */*;q=0.5")
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("User-Agent", userAgent)
	v.set(req.Header)
	resp, err := f.guarded.Do(req)
	if err != nil {
		var blocked *netguard.BlockedError
		var refused *netguard.RefusedURLError
		if errors.As(err, &blocked) || errors.As(err, &refused) {
			return Document{}, fmt.Errorf("fetching %s: %w", shown, netguard.Explain("the server", 0, err))
		}
		return Document{}, explainUnavailable(shown, "the server", f.waitTime(ctx), err)
	}
	defer func() { _ = resp.Body.Close() }()
	switch resp.StatusCode {
	case http.StatusOK, http.StatusNonAuthoritativeInfo:
	case http.StatusNotModified:
		if v == (Validators{}) || resp.Request.Response != nil { // a redirected request has no condition
			return Document{}, &UnavailableError{URI: shown,
				Err: errors.New("the server answered 304 to a question without a condition")}
		}
		return Document{}, fmt.Errorf("%s: %w", shown, ErrUnchanged)
	case http.StatusNotFound, http.StatusGone:
		return Document{}, &NotFoundError{URI: shown, Asked: []string{u.Host}}
	default:
		return Document{}, &UnavailableError{URI: shown,
			RetryAfter: netguard.RetryAfter(resp.Header, f.cfg.Now(), longestRetryAfter), Status: resp.StatusCode,
			Err: fmt.Errorf("the server answered %d", resp.StatusCode)}
	}
	if resp.ContentLength > limit {
		return Document{}, &TooLargeError{URI: shown, Limit: limit}
	}
	content, err := readCapped(resp.Body, limit)
	if err == nil {
		content, err = decodeContent(content, resp.Header.Values("Content-Encoding"), limit)
	}
	if errors.Is(err, errOverCap) {
		return Document{}, &TooLargeError{URI: shown, Limit: limit}
	}
	if err != nil {
		return Document{}, explainUnavailable(shown, "the server", f.cfg.Timeout, err)
	}
	validators := validatorsOf(resp.Header)
	if resp.Request.Response != nil {
		validators = Validators{} // they are those of another URL, to which this one may not lead the next time
	}
	mediaType, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		mediaType = ""
	}
	return Document{
		Bytes: content, MediaType: shortenText(mediaType), Source: weakestScheme(resp),
		URI: u.String(), From: resp.Request.URL.Host, Origin: commonOrigin(resp), Validators: validators,
	}, nil
}

// headerTimeout returns how long a web server may take to begin its answer.
func headerTimeout(whole time.Duration) time.Duration { return min(5*time.Second, whole) }

// waitTime returns the time limit that a server without headers exceeded: that of the whole fetch if ctx has ended.
func (f *Fetcher) waitTime(ctx context.Context) time.Duration {
	if ctx.Err() == nil {
		return headerTimeout(f.cfg.Timeout)
	}
	return f.cfg.Timeout
}

// decodeContent decodes a content coding that the server used although none was requested. It supports only gzip.
func decodeContent(b []byte, codings []string, limit int64) ([]byte, error) {
	switch coding := strings.ToLower(strings.TrimSpace(strings.Join(codings, ","))); coding {
	case "", "identity":
		return b, nil
	case "gzip", "x-gzip":
		if !bytes.HasPrefix(b, []byte{0x1f, 0x8b}) {
			return b, nil // labelled as gzip, but not compressed
		}
		return gunzip(b, limit)
	default:
		return nil, fmt.Errorf("content coding %.40q is not read, identity was asked for", coding)
	}
}

// commonOrigin returns the origin of all hops to an answer. It is empty if a redirect led to another origin, because
// then that origin is responsible for the answer, or if a hop is a gateway's URL of content, which anyone may have
// stored there.
func commonOrigin(resp *http.Response) netguard.Origin {
	origin := netguard.OriginOf(resp.Request.URL)
	for r := resp; r != nil; r = r.Request.Response {
		if netguard.OriginOf(r.Request.URL) != origin || isGatewayPath(r.Request.URL) {
			return ""
		}
	}
	return origin
}

// isGatewayPath reports whether a gateway may serve stored content at the path of u, in any spelling. It returns true
// also for URLs that throughGateway does not recognize, such as those with a CID of an insecure hash, and for all paths
// with . or .. segments: a gateway that does not resolve them may find entries with these names in a directory.
func isGatewayPath(u *url.URL) bool {
	clean := strings.ToLower(path.Clean("/"+u.Path)) + "/"
	return hasDots(strings.Split(u.Path, "/")) || strings.HasPrefix(clean, "/ipfs/") ||
		strings.HasPrefix(clean, "/ipns/") || clean == "/api/v0/cat/"
}

// weakestScheme returns the source of an answer: http if any hop used plain http.
func weakestScheme(resp *http.Response) string {
	for r := resp; r != nil; r = r.Request.Response {
		if r.Request.URL.Scheme == "http" {
			return SourceHTTP
		}
	}
	return SourceHTTPS
}
