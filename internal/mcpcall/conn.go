package mcpcall

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
)

// overrun is by how much a call to a command may overrun its deadline before the command is ended: mcp-go's write to a command
// that stopped reading knows no deadline, and holds up every other call.
const overrun = 250 * time.Millisecond

// conn is one initialised client. It is never initialised again.
type conn struct {
	client   *client.Client
	proc     *process // nil for HTTP
	cfg      *Config
	log      *slog.Logger
	redact   *strings.Replacer // nil: nothing to mask
	modern   bool
	protocol string
	server   ServerInfo
	opened   time.Time

	bad atomic.Bool

	// Guarded by Pool.mu.
	inflight int
	retired  bool
	drained  chan struct{} // closed when retired and not in use

	listing chan struct{} // held while tools are listed
	stale   atomic.Bool   // the agent said that its tools changed
	mu      sync.Mutex
	tools   *ToolSet // nil before the first list
}

func (c *conn) broken() bool { return c.bad.Load() || c.proc != nil && c.proc.ended() }

// close ends the session or the process. It takes seconds with an agent that does not cooperate, less when ctx ends.
func (c *conn) close(ctx context.Context) {
	if c.proc != nil {
		c.proc.stop(ctx)
		if tail := c.proc.stderrTail(); tail != "" {
			c.log.Debug("a command's last words", "stderr", excerpt(c.masked(tail), 1000))
		}
	}
	_ = c.client.Close() // an agent that does not take its leave is not our trouble
}

// notified runs on mcp-go's reader.
func (c *conn) notified(method string) {
	if method == string(mcp.MethodNotificationToolsListChanged) {
		c.stale.Store(true)
	}
}

// watchdog ends a command whose call does not return after its deadline. Stop it when the call returned.
func (c *conn) watchdog(ctx context.Context) (stop func()) {
	if c.proc == nil {
		return func() {}
	}
	returned := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		t := time.NewTimer(overrun)
		defer t.Stop()
		select {
		case <-returned:
		case <-t.C:
			c.proc.kill()
		}
	})
	return func() {
		unhook()
		close(returned)
	}
}

// call calls a tool.
func (c *conn) call(ctx context.Context, req Request) (Answer, error) {
	args := []byte(`{}`)
	if req.Arguments != nil {
		var err error
		if args, err = json.Marshal(req.Arguments); err != nil {
			return Answer{}, &CallError{Stage: StageCall, Err: fmt.Errorf("the arguments cannot be written as JSON: %w", err)}
		}
	}
	if len(args) > c.cfg.MaxRequestBytes {
		return Answer{}, &CallError{Stage: StageCall, Err: fmt.Errorf("the arguments are %d bytes long, more than the %d that are sent", len(args), c.cfg.MaxRequestBytes)}
	}
	var request mcp.CallToolRequest
	request.Params.Name = req.Tool
	request.Params.Arguments = json.RawMessage(args)
	if len(req.Meta) > 0 {
		request.Params.Meta = &mcp.Meta{AdditionalFields: maps.Clone(req.Meta)}
	}

	s, err := c.send(ctx, request)
	if s.rpc != nil && s.rpc.Code == mcp.HEADER_MISMATCH && c.modern && c.proc == nil {
		// The agent wants arguments mirrored into headers; mcp-go does so for tools it has listed.
		if _, listErr := c.list(ctx, true); listErr == nil {
			s, err = c.send(ctx, request)
		}
	}
	if err != nil || s.result == nil {
		return Answer{}, c.failure(StageCall, ctx, s, err)
	}
	answer, err := readAnswer(s.result)
	answer.Protocol = c.protocol
	answer.redact(c.redact)
	if err != nil {
		return answer, &CallError{Stage: StageCall, Written: true, Err: err}
	}
	return answer, nil
}

func (c *conn) send(ctx context.Context, request mcp.CallToolRequest) (seen, error) {
	ctx, j := withJournal(ctx)
	stop := c.watchdog(ctx)
	err := safely(func() error {
		_, err := c.client.CallTool(ctx, request)
		return err
	})
	stop()
	return j.seen(), err
}

