package oauth

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/base/netguard"
)

// answer is a server's complete response.
type answer struct {
	host   string // host that was called
	status int
	header http.Header
	body   []byte
}

// newPost returns a POST request to an endpoint that parseEndpoint returned.
func newPost(endpoint *url.URL, contentType string, body []byte) *http.Request {
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	req := &http.Request{Method: http.MethodPost, URL: endpoint, Header: http.Header{"Content-Type": {contentType}},
		ContentLength: int64(len(body)), GetBody: open}
	req.Body, _ = open()
	return req
}

// sendRequest sends one request and reads the response, of at most limit bytes and within the timeout. hidden are
// secrets in the request; errors never contain them, even if the server echoes them. Errors are *UnavailableError.
func (c *Client) sendRequest(ctx context.Context, req *http.Request, limit int64, hidden []string) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	fail := func(status int, err error) error {
		err = netguard.Explain("it", c.Timeout, err) // drops net/http's text, which contains the full address
		return &UnavailableError{Host: req.URL.Host, Status: status,
			Err: &netguard.FailureError{Text: hideSecrets(excerpt(err.Error(), 300), hidden), Cause: err}}
	}
	req.Header.Set("Accept", "application/json")
	resp, err := c.HTTP.Do(req.WithContext(ctx))
	if err != nil {
		return nil, fail(0, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
		return nil, fail(resp.StatusCode, err)
	case int64(len(body)) > limit:
		return nil, fail(resp.StatusCode, fmt.Errorf("its answer is longer than %d bytes", limit))
	}
	a := &answer{host: req.URL.Host, status: resp.StatusCode, header: resp.Header, body: body}
	if isTransient(a.status) {
		return nil, &UnavailableError{Host: req.URL.Host, Status: a.status,
			RetryAfter: netguard.RetryAfter(resp.Header, c.Now(), maxRetry), Err: fmt.Errorf("HTTP %d", a.status)}
	}
	return a, nil
}

// isTransient reports whether a status is independent of the request, so that a retry can succeed.
func isTransient(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	}
	return status >= 500 || status < 200
}

// hideSecrets returns text, or a fixed sentence if text contains a part of a secret that was sent.
func hideSecrets(text string, hidden []string) string {
	if slices.ContainsFunc(hidden, func(s string) bool { return holdsSecret(text, s) }) {
		return "its words are left out, since they hold a secret that it was sent"
	}
	return text
}

// holdsSecret reports whether text contains a secret in one of the encodings used for sending it, or a long enough part
// of it.
func holdsSecret(text, secret string) bool {
	const (
		short = 4  // bytes; shorter secrets occur in any text by chance
		part  = 12 // consecutive bytes that do not match by chance
	)
	if len(secret) < short {
		return false
	}
	for _, form := range []string{secret, url.QueryEscape(secret), url.PathEscape(secret),
		base64.StdEncoding.EncodeToString([]byte(secret)), base64.RawURLEncoding.EncodeToString([]byte(secret))} {
		if strings.Contains(text, form) {
			return true
		}
	}
	for i := 0; i+part <= len(text); i++ {
		if strings.Contains(secret, text[i:i+part]) {
			return true
		}
	}
	return false
}

// fetchDocument returns the document at the first address that has one. name identifies the location in errors, because
// the path of a resource may contain secrets. If an address has no document, fetchDocument tries the next one. It does
// not do so after a network error or a transient status: an attacker that can cause those must not be able to choose
// the document. Errors are *MetadataError and *UnavailableError.
func (c *Client) fetchDocument(ctx context.Context, name string, addresses []string) (object, error) {
	worst, problem := absent, ""
	for _, address := range addresses {
		u, err := parseURL(address)
		if err != nil {
			return nil, &MetadataError{URL: name, Problem: "its address " + err.Error()}
		}
		a, err := c.sendRequest(ctx, &http.Request{Method: http.MethodGet, URL: u, Header: http.Header{}},
			maxMetadata, nil)
		if err != nil {
			return nil, err
		}
		o, why, problemHere := readDocument(a)
		if o != nil {
			return o, nil
		}
		worst = max(worst, why)
		if problem == "" || strings.HasPrefix(problem, "it is not there") {
			problem = problemHere
		}
	}
	return nil, &MetadataError{URL: name, Problem: problem, Missing: worst == absent, Denied: worst == denied}
}

// lack is the reason why a location has no document, in ascending order of severity.
type lack int

const (
	absent   lack = iota // the location answered that it has none
	denied               // the location requires a token
	unusable             // the location has something that is not a document
)

// readDocument returns the document in an answer, or the reason for its absence, as a lack and as text.
func readDocument(a *answer) (object, lack, string) {
	switch a.status {
	case http.StatusOK:
		o, err := parseObject(a.body)
		if err != nil {
			return nil, unusable, err.Error()
		}
		return o, absent, ""
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusGone:
		return nil, absent, fmt.Sprintf("it is not there (HTTP %d)", a.status)
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, denied, fmt.Sprintf("it is not given out (HTTP %d)", a.status)
	}
	switch {
	case a.status >= 400:
		return nil, unusable, fmt.Sprintf("it is not given out (HTTP %d)", a.status)
	case a.status >= 300:
		return nil, unusable, fmt.Sprintf("it redirects (HTTP %d), which is not followed", a.status)
	}
	return nil, unusable, fmt.Sprintf("it answers HTTP %d", a.status)
}
