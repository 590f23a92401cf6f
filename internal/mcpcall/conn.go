package mcpcall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/agentherald/herald/internal/mcpcall/transport"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/text"
	"github.com/agentherald/herald/internal/tracecontext"
)

// killGrace is how long a call to a command may exceed its deadline before the command is killed. mcp-go's write to a
// command that stopped reading ignores the deadline and blocks all other calls.
const killGrace = 250 * time.Millisecond

// conn is one initialised client. A conn is never initialised a second time.
type conn struct {
	client    *client.Client
	kind      string // the transport; sse for an http endpoint that speaks only HTTP+SSE
	recording *transport.Recording
	process   *transport.Process // for stdio, else nil
	stream    *transport.Stream  // for sse, else nil
	cfg       *Config
	spawn     func(func(context.Context)) // runs a function as a goroutine of the pool
	log       *slog.Logger
	redact    *secret.Masker // nil: there is nothing to mask
	modern    bool
	protocol  string
	server    ServerInfo
	opened    time.Time

	bad atomic.Bool // the client failed and must be replaced
	// suspect is set when a written request timed out without an answer, and cleared by the next answer or health
	// check.
	suspect atomic.Bool
	answers atomic.Int64 // see countHeard

	reportHeld func(bytes int64) // adds to the bytes from the agent that are kept in memory; bytes may be negative

	// Guarded by Pool.mu.
	held     int64 // sum of the bytes passed to reportHeld
	counted  bool  // Pool.held includes the bytes of this client while it is idle
	inflight int
	uses     int // how often the client was acquired
	retired  bool
	drained  chan struct{} // closed when the client is retired and no longer in use
	checking bool
	checked  time.Time // when the last health check started
	silentAt int64     // countHeard()+1 at the last unanswered health check; 0 if all were answered

	noPing bool // the agent answers tools/list but not ping; only the running health check uses it

	listing chan struct{} // holds one token while tools are being listed
	stale   atomic.Bool   // the agent announced that its tools changed
	mu      sync.Mutex
	tools   *ToolSet // nil before the first list
	listed  int64    // bytes of tools that were passed to reportHeld
}

// transportEnded reports whether the command or the event stream has ended or can no longer be used.
func (c *conn) transportEnded() bool {
	return c.process != nil && c.process.Ended() || c.stream != nil && c.stream.Ended()
}

func (c *conn) isBroken() bool { return c.bad.Load() || c.transportEnded() }

// close ends the session or the process. With an agent that does not cooperate it takes seconds, or less if ctx ends
// first.
func (c *conn) close(ctx context.Context) {
	if c.process != nil {
		c.process.Stop(ctx)
		if tail := c.process.StderrTail(); tail != "" {
			c.log.Debug("a command's last words", "stderr", text.Excerpt(c.mask(tail), 1000))
		}
	}
	_ = c.client.Close() // whether the agent ended its session makes no difference here
}

// onNotification handles a notification of the agent. mcp-go's reading goroutine calls it.
func (c *conn) onNotification(method string) {
	if method == string(mcp.MethodNotificationToolsListChanged) {
		c.stale.Store(true)
	}
}

// recordRequest calls do, which makes one call into mcp-go's client, and returns the recorded response of the last
// request in it. It kills a command whose call does not return in time, and returns a panic caused by the agent's data
// as an error.
func (c *conn) recordRequest(ctx context.Context, do func(context.Context) error) (transport.Response, error) {
	ctx, recorder := transport.WithRecorder(ctx)
	defer c.killAfter(ctx)()
	err := transport.Safely(func() error { return do(ctx) })
	return recorder.Response(), err
}

// killAfter kills the command if a call has not returned killGrace after the end of ctx. Call stop when the call has
// returned.
func (c *conn) killAfter(ctx context.Context) (stop func()) {
	if c.process == nil {
		return func() {}
	}
	returned := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		t := time.NewTimer(killGrace)
		defer t.Stop()
		select {
		case <-returned:
		case <-t.C:
			c.process.Kill()
		}
	})
	return func() {
		unhook()
		close(returned)
	}
}

// callTool calls a tool. It sends the request again after it refreshed the tool list for a header mismatch, or to
// decline input that the tool asked for.
func (c *conn) callTool(ctx context.Context, req Request) (Answer, error) {
	request, err := c.callRequest(req)
	if err != nil {
		return Answer{}, &CallError{Stage: StageCall, Err: err}
	}
	response, err := c.sendCall(ctx, request)
	if response.Error != nil && response.Error.Code == mcp.HEADER_MISMATCH && c.mirrorsArguments() {
		// The agent expects arguments mirrored into headers. mcp-go mirrors them according to the tool list it knows,
		// which is outdated.
		c.stale.Store(true)
		if _, listErr := c.listTools(ctx, true); listErr == nil {
			response, err = c.sendCall(ctx, request)
		}
	}
	if c.modern && err == nil {
		if reply, ok := transport.DeclineInput(response.Result); ok {
			response, err = c.sendCall(transport.WithInputReply(ctx, reply), request)
			response.Written = true // the agent processed the first request
		}
	}
	if err != nil || response.Result == nil {
		return Answer{}, c.callError(StageCall, ctx, response, err)
	}
	answer, err := readAnswer(response.Result, c.redact)
	answer.Protocol = c.protocol
	answer.maskSecrets(c.redact)
	if err != nil {
		return answer, &CallError{Stage: StageCall, Written: true, Err: err}
	}
	return answer, nil
}

// callRequest builds the request. It encodes the arguments once, so that their size can be checked.
func (c *conn) callRequest(req Request) (request mcp.CallToolRequest, err error) {
	args := json.RawMessage(`{}`)
	if req.Arguments != nil {
		if args, err = json.Marshal(req.Arguments); err != nil {
			return request, fmt.Errorf("the arguments cannot be written as JSON: %w", err)
		}
	}
	if len(args) > c.cfg.MaxRequestBytes {
		return request, &RequestTooLargeError{Size: len(args), Limit: c.cfg.MaxRequestBytes}
	}
	request.Params.Name, request.Params.Arguments = req.Tool, args
	meta := maps.Clone(req.Meta)
	if req.Traceparent != "" {
		if meta == nil {
			meta = map[string]any{}
		}
		meta[tracecontext.Header] = req.Traceparent
		request.Header = http.Header{http.CanonicalHeaderKey(tracecontext.Header): {req.Traceparent}}
	}
	if len(meta) > 0 {
		request.Params.Meta = &mcp.Meta{AdditionalFields: meta}
	}
	return request, nil
}

// sendCall sends one tools/call and returns its recorded response. It notifies the agent if the caller gave up.
func (c *conn) sendCall(ctx context.Context, request mcp.CallToolRequest) (transport.Response, error) {
	response, err := c.recordRequest(ctx, func(ctx context.Context) error {
		_, err := c.client.CallTool(ctx, request)
		return err
	})
	if errors.Is(err, transport.ErrResultTaken) {
		err = nil
	}
	c.noteResponse(ctx, response)
	if ctx.Err() != nil && response.Written && !response.Answered() {
		c.cancelRequest(response.ID, ctx.Err())
	}
	return response, err
}

// mirrorsArguments reports whether arguments that a tool's schema marks with x-mcp-header are also sent as HTTP
// headers.
func (c *conn) mirrorsArguments() bool { return c.modern && c.kind == TransportHTTP }

func (c *conn) mask(s string) string {
	if c.redact == nil {
		return s
	}
	return c.redact.Replace(s)
}
