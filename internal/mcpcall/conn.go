package mcpcall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/base/tracecontext"
	"github.com/agentherald/herald/internal/mcpcall/transport"
)

// killGrace is the time after the deadline of a call to a command at which the command is killed if the call has not
// returned. If a command stops reading, mcp-go's write to it ignores the deadline and blocks all other calls.
const killGrace = 250 * time.Millisecond

// conn is one MCP client whose handshake has succeeded. If it fails, it is replaced by a new conn.
type conn struct {
	client    *client.Client
	kind      string // the transport; TransportSSE also for an http endpoint that supports only HTTP+SSE
	recording *transport.Recording
	process   *transport.Process // for stdio, else nil
	stream    *transport.Stream  // for sse, else nil
	pool      *Pool
	log       *slog.Logger
	redact    *secret.Masker // masks the endpoint's secrets; nil: there are none
	modern    bool           // the era (open.go): revision 2026-07-28, without initialize and sessions
	protocol  string         // the negotiated MCP revision
	server    ServerInfo
	opened    time.Time

	bad atomic.Bool // the client failed and must be replaced
	// suspect means that a request was sent and timed out without an answer, and that neither an answer nor a health
	// check followed.
	suspect atomic.Bool
	answers atomic.Int64 // number of answers, see countReceived

	// Guarded by Pool.mu.
	held     int64         // bytes of data from the agent that this client keeps in memory
	counted  bool          // Pool.held includes held while the client is idle
	inflight int           // number of callers that use the client
	uses     int           // number of times that the client was acquired
	retired  bool          // retireClient removed the client from its slot
	drained  chan struct{} // closed when the client is retired and no longer in use
	checking bool          // a health check is running
	checked  time.Time     // when the last health check started
	silentAt int64         // countReceived()+1 at the last health check without an answer; 0: there was none

	noPing bool // the agent answers tools/list but not ping; only the running health check accesses it

	listing chan struct{} // has one element while a goroutine lists the tools
	stale   atomic.Bool   // the agent announced that its tools changed
	mu      sync.Mutex    // guards tools and listed
	tools   *ToolSet      // nil: not listed yet, or dropped
	listed  int64         // bytes of tools that countTools reported last
}

// transportEnded reports whether the command has exited or the event stream has ended. It returns false for streamable
// HTTP.
func (c *conn) transportEnded() bool {
	return c.process != nil && c.process.Ended() || c.stream != nil && c.stream.Ended()
}

// isBroken reports whether the client can no longer be used.
func (c *conn) isBroken() bool { return c.bad.Load() || c.transportEnded() }

// close ends the session and stops the process. If the agent does not cooperate, it takes several seconds, but not
// longer than until ctx ends.
func (c *conn) close(ctx context.Context) {
	if c.process != nil {
		c.process.Stop(ctx)
		if tail := c.process.StderrTail(); tail != "" {
			c.log.Debug("a command's last words", "stderr", text.Excerpt(c.mask(tail), 1000))
		}
	}
	_ = c.client.Close() // whether the agent ended its session makes no difference here
}

// onNotification handles a notification of the agent. The goroutine of mcp-go that reads from the agent calls it.
func (c *conn) onNotification(method string) {
	if method == string(mcp.MethodNotificationToolsListChanged) {
		c.stale.Store(true)
	}
}

// recordRequest calls do, which makes one call of c.client, and returns the recorded response to the last request of
// that call. If a panic occurs while mcp-go processes data of the agent, it is returned as an error. If the call to a
// command does not return in time, the command is killed (killAfter).
func (c *conn) recordRequest(ctx context.Context, do func(context.Context) error) (transport.Response, error) {
	ctx, recorder := transport.WithRecorder(ctx)
	defer c.killAfter(ctx)()
	err := transport.Safely(func() error { return do(ctx) })
	return recorder.Response(), err
}

// killAfter kills the command killGrace after the end of ctx, unless stop was called before. The caller calls stop when
// its call to the command has returned. For other transports killAfter does nothing.
func (c *conn) killAfter(ctx context.Context) (stop func()) {
	if c.process == nil {
		return func() {}
	}
	returned := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		select {
		case <-returned:
		case <-time.After(killGrace):
			c.process.Kill()
		}
	})
	return func() {
		unhook()
		close(returned)
	}
}

