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

// killGrace is by how much a call to a command may overrun its deadline before the command is killed: mcp-go's write to
// a command that stopped reading knows no deadline, and holds up every other call.
const killGrace = 250 * time.Millisecond

// conn is one initialised client. It is never initialised again.
type conn struct {
	client    *client.Client
	kind      string // the transport; sse for an http endpoint that turned out to be one
	recording *transport.Recording
	process   *transport.Process // of stdio, else nil
	stream    *transport.Stream  // of sse, else nil
	cfg       *Config
	spawn     func(func(context.Context)) // a goroutine of the pool's
	log       *slog.Logger
	redact    *secret.Masker // nil: nothing to mask
	modern    bool
	protocol  string
	server    ServerInfo
	opened    time.Time

	bad     atomic.Bool  // it failed, and is to be replaced
	suspect atomic.Bool  // a request that was written brought nothing in its time, and none since brought anything
	answers atomic.Int64 // see countHeard

	reportHeld func(bytes int64) // adds to the bytes that are kept of what the agent sent, or takes from them

	// Guarded by Pool.mu.
	held     int64 // sum of what was passed to hold
	counted  bool  // in Pool.held while nobody uses it
	inflight int
	uses     int // how often it was acquired
	retired  bool
	drained  chan struct{} // closed when retired and not in use
	checking bool
	checked  time.Time // when it was last asked for a sign of life
	silentAt int64     // one more than countHeard() when it last gave none, 0 if it never failed to

	noPing bool // it answers other things than ping; of the health check that runs

	listing chan struct{} // held while tools are listed
	stale   atomic.Bool   // the agent said that its tools changed
	mu      sync.Mutex
	tools   *ToolSet // nil before the first list
	listed  int64    // bytes of tools that were passed to hold
}

// transportEnded: the command or the event stream is gone.
func (c *conn) transportEnded() bool {
	return c.process != nil && c.process.Ended() || c.stream != nil && c.stream.Ended()
}

func (c *conn) isBroken() bool { return c.bad.Load() || c.transportEnded() }

// close ends the session or the process. It takes seconds with an agent that does not cooperate, less when ctx ends.
func (c *conn) close(ctx context.Context) {
	if c.process != nil {
		c.process.Stop(ctx)
		if tail := c.process.StderrTail(); tail != "" {
			c.log.Debug("a command's last words", "stderr", text.Excerpt(c.mask(tail), 1000))
		}
	}
	_ = c.client.Close() // an agent that fails to end its session changes nothing here
}

// onNotification runs on mcp-go's reader.
func (c *conn) onNotification(method string) {
	if method == string(mcp.MethodNotificationToolsListChanged) {
		c.stale.Store(true)
	}
}

// recordRequest runs one call into mcp-go's client and returns what was seen of its last request. A command whose call
// does not return in time is killed, and a panic over what the agent sent is an error.
func (c *conn) recordRequest(ctx context.Context, do func(context.Context) error) (transport.Response, error) {
	ctx, recorder := transport.WithRecorder(ctx)
	defer c.killAfter(ctx)()
	err := transport.Safely(func() error { return do(ctx) })
	return recorder.Response(), err
}

// killAfter kills a command whose call does not return after the deadline of ctx. Stop it when the call returned.
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

// callTool calls a tool.
func (c *conn) callTool(ctx context.Context, req Request) (Answer, error) {
	request, err := c.callRequest(req)
	if err != nil {
		return Answer{}, &CallError{Stage: StageCall, Err: err}
	}
	response, err := c.sendCall(ctx, request)
	if response.Error != nil && response.Error.Code == mcp.HEADER_MISMATCH && c.mirrorsArguments() {
		// The agent wants arguments mirrored into headers; mcp-go does so for tools it has listed, as they were then.
		c.stale.Store(true)
		if _, listErr := c.listTools(ctx, true); listErr == nil {
			response, err = c.sendCall(ctx, request)
		}
	}
	if c.modern && err == nil {
		if reply, ok := transport.DeclineInput(response.Result); ok {
			response, err = c.sendCall(transport.WithInputReply(ctx, reply), request)
			response.Written = true // the agent has looked at the first
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

// callRequest writes the arguments once, so that they can be measured.
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

// mirrorsArguments: arguments that a tool's schema marks with x-mcp-header are sent as headers too.
func (c *conn) mirrorsArguments() bool { return c.modern && c.kind == TransportHTTP }

func (c *conn) mask(s string) string {
	if c.redact == nil {
		return s
	}
	return c.redact.Replace(s)
}
