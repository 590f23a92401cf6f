package mcpcall

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/agentherald/herald/internal/decode"
)

const (
	maxEndpointBytes = 4 << 10                // of the address that an endpoint event names
	postGrace        = time.Second            // for the answer to a POST after the answer to its request came over the stream
	lostGrace        = 500 * time.Millisecond // for the answer to a POST after its stream was lost
	postBodyWait     = 250 * time.Millisecond // for the body of the answer to a POST, which says nothing
	unaskedWindow    = time.Minute
)

// sse is the transport of revision 2024-11-05: a GET whose answer never ends brings all that the agent says, and its first event names
// the address that requests are posted to. mcp-go's own is not used: it takes an agent's request for the answer to ours when their
// numbers meet, lets calls wait out their time once the stream is lost, and posts to http when an https stream says so.
type sse struct {
	base   *url.URL // of the stream
	client *http.Client
	limit  int64 // bytes of one event
	now    func() time.Time
	hold   func(bytes int64) // see eventReader

	life context.Context // ends with the transport
	end  context.CancelFunc
	wg   sync.WaitGroup // the reader, the answers to the agent's requests, and what is left of answers to POSTs

	post    string       // where requests go; set by the reader before open returns
	ready   bool         // open succeeded
	version atomic.Value // string, negotiated
	note    atomic.Value // func(mcp.JSONRPCNotification)
	request transport.RequestHandler

	sent  atomic.Int64 // requests of this window
	heard atomic.Int64 // messages that came

	// The reader's own.
	window     time.Time // when unasked began to count
	unasked    int64     // bytes since then that were no answer
	sentBefore int64     // requests of the window before

	mu      sync.Mutex
	pending map[string]*waiting // by mcp-go's spelling of the id
	over    chan struct{}       // closed when the stream is lost or closed
	why     error               // set before over is closed
}

// waiting is a request whose answer has not come.
type waiting struct {
	answer chan *transport.JSONRPCResponse // of one
	posted atomic.Bool                     // the agent answered the POST
	cancel context.CancelFunc              // ends the POST
}

// errStreamClosed: we closed the stream.
var errStreamClosed = errors.New("the event stream is closed")

func newSSE(life context.Context, base *url.URL, client *http.Client, limit int64, now func() time.Time) *sse {
	s := &sse{base: base, client: client, limit: limit, now: now, pending: map[string]*waiting{}, over: make(chan struct{})}
	s.life, s.end = context.WithCancel(life)
	return s
}

// openWithin is open with less time than ctx has; 0: no less.
func (s *sse) openWithin(ctx context.Context, d time.Duration) error {
	if d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	return s.open(ctx)
}

