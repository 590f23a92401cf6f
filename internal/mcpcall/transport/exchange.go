package transport

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
)

// Response is what is known of one JSON-RPC request and its answer.
type Response struct {
	Method     string
	ID         mcp.RequestId // of the request, nil for a notification
	Written    bool          // some of the request may have left the process
	Status     int           // of the HTTP answer, 0 when none came
	RetryAfter time.Duration
	Body       []byte // beginning of a body that came with a status other than 2xx
	Challenge  []string
	Blocked    error // the guard's refusal of the address that the answer redirects to
	Session    bool  // the request carried a session id
	TooLarge   *TooLargeError

	Result json.RawMessage // as the agent sent it, nil when there was none
	Error  *mcp.JSONRPCErrorDetails
}

// Refused: the answer came with an HTTP status other than 2xx.
func (r Response) Refused() bool { return r.Status != 0 && r.Status/100 != 2 }

// Answered: the agent said something about the request, be it no.
func (r Response) Answered() bool { return r.Result != nil || r.Error != nil || r.Refused() }

// exchange is one JSON-RPC request on its way. The transport's goroutines write into it, also after the request was
// given up, hence the lock.
type exchange struct {
	stream bool // the answer is an event stream that does not end

	mu       sync.Mutex
	response Response
	started  bool  // the HTTP request is on its way; later ones of the same context are not this request
	read     int64 // bytes of the answer, all streams of the request together
}

// record changes the response under the lock. Of a request that nobody waits for, the nil exchange, nothing is
// recorded.
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

// recordAnswered: the answer came, and not in the HTTP answer, whose status says nothing any more.
func (x *exchange) recordAnswered() {
	x.record(func(r *Response) {
		r.Status, r.Body, r.Blocked, r.RetryAfter, r.Challenge = http.StatusOK, nil, nil, 0, nil
	})
}

type exchangeKey struct{}

func withExchange(ctx context.Context, x *exchange) context.Context {
	return context.WithValue(ctx, exchangeKey{}, x)
}

// exchangeOf is the exchange that an HTTP request or a write belongs to, nil when nobody waits for it.
func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(exchangeKey{}).(*exchange)
	return x
}

// Recorder hands the last exchange of a call into mcp-go's client back to whoever made that call.
type Recorder struct {
	mu   sync.Mutex
	last *exchange
}

type recorderKey struct{}

// WithRecorder returns a context whose requests are recorded.
func WithRecorder(ctx context.Context) (context.Context, *Recorder) {
	r := &Recorder{}
	return context.WithValue(ctx, recorderKey{}, r), r
}

// recorderOf is the recorder of ctx, nil when it has none.
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

// Response is a copy of what is known of the last request.
func (r *Recorder) Response() (response Response) {
	r.mu.Lock()
	x := r.last
	r.mu.Unlock()
	x.record(func(known *Response) { response = *known })
	return response
}
