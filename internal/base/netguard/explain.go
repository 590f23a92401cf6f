package netguard

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// FailureError is a failed exchange with a plain description. errors.Is and errors.As find the cause. The cause's own
// text is not shown: it is Go's, means little to an operator, and may contain a whole URL.
type FailureError struct {
	Text  string
	Cause error
}

func (e *FailureError) Error() string { return e.Text }
func (e *FailureError) Unwrap() error { return e.Cause }

// Timeout reports whether the cause is a timeout. *url.Error calls it.
func (e *FailureError) Timeout() bool { return isTimeout(e.Cause) }

// Explain describes a failure between this process and peer ("the agent", "the node", "it") in a sentence, for
// example "the agent did not answer within 30 s". within is the peer's time limit; 0 means that it is unknown. An
// error that is not about a connection keeps its text.
func Explain(peer string, within time.Duration, err error) error {
	if _, done := err.(*FailureError); done || err == nil {
		return err
	}
	var u *url.Error
	inner, stripped := err, false
	for errors.As(inner, &u) { // the text of *url.Error contains the whole address, which can contain a token
		inner, stripped = u.Err, true
	}
	if text := describeFailure(peer, within, inner); text != "" {
		if limit := openFilesLimit(inner); limit != nil {
			inner = errors.Join(inner, limit)
		}
		return &FailureError{Text: text, Cause: inner}
	}
	if stripped {
		return &FailureError{Text: inner.Error(), Cause: inner}
	}
	return err
}

// describeFailure returns the sentence for a network failure, or "" for any other error.
func describeFailure(peer string, within time.Duration, err error) string {
	var done *FailureError
	var blocked *BlockedError
	var refused *RefusedURLError
	var redirect *RedirectError
	switch {
	case errors.As(err, &done):
		return done.Text // the guard's dialer knew more
	case errors.As(err, &blocked):
		return blocked.Error()
	case errors.As(err, &refused):
		return refused.Error()
	case errors.As(err, &redirect):
		return redirect.Error()
	}
	type describer = func(peer string, within time.Duration, err error) string
	for _, describe := range []describer{describeDial, describeTLS, describeEnd, describeAnswer} {
		if text := describe(peer, within, err); text != "" {
			return text
		}
	}
	return ""
}

// describeDial describes why no connection was made.
func describeDial(_ string, within time.Duration, err error) string {
	if text := describeDNS(err); text != "" {
		return text
	}
	var op *net.OpError
	where := ""
	for e := err; errors.As(e, &op) && op.Op != "dial"; e = op.Err {
		if op.Op == "proxyconnect" {
			where = "the proxy "
		}
	}
	if op == nil || op.Op != "dial" {
		return ""
	}
	if op.Addr != nil {
		where += op.Addr.String()
	} else {
		where += "the address"
	}
	return describeConnect(where, within, op.Err)
}

// describeConnect describes why there is no connection to where.
func describeConnect(where string, within time.Duration, err error) string {
	var errno syscall.Errno
	switch {
	case isTimeout(err):
		return "could not connect to " + where + " " + describeTime(within)
	case errors.Is(err, context.Canceled):
		return "could not connect to " + where + ": this process gave up"
	case errors.As(err, &errno):
		return "could not connect to " + where + ": " + errno.Error()
	}
	return "could not connect to " + where
}

func describeDNS(err error) string {
	var dns *net.DNSError
	switch {
	case !errors.As(err, &dns):
		return ""
	case openFilesLimit(err) != nil:
		return "could not ask DNS about the name " + dns.Name + ": " + openFilesLimit(err).Error()
	case dns.IsNotFound:
		return "DNS does not know the name " + dns.Name
	case dns.IsTimeout:
		return "DNS did not answer in time about the name " + dns.Name
	}
	return "DNS could not look up the name " + dns.Name
}

// openFilesLimit returns the limit of open files because of which DNS was not asked, and nil for other errors. It reads
// the text, because Go's resolver does not wrap the error.
func openFilesLimit(err error) error {
	dns, ok := errors.AsType[*net.DNSError](err)
	for _, limit := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE} {
		if ok && strings.HasSuffix(dns.Err, ": "+limit.Error()) {
			return limit
		}
	}
	return nil
}

