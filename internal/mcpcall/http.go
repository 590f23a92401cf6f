package mcpcall

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/agentherald/herald/internal/decode"
	"github.com/agentherald/herald/internal/netguard"
)

const (
	maxRefusalBytes = 16 << 10        // of a body that comes with a status other than 2xx
	refusalWait     = 2 * time.Second // for that body; the status alone says enough
	maxEventLines   = 4096            // of one server-sent event: mcp-go joins them in quadratic time
	maxRetryAfter   = 24 * time.Hour  // nobody waits longer on an agent's word
	maxChallenges   = 4               // of one answer
	maxChallenge    = 4 << 10         // bytes of them all
)

// origin is scheme, host and port, the port always written.
func origin(u *url.URL) string {
	scheme, port := strings.ToLower(u.Scheme), u.Port()
	switch {
	case port != "":
	case scheme == "http":
		port = "80"
	case scheme == "https":
		port = "443"
	}
	return scheme + "://" + strings.ToLower(u.Hostname()) + ":" + port
}

// roundTripper is all that mcp-go knows of the network.
type roundTripper struct {
	base    http.RoundTripper
	origin  string // requests elsewhere are refused, so that headers go nowhere else
	headers http.Header
	guard   *netguard.Guard
	limit   int64 // bytes of an answer, streams and resumed streams of one request together
	now     func() time.Time
	life    context.Context // of the pool; a goodbye does not outlive it
}

var errOtherOrigin = errors.New("a request to another origin than the endpoint's was refused")

func (rt *roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	if origin(req.URL) != rt.origin {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, errOtherOrigin
	}
	x := exchangeOf(req.Context())
	first := false
	ctx := req.Context()
	if x != nil { // its first HTTP request is the one that counts
		x.mu.Lock()
		first = !x.started
		x.started = true
		x.session = x.session || first && req.Header.Get("Mcp-Session-Id") != ""
		x.mu.Unlock()
	}
	if first {
		ctx = httptrace.WithClientTrace(ctx, x.trace())
	}
	if req.Method == http.MethodDelete { // a goodbye, whose answer nobody reads
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, noticeWait)
		defer cancel()
		defer context.AfterFunc(rt.life, cancel)()
	}
	req = req.WithContext(ctx) // a RoundTripper must not change its request
	if len(rt.headers) > 0 {
		req.Header = req.Header.Clone()
		maps.Copy(req.Header, rt.headers)
	}

	res, err := rt.base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if first && (res.StatusCode < 200 || res.StatusCode > 299) {
		body := readRefusal(res.Body)
		x.mu.Lock()
		x.status, x.body, x.blocked = res.StatusCode, body, rt.inward(res)
		x.retryAfter, x.challenge = retryAfter(res.Header.Get("Retry-After"), rt.now()), challenges(res)
		x.mu.Unlock()
		res.Body = io.NopCloser(strings.NewReader(string(body)))
		return res, nil
	}
	if first {
		x.mu.Lock()
		x.status = res.StatusCode
		x.mu.Unlock()
	}
	if first && x.stream { // counted where it is read
		return res, nil
	}
	body := &limitedBody{body: res.Body, limit: rt.limit, x: x}
	if kind := res.Header.Get("Content-Type"); kind != "application/json" { // the usual one is not worth parsing
		if mediaType, _, _ := mime.ParseMediaType(kind); mediaType == "text/event-stream" {
			body.events = &eventScan{one: x != nil && !x.id.IsNil()}
		}
	}
	res.Body = body
	return res, nil
}

// inward is the guard's refusal of the address that an answer redirects to, nil when there is none. Redirects are not followed; it tells
// an attempt to lead inside from an agent that moved.
func (rt *roundTripper) inward(res *http.Response) error {
	to, err := res.Location()
	var blocked *netguard.BlockedError
	if err != nil || res.StatusCode/100 != 3 || !errors.As(rt.guard.CheckURL(to), &blocked) {
		return nil
	}
	return blocked
}

// trace notes when the request may start to be written: as soon as there is a connection. net/http repeats a POST by itself only when
// nothing of it was written; each attempt begins with GetConn.
func (x *exchange) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn: func(string) {
			x.mu.Lock()
			x.written = false
			x.mu.Unlock()
		},
		GotConn: func(httptrace.GotConnInfo) { x.markWritten() },
	}
}

// readRefusal reads the beginning of a body, not for long.
func readRefusal(body io.ReadCloser) []byte {
	timer := time.AfterFunc(refusalWait, func() { _ = body.Close() })
	defer timer.Stop()
	defer func() { _ = body.Close() }()
	b, _ := io.ReadAll(io.LimitReader(body, maxRefusalBytes)) // what came is enough
	return b
}