// callTool calls a tool. In two cases it sends the request a second time. If the agent expects other arguments in HTTP
// headers (HEADER_MISMATCH), it lists the tools first. If the tool asks for input, it declines.
func (c *conn) callTool(ctx context.Context, req Request) (Answer, error) {
	request, err := c.callRequest(req)
	if err != nil {
		return Answer{}, &CallError{Stage: StageCall, Err: err}
	}
	if c.pool.holdsTooMuch(c) {
		c.forgetTools() // callRequest has used the tool's schema
	}
	response, err := c.sendCall(ctx, request)
	if response.Error != nil && response.Error.Code == mcp.HEADER_MISMATCH && c.mirrorsArguments() {
		c.stale.Store(true) // the agent's marks have changed since the listing
		if _, listErr := c.listTools(ctx, true); listErr == nil {
			request, _ = c.callRequest(req) // the same arguments were accepted before
			response, err = c.sendCall(ctx, request)
		}
	}
	isProcessed := false
	if c.modern && err == nil {
		if reply, ok := transport.DeclineInput(response.Result); ok {
			isProcessed = true
			response, err = c.sendCall(transport.WithInputReply(ctx, reply), request)
			response.Written = true // the agent processed the first request
		}
	}
	if err != nil || response.Result == nil {
		failure := c.callError(StageCall, ctx, response, err)
		if isProcessed {
			failure = forbidRepetition(failure)
		}
		return Answer{}, failure
	}
	defer c.acquireMasking(len(response.Result))()
	answer, err := readAnswer(response.Result, c.redact)
	answer.Protocol = c.protocol
	answer.maskSecrets(c.redact)
	if err != nil {
		return answer, &CallError{Stage: StageCall, Written: true, Err: err}
	}
	return answer, nil
}

// forbidRepetition returns the error of callError for a call that the agent has processed, so that the call is not sent
// once more.
func forbidRepetition(failure error) error {
	if again, ok := errors.AsType[errAgain](failure); ok {
		failure = again.last
	}
	if call, ok := errors.AsType[*CallError](failure); ok {
		call.Written = true
	}
	return failure
}

// callRequest returns the tools/call request for req. It returns a *RequestTooLargeError if the arguments are too
// large.
func (c *conn) callRequest(req Request) (request mcp.CallToolRequest, err error) {
	args := json.RawMessage(`{}`)
	if req.Encoded != nil {
		args = req.Encoded
	} else if req.Arguments != nil {
		if args, err = json.Marshal(req.Arguments); err != nil {
			return request, fmt.Errorf("the arguments cannot be written as JSON: %w", err)
		}
	}
	if len(args) > c.pool.cfg.MaxRequestBytes {
		return request, &RequestTooLargeError{Size: len(args), Limit: c.pool.cfg.MaxRequestBytes}
	}
	request.Params.Name, request.Params.Arguments = req.Tool, args
	request.Header = c.mirrorArguments(req.Tool, args)
	meta := maps.Clone(req.Meta)
	if req.Traceparent != "" {
		if meta == nil {
			meta = map[string]any{}
		}
		meta[tracecontext.Header] = req.Traceparent
		request.Header.Set(tracecontext.Header, req.Traceparent)
	}
	if len(meta) > 0 {
		request.Params.Meta = &mcp.Meta{AdditionalFields: meta}
	}
	return request, nil
}

// sendCall sends one tools/call request and returns its recorded response. If ctx ends before the answer, it notifies
// the agent (cancelRequest).
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

// mask returns s with the endpoint's secrets masked.
func (c *conn) mask(s string) string {
	if c.redact == nil {
		return s
	}
	defer c.acquireMasking(len(s))()
	return c.redact.Replace(s)
}

// acquireMasking waits until n bytes from the agent may be masked, which can allocate a hundred times as much memory.
// It returns a function that ends the masking. It ignores the end of calls, because an answer must not be lost. The
// wait is short: no holder of Config.Decoding waits for an agent. The caller must hold no part of Config.Decoding.
func (c *conn) acquireMasking(n int) (release func()) {
	if c.redact == nil {
		return func() {}
	}
	release, err := c.pool.cfg.Decoding.Acquire(context.Background(), n)
	if err != nil {
		return func() {} // never: the context does not end
	}
	return release
}
