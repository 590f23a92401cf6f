package mcpcall

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
)

// exchange is what is known of one JSON-RPC request and its answer. The transport's goroutines write into it, also after the
// request was given up, hence the lock.
type exchange struct {
	method string
	id     mcp.RequestId // of the request, nil for a notification
	stream bool          // the answer is an event stream that does not end

	mu         sync.Mutex
	started    bool // the HTTP request is on its way; later ones of the same context are not this request
	written    bool // some of it may have left the process
	status     int  // of the HTTP answer, 0 when none came
	retryAfter time.Duration
	body       []byte // beginning of a body that came with a status other than 2xx
	challenge  []string
	blocked    error // the guard's refusal of the address that the answer redirects to
	session    bool  // the request carried a session id
	read       int64 // bytes of the answer, all streams of the request together
	tooLarge   *TooLargeError

	result json.RawMessage
	rpc    *mcp.JSONRPCErrorDetails
}

func (x *exchange) markWritten() {
	x.mu.Lock()
	x.written = true
	x.mu.Unlock()
}

func (x *exchange) markSession() {
	x.mu.Lock()
	x.session = true
	x.mu.Unlock()
}

// markAnswered: the answer came, and not in the HTTP answer, whose status says nothing any more.
func (x *exchange) markAnswered() {
	x.mu.Lock()
	x.status, x.body, x.blocked, x.retryAfter, x.challenge = http.StatusOK, nil, nil, 0, nil
	x.mu.Unlock()
}

func (x *exchange) markTooLarge(err *TooLargeError) {
	x.mu.Lock()
	if x.tooLarge == nil {
		x.tooLarge = err
	}
	x.mu.Unlock()
}

// seen is a copy of an exchange's facts, taken once it is over.
type seen struct {
	method     string
	id         mcp.RequestId
	written    bool
	status     int
	retryAfter time.Duration
	body       []byte
	challenge  []string
	blocked    error
	session    bool
	tooLarge   *TooLargeError
	result     json.RawMessage
	rpc        *mcp.JSONRPCErrorDetails
}

func (x *exchange) seen() seen {
	x.mu.Lock()
	defer x.mu.Unlock()
	return seen{x.method, x.id, x.written, x.status, x.retryAfter, x.body, x.challenge, x.blocked, x.session, x.tooLarge, x.result, x.rpc}
}

func (s seen) refused() bool { return s.status != 0 && (s.status < 200 || s.status > 299) }

type exchangeKey struct{}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// journal hands the last exchange of a call into mcp-go's client back to whoever made that call.
type journal struct {
	mu   sync.Mutex
	last *exchange
}

func (j *journal) note(x *exchange) {
	j.mu.Lock()
	j.last = x
	j.mu.Unlock()
}

func (j *journal) seen() seen {
	j.mu.Lock()
	x := j.last
	j.mu.Unlock()
	if x == nil {
		return seen{}
	}
	return x.seen()
}

type journalKey struct{}

func withJournal(ctx context.Context) (context.Context, *journal) {
	j := &journal{}
	return context.WithValue(ctx, journalKey{}, j), j
}

// errEra: the client was opened for 2026-07-28 and mcp-go wants to fall back to initialize. We decide about that: see open.go.
var errEra = errors.New("the agent does not answer server/discover as revision 2026-07-28 says")

// errTaken ends a tools/call, and a tools/list of the older era, in mcp-go's client once the result is in the exchange: only an error keeps it
// from reading the result too, from refusing what it does not know, and from repeating the call.
var errTaken = errors.New("the result was taken")

// errWrongID: the answer belongs to another request.
var errWrongID = errors.New("the answer carries another request's id")

// tap is the transport that mcp-go's client sees. It keeps results and errors as they came.
type tap struct {
	inner  transport.Interface
	modern bool
	track  func(id string, x *exchange) (untrack func()) // stdio: which exchange a written line belongs to; nil for HTTP
	onNote func(method string)

	mirrored      map[string]int // bytes of JSON of each tool that mcp-go knows
	mirroredBytes atomic.Int64   // of them all
}

// httpTap adds what mcp-go asks HTTP transports for; by having it a transport says that it is one.
// HTTP+SSE is one of them here, so that mcp-go leaves cancelling to us: see conn.abandon.
type httpTap struct{ *tap }

func (t httpTap) SetProtocolVersion(version string) {
	if c, ok := t.inner.(transport.HTTPConnection); ok {
		c.SetProtocolVersion(version)
	}
}

