package transport

import (
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
	"time"

	mcptransport "github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/agentherald/herald/internal/decode"
	"github.com/agentherald/herald/internal/netguard"
)

const (
	maxRefusalBytes   = 16 << 10        // of a body that comes with a status other than 2xx
	refusalWait       = 2 * time.Second // for that body; the status alone says enough
	maxEventLines     = 4096            // of one server-sent event: mcp-go joins them in quadratic time
	maxRetryAfter     = 24 * time.Hour  // more is not believed; a delivery waits an hour at most (package retry)
	maxChallenges     = 4               // of one answer
	maxChallengeBytes = 4 << 10         // of them all
)

// NoticeWait bounds what is sent to an agent without waiting for it.
const NoticeWait = 2 * time.Second

// HTTPConfig is what both HTTP transports need.
type HTTPConfig struct {
	URL            *url.URL // of the endpoint, or of its event stream
	Headers        http.Header
	Base           http.RoundTripper // dials through Guard
	Guard          *netguard.Guard
	Signer         Signer // nil: nothing is signed
	MaxAnswerBytes int64  // of an answer, streams and resumed streams of one request together; of one event of an HTTP+SSE stream
	Now            func() time.Time
	Life           context.Context // of the pool; nothing outlives it
}

// Signer signs a request in its header, which is the request's own, as the last thing before it is sent. The body is
// read through GetBody.
type Signer interface {
	Sign(req *http.Request) error
}

// NewHTTP makes mcp-go's transport for streamable HTTP, over a client that guards and records.
func NewHTTP(cfg HTTPConfig) (mcptransport.Interface, error) {
	return mcptransport.NewStreamableHTTP(cfg.URL.String(),
		mcptransport.WithHTTPBasicClient(cfg.newClient()),
		mcptransport.WithHTTPLogger(slog.New(slog.DiscardHandler)), // it logs what agents send
	)
}

// newClient follows no redirects.
func (cfg HTTPConfig) newClient() *http.Client {
	return &http.Client{
		Transport:     &roundTripper{HTTPConfig: cfg, origin: netguard.OriginOf(cfg.URL)},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// roundTripper is all that mcp-go knows of the network.
type roundTripper struct {
	HTTPConfig
	origin netguard.Origin // requests elsewhere are refused, so that headers go nowhere else
}

var errOtherOrigin = errors.New("a request to another origin than the endpoint's was refused")

func (rt *roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	if netguard.OriginOf(req.URL) != rt.origin {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, errOtherOrigin
	}
	ctx := req.Context()
	x := exchangeOf(ctx)
	if x == nil { // mcp-go's own, like the end of a session
		x = &exchange{}
	}
	first := x.beginHTTP(req)
	if first {
		ctx = httptrace.WithClientTrace(ctx, x.clientTrace())
	}
	if req.Method == http.MethodDelete { // ends the session; its answer is not read
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, NoticeWait)
		defer cancel()
		defer context.AfterFunc(rt.Life, cancel)()
	}
	req = req.WithContext(ctx) // a RoundTripper must not change its request
	if len(rt.Headers) > 0 || rt.Signer != nil {
		req.Header = req.Header.Clone()
		maps.Copy(req.Header, rt.Headers)
	}
	if rt.Signer != nil {
		if err := rt.Signer.Sign(req); err != nil { // unsigned, an agent that verifies would refuse it for good
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
	if first {
		if rt.recordStatus(x, res); res.StatusCode/100 != 2 {
			return res, nil
		}
		if x.stream { // counted where it is read
			return res, nil
		}
	}
	body := &limitedBody{body: res.Body, limit: rt.MaxAnswerBytes, x: x}
	res.Body = body
	if kind := res.Header.Get("Content-Type"); kind != "application/json" { // the usual one is not worth parsing
		if mediaType, _, _ := mime.ParseMediaType(kind); mediaType == "text/event-stream" {
			res.Body = newEventBody(body)
		}
	}
	return res, nil
}

// beginHTTP reports whether req is the exchange's first HTTP request, the one that counts.
func (x *exchange) beginHTTP(req *http.Request) (first bool) {
	x.record(func(r *Response) {
		first = !x.started
		x.started = true
		r.Session = r.Session || first && req.Header.Get(mcptransport.HeaderKeySessionID) != ""
	})
	return first
}

// clientTrace notes when the request may start to be written: as soon as there is a connection. net/http repeats a POST
// by itself only when nothing of it was written; each attempt begins with GetConn.
func (x *exchange) clientTrace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GetConn: func(string) { x.record(func(r *Response) { r.Written = false }) },
		GotConn: func(httptrace.GotConnInfo) { x.recordWritten() },
	}
}

// recordStatus records the status and, of a refusal, what comes with it; its body is replaced by the beginning that was
// read.
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

// blockedRedirect is the guard's refusal of the address that an answer redirects to, nil when there is none. Redirects
// are not followed; it tells an attempt to lead inside from an agent that moved.
func (rt *roundTripper) blockedRedirect(res *http.Response) error {
	to, err := res.Location()
	var blocked *netguard.BlockedError
	if err != nil || res.StatusCode/100 != 3 || !errors.As(rt.Guard.CheckURL(to), &blocked) {
		return nil
	}
	return blocked
}

// readRefusal reads the beginning of a body, not for long.
func readRefusal(body io.ReadCloser) []byte {
	timer := time.AfterFunc(refusalWait, func() { _ = body.Close() })
	defer timer.Stop()
	defer func() { _ = body.Close() }()
	b, _ := io.ReadAll(io.LimitReader(body, maxRefusalBytes)) // what came is enough
	return b
}

// readChallenges is what a 401 or 403 says about how to authenticate (RFC 9110 §11.6.1), the first few. One that is too
// long is left out: a part of it would say something else.
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

// limitedBody counts the bytes and the JSON tokens that mcp-go reads, and stops with *TooLargeError.
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
	var read int64 // of the answer in all
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

// eventBody is an event stream on its way to mcp-go, byte for byte, but of the events that answer a request none beyond
// the response: mcp-go hands a response to the one who waits for it, keeps a second, and with a third stops for ever.
// Each would leave a goroutine behind.
type eventBody struct {
	*limitedBody
	events *eventReader
	one    bool   // the stream answers a request: it is over with the response
	over   bool   // which has come
	rest   []byte // of the event that is being handed on
	err    error  // after it
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

func (b *eventBody) nextEvent() ([]byte, error) {
	if b.over { // to its end, so that the connection can be used again; mcp-go closes what does not end
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
	var request mcptransport.JSONRPCRequest
	var raw map[string]json.RawMessage
	if json.Unmarshal(data, &request) != nil || json.Unmarshal(data, &raw) != nil {
		return true
	}
	_, asks := raw["method"] // in that spelling
	return !asks
}
