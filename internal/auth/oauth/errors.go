package oauth

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/text"
)

// RefusedError reports that the authorization server refused the request. Repeating the same request does not help.
type RefusedError struct {
	// Status is the HTTP status. It is 0 if the refusal came through the person's browser, or if the outcome was known
	// without a request.
	Status int
	// Code is the server's error code (RFC 6749 §4.1.2.1 and §5.2, RFC 7591 §3.2.2, RFC 8707 §2): invalid_client,
	// invalid_grant, unauthorized_client, invalid_scope, invalid_target, access_denied, …; at most 64 bytes. It is
	// empty if the server sent none.
	Code        string
	Description string // the server's description, one line of at most 300 bytes; may be empty
}

func (e *RefusedError) Error() string {
	var b strings.Builder
	b.WriteString("the authorization server refuses")
	if e.Code != "" {
		b.WriteString(": " + e.Code)
	}
	if e.Description != "" {
		fmt.Fprintf(&b, " (%q)", e.Description)
	}
	if e.Status != 0 {
		fmt.Fprintf(&b, " [HTTP %d]", e.Status)
	}
	return b.String()
}

// UnavailableError reports that there is currently no usable answer: a network error, a timeout, 5xx, 429, or an answer
// that is incomplete, too large or invalid. A retry can succeed. errors.As finds refusals of the dial guard
// (netguard.BlockedError, netguard.RefusedURLError), which only the operator can resolve.
type UnavailableError struct {
	Host       string        // host that was called
	RetryAfter time.Duration // delay that the server requested, at most an hour; 0: none
	Status     int           // HTTP status, if it is the reason; else 0
	Err        error         // never nil; contains no secrets and no URLs
}

func (e *UnavailableError) Error() string {
	text := fmt.Sprintf("%s gives no usable answer: %v", excerpt(e.Host, 200), e.Err)
	if e.RetryAfter > 0 {
		text += fmt.Sprintf(" (again after %s)", e.RetryAfter.Round(time.Second))
	}
	return text
}

func (e *UnavailableError) Unwrap() error { return e.Err }

// MayAnswerLater reports whether err is an UnavailableError that may be temporary. It returns false for an address that
// the dial guard refuses, because the guard will refuse it again.
func MayAnswerLater(err error) bool {
	var away *UnavailableError
	var blocked *netguard.BlockedError
	var refused *netguard.RefusedURLError
	return errors.As(err, &away) && !errors.As(err, &blocked) && !errors.As(err, &refused)
}

// MetadataError reports that an OAuth metadata document is missing or unusable.
type MetadataError struct {
	URL     string // of the document, or a description of its location; without query
	Problem string // a clause
	Missing bool   // every location answered that it has no document
	// Denied: no location has the document, and at least one answered 401 or 403. A server that requires a token there
	// may require it for every path.
	Denied bool
}

func (e *MetadataError) Error() string {
	return fmt.Sprintf("the OAuth metadata at %s cannot be used: %s", excerpt(e.URL, maxText), e.Problem)
}

// IssuerError reports that the authorization server is not the one to which the credential is pinned. Nothing was sent
// to it.
type IssuerError struct {
	Pinned string // issuer of the credential, or of the server that was called
	// Named are the issuers in the document of the resource or server, or in the callback: at most 4, each cut to 300
	// bytes. It is empty if the callback names no issuer.
	Named []string
}

func (e *IssuerError) Error() string {
	if len(e.Named) == 0 {
		return fmt.Sprintf("the answer does not say that it is from %s, as that server promised that it would",
			excerpt(e.Pinned, maxText))
	}
	return fmt.Sprintf("the authorization server is %s and not %s", strings.Join(e.Named, " or "),
		excerpt(e.Pinned, maxText))
}

// excerptIssuers shortens a list of issuers for an error.
func excerptIssuers(issuers ...string) []string {
	const most = 4
	var out []string
	for _, i := range issuers[:min(len(issuers), most)] {
		out = append(out, excerpt(i, maxText))
	}
	return out
}

// excerpt prepares text from a server for an error: one line of valid UTF-8 without invisible or direction-changing
// characters, of about limit bytes at most.
func excerpt(s string, limit int) string { return text.Excerpt(s, limit) }