func (t *tap) Start(ctx context.Context) error { return t.inner.Start(ctx) }
func (t *tap) Close() error                    { return t.inner.Close() }
func (t *tap) GetSessionId() string            { return t.inner.GetSessionId() }

func (t *tap) SetNotificationHandler(handler func(mcp.JSONRPCNotification)) {
	t.inner.SetNotificationHandler(func(n mcp.JSONRPCNotification) {
		if t.onNote != nil {
			t.onNote(n.Method)
		}
		handler(n)
	})
}

func (t *tap) SendNotification(ctx context.Context, n mcp.JSONRPCNotification) error {
	x := &exchange{method: n.Method}
	if j, ok := ctx.Value(journalKey{}).(*journal); ok {
		if n.Method != string(mcp.MethodNotificationCancelled) {
			j.note(x)
		} else if j.seen().result != nil { // of a request whose context ended after its result was taken
			return nil
		}
	}
	return t.inner.SendNotification(context.WithValue(ctx, exchangeKey{}, x), n)
}

// SendRequest sends and keeps what came. A status other than 2xx is always an error, even when its body looks like an answer.
func (t *tap) SendRequest(ctx context.Context, request transport.JSONRPCRequest) (*transport.JSONRPCResponse, error) {
	if t.modern && request.Method == string(mcp.MethodInitialize) {
		return nil, errEra
	}
	x := &exchange{method: request.Method, id: request.ID}
	if j, ok := ctx.Value(journalKey{}).(*journal); ok {
		j.note(x)
	}
	if t.track != nil {
		defer t.track(request.ID.String(), x)()
	}
	if t.modern && request.Method == string(mcp.MethodToolsCall) {
		request.Params = withReply(ctx, request.Params)
	}
	response, err := t.inner.SendRequest(context.WithValue(ctx, exchangeKey{}, x), request)

	x.mu.Lock()
	defer x.mu.Unlock()
	if x.status != 0 && (x.status < 200 || x.status > 299) {
		var answer struct {
			Error *mcp.JSONRPCErrorDetails `json:"error"`
		}
		if json.Unmarshal(x.body, &answer) == nil {
			x.rpc = answer.Error
		}
		if err == nil {
			err = &BadAnswerError{Why: "it came with an HTTP status that refuses the request"}
		}
		return nil, err
	}
	if err != nil {
		return nil, err
	}
	if !response.ID.IsNil() && response.ID.String() != request.ID.String() {
		return nil, errWrongID
	}
	if response.Error != nil {
		x.rpc = response.Error
		return response, nil
	}
	if len(response.Result) == 0 {
		return nil, &BadAnswerError{Why: "it holds neither a result nor an error"}
	}
	x.result = response.Result

	switch request.Method {
	case string(mcp.MethodToolsCall):
		return nil, errTaken
	case string(mcp.MethodToolsList):
		if !t.modern { // mcp-go wants the list only to mirror arguments into headers
			return nil, errTaken
		}
		response.Result = t.forLibrary(response.Result) // a copy: ours is in x
	case string(mcp.MethodServerDiscover):
		var discovered struct {
			SupportedVersions []string `json:"supportedVersions"`
		}
		if json.Unmarshal(response.Result, &discovered) != nil || !slices.Contains(discovered.SupportedVersions, modernVersion) {
			return nil, errEra
		}
	}
	return response, nil
}

// bidirectional is implemented by the transports over which an agent can ask.
type bidirectional interface {
	SetRequestHandler(handler transport.RequestHandler)
}

// answerRequests answers what an agent asks of its client: ping, and "no such method" for the rest, since no capability is
// declared. A flood is not answered: each answer costs a goroutine and, on HTTP, a request.
func answerRequests(inner transport.Interface, now func() time.Time) {
	b, ok := inner.(bidirectional)
	if !ok {
		return
	}
	const perSecond = 10
	var mu sync.Mutex
	var second time.Time
	var answered int
	b.SetRequestHandler(func(_ context.Context, request transport.JSONRPCRequest) (*transport.JSONRPCResponse, error) {
		mu.Lock()
		if t := now().Truncate(time.Second); !t.Equal(second) {
			second, answered = t, 0
		}
		answered++
		over := answered > perSecond
		mu.Unlock()
		switch {
		case over:
			return nil, nil
		case request.Method == string(mcp.MethodPing):
			return transport.NewJSONRPCResultResponse(request.ID, json.RawMessage(`{}`)), nil
		}
		return transport.NewJSONRPCErrorResponse(request.ID, mcp.METHOD_NOT_FOUND, "this client offers no such method", nil), nil
	})
}
