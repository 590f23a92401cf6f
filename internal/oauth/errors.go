package oauth

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/text"
)

// RefusedError: the authorization server said no. Asking again in the same way cannot help.
type RefusedError struct {
	Status int // HTTP; 0 when it came through the person's browser, or when nothing was asked since the answer is known
	// Code is what the server named (RFC 6749 §4.1.2.1 and §5.2, RFC 7591 §3.2.2, RFC 8707 §2): invalid_client,
	// invalid_grant, unauthorized_client, invalid_scope, invalid_target, access_denied, …; at most 64 bytes; empty
	// when it named none.
	Code        string
	Description string // its own words, at most 300 bytes of one line; may be empty
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

// UnavailableError: no usable answer now: network, time, 5xx, 429, an answer that does not end, is too large or makes
// no sense. Try again. errors.As finds what the dial guard refused (netguard.BlockedError, netguard.RefusedURLError),
// which only the operator can mend.
type UnavailableError struct {
	Host       string        // that was asked
	RetryAfter time.Duration // what it asked for, at most an hour; 0: nothing
	Status     int           // HTTP, when that is why; else 0
	Err        error         // never nil; without secrets and URLs
}

func (e *UnavailableError) Error() string {
	text := fmt.Sprintf("%s gives no usable answer: %v", excerpt(e.Host, 200), e.Err)
	if e.RetryAfter > 0 {
		text += fmt.Sprintf(" (again after %s)", e.RetryAfter.Round(time.Second))
	}
	return text
}

func (e *UnavailableError) Unwrap() error { return e.Err }

// MayAnswerLater tells whether somebody was away and nothing keeps them from answering another time: an address that
// the dial guard refuses stays refused.
func MayAnswerLater(err error) bool {
	var away *UnavailableError
	var blocked *netguard.BlockedError
	var refused *netguard.RefusedURLError
	return errors.As(err, &away) && !errors.As(err, &blocked) && !errors.As(err, &refused)
}

// MetadataError: a document that tells how to authenticate cannot be used, or is not there.
type MetadataError struct {
	URL     string // of the document, or what was looked for; without query
	Problem string // a clause
	Missing bool   // every place where it may be answered that it is not there
	Denied  bool   // no place has it, and one or more answered 401 or 403: who asks for a token there may ask for it everywhere
}

func (e *MetadataError) Error() string {
	return fmt.Sprintf("the OAuth metadata at %s cannot be used: %s", excerpt(e.URL, maxText), e.Problem)
}

// IssuerError: somebody else speaks than the authorization server that a credential is pinned to. Nothing was sent to
// them.
type IssuerError struct {
	Pinned string   // of the credential, or whom the request was for
	Named  []string // by the resource's or the server's document, or by the callback; at most 4 of 300 bytes, none when it named nobody
}

func (e *IssuerError) Error() string {
	if len(e.Named) == 0 {
		return fmt.Sprintf("the answer does not say that it is from %s, as that server promised that it would",
			excerpt(e.Pinned, maxText))
	}
	return fmt.Sprintf("the authorization server is %s and not %s", strings.Join(e.Named, " or "),
		excerpt(e.Pinned, maxText))
}

// excerptIssuers are issuers as an error names them.
func excerptIssuers(issuers ...string) []string {
	const most = 4
	var out []string
	for _, i := range issuers[:min(len(issuers), most)] {
		out = append(out, excerpt(i, maxText))
	}
	return out
}

// excerpt is foreign text for a message: one line, valid UTF-8, nothing that turns or hides text, at most about limit
// bytes.
func excerpt(s string, limit int) string { return text.Excerpt(s, limit) }
