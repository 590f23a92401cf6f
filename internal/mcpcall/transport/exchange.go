package transport

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
)

// Response records one JSON-RPC request and its answer.
type Response struct {
	Method     string
	ID         mcp.RequestId // id of the request; nil for a notification
	Written    bool          // part of the request may have left the process
	Status     int           // status of the HTTP answer; 0 if none arrived
	RetryAfter time.Duration
	Body       []byte // beginning of a body with a status other than 2xx
	Challenge  []string
	Blocked    error // the guard's error for the target of a redirect
	Session    bool  // the request carried a session id
	TooLarge   *TooLargeError

	Result json.RawMessage // as the agent sent it; nil if there was none
	Error  *mcp.JSONRPCErrorDetails
}

// Refused reports whether the answer had an HTTP status other than 2xx.
func (r Response) Refused() bool { return r.Status != 0 && r.Status/100 != 2 }

// Answered reports whether the agent responded to the request, with a result or with an error.
func (r Response) Answered() bool { return r.Result != nil || r.Error != nil || r.Refused() }

// exchange is one JSON-RPC request in progress. The transport's goroutines write into it even after the caller gave up,
// which is why it has a lock.
type exchange struct {
	stream bool   // the answer is an event stream that does not end
	body   []byte // roundTripper sends it instead of the request's body; nil: it sends the request's body

	mu       sync.Mutex
	response Response
	// started means that the exchange's HTTP request was sent; later HTTP requests with the same context are not this
	// request.
	started bool
	read    int64  // bytes of the answer, over all streams of the request
	head    []byte // beginning of the answer, if it is no event stream
}

// record calls change with the response, under the lock. A nil exchange belongs to a request without a caller; record
// does nothing then.
func (x *exchange) record(change func(*Response)) {
	if x == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	change(&x.response)
}

func (x *exchange) recordWritten() { x.record(func(r *Response) { r.Written = true }) }

func (x *exchange) recordTooLarge(err *TooLargeError) {
	x.record(func(r *Response) {
		if r.TooLarge == nil {
			r.TooLarge = err
		}
	})
}

// recordAnswered records that the answer arrived on the event stream. It clears the status of the POST, which no longer
// matters.
func (x *exchange) recordAnswered() {
	x.record(func(r *Response) {
		r.Status, r.Body, r.Blocked, r.RetryAfter, r.Challenge = http.StatusOK, nil, nil, 0, nil
	})
}

func (x *exchange) recordHead(p []byte) {
	x.record(func(*Response) { x.head = append(x.head, p[:min(len(p), maxRefusalBytes-len(x.head))]...) })
}

// readErrorWithoutID returns the JSON-RPC error of an answer that mcp-go rejected with err because it has no id. An
// agent that cannot parse a request must answer in this way (JSON-RPC 2.0 §5). Over HTTP, no id is needed to find the
// request of an answer. The caller has locked x.
func (x *exchange) readErrorWithoutID(err error) *mcp.JSONRPCErrorDetails {
	var answer struct {
		Error *mcp.JSONRPCErrorDetails `json:"error"`
	}
	if !strings.Contains(err.Error(), foreignNoID) || json.NewDecoder(bytes.NewReader(x.head)).Decode(&answer) != nil {
		return nil
	}
	return answer.Error
}

type exchangeKey struct{}

func withExchange(ctx context.Context, x *exchange) context.Context {
	return context.WithValue(ctx, exchangeKey{}, x)
}

// exchangeOf returns the exchange of an HTTP request or a write; nil if no caller waits for it.
func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// Recorder gives the caller of mcp-go's client access to the last exchange of its call.
type Recorder struct {
	mu   sync.Mutex
	last *exchange
}

type recorderKey struct{}

// WithRecorder returns a context whose requests are recorded, and their Recorder.
func WithRecorder(ctx context.Context) (context.Context, *Recorder) {
	r := &Recorder{}
	return context.WithValue(ctx, recorderKey{}, r), r
}

// recorderOf returns the recorder of ctx, or nil.
func recorderOf(ctx context.Context) *Recorder {
	r, _ := ctx.Value(recorderKey{}).(*Recorder)
	return r
}

func (r *Recorder) begin(x *exchange) {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.last = x
	r.mu.Unlock()
}

// Response returns a copy of the record of the last request.
func (r *Recorder) Response() (response Response) {
	r.mu.Lock()
	x := r.last
	r.mu.Unlock()
	x.record(func(known *Response) { response = *known })
	return response
}
