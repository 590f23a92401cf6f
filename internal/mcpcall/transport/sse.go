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
	"sync"
	"sync/atomic"
	"time"

	mcptransport "github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/agentherald/herald/internal/decode"
	"github.com/agentherald/herald/internal/netguard"
)

const (
	maxEndpointBytes = 4 << 10                // of the address that an endpoint event names
	postGrace        = time.Second            // for the answer to a POST after the answer to its request came over the stream
	lostGrace        = 500 * time.Millisecond // for the answer to a POST after its stream was lost
	postBodyWait     = 250 * time.Millisecond // for the body of the answer to a POST, which says nothing
	unaskedWindow    = time.Minute
)

// Stream is the transport of revision 2024-11-05: a GET whose answer never ends brings all that the agent says, and its
// first event names the address that requests are posted to. mcp-go's own is not used: it takes an agent's request for
// the answer to ours when their numbers meet, lets calls wait out their time once the stream is lost, and posts to http
// when an https stream says so.
type Stream struct {
	base   *url.URL // of the stream
	client *http.Client
	limit  int64 // bytes of one event
	now    func() time.Time
	hold   func(bytes int64) // see eventReader

	life context.Context // ends with the transport
	end  context.CancelFunc
	wg   sync.WaitGroup // the reader, the answers to the agent's requests, and what is left of answers to POSTs

	postURL        string       // where requests go; set by the reader before Open returns
	opened         bool         // Open succeeded
	version        atomic.Value // string, negotiated
	onNotification atomic.Value // func(mcp.JSONRPCNotification)
	onRequest      mcptransport.RequestHandler

	sent  atomic.Int64 // requests of this window
	heard atomic.Int64 // messages that came

	// The reader's own.
	window     time.Time // when unasked began to count
	unasked    int64     // bytes since then that were no answer
	sentBefore int64     // requests of the window before

	mu      sync.Mutex
	pending map[string]*pendingRequest // by mcp-go's spelling of the id
	over    chan struct{}              // closed when the stream is lost or closed
	why     error                      // set before over is closed
}

// pendingRequest is a request whose answer has not come.
type pendingRequest struct {
	answer     chan *mcptransport.JSONRPCResponse // of one
	posted     atomic.Bool                        // the agent answered the POST
	cancelPost context.CancelFunc
}

// errStreamClosed: we closed the stream.
var errStreamClosed = errors.New("the event stream is closed")

// NewStream makes a stream that is not open yet. hold is called with the bytes that the event holds that has
// not ended.
func NewStream(cfg HTTPConfig, hold func(bytes int64)) *Stream {
	s := &Stream{base: cfg.URL, client: cfg.newClient(), limit: cfg.MaxAnswerBytes, now: cfg.Now, hold: hold,
		pending: map[string]*pendingRequest{}, over: make(chan struct{})}
	s.life, s.end = context.WithCancel(cfg.Life)
	return s
}

// Open connects the stream and waits for the address of requests, at most wait; 0: as long as ctx lasts. The stream
// lives on when ctx ends later.
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
	if errors.Is(err, io.EOF) && !errors.As(err, &request) { // else there was no answer at all
		return &BadAnswerError{Why: "its event stream ended before it named an address"}
	}
	return err
}

