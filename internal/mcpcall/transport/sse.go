package transport

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
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	mcptransport "github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/agentherald/herald/internal/base/decode"
	"github.com/agentherald/herald/internal/base/netguard"
)

const (
	maxEndpointBytes = 4 << 10                // of the address in an endpoint event
	maxParameters    = 8                      // of that address; every answer is searched for each, to mask session ids
	postGrace        = time.Second            // for the response to a POST after its answer arrived on the stream
	lostGrace        = 500 * time.Millisecond // for the response to a POST after the stream was lost
	postBodyWait     = 250 * time.Millisecond // for the body of the response to a POST, which is discarded
	unaskedWindow    = time.Minute
)

// Stream implements the transport of revision 2024-11-05. The endless answer to a GET carries all messages of the
// agent. Its first event names the address to which requests are posted. Stream replaces mcp-go's implementation, which
// confuses an agent's request with the answer to a request of the same id, lets calls run into their timeout after the
// stream was lost, and posts to http if an https stream names such an address.
type Stream struct {
	HTTPConfig
	client *http.Client
	hold   func(bytes int64) // see eventReader

	life context.Context // ends with the transport
	end  context.CancelFunc
	wg   sync.WaitGroup // the reader, the answers to the agent's requests, and unread responses to POSTs

	postURL        string       // address of requests; the reader sets it before Open returns
	opened         bool         // Open succeeded
	version        atomic.Value // string, negotiated
	onNotification atomic.Value // func(mcp.JSONRPCNotification)
	onRequest      mcptransport.RequestHandler

	sent     atomic.Int64 // requests sent in this window
	received atomic.Int64 // messages received

	// Used only by the reader.
	window     time.Time // start of the window
	unasked    int64     // bytes in this window that answered no request
	sentBefore int64     // requests sent in the previous window

	mu      sync.Mutex
	pending map[string]*pendingRequest // by mcp-go's string form of the id
	over    chan struct{}              // closed when the stream is lost or closed
	why     error                      // the reason; set before over is closed
}

// pendingRequest is a request that waits for its answer.
type pendingRequest struct {
	answer     chan *mcptransport.JSONRPCResponse // has a buffer of one
	posted     atomic.Bool                        // the agent responded to the POST
	cancelPost context.CancelFunc
}

// errStreamClosed reports that Close was called.
var errStreamClosed = errors.New("the event stream is closed")

// NewStream returns a stream that is not open yet. hold is called with the change in the bytes of the incomplete event.
func NewStream(cfg HTTPConfig, hold func(bytes int64)) *Stream {
	s := &Stream{HTTPConfig: cfg, client: cfg.newClient(), hold: hold, pending: map[string]*pendingRequest{},
		over: make(chan struct{})}
	s.life, s.end = context.WithCancel(cfg.Life)
	return s
}

// Open connects the stream and waits for the address of requests, for at most wait; 0 means until ctx ends. Once Open
// has succeeded, the end of ctx does not affect the stream.
func (s *Stream) Open(ctx context.Context, wait time.Duration) error {
	x := &exchange{response: Response{Method: http.MethodGet}, stream: true}
	recorderOf(ctx).begin(x)
	if wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
	}
	stop := context.AfterFunc(ctx, s.end)
	err := s.connectStream(ctx, x)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err == nil {
		s.opened = true
		return nil
	}
	s.endWith(err)
	s.wg.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var request *url.Error
	if errors.Is(err, io.EOF) && !errors.As(err, &request) { // otherwise there was no response at all
		return &BadAnswerError{Why: "its event stream ended before it named an address"}
	}
	return err
}