// list returns the tools; one listing at a time, the others wait for it.
func (c *conn) list(ctx context.Context, fresh bool) (ToolSet, error) {
	maxAge := c.cfg.ToolsTTL
	if fresh {
		maxAge = c.cfg.RelistAfter
	}
	if set, ok := c.known(maxAge); ok {
		return set, nil
	}
	select {
	case c.listing <- struct{}{}:
		defer func() { <-c.listing }()
	case <-ctx.Done():
		return ToolSet{}, contextError(StageList, ctx.Err())
	}
	if set, ok := c.known(maxAge); ok {
		return set, nil
	}
	c.stale.Store(false) // a change told from here on is news

	var l toolList
	cursors := map[string]bool{}
	for cursor := ""; ; {
		page, err := c.page(ctx, cursor)
		if err != nil {
			return ToolSet{}, err
		}
		if !l.add(page) || page.cursor == "" {
			break
		}
		cursor = page.cursor
		if cursors[cursor] || len(cursors) >= maxListPages-1 {
			l.cut = true
			break
		}
		cursors[cursor] = true
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tools != nil && l.inherit(c.tools.Tools) {
		c.log.Info("an agent's tools changed", "tools", len(l.tools))
	}
	if l.cut {
		c.log.Warn("an agent's list of tools is longer than is read", "tools", len(l.tools))
	}
	c.tools = &ToolSet{Tools: l.tools, Server: c.server, Protocol: c.protocol, Listed: c.cfg.Clock(), Cut: l.cut}
	return c.copyTools(), nil
}

// known returns the list at hand if it is not older than maxAge.
func (c *conn) known(maxAge time.Duration) (ToolSet, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tools == nil || c.stale.Load() || c.cfg.Clock().Sub(c.tools.Listed) >= maxAge {
		return ToolSet{}, false
	}
	return c.copyTools(), true
}

func (c *conn) copyTools() ToolSet {
	set := *c.tools
	set.Tools = slices.Clone(set.Tools)
	return set
}

func (c *conn) page(ctx context.Context, cursor string) (toolPage, error) {
	ctx, j := withJournal(ctx)
	stop := c.watchdog(ctx)
	var result *mcp.ListToolsResult
	err := safely(func() error {
		var request mcp.ListToolsRequest
		request.Params.Cursor = mcp.Cursor(cursor)
		var err error
		result, err = c.client.ListToolsByPage(ctx, request)
		return err
	})
	stop()
	s := j.seen()
	if s.result == nil {
		return toolPage{}, c.failure(StageList, ctx, s, err)
	}
	page, readErr := readTools(s.result)
	if readErr != nil {
		return toolPage{}, &CallError{Stage: StageList, Err: readErr}
	}
	if err == nil && result != nil && c.modern && c.proc == nil {
		// mcp-go leaves out tools whose x-mcp-header annotations are invalid; over HTTP they must not be called.
		page.tools = slices.DeleteFunc(page.tools, func(t Tool) bool {
			return !slices.ContainsFunc(result.Tools, func(m mcp.Tool) bool { return m.Name == t.Name })
		})
	}
	return page, nil
}

func (c *conn) masked(s string) string {
	if c.redact == nil {
		return s
	}
	return c.redact.Replace(s)
}

// failure says what became of a request that brought no result, and marks the client broken when it is. The error is a *CallError,
// in errAgain when the request may be sent again.
func (c *conn) failure(stage string, ctx context.Context, s seen, err error) error {
	e := &CallError{Stage: stage, Written: stage == StageCall && s.written}
	again := false
	if s.rpc != nil {
		e.Code = s.rpc.Code
	}
	switch {
	case s.refused():
		e.RetryAfter = s.retryAfter
		if again = s.session && sessionGone(s); again {
			e.Written = false // it was not looked at
			e.Err = &described{text: ErrSessionGone.Error() + ": " + c.refusal(s), cause: ErrSessionGone}
		} else {
			e.Status = s.status
			e.Err = &described{text: c.refusal(s), cause: s.blocked}
			again = stage != StageOpen && c.modern && eraGone(s)
		}
	case s.rpc != nil:
		e.Err = fmt.Errorf("the agent answered with error %d: %s", s.rpc.Code, excerpt(c.masked(s.rpc.Message), 300))
	case s.tooLarge != nil:
		e.Err = s.tooLarge
	case errors.Is(err, transport.ErrSessionTerminated): // told to an earlier call of the same client
		e.Err = ErrSessionGone
		again = true
	case ctx.Err() != nil:
		e.Timeout = errors.Is(ctx.Err(), context.DeadlineExceeded)
		e.Err = ctx.Err()
	case c.proc != nil && c.proc.reader.tooLong():
		e.Err = &TooLargeError{Limit: c.cfg.MaxAnswerBytes, Unit: "bytes in one line"}
	case c.proc != nil && (errors.Is(err, transport.ErrTransportClosed) || c.proc.stdin.failed() || c.proc.ended()):
		e.Err = errors.New(c.masked(c.proc.obituary()))
		again = !s.written
		c.bad.Store(true)
	case errors.Is(err, errEra), errors.Is(err, errWrongID):
		e.Err = &BadAnswerError{Why: err.Error()}
		// A client whose answers belong to others is of no use.
		c.bad.Store(c.bad.Load() || errors.Is(err, errWrongID))
	default:
		e.Err = c.cause(s, err)
	}
	if e.Code == mcp.UNSUPPORTED_PROTOCOL_VERSION && stage != StageOpen {
		again = true
	}
	if again || s.tooLarge != nil && c.proc != nil {
		c.bad.Store(true)
	}
	if again && stage != StageOpen && ctx.Err() == nil {
		return errAgain{e}
	}
	return e
}

// cause words an error of mcp-go or of the network.
func (c *conn) cause(s seen, err error) error {
	if err == nil {
		return &BadAnswerError{Why: "it holds no result"}
	}
	var bad *BadAnswerError
	if errors.As(err, &bad) {
		return bad
	}
	inner := withoutURL(err)
	var op net.Error
	if s.status != 0 && !errors.As(inner, &op) && !errors.Is(inner, io.ErrUnexpectedEOF) {
		return &BadAnswerError{Why: excerpt(c.masked(inner.Error()), 200)}
	}
	return &described{text: excerpt(c.masked(inner.Error()), 300), cause: inner}
}

// refusal words an HTTP status.
func (c *conn) refusal(s seen) string {
	text := fmt.Sprintf("the agent answered HTTP %d", s.status)
	if s.blocked != nil {
		return text + ", a redirect, which is not followed: " + s.blocked.Error()
	}
	if s.status >= 300 && s.status < 400 {
		return text + ", a redirect, which is not followed; let the agent register its final address"
	}
	if name := http.StatusText(s.status); name != "" {
		text += " " + name
	}
	detail := string(s.body)
	if s.rpc != nil {
		detail = s.rpc.Message
	}
	if detail = excerpt(c.masked(detail), 200); detail != "" {
		text += ": " + detail
	}
	return text
}

// sessionGone reads the answer to a request that carried a session id: 404 as the specification says, or 400 as some servers
// say, unless the JSON-RPC error is about the request itself.
func sessionGone(s seen) bool {
	switch s.status {
	case http.StatusNotFound:
		return true
	case http.StatusBadRequest:
		if s.rpc == nil {
			return true
		}
		switch s.rpc.Code {
		case mcp.INVALID_PARAMS, mcp.METHOD_NOT_FOUND, mcp.INTERNAL_ERROR, mcp.PARSE_ERROR, mcp.HEADER_MISMATCH, mcp.UNSUPPORTED_PROTOCOL_VERSION:
			return false
		}
		return true
	}
	return false
}

// eraGone reads a refusal of a request without session, which an agent that no longer speaks 2026-07-28 answers like this. A new
// client finds out; if it does speak it, the second answer stands.
func eraGone(s seen) bool {
	switch s.status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed:
		return s.rpc == nil || s.rpc.Code == mcp.INVALID_REQUEST || s.rpc.Code == -32000
	}
	return false
}
