package transport

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"time"

	mcptransport "github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/agentherald/herald/internal/base/decode"
	"github.com/agentherald/herald/internal/base/netguard"
)

const (
	maxRefusalBytes = 16 << 10        // of a body with a status other than 2xx, and of an error without an id
	refusalWait     = 2 * time.Second // for reading that body; the status alone is sufficient
	maxEventLines   = 4096            // of one server-sent event: mcp-go joins them in quadratic time
	// maxRetryAfter replaces longer values. A delivery waits at most an hour (package outcome).
	maxRetryAfter     = 24 * time.Hour
	maxChallenges     = 4       // of one answer
	maxChallengeBytes = 4 << 10 // of all challenges of an answer together
)

// NoticeWait bounds the sending of a message whose result does not matter.
const NoticeWait = 2 * time.Second

// HTTPConfig configures both HTTP transports.
type HTTPConfig struct {
	URL     *url.URL // of the endpoint, or of its event stream
	Headers http.Header
	Base    http.RoundTripper // dials through Guard
	Guard   *netguard.Guard
	Signer  Signer // nil: requests are not signed
	// MaxAnswerBytes bounds an answer, with all streams and resumed streams of its request, or one event of an HTTP+SSE
	// stream.
	MaxAnswerBytes int64
	Now            func() time.Time
	Life           context.Context // ends with the pool, and with it every request
}

// Signer signs a request by adding to its header, which no other request shares. It is called as the last step before
// the request is sent. It reads the body through GetBody.
type Signer interface {
	Sign(req *http.Request) error
}

// NewHTTP returns mcp-go's transport for streamable HTTP, over an HTTP client that checks and records requests.
func NewHTTP(cfg HTTPConfig) (mcptransport.Interface, error) {
	return mcptransport.NewStreamableHTTP(cfg.URL.String(),
		mcptransport.WithHTTPBasicClient(cfg.newClient()),
		mcptransport.WithHTTPLogger(slog.New(slog.DiscardHandler)), // mcp-go would log data from agents
	)
}

// newClient returns an HTTP client that follows no redirects.
func (cfg HTTPConfig) newClient() *http.Client {
	return &http.Client{
		Transport:     &roundTripper{HTTPConfig: cfg, origin: netguard.OriginOf(cfg.URL)},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// roundTripper sends every HTTP request of mcp-go.
type roundTripper struct {
	HTTPConfig
	origin netguard.Origin // requests to other origins are rejected, so that the headers are sent only to this one
}

var errOtherOrigin = errors.New("a request to another origin than the endpoint's was refused")

// RoundTrip sends req with the endpoint's headers and signature, and records it if it is the first HTTP request of its
// exchange.
func (rt *roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	if netguard.OriginOf(req.URL) != rt.origin {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, errOtherOrigin
	}
	ctx := req.Context()
	x := exchangeOf(ctx)
	if x == nil { // a request of mcp-go's own, such as the end of a session
		x = &exchange{}
	}
	first := x.beginHTTP(req)
	if first {
		ctx = httptrace.WithClientTrace(ctx, x.clientTrace())
	}
	if req.Method == http.MethodDelete { // ends the session; the answer is not read
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, NoticeWait)
		defer cancel()
		defer context.AfterFunc(rt.Life, cancel)()
	}
	req = req.WithContext(ctx) // a RoundTripper must not change its request
	req.URL = normalizeURL(req.URL)
	if first && x.body != nil {
		req.ContentLength = int64(len(x.body))
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(x.body)), nil }
		req.Body, _ = req.GetBody() // replaces a reader of bytes, which need not be closed
	}
	if len(rt.Headers) > 0 || rt.Signer != nil {
		req.Header = req.Header.Clone()
		maps.Copy(req.Header, rt.Headers)
	}
	if rt.Signer != nil {
		// The request is not sent unsigned: an agent that verifies signatures would refuse it permanently.
		if err := rt.Signer.Sign(req); err != nil {
			if req.Body != nil {
				_ = req.Body.Close()
			}
			return nil, err
		}
	}

	res, err := rt.Base.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if !x.stream { // a stream without end has no limit of compressed bytes
		decompressBody(res, rt.MaxAnswerBytes)
	}
	if first {
		if rt.recordStatus(x, res); res.StatusCode/100 != 2 {
			return res, nil
		}
		if x.stream { // readEvents counts the bytes of this stream
			return res, nil
		}
	}
	body := &limitedBody{body: res.Body, limit: rt.MaxAnswerBytes, x: x}
	res.Body = &jsonBody{limitedBody: body, in: bufio.NewReaderSize(body, 512)}
	if kind := res.Header.Get("Content-Type"); kind != "application/json" { // saves parsing in the usual case
		if mediaType, _, _ := mime.ParseMediaType(kind); mediaType == "text/event-stream" {
			res.Body = newEventBody(body)
		}
	}
	return res, nil
}