// open connects the stream and waits for the address of requests. The stream lives on when ctx ends later.
func (s *sse) open(ctx context.Context) error {
	stop := context.AfterFunc(ctx, s.end)
	err := s.connect(ctx)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err == nil {
		s.ready = true
		return nil
	}
	s.lose(err)
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

func (s *sse) connect(ctx context.Context) error {
	request, err := http.NewRequestWithContext(context.WithValue(s.life, exchangeKey{}, exchangeOf(ctx)), http.MethodGet, s.base.String(), nil)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "text/event-stream")
	request.Header.Set("Cache-Control", "no-cache")
	res, err := s.client.Do(request)
	if err != nil {
		return err
	}
	if mediaType, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); res.StatusCode != http.StatusOK || mediaType != "text/event-stream" {
		_ = res.Body.Close()
		return &BadAnswerError{Why: "it is no event stream"}
	}
	found := make(chan struct{})
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		defer func() { _ = res.Body.Close() }()
		s.lose(safely(func() error { return s.read(res.Body, found) }))
	}()
	select {
	case <-found:
		return nil
	case <-s.over:
		return s.reason()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// read takes the stream's events until it ends; it always ends with an error.
func (s *sse) read(body io.Reader, found chan<- struct{}) error {
	events := newEventReader(body, s.limit, s.spend)
	events.hold = s.hold
	known := false
	for {
		e, err := events.next()
		switch {
		case err != nil:
			return err
		case e.name == "endpoint" && !known: // said once; where a stream's requests go does not change
			if s.post, err = endpointTarget(s.base, string(e.data)); err != nil {
				return err
			}
			known = true
			close(found)
		case !decode.Modest(e.data):
			return tooManyTokens()
		case e.name == "" || e.name == "message":
			if s.message(e.data) {
				s.unasked = max(0, s.unasked-e.size)
			}
		}
	}
}

// spend bounds what an agent may send without being asked, in size and so in the work of reading it. A request is a reason to speak: to
// report its progress, or to answer it too late.
func (s *sse) spend(n int64) error {
	if now := s.now(); now.Sub(s.window) >= unaskedWindow {
		s.window, s.unasked, s.sentBefore = now, 0, s.sent.Swap(0)
	}
	s.unasked += n
	allowed := 2 + s.sent.Load() + s.sentBefore // 2: one event may be an answer that is still coming
	if s.unasked/s.limit >= allowed {
		return &BadAnswerError{Why: fmt.Sprintf("its event stream brings more than %d bytes a minute that nobody asked for", s.limit)}
	}
	return nil
}

// endpointTarget is the address that an endpoint event names. It must have the stream's origin: the credentials are for that one.
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
	if target.Scheme != "http" && target.Scheme != "https" || origin(target) != origin(base) {
		return bad("names an address of another origin than its own, where nothing is sent")
	}
	if target.User != nil {
		return bad("names an address with user information")
	}
	target.Fragment, target.RawFragment = "", ""
	return target.String(), nil
}

// message handles one message and reports whether it answers a request of ours. What is no message is passed over.
func (s *sse) message(data []byte) bool {
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
		return s.answered(m.ID.String(), &transport.JSONRPCResponse{JSONRPC: mcp.JSONRPC_VERSION, ID: m.ID, Result: m.Result, Error: m.Error})
	case m.ID.IsNil():
		if handler, ok := s.note.Load().(func(mcp.JSONRPCNotification)); ok {
			handler(mcp.JSONRPCNotification{JSONRPC: mcp.JSONRPC_VERSION, Notification: mcp.Notification{Method: m.Method}})
		}
	default:
		s.asked(transport.JSONRPCRequest{JSONRPC: mcp.JSONRPC_VERSION, ID: m.ID, Method: m.Method})
	}
	return false
}

func (s *sse) answered(id string, response *transport.JSONRPCResponse) bool {
	s.mu.Lock()
	w, ok := s.pending[id]
	delete(s.pending, id)
	s.mu.Unlock()
	if !ok {
		return false
	}
	w.answer <- response
	if !w.posted.Load() { // the answer is here; its POST is not waited for
		time.AfterFunc(postGrace, w.cancel)
	}
	return true
}

// asked answers a request of the agent, off the reader.
func (s *sse) asked(request transport.JSONRPCRequest) {
	if s.request == nil {
		return
	}
	response, err := s.request(s.life, request) // at once; it only decides, see answerRequests
	if err != nil || response == nil || s.post == "" {
		return
	}
	body, err := json.Marshal(response)
	if err != nil {
		return
	}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		ctx, cancel := context.WithTimeout(s.life, noticeWait)
		defer cancel()
		_ = s.send(ctx, body) // an agent that does not take the answer it asked for
	}()
}

// lose ends the stream for all who wait.
func (s *sse) lose(why error) {
	s.mu.Lock()
	if s.why == nil {
		s.why = why
		close(s.over)
		for _, w := range s.pending {
			if !w.posted.Load() && !errors.Is(why, errStreamClosed) {
				time.AfterFunc(lostGrace, w.cancel) // its status may say that nothing was done
			} else {
				w.cancel()
			}
		}
	}
	s.mu.Unlock()
	s.end()
}

// reason is why the stream is over, nil while it is not.
func (s *sse) reason() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why
}

