package ipfs

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/text"
)

// ErrUnchanged is the error of FetchIf if the server reports that the document still has the given validators.
var ErrUnchanged = errors.New("the document has not changed")

// NoDocumentError means that the URI names no document: it is empty, free text or an address, has an unsupported
// scheme, or leads to a directory. A retry returns the same error.
type NoDocumentError struct {
	URI string // shortened, without query
	Why string
}

func (e *NoDocumentError) Error() string {
	if e.URI == "" {
		return "no document: " + e.Why
	}
	return fmt.Sprintf("no document at %s: %s", e.URI, e.Why)
}

// NotFoundError means that all hosts that were asked do not have the document. Unless Proven is set, the content may
// appear later.
type NotFoundError struct {
	URI string
	// Proven is true if a verified directory lacks the name, so that the document can never exist.
	Proven bool
	// Asked contains the hosts that were asked.
	Asked []string
}

func (e *NotFoundError) Error() string {
	if e.Proven {
		return fmt.Sprintf("%s does not exist: its verified directory has no such entry", e.URI)
	}
	return fmt.Sprintf("%s was not found on any of %v", e.URI, e.Asked)
}

// UnavailableError means that the document could not be fetched now. A retry may succeed.
type UnavailableError struct {
	URI string
	// RetryAfter is the wait that the servers asked for; 0 if they stated none.
	RetryAfter time.Duration
	// Status is the HTTP status that caused the error; 0 if there was another cause.
	Status int
	Err    error
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("%s could not be fetched: %v", e.URI, e.Err)
}

func (e *UnavailableError) Unwrap() error { return e.Err }

// explainUnavailable returns an UnavailableError with a plain description of a network error. peer did not send the
// document within the given time; 0 means that the time is unknown.
func explainUnavailable(uri, peer string, within time.Duration, err error) *UnavailableError {
	return &UnavailableError{URI: uri, Err: netguard.Explain(peer, within, err)}
}

// NoGatewayError means that the document is on Arweave and no Arweave gateway is configured.
type NoGatewayError struct {
	URI string
}

func (e *NoGatewayError) Error() string {
	return fmt.Sprintf("%s cannot be fetched without an Arweave gateway: set ARWEAVE_GATEWAY and restart the worker",
		e.URI)
}

// TooLargeError means that the document, or the data needed to reach it, exceeds the limit. A retry returns the same
// error.
type TooLargeError struct {
	URI   string
	Limit int64  // maximum size of the document in bytes
	Why   string // empty if the document itself is larger
}

func (e *TooLargeError) Error() string {
	if e.Why != "" {
		return fmt.Sprintf("%s is too large for a document of %d bytes: %s", e.URI, e.Limit, e.Why)
	}
	return fmt.Sprintf("%s is larger than %d bytes", e.URI, e.Limit)
}

// InvalidError means that the URI is malformed, or that the verified content is not a readable file. No server can
// fix that, so a retry returns the same error.
type InvalidError struct {
	URI string
	Why string
	Err error // may be nil
}

func (e *InvalidError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("%s is invalid: %s", e.URI, e.Why)
	}
	return fmt.Sprintf("%s is invalid: %s: %v", e.URI, e.Why, e.Err)
}

func (e *InvalidError) Unwrap() error { return e.Err }

// fetchError is one of the error types above, except NoGatewayError.
type fetchError interface {
	error
	isFinal() bool // neither another server nor time can change the result
}

func (e *NoDocumentError) isFinal() bool  { return true }
func (e *NotFoundError) isFinal() bool    { return e.Proven }
func (e *UnavailableError) isFinal() bool { return false }
func (e *TooLargeError) isFinal() bool    { return true }
func (e *InvalidError) isFinal() bool     { return true }

// shownURL returns a URL without its secrets, for errors and logs.
func shownURL(u *url.URL) string {
	return shortenText((&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String())
}

// shortenText shortens untrusted text for an error message and replaces unprintable characters.
func shortenText(s string) string { return text.Excerpt(s, 160) }