// beginHTTP reports whether req is the exchange's first HTTP request, which is the one that is recorded.
func (x *exchange) beginHTTP(req *http.Request) (first bool) {
	x.record(func(r *Response) {
		first = !x.started
		x.started = true
		r.Session = r.Session || first && req.Header.Get(mcptransport.HeaderKeySessionID) != ""
	})
	return first
}

// clientTrace records that the request may have been written as soon as there is a connection. net/http repeats a POST
// by itself only if nothing of it was written; each such attempt begins with GetConn, which resets the record.
func (x *exchange) clientTrace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn: func(string) { x.record(func(r *Response) { r.Written = false }) },
		GotConn: func(httptrace.GotConnInfo) { x.recordWritten() },
	}
}

// recordStatus records the status and, for a status other than 2xx, the body, the headers and a blocked redirect. It
// replaces the body by the beginning that it read.
func (rt *roundTripper) recordStatus(x *exchange, res *http.Response) {
	if res.StatusCode/100 == 2 {
		x.record(func(r *Response) { r.Status = res.StatusCode })
		return
	}
	body := readRefusal(res.Body)
	res.Body = io.NopCloser(bytes.NewReader(body))
	x.record(func(r *Response) {
		r.Status, r.Body, r.Blocked = res.StatusCode, body, rt.blockedRedirect(res)
		r.RetryAfter = netguard.RetryAfter(res.Header, rt.Now(), maxRetryAfter)
		r.Challenge = readChallenges(res)
	})
}

// blockedRedirect returns the guard's error for the target of a redirect, or nil. Redirects are not followed; the error
// distinguishes an attempt to reach an internal address from an agent that moved.
func (rt *roundTripper) blockedRedirect(res *http.Response) error {
	to, err := res.Location()
	var blocked *netguard.BlockedError
	if err != nil || res.StatusCode/100 != 3 || !errors.As(rt.Guard.CheckURL(to), &blocked) {
		return nil
	}
	return blocked
}

// readRefusal reads the beginning of a body, for at most refusalWait.
func readRefusal(body io.ReadCloser) []byte {
	timer := time.AfterFunc(refusalWait, func() { _ = body.Close() })
	defer timer.Stop()
	defer func() { _ = body.Close() }()
	b, _ := io.ReadAll(io.LimitReader(body, maxRefusalBytes)) // an incomplete body is sufficient
	return b
}

// readChallenges returns the first WWW-Authenticate values of a 401 or 403 (RFC 9110 §11.6.1). It drops a value that is
// too long, and those after it, because a part of a value would have another meaning.
func readChallenges(res *http.Response) []string {
	if res.StatusCode != http.StatusUnauthorized && res.StatusCode != http.StatusForbidden {
		return nil
	}
	var kept []string
	room := maxChallengeBytes
	for _, value := range res.Header.Values("WWW-Authenticate") {
		if len(kept) == maxChallenges || len(value) > room {
			break
		}
		kept, room = append(kept, value), room-len(value)
	}
	return kept
}

// limitedBody counts the bytes and the JSON tokens that mcp-go reads. It returns a *TooLargeError when there are too
// many.
type limitedBody struct {
	body   io.ReadCloser
	limit  int64
	x      *exchange
	tokens decode.Counter
	err    error
}