func (s *sse) ended() bool { return s.reason() != nil }

// Start does nothing: open has.
func (s *sse) Start(context.Context) error { return nil }

func (s *sse) Close() error {
	s.lose(errStreamClosed)
	s.wg.Wait()
	return nil
}

func (s *sse) GetSessionId() string { return "" }

func (s *sse) SetProtocolVersion(version string) { s.version.Store(version) }

func (s *sse) SetNotificationHandler(handler func(mcp.JSONRPCNotification)) { s.note.Store(handler) }

// SetRequestHandler must be called before open.
func (s *sse) SetRequestHandler(handler transport.RequestHandler) { s.request = handler }

// SendRequest posts a request and waits for its answer on the stream.
func (s *sse) SendRequest(ctx context.Context, request transport.JSONRPCRequest) (*transport.JSONRPCResponse, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	postCtx, cancel := context.WithCancel(ctx)
	w := &waiting{answer: make(chan *transport.JSONRPCResponse, 1), cancel: cancel}
	id := request.ID.String()
	s.mu.Lock()
	if s.why != nil {
		defer s.mu.Unlock()
		cancel()
		return nil, s.why
	}
	s.pending[id] = w
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.pending, id)
		s.mu.Unlock()
	}()
	x := exchangeOf(ctx)
	if x != nil && request.Method != string(mcp.MethodInitialize) {
		x.markSession() // the address holds it, see sessionGone
	}
	s.sent.Add(1)

	res, err := s.postTo(postCtx, body)
	w.posted.Store(true)
	s.leave(res, cancel)
	if err == nil {
		select {
		case response := <-w.answer:
			return response, nil
		case <-s.over:
			err = s.reason()
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	select {
	case response := <-w.answer: // it came all the same
		if x != nil {
			x.markAnswered()
		}
		return response, nil
	default:
	}
	if why := s.reason(); why != nil {
		err = why
	}
	return nil, err
}

func (s *sse) SendNotification(ctx context.Context, notification mcp.JSONRPCNotification) error {
	if why := s.reason(); why != nil {
		return why
	}
	body, err := json.Marshal(notification)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	return s.send(ctx, body)
}

// send posts one message for which there is no answer.
func (s *sse) send(ctx context.Context, body []byte) error {
	res, err := s.postTo(ctx, body)
	if res != nil {
		discard(res.Body)
	}
	return err
}

// postTo posts one message. What the agent says to that is of no interest beyond its status; its body, if there is an answer at all, is the
// caller's to close.
func (s *sse) postTo(ctx context.Context, body []byte) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.post, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if version, ok := s.version.Load().(string); ok && version != "" {
		request.Header.Set(transport.HeaderKeyProtocolVersion, version)
	}
	res, err := s.client.Do(request)
	if err != nil {
		return nil, err
	}
	if res.StatusCode < 200 || res.StatusCode > 299 {
		return res, fmt.Errorf("HTTP status %d", res.StatusCode)
	}
	return res, nil
}

// leave is done with the answer to a POST, and cancels its context then. One without a length may be kept open for as long as the agent
// likes, and is not waited for.
func (s *sse) leave(res *http.Response, cancel context.CancelFunc) {
	if res == nil {
		cancel()
		return
	}
	s.mu.Lock()
	kept := res.ContentLength < 0 && s.why == nil // when the stream is over, Close may be waiting already
	if kept {
		s.wg.Add(1)
	}
	s.mu.Unlock()
	done := func() {
		discard(res.Body)
		cancel()
	}
	if !kept {
		done()
		return
	}
	go func() {
		defer s.wg.Done()
		done()
	}()
}

// discard reads a body that is of no interest, if that is soon done, so that its connection can be used again.
func discard(body io.ReadCloser) {
	timer := time.AfterFunc(postBodyWait, func() { _ = body.Close() })
	defer timer.Stop()
	_, _ = io.CopyN(io.Discard, body, maxRefusalBytes+1) // its end must be seen
	_ = body.Close()
}