// connectStream opens the stream, starts its reader and waits for the address of requests.
func (s *Stream) connectStream(ctx context.Context, x *exchange) error {
	request, err := http.NewRequestWithContext(withExchange(s.life, x), http.MethodGet, s.URL.String(), nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "text/event-stream")
	request.Header.Set("Cache-Control", "no-cache")
	res, err := s.client.Do(request)
	if err != nil {
		return err
	}
	mediaType, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if res.StatusCode != http.StatusOK || mediaType != "text/event-stream" {
		_ = res.Body.Close()
		return &BadAnswerError{Why: "it is no event stream"}
	}
	found := make(chan struct{})
	s.wg.Go(func() {
		defer func() { _ = res.Body.Close() }()
		s.endWith(Safely(func() error { return s.readEvents(res.Body, found) }))
	})
	select {
	case <-found:
		return nil
	case <-s.over:
		return s.EndedBecause()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// readEvents processes the stream's events until the stream ends. It always returns an error.
func (s *Stream) readEvents(body io.Reader, found chan<- struct{}) error {
	events := newEventReader(body, s.MaxAnswerBytes)
	events.spend, events.hold = s.chargeUnasked, s.hold
	known := false
	for {
		e, err := events.nextEvent()
		switch {
		case err != nil:
			return err
		case e.name == "endpoint" && !known: // only the first one counts
			if s.postURL, err = endpointTarget(s.URL, string(e.data)); err != nil {
				return err
			}
			known = true
			close(found)
		case !decode.Modest(e.data):
			return tooManyTokens()
		case e.name == "" || e.name == "message":
			if s.handleMessage(e.data) {
				s.unasked = max(0, s.unasked-e.size)
			}
		}
	}
}

// chargeUnasked bounds the bytes that an agent may send without being asked, and so the work of reading them. Each
// request allows one more event, because the agent may report progress or answer too late.
func (s *Stream) chargeUnasked(n int64) error {
	if now := s.Now(); now.Sub(s.window) >= unaskedWindow {
		s.window, s.unasked, s.sentBefore = now, 0, s.sent.Swap(0)
	}
	s.unasked += n
	allowed := 2 + s.sent.Load() + s.sentBefore // 2: one event may be an answer that is still arriving
	if s.unasked/s.MaxAnswerBytes >= allowed {
		const why = "its event stream sends more than %d unrequested bytes a minute"
		return &BadAnswerError{Why: fmt.Sprintf(why, s.MaxAnswerBytes)}
	}
	return nil
}

// endpointTarget returns the address that an endpoint event names. It must have the origin of the stream, because the
// credentials are meant for that origin.
func endpointTarget(base *url.URL, data string) (string, error) {
	bad := func(why string) (string, error) {
		return "", &BadAnswerError{Why: "its endpoint event " + why}
	}
	if data == "" || len(data) > maxEndpointBytes {
		return bad("names no address, or one that is too long")
	}
	target, err := base.Parse(data)
	if err != nil || target.Host == "" {
		return bad("names no address")
	}
	if target.Scheme != "http" && target.Scheme != "https" || netguard.OriginOf(target) != netguard.OriginOf(base) {
		return bad("names an address of another origin than its own, where nothing is sent")
	}
	if target.User != nil {
		return bad("names an address with user information")
	}
	if strings.Count(target.RawQuery, "&") >= maxParameters {
		return bad(fmt.Sprintf("names an address with more than %d parameters", maxParameters))
	}
	target.Fragment, target.RawFragment = "", ""
	return target.String(), nil
}

// handleMessage processes one message and reports whether it answers one of our requests. It ignores data that is not a
// message.
func (s *Stream) handleMessage(data []byte) bool {
	var m struct {
		ID     mcp.RequestId            `json:"id"`
		Method string                   `json:"method"`
		Result json.RawMessage          `json:"result"`
		Error  *mcp.JSONRPCErrorDetails `json:"error"`
	}
	if json.Unmarshal(data, &m) != nil {
		return false
	}
	s.received.Add(1)
	switch {
	case m.Method == "" && m.ID.IsNil():
	case m.Method == "":
		response := mcptransport.JSONRPCResponse{JSONRPC: mcp.JSONRPC_VERSION, ID: m.ID, Result: m.Result,
			Error: m.Error}
		return s.deliverAnswer(unquoteID(m.ID).String(), &response)
	case m.ID.IsNil():
		if handler, ok := s.onNotification.Load().(func(mcp.JSONRPCNotification)); ok {
			notification := mcp.Notification{Method: m.Method}
			handler(mcp.JSONRPCNotification{JSONRPC: mcp.JSONRPC_VERSION, Notification: notification})
		}
	default:
		s.answerRequest(mcptransport.JSONRPCRequest{JSONRPC: mcp.JSONRPC_VERSION, ID: m.ID, Method: m.Method})
	}
	return false
}

// deliverAnswer passes the answer to the request that waits for it. It returns false if there is no such request.
func (s *Stream) deliverAnswer(id string, response *mcptransport.JSONRPCResponse) bool {
	s.mu.Lock()
	p, ok := s.pending[id]
	delete(s.pending, id)
	s.mu.Unlock()
	if !ok {
		return false
	}
	p.answer <- response
	if !p.posted.Load() { // the answer is here; do not wait for the POST
		time.AfterFunc(postGrace, p.cancelPost)
	}
	return true
}

// answerRequest answers a request of the agent without blocking the reader.
func (s *Stream) answerRequest(request mcptransport.JSONRPCRequest) {
	if s.onRequest == nil {
		return
	}
	response, err := s.onRequest(s.life, request) // returns at once, see answerRequests
	if err != nil || response == nil || s.postURL == "" {
		return
	}
	body, err := json.Marshal(response)
	if err != nil {
		return
	}
	s.wg.Go(func() {
		ctx, cancel := context.WithTimeout(s.life, NoticeWait)
		defer cancel()
		_ = s.postNotice(ctx, body) // ignored: the agent did not accept the answer to its own request
	})
}

// endWith ends the stream for all callers, with why as their error.
func (s *Stream) endWith(why error) {
	s.mu.Lock()
	if s.why == nil {
		s.why = why
		close(s.over)
		for _, p := range s.pending {
			if !p.posted.Load() && !errors.Is(why, errStreamClosed) {
				time.AfterFunc(lostGrace, p.cancelPost) // its status may show that the agent did not process it
			} else {
				p.cancelPost()
			}
		}
	}
	s.mu.Unlock()
	s.end()
}

// EndedBecause returns why the stream ended, or nil if it has not.
func (s *Stream) EndedBecause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

// Ended reports whether the stream has ended.
func (s *Stream) Ended() bool { return s.EndedBecause() != nil }

// Opened reports whether Open succeeded.
func (s *Stream) Opened() bool { return s.opened }

// Received returns the number of messages received from the agent.
func (s *Stream) Received() int64 { return s.received.Load() }

// PostURL returns the address of requests, "" before the agent has sent it. It may contain a session id.
func (s *Stream) PostURL() string { return s.postURL }

// Start does nothing, because Open has connected the stream.
func (s *Stream) Start(context.Context) error { return nil }

// Close ends the stream and waits for its goroutines.
func (s *Stream) Close() error {
	s.endWith(errStreamClosed)
	s.wg.Wait()
	return nil
}

// GetSessionId returns "": the session is part of the POST address.
func (s *Stream) GetSessionId() string { return "" }

// SetProtocolVersion sets the version that is sent in the header of every POST.
func (s *Stream) SetProtocolVersion(version string) { s.version.Store(version) }

// SetNotificationHandler sets the function that the reader calls for each notification.
func (s *Stream) SetNotificationHandler(handler func(mcp.JSONRPCNotification)) {
	s.onNotification.Store(handler)
}

// SetRequestHandler sets the function that decides how a request of the agent is answered. Call it before Open.
func (s *Stream) SetRequestHandler(handler mcptransport.RequestHandler) { s.onRequest = handler }

// SendRequest posts a request and waits for its answer on the stream.
func (s *Stream) SendRequest(ctx context.Context,
	request mcptransport.JSONRPCRequest) (*mcptransport.JSONRPCResponse, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	postCtx, cancel := context.WithCancel(ctx)
	p := &pendingRequest{answer: make(chan *mcptransport.JSONRPCResponse, 1), cancelPost: cancel}
	id := request.ID.String()
	s.mu.Lock()
	if s.why != nil {
		defer s.mu.Unlock()
		cancel()
		return nil, s.why
	}
	s.pending[id] = p
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.pending, id)
		s.mu.Unlock()
	}()
	x := exchangeOf(ctx)
	if request.Method != string(mcp.MethodInitialize) {
		x.record(func(r *Response) { r.Session = true }) // the POST address identifies the session
	}
	s.sent.Add(1)

	res, err := s.postMessage(postCtx, body, request.Header)
	p.posted.Store(true)
	s.finishPost(res, cancel)
	if err == nil {
		select {
		case response := <-p.answer:
			return response, nil
		case <-s.over:
			err = s.EndedBecause()
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	select {
	case response := <-p.answer: // the answer arrived nevertheless
		x.recordAnswered()
		return response, nil
	default:
	}
	if why := s.EndedBecause(); why != nil {
		err = why
	}
	return nil, err
}

// SendNotification posts a notification. It returns when the agent has responded.
func (s *Stream) SendNotification(ctx context.Context, notification mcp.JSONRPCNotification) error {
	if why := s.EndedBecause(); why != nil {
		return why
	}
	body, err := json.Marshal(notification)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	return s.postNotice(ctx, body)
}

// postNotice posts one message that has no answer.
func (s *Stream) postNotice(ctx context.Context, body []byte) error {
	res, err := s.postMessage(ctx, body, nil)
	if res != nil {
		discardBody(res.Body)
	}
	return err
}

// postMessage posts one message, with header added to the configured headers. Only the status of the response matters.
// If the response is not nil, the caller must close its body.
func (s *Stream) postMessage(ctx context.Context, body []byte, header http.Header) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.postURL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	maps.Copy(request.Header, header)
	request.Header.Set("Content-Type", "application/json")
	if version, ok := s.version.Load().(string); ok && version != "" {
		request.Header.Set(mcptransport.HeaderKeyProtocolVersion, version)
	}
	res, err := s.client.Do(request)
	if err != nil {
		return nil, err
	}
	if res.StatusCode/100 != 2 {
		return res, fmt.Errorf("HTTP status %d", res.StatusCode)
	}
	return res, nil
}

// finishPost reads the rest of the response to a POST and then cancels its context. A response without a length may
// stay open as long as the agent wants, so finishPost handles it in the background.
func (s *Stream) finishPost(res *http.Response, cancel context.CancelFunc) {
	if res == nil {
		cancel()
		return
	}
	finish := func() {
		discardBody(res.Body)
		cancel()
	}
	s.mu.Lock()
	if res.ContentLength < 0 && s.why == nil { // if the stream has ended, Close may already be waiting
		s.wg.Go(finish)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	finish()
}

// discardBody reads a body for at most postBodyWait, so that the connection can be reused, and discards it.
func discardBody(body io.ReadCloser) {
	timer := time.AfterFunc(postBodyWait, func() { _ = body.Close() })
	defer timer.Stop()
	_, _ = io.CopyN(io.Discard, body, maxRefusalBytes+1) // +1: the read must reach the end
	_ = body.Close()
}