func (b *limitedBody) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.body.Read(p)
	var read int64 // bytes of the whole answer so far
	b.x.record(func(*Response) { b.x.read += int64(n); read = b.x.read })
	switch {
	case read > b.limit:
		return 0, b.failWith(&TooLargeError{Limit: b.limit, Unit: "bytes"})
	case !b.tokens.Add(p[:n]):
		return 0, b.failWith(tooManyTokens())
	}
	return n, err
}

func (b *limitedBody) failWith(err *TooLargeError) error {
	b.x.recordTooLarge(err)
	b.err = err
	return err
}

func (b *limitedBody) Close() error { return b.body.Close() }

// jsonBody passes an answer to mcp-go from the first message on. Before the message, it skips a byte order mark, and
// the opening bracket of a batch: revision 2025-03-26 allowed batches, and some agents answer each request with a batch
// of one.
type jsonBody struct {
	*limitedBody
	in    *bufio.Reader // reads from limitedBody
	begun bool
}

func (b *jsonBody) Read(p []byte) (int, error) {
	if !b.begun {
		b.begun = true
		skipMark(b.in)
		head, _ := b.in.Peek(2)
		for ; len(head) > 0 && strings.ContainsRune(" \t\r\n", rune(head[0])); head, _ = b.in.Peek(2) {
			_, _ = b.in.Discard(1)
		}
		if len(head) == 2 && head[0] == '[' && head[1] != ']' {
			_, _ = b.in.Discard(1)
		}
	}
	n, err := b.in.Read(p)
	b.x.recordHead(p[:n])
	return n, err
}

// skipMark skips the byte order mark of UTF-8 at the beginning of an answer.
func skipMark(in *bufio.Reader) {
	if head, _ := in.Peek(3); string(head) == "\uFEFF" {
		_, _ = in.Discard(len(head))
	}
}

// eventBody passes an event stream to mcp-go byte for byte. In a stream that answers a request it stops after the
// response. mcp-go passes a response to the waiting caller, buffers a second one, and blocks forever on a third; each
// further response would leak a goroutine.
type eventBody struct {
	*limitedBody
	events *eventReader
	one    bool   // the stream answers a request, and ends with the response
	over   bool   // the response has arrived
	rest   []byte // part of the current event that was not yet read
	err    error  // returned after rest
}

func newEventBody(body *limitedBody) *eventBody {
	b := &eventBody{limitedBody: body, events: newEventReader(body, body.limit)}
	b.events.maxLines = maxEventLines
	body.x.record(func(r *Response) { b.one = !r.ID.IsNil() })
	return b
}

func (b *eventBody) Read(p []byte) (int, error) {
	for len(b.rest) == 0 && b.err == nil {
		b.rest, b.err = b.nextEvent()
	}
	if len(b.rest) == 0 {
		return 0, b.err
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// nextEvent returns the bytes of the next event. After the response of a stream that answers a request it returns
// io.EOF.
func (b *eventBody) nextEvent() ([]byte, error) {
	// Read to the end, so that the connection can be reused. mcp-go closes a stream that does not end.
	if b.over {
		_, _ = io.Copy(io.Discard, io.LimitReader(b.body, b.limit))
		return nil, io.EOF
	}
	block, err := b.events.nextBlock()
	var tooLarge *TooLargeError
	switch {
	case errors.As(err, &tooLarge):
		return nil, b.failWith(tooLarge)
	case err != nil && !errors.Is(err, io.EOF):
		return nil, err
	}
	if b.one && err == nil {
		e, ok := parseEvent(block)
		b.over = ok && isResponse(e.data)
	}
	return block, err
}

// isResponse reports whether mcp-go treats an event's data as the response to a request, even to another request.
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
	var request mcptransport.JSONRPCRequest
	var raw map[string]json.RawMessage
	if json.Unmarshal(data, &request) != nil || json.Unmarshal(data, &raw) != nil {
		return true
	}
	_, asks := raw["method"] // exactly in this spelling
	return !asks
}