// challenges are what a 401 or 403 says about how to authenticate (RFC 9110 §11.6.1), the first few. One that is too long is left out: a
// part of it would say something else.
func challenges(res *http.Response) []string {
	if res.StatusCode != http.StatusUnauthorized && res.StatusCode != http.StatusForbidden {
		return nil
	}
	var kept []string
	room := maxChallenge
	for _, value := range res.Header.Values("WWW-Authenticate") {
		if len(kept) == maxChallenges || len(value) > room {
			break
		}
		kept, room = append(kept, value), room-len(value)
	}
	return kept
}

// retryAfter reads seconds or a date (RFC 9110 §10.2.3); 0 when there is none or it is in the past.
func retryAfter(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	if value == "" {
		return 0
	}
	if digits := strings.TrimLeft(value, "0123456789"); digits == "" {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(maxRetryAfter/time.Second) {
			return maxRetryAfter
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return max(0, min(at.Sub(now), maxRetryAfter))
}

// limitedBody counts the bytes that mcp-go reads and stops with *TooLargeError. Of the events that answer a request it lets through
// none beyond the response.
type limitedBody struct {
	body   io.ReadCloser
	limit  int64
	x      *exchange  // nil for requests nobody waits for
	alone  int64      // bytes read when x is nil
	events *eventScan // nil when the body is no event stream
	tokens decode.Counter
	err    error
}

func (b *limitedBody) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.body.Read(p)
	if b.events != nil && b.events.over { // to its end, so that the connection can be used again; mcp-go closes what does not end
		for err == nil && b.count(int64(n)) <= b.limit {
			n, err = b.body.Read(p)
		}
		b.err = io.EOF
		return 0, b.err
	}
	read := b.count(int64(n))
	var tooLarge *TooLargeError
	switch {
	case read > b.limit:
		tooLarge = &TooLargeError{Limit: b.limit, Unit: "bytes"}
	case !b.tokens.Add(p[:n]):
		tooLarge = tooManyTokens()
	case b.events == nil:
		return n, err
	default:
		var ok bool
		if n, ok = b.events.scan(p[:n]); ok {
			return n, err
		}
		tooLarge = &TooLargeError{Limit: maxEventLines, Unit: "lines in one event"}
	}
	if b.x != nil {
		b.x.markTooLarge(tooLarge)
	}
	b.err = tooLarge
	return 0, b.err
}

// tooManyTokens refuses JSON that would become too much when mcp-go decodes it.
func tooManyTokens() *TooLargeError {
	return &TooLargeError{Limit: decode.MaxTokens, Unit: fmt.Sprintf("JSON tokens, or %d levels", decode.MaxDepth)}
}

func (b *limitedBody) Close() error { return b.body.Close() }

func (b *limitedBody) count(n int64) int64 {
	if b.x == nil {
		b.alone += n
		return b.alone
	}
	b.x.mu.Lock()
	defer b.x.mu.Unlock()
	b.x.read += n
	return b.x.read
}

// eventScan looks at an event stream on its way to mcp-go, as mcp-go reads it.
type eventScan struct {
	one   bool   // the stream answers a request: it is over with the response
	over  bool   // which has come
	line  []byte // the current one, as far as it came
	lines int    // of the current event
	data  []byte // of the current event
}

// scan returns how much of p belongs to what mcp-go is to see, and whether the current event has few lines. mcp-go hands a response to
// the one who waits for it, keeps a second, and with a third stops for ever: each would leave a goroutine behind.
func (s *eventScan) scan(p []byte) (n int, ok bool) {
	for n < len(p) && !s.over {
		end := bytes.IndexByte(p[n:], '\n')
		if end < 0 {
			s.line = append(s.line, p[n:]...)
			return len(p), true
		}
		s.line = append(s.line, p[n:n+end]...)
		n += end + 1
		line := bytes.TrimRight(s.line, "\r")
		s.line = s.line[:0]
		if len(line) == 0 {
			s.over = s.one && isResponse(s.data)
			s.lines, s.data = 0, s.data[:0]
			continue
		}
		if s.lines++; s.lines > maxEventLines {
			return n, false
		}
		if value, ok := bytes.CutPrefix(line, []byte("data:")); ok && s.one {
			s.data = append(append(s.data, '\n'), value...)
		}
	}
	return n, true
}

// isResponse: mcp-go takes an event's data for the response to a request, be it the right one or not.
func isResponse(data []byte) bool {
	var m struct {
		JSONRPC string                   `json:"jsonrpc"`
		ID      mcp.RequestId            `json:"id"`
		Error   *mcp.JSONRPCErrorDetails `json:"error"`
		Method  json.RawMessage          `json:"method"`
	}
	if json.Unmarshal(data, &m) != nil || m.ID.IsNil() {
		return false
	}
	if m.Method == nil {
		return true
	}
	var request transport.JSONRPCRequest
	var raw map[string]json.RawMessage
	if json.Unmarshal(data, &request) != nil || json.Unmarshal(data, &raw) != nil {
		return true
	}
	_, asks := raw["method"] // in that spelling
	return !asks
}
