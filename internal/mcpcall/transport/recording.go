package transport

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	mcptransport "github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
	"golang.org/x/time/rate"
)

// Recording is the transport that mcp-go's client uses. It forwards messages to the real transport, and records results
// and errors as they arrived.
type Recording struct {
	inner  mcptransport.Interface
	modern bool
	notify func(method string)
}

// NewRecording returns a Recording over inner. modern means that the client is opened for revision 2026-07-28. notify
// is called with the method of each notification from the agent, on mcp-go's reading goroutine.
func NewRecording(inner mcptransport.Interface, modern bool, notify func(method string),
	now func() time.Time) *Recording {
	answerRequests(inner, now)
	return &Recording{inner: inner, modern: modern, notify: notify}
}

// ForClient returns the transport to pass to mcp-go's client.
func (t *Recording) ForClient() mcptransport.Interface {
	if c, ok := t.inner.(mcptransport.HTTPConnection); ok {
		return httpRecording{t, c, rand.Int64N(maxIDOffset)}
	}
	return t
}

// httpRecording implements HTTPConnection, by which mcp-go recognises HTTP transports. HTTP+SSE counts as one too, so
// that mcp-go leaves the notification about cancelled calls to the pool.
type httpRecording struct {
	*Recording
	connection mcptransport.HTTPConnection
	idOffset   int64 // added to the ids of mcp-go, see SendRequest
}

// maxIDOffset bounds idOffset, because some agents store ids in 32 bits.
const maxIDOffset = 1 << 30

// SendRequest sends a request with an id that is unlikely to be in use by another client of the agent. mcp-go counts
// from 1. Some servers find the request of an answer by its id alone, and would exchange the answers of two clients.
func (t httpRecording) SendRequest(ctx context.Context,
	request mcptransport.JSONRPCRequest) (*mcptransport.JSONRPCResponse, error) {
	if id, ok := request.ID.Value().(int64); ok {
		request.ID = mcp.NewRequestId(t.idOffset + id)
	}
	return t.Recording.SendRequest(ctx, request)
}

// SetProtocolVersion implements mcptransport.HTTPConnection.
func (t httpRecording) SetProtocolVersion(version string) { t.connection.SetProtocolVersion(version) }

func (t *Recording) Start(ctx context.Context) error { return t.inner.Start(ctx) }
func (t *Recording) Close() error                    { return t.inner.Close() }
func (t *Recording) GetSessionId() string            { return t.inner.GetSessionId() }

func (t *Recording) SetNotificationHandler(handler func(mcp.JSONRPCNotification)) {
	t.inner.SetNotificationHandler(func(n mcp.JSONRPCNotification) {
		t.notify(n.Method)
		handler(n)
	})
}

// SendNotification forwards a notification. It drops the cancellation of a request whose result was already recorded.
func (t *Recording) SendNotification(ctx context.Context, n mcp.JSONRPCNotification) error {
	x := &exchange{response: Response{Method: n.Method}}
	if r := recorderOf(ctx); n.Method != string(mcp.MethodNotificationCancelled) {
		r.begin(x)
		// The context of the request ended only after its result was recorded, so there is nothing to cancel.
	} else if r != nil && r.Response().Result != nil {
		return nil
	}
	return t.inner.SendNotification(withExchange(ctx, x), n)
}

// requestTracker is a transport that sees only bytes, and therefore must be given the exchange of each request id.
type requestTracker interface {
	trackRequest(id string, x *exchange) (untrack func())
}

// SendRequest sends a request and records the answer. A status other than 2xx is always an error, even if the body
// looks like an answer.
func (t *Recording) SendRequest(ctx context.Context,
	request mcptransport.JSONRPCRequest) (*mcptransport.JSONRPCResponse, error) {
	if t.modern && request.Method == string(mcp.MethodInitialize) {
		return nil, ErrWrongEra
	}
	x := &exchange{response: Response{Method: request.Method, ID: request.ID}}
	recorderOf(ctx).begin(x)
	if tracker, ok := t.inner.(requestTracker); ok {
		defer tracker.trackRequest(request.ID.String(), x)()
	}
	if t.modern && request.Method == string(mcp.MethodToolsCall) {
		request.Params = addInputReply(ctx, request.Params)
	}
	if _, ok := t.inner.(*mcptransport.StreamableHTTP); ok {
		if x.body = encodeCall(request); x.body != nil {
			request.Params = nil
		}
	}
	response, err := t.inner.SendRequest(withExchange(ctx, x), request)

	x.mu.Lock()
	defer x.mu.Unlock()
	if x.response.Refused() {
		var answer struct {
			Error *mcp.JSONRPCErrorDetails `json:"error"`
		}
		if json.Unmarshal(x.response.Body, &answer) == nil {
			x.response.Error = answer.Error
		}
		if err == nil {
			err = &BadAnswerError{Why: "it came with an HTTP status that refuses the request"}
		}
		return nil, err
	}
	switch {
	case err != nil:
		x.response.Error = x.readErrorWithoutID(err)
		return nil, err
	case !response.ID.IsNil() && unquoteID(response.ID).String() != request.ID.String():
		return nil, ErrWrongID
	case response.Error != nil:
		x.response.Error = response.Error
		return response, nil
	case len(response.Result) == 0:
		return nil, &BadAnswerError{Why: "it holds neither a result nor an error"}
	}
	x.response.Result = response.Result

	switch request.Method {
	case string(mcp.MethodToolsCall), string(mcp.MethodToolsList):
		return nil, ErrResultTaken
	case string(mcp.MethodServerDiscover):
		var discovered struct {
			SupportedVersions []string `json:"supportedVersions"`
		}
		err := json.Unmarshal(response.Result, &discovered)
		if err != nil || !slices.Contains(discovered.SupportedVersions, mcp.ProtocolVersion20260728) {
			return nil, ErrWrongEra
		}
	}
	return response, nil
}

// unquoteID returns the id of a response, as a number if it is a string that contains a number. All ids of this client
// are numbers, but some gateways turn them into strings.
func unquoteID(id mcp.RequestId) mcp.RequestId {
	text, _ := id.Value().(string)
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return mcp.NewRequestId(n)
	}
	return id
}

// answerRequests makes inner answer the agent's requests: ping with a result, all others with "method not found",
// because no capability is declared. It answers at most perSecond requests a second, because each answer costs a
// goroutine and, over HTTP, a request.
func answerRequests(inner mcptransport.Interface, now func() time.Time) {
	agent, ok := inner.(interface {
		SetRequestHandler(handler mcptransport.RequestHandler)
	})
	if !ok {
		return
	}
	const perSecond = 10
	answers := rate.NewLimiter(perSecond, perSecond)
	agent.SetRequestHandler(func(_ context.Context, request mcptransport.JSONRPCRequest) (*mcptransport.JSONRPCResponse,
		error) {
		switch {
		case !answers.AllowN(now(), 1):
			return nil, nil
		case request.Method == string(mcp.MethodPing):
			return mcptransport.NewJSONRPCResultResponse(request.ID, json.RawMessage(`{}`)), nil
		}
		const unknown = "this client offers no such method"
		return mcptransport.NewJSONRPCErrorResponse(request.ID, mcp.METHOD_NOT_FOUND, unknown, nil), nil
	})
}