// describeTLS describes a failed TLS connection.
func describeTLS(peer string, _ time.Duration, err error) string {
	var (
		host    x509.HostnameError
		signer  x509.UnknownAuthorityError
		invalid x509.CertificateInvalidError
		roots   x509.SystemRootsError
		verify  *tls.CertificateVerificationError
		record  tls.RecordHeaderError
		op      *net.OpError
	)
	certificate := possessive(peer, "TLS certificate")
	switch {
	case errors.As(err, &host):
		return certificate + " is not for the host " + host.Host
	case errors.As(err, &signer):
		return certificate + " is not signed by an authority that this machine trusts"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && invalid.Cert != nil:
		from, until := invalid.Cert.NotBefore.UTC(), invalid.Cert.NotAfter.UTC()
		return fmt.Sprintf("%s is valid from %s to %s only", certificate, from.Format(time.DateOnly),
			until.Format(time.DateOnly))
	case errors.As(err, &invalid), errors.As(err, &verify):
		return certificate + " is not valid"
	case errors.As(err, &roots):
		return "this machine has no certificate authorities to check TLS certificates with: " +
			"install its package ca-certificates"
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return peer + " does not speak TLS at this address"
	case errors.As(err, &op) && op.Op == "remote error":
		return peer + " refused the TLS connection: " + strings.TrimPrefix(op.Err.Error(), "tls: ")
	}
	if _, why, found := strings.Cut(err.Error(), "tls: "); found { // most errors of crypto/tls have no type
		return "the TLS connection to " + peer + " failed: " + why
	}
	return ""
}

// describeEnd describes a connection that ended or on which no answer came.
func describeEnd(peer string, within time.Duration, err error) string {
	var errno syscall.Errno
	switch text := err.Error(); {
	case isTimeout(err):
		return peer + " did not answer " + describeTime(within)
	case errors.Is(err, context.Canceled), errors.Is(err, net.ErrClosed):
		return "this process gave up before " + peer + " had answered"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNABORTED):
		return peer + " reset the connection before it had answered"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return peer + " closed the connection in the middle of its answer"
	case errors.Is(err, io.EOF), strings.Contains(text, "server closed idle connection"):
		return peer + " closed the connection without an answer"
	case errors.As(err, &errno):
		return "the connection to " + peer + " failed: " + errno.Error()
	}
	return ""
}

// describeAnswer describes an answer that cannot be parsed. It searches the text, because many net/http errors have
// no type.
func describeAnswer(peer string, _ time.Duration, err error) string {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	text, answer := err.Error(), possessive(peer, "answer")
	has := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(text, p) {
				return true
			}
		}
		return false
	}
	switch {
	case errors.As(err, &syntax):
		return answer + " is not JSON"
	case errors.As(err, &kind):
		return answer + " is JSON of another form than was asked for"
	case has("response headers exceeded"):
		return answer + " has headers that are too long"
	case has("malformed HTTP", "malformed MIME", "malformed chunked", "invalid byte in chunk length",
		"transport connection broken"):
		return answer + " is not valid HTTP"
	case has("failed to parse Location header"): // followed by the header, which the peer chose
		return answer + " redirects to an address that cannot be read"
	case has("http2: ", "stream error: ", "websocket: "):
		return "the connection to " + peer + " broke off"
	}
	return ""
}

// possessive returns, for example, "its answer" or "the answer of the agent".
func possessive(peer, what string) string {
	if peer == "it" {
		return "its " + what
	}
	return "the " + what + " of " + peer
}

func isTimeout(err error) bool {
	var network net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) ||
		errors.As(err, &network) && network.Timeout()
}

func describeTime(within time.Duration) string {
	if within <= 0 {
		return "in time"
	}
	return "within " + Seconds(within)
}

// Seconds formats a duration for display: "250 ms", "1.5 s", "30 s", "5 min".
func Seconds(d time.Duration) string {
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	switch s := d.Seconds(); {
	case s < 0.9995:
		return number(math.Round(1000*s)) + " ms"
	case s < 9.95:
		return number(math.Round(10*s)/10) + " s"
	case math.Round(s) < 120 || math.Mod(math.Round(s), 60) != 0:
		return number(math.Round(s)) + " s"
	default:
		return number(math.Round(s/60)) + " min"
	}
}