func (s *Stream) connectStream(ctx context.Context, x *exchange) error {
	request, err := http.NewRequestWithContext(withExchange(s.life, x), http.MethodGet, s.base.String(), nil)
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

// readEvents takes the stream's events until it ends; it always ends with an error.
func (s *Stream) readEvents(body io.Reader, found chan<- struct{}) error {
	events := newEventReader(body, s.limit)
	events.spend, events.hold = s.chargeUnasked, s.hold
	known := false
	for {
		e, err := events.nextEvent()
		switch {
		case err != nil:
			return err
		case e.name == "endpoint" && !known: // said once; where a stream's requests go does not change
			if s.postURL, err = endpointTarget(s.base, string(e.data)); err != nil {
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

// chargeUnasked bounds what an agent may send without being asked, in size and so in the work of reading it. A request
// is a reason to speak: to report its progress, or to answer it too late.
func (s *Stream) chargeUnasked(n int64) error {
	if now := s.now(); now.Sub(s.window) >= unaskedWindow {
		s.window, s.unasked, s.sentBefore = now, 0, s.sent.Swap(0)
	}
	s.unasked += n
	allowed := 2 + s.sent.Load() + s.sentBefore // 2: one event may be an answer that is still coming
	if s.unasked/s.limit >= allowed {
		const why = "its event stream brings more than %d bytes a minute that nobody asked for"
		return &BadAnswerError{Why: fmt.Sprintf(why, s.limit)}
	}
	return nil
}

// endpointTarget is the address that an endpoint event names. It must have the stream's origin: the credentials are for
// that one.
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
	target.Fragment, target.RawFragment = "", ""
	return target.String(), nil
}

// handleMessage handles one message and reports whether it answers a request of ours. What is no message is passed
// over.
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
	s.heard.Add(1)
	switch {
	case m.Method == "" && m.ID.IsNil():
	case m.Method == "":
		response := mcptransport.JSONRPCResponse{JSONRPC: mcp.JSONRPC_VERSION, ID: m.ID, Result: m.Result,
			Error: m.Error}
		return s.deliverAnswer(m.ID.String(), &response)
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

// deliverAnswer hands the answer to the request that waits for it, if one does.
func (s *Stream) deliverAnswer(id string, response *mcptransport.JSONRPCResponse) bool {
	s.mu.Lock()
	p, ok := s.pending[id]
	delete(s.pending, id)
	s.mu.Unlock()
	if !ok {
		return false
	}
	p.answer <- response
	if !p.posted.Load() { // the answer is here; its POST is not waited for
		time.AfterFunc(postGrace, p.cancelPost)
	}
	return true
}

// answerRequest answers a request of the agent, off the reader.
func (s *Stream) answerRequest(request mcptransport.JSONRPCRequest) {
	if s.onRequest == nil {
		return
	}
	response, err := s.onRequest(s.life, request) // at once; it only decides, see answerRequests
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
		_ = s.postNotice(ctx, body) // an agent that does not take the answer it asked for
	})
}

// endWith ends the stream for all who wait.
func (s *Stream) endWith(why error) {
	s.mu.Lock()
	if s.why == nil {
		s.why = why
		close(s.over)
		for _, p := range s.pending {
			if !p.posted.Load() && !errors.Is(why, errStreamClosed) {
				time.AfterFunc(lostGrace, p.cancelPost) // its status may say that nothing was done
			} else {
				p.cancelPost()
			}
		}
	}
	s.mu.Unlock()
	s.end()
}

// EndedBecause is why the stream is over, nil while it is not.
func (s *Stream) EndedBecause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

// Ended: the stream is over.
func (s *Stream) Ended() bool { return s.EndedBecause() != nil }

// Opened: Open succeeded.
func (s *Stream) Opened() bool { return s.opened }

// Heard grows with what the agent says.
func (s *Stream) Heard() int64 { return s.heard.Load() }

// PostURL is where requests go, "" before the agent said so. It may hold a session.
func (s *Stream) PostURL() string { return s.postURL }

// Start does nothing: Open has.
func (s *Stream) Start(context.Context) error { return nil }

func (s *Stream) Close() error {
	s.endWith(errStreamClosed)
	s.wg.Wait()
	return nil
}

func (s *Stream) GetSessionId() string { return "" }

func (s *Stream) SetProtocolVersion(version string) { s.version.Store(version) }

func (s *Stream) SetNotificationHandler(handler func(mcp.JSONRPCNotification)) {
	s.onNotification.Store(handler)
}

// SetRequestHandler must be called before Open.
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
		x.record(func(r *Response) { r.Session = true }) // the address holds it
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
	case response := <-p.answer: // it came all the same
		x.recordAnswered()
		return response, nil
	default:
	}
	if why := s.EndedBecause(); why != nil {
		err = why
	}
	return nil, err
}

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

// postNotice posts one message for which there is no answer.
func (s *Stream) postNotice(ctx context.Context, body []byte) error {
	res, err := s.postMessage(ctx, body, nil)
	if res != nil {
		discardBody(res.Body)
	}
	return err
}

// postMessage posts one message, with these headers beside those of all. What the agent says to that is of no interest beyond its status; its body, if there is
// an answer at all, is the caller's to close.
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

// finishPost is done with the answer to a POST, and cancels its context then. One without a length may be kept open for
// as long as the agent likes, and is not waited for.
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
	if res.ContentLength < 0 && s.why == nil { // when the stream is over, Close may be waiting already
		s.wg.Go(finish)
		s.mu.Unlock()
		return
	}
	s.mu.Unlock()
	finish()
}

// discardBody reads a body that is of no interest, if that is soon done, so that its connection can be used again.
func discardBody(body io.ReadCloser) {
	timer := time.AfterFunc(postBodyWait, func() { _ = body.Close() })
	defer timer.Stop()
	_, _ = io.CopyN(io.Discard, body, maxRefusalBytes+1) // its end must be seen
	_ = body.Close()
}
