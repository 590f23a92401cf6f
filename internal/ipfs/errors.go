package ipfs

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/agentherald/herald/internal/netguard"
)

// ErrUnchanged is FetchIf's answer when the server says that the document is the one whose validators it was given.
var ErrUnchanged = errors.New("the document has not changed")

// NoDocumentError says that the URI names no document: it is empty, free text,
// an address, of a scheme that is not read, or leads to a directory. Asking
// again cannot help.
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

// NotFoundError says that everybody who was asked answered "not here". Content
// may still turn up later, unless Proven.
type NotFoundError struct {
	URI string
	// Proven: a verified directory lacks the name, so it can never be there.
	Proven bool
	// Asked are the hosts that said so.
	Asked []string
}

func (e *NotFoundError) Error() string {
	if e.Proven {
		return fmt.Sprintf("%s does not exist: its verified directory has no such entry", e.URI)
	}
	return fmt.Sprintf("%s was not found on any of %v", e.URI, e.Asked)
}

// UnavailableError says that the document could not be had now. Try again.
type UnavailableError struct {
	URI string
	// RetryAfter is what the servers asked for; 0 when they did not.
	RetryAfter time.Duration
	// Status is what a web server answered, when that is why; else 0.
	Status int
	Err    error
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("%s could not be fetched: %v", e.URI, e.Err)
}

func (e *UnavailableError) Unwrap() error { return e.Err }

// explainUnavailable is an UnavailableError whose words about the network are ours. peer did not bring the document
// within that time, 0: not known.
func explainUnavailable(uri, peer string, within time.Duration, err error) *UnavailableError {
	return &UnavailableError{URI: uri, Err: netguard.Explain(peer, within, err)}
}

// NoGatewayError says that the document lies on Arweave and nobody has configured a gateway to it.
type NoGatewayError struct {
	URI string
}

func (e *NoGatewayError) Error() string {
	return fmt.Sprintf("%s cannot be fetched without an Arweave gateway: set ARWEAVE_GATEWAY and restart the worker",
		e.URI)
}

// TooLargeError says that the document, or what has to be read to reach it, is
// over the limit. Final.
type TooLargeError struct {
	URI   string
	Limit int64  // bytes of the document
	Why   string // empty: the document itself is larger
}

func (e *TooLargeError) Error() string {
	if e.Why != "" {
		return fmt.Sprintf("%s is too large for a document of %d bytes: %s", e.URI, e.Limit, e.Why)
	}
	return fmt.Sprintf("%s is larger than %d bytes", e.URI, e.Limit)
}

// InvalidError says that the URI is broken, or that the verified content is no
// readable file: no server can mend it. Final.
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

// shownURL is a URL as errors and people may see it.
func shownURL(u *url.URL) string {
	return shortenText((&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String())
}

// shortenText keeps a stranger's text from filling an error message.
func shortenText(s string) string {
	const most = 160
	r := []rune(s[:min(len(s), 4*most)])
	if len(r) > most {
		r = append(r[:most-1], '…')
	}
	for i, c := range r {
		if isUnprintable(c) {
			r[i] = '\uFFFD'
		}
	}
	return string(r)
}
