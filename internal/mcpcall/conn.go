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

	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/secret"
	"github.com/agentherald/herald/internal/text"
)

// overrun is by how much a call to a command may overrun its deadline before the command is ended: mcp-go's write to a command
// that stopped reading knows no deadline, and holds up every other call.
const overrun = 250 * time.Millisecond

// conn is one initialised client. It is never initialised again.
type conn struct {
	client   *client.Client
	kind     string // the transport; sse for an http endpoint that turned out to be one
	tap      *tap
	proc     *process // of stdio, else nil
	stream   *sse     // of sse, else nil
	cfg      *Config
	spawn    func(func(context.Context)) // a goroutine of the pool's
	log      *slog.Logger
	redact   *secret.Masker // nil: nothing to mask
	modern   bool
	protocol string
	server   ServerInfo
	opened   time.Time

	bad     atomic.Bool
	suspect atomic.Bool  // a request that was written brought nothing in its time, and none since brought anything
	answers atomic.Int64 // see heard

	hold func(bytes int64) // more, or less, that are kept of what the agent sent

	// Guarded by Pool.mu.
	held     int64 // sum of what hold was told
	counted  bool  // in Pool.held while nobody uses it
	inflight int
	uses     int // how often it was acquired
	retired  bool
	drained  chan struct{} // closed when retired and not in use
	checking bool
	checked  time.Time // when it was last asked for a sign of life
	silentAt int64     // one more than heard() when it last gave none, 0 if it never failed to

	noPing bool // it answers other things than ping; of the check that runs

	listing chan struct{} // held while tools are listed
	stale   atomic.Bool   // the agent sentence that its tools changed
	mu      sync.Mutex
	tools   *ToolSet // nil before the first list
	listed  int64    // bytes of tools, as hold was told
}

func (c *conn) broken() bool {
	return c.bad.Load() || c.proc != nil && c.proc.ended() || c.stream != nil && c.stream.ended()
}

// close ends the session or the process. It takes seconds with an agent that does not cooperate, less when ctx ends.
func (c *conn) close(ctx context.Context) {
	if c.proc != nil {
		c.proc.stop(ctx)
		if tail := c.proc.stderrTail(); tail != "" {
			c.log.Debug("a command's last words", "stderr", text.Excerpt(c.masked(tail), 1000))
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
	var request mcp.CallToolRequest
	request.Params.Name = req.Tool
	args := json.RawMessage(`{}`)
	if req.Arguments != nil {
		var err error
		if args, err = json.Marshal(req.Arguments); err != nil {
			return Answer{}, &CallError{Stage: StageCall, Err: fmt.Errorf("the arguments cannot be written as JSON: %w", err)}
		}
	}
	if len(args) > c.cfg.MaxRequestBytes {
		return Answer{}, &CallError{Stage: StageCall, Err: &RequestTooLargeError{Size: len(args), Limit: c.cfg.MaxRequestBytes}}
	}
	request.Params.Arguments = args
	if len(req.Meta) > 0 {
		request.Params.Meta = &mcp.Meta{AdditionalFields: maps.Clone(req.Meta)}
	}

	s, err := c.send(ctx, request)
	if s.rpc != nil && s.rpc.Code == mcp.HEADER_MISMATCH && c.mirrors() {
		// The agent wants arguments mirrored into headers; mcp-go does so for tools it has listed, as they were then.
		c.stale.Store(true)
		if _, listErr := c.list(ctx, true); listErr == nil {
			s, err = c.send(ctx, request)
		}
	}
	if c.modern && err == nil {
		if r, ok := decline(s.result); ok {
			s, err = c.send(context.WithValue(ctx, replyKey{}, r), request)
			s.written = true // the agent has looked at the first
		}
	}
	if err != nil || s.result == nil {
		return Answer{}, c.failure(StageCall, ctx, s, err)
	}
	answer, err := readAnswer(s.result, c.redact)
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
	if errors.Is(err, errTaken) {
		err = nil
	}
	s := j.seen()
	c.note(ctx, s)
	if ctx.Err() != nil && s.written && s.result == nil && s.rpc == nil && !s.refused() {
		c.abandon(s.id, ctx.Err())
	}
	return s, err
}

// mirrors: arguments that a tool's schema marks with x-mcp-header are sent as headers too.
func (c *conn) mirrors() bool { return c.modern && c.kind == TransportHTTP }

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
		return ToolSet{}, contextError(ctx, StageList)
	}
	if set, ok := c.known(maxAge); ok {
		return set, nil
	}
	c.stale.Store(false) // a change told from here on is news

	l := toolList{onCompiled: c.countTools}
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

	defer c.countTools()
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

// countTools tells the pool what the list holds now: schemas are compiled when they are first used.
func (c *conn) countTools() {
	c.mu.Lock()
	bytes := mirroredGrowth * c.tap.mirroredBytes.Load()
	for _, t := range c.tools.Tools {
		bytes += toolBytes + int64(len(t.Name)+len(t.InputSchema)) + t.schema.Size()
	}
	more := bytes - c.listed
	c.listed = bytes
	c.mu.Unlock()
	c.hold(more)
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
	err := safely(func() error {
		var request mcp.ListToolsRequest
		request.Params.Cursor = mcp.Cursor(cursor)
		_, err := c.client.ListToolsByPage(ctx, request)
		return err
	})
	stop()
	s := j.seen()
	c.note(ctx, s)
	if s.result == nil {
		return toolPage{}, c.failure(StageList, ctx, s, err)
	}
	release, err := c.cfg.Decoding.Acquire(ctx, len(s.result))
	if err != nil {
		return toolPage{}, &CallError{Stage: StageList, Err: err} // no Timeout: the agent did answer
	}
	defer release()
	page, readErr := readTools(s.result, c.mirrors())
	if readErr != nil {
		return toolPage{}, &CallError{Stage: StageList, Err: readErr}
	}
	page.redact(c.redact)
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
	var last error // what a second attempt ends with, nil: with e
	if s.rpc != nil {
		e.Code = s.rpc.Code
	}
	switch {
	case s.refused():
		e.RetryAfter = s.retryAfter
		if again = s.session && sessionGone(s); again {
			if s.status == http.StatusBadRequest && s.rpc == nil { // of a session just made it is about the request
				last = &CallError{Stage: stage, Status: s.status, RetryAfter: s.retryAfter, Written: e.Written, Err: errors.New(c.refusal(s))}
			}
			e.Written = false // it was not looked at
			e.Err = &described{text: ErrSessionGone.Error() + ": " + c.refusal(s), cause: ErrSessionGone}
		} else {
			e.Status = s.status
			for _, value := range s.challenge {
				e.Challenge = append(e.Challenge, c.masked(value))
			}
			e.Err = &described{text: c.refusal(s), cause: s.blocked}
			again = stage != StageOpen && c.modern && eraGone(s)
		}
	case s.rpc != nil:
		e.Err = fmt.Errorf("the agent answered with error %d: %s", s.rpc.Code, text.Excerpt(c.masked(s.rpc.Message), 300))
	case s.tooLarge != nil:
		e.Err = s.tooLarge
	case errors.Is(err, transport.ErrSessionTerminated) && !s.written && s.status == 0: // told to an earlier call of the same client
		e.Err = ErrSessionGone
		again = true
	case errors.Is(err, transport.ErrSessionTerminated): // told to the GET that was to resume the stream of an answer
		e.Err = &BadAnswerError{Why: "its event stream ended before the result and cannot be resumed"}
	case ctx.Err() != nil:
		e.Timeout = errors.Is(ctx.Err(), context.DeadlineExceeded)
		e.Err = ranOut(ctx, "the agent did not answer")
		if e.Timeout && !s.written && s.status == 0 {
			e.Err = ranOut(ctx, "there was no connection to the agent")
		}
	case c.proc != nil && c.proc.reader.tooLong():
		e.Err = &TooLargeError{Limit: c.cfg.MaxAnswerBytes, Unit: "bytes in one line"}
	case c.proc != nil && (errors.Is(err, transport.ErrTransportClosed) || c.proc.stdin.failed() || c.proc.ended()):
		e.Err = errors.New(c.proc.obituary(c.masked))
		again = !s.written
		c.bad.Store(true)
	case c.stream != nil && c.stream.ready && c.stream.ended():
		e.Err = c.cut(c.stream.reason())
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
		if last == nil {
			last = e
		}
		return errAgain{e, last}
	}
	return e
}

// cut words why an event stream is over.
func (c *conn) cut(why error) error {
	var large *TooLargeError
	var bad *BadAnswerError
	if errors.As(why, &large) || errors.As(why, &bad) {
		return why
	}
	sentence := "the agent ended its event stream"
	if !errors.Is(why, io.EOF) {
		sentence = "the agent's event stream broke off: " + text.Excerpt(c.masked(netguard.Explain("the agent", 0, why).Error()), 200)
	}
	return &described{text: sentence, cause: withoutURL(why)}
}

// cause words an error of mcp-go or of the network.
func (c *conn) cause(s seen, err error) error {
	if err == nil {
		return &BadAnswerError{Why: "it holds no result"}
	}
	var bad *BadAnswerError
	var large *TooLargeError
	switch {
	case errors.As(err, &bad):
		return bad
	case errors.As(err, &large):
		return large
	}
	inner := withoutURL(err)
	var op net.Error
	if s.status != 0 && !errors.As(inner, &op) && !errors.Is(inner, io.ErrUnexpectedEOF) {
		return &BadAnswerError{Why: text.Excerpt(c.masked(describeAnswer(inner)), 200)}
	}
	return &described{text: text.Excerpt(c.masked(netguard.Explain("the agent", 0, inner).Error()), 300), cause: inner}
}

// ranOut words a request whose context ended; lack is what did not come in time.
func ranOut(ctx context.Context, lack string) error {
	sentence := lack
	switch patience := patienceOf(ctx); {
	case !errors.Is(ctx.Err(), context.DeadlineExceeded):
		sentence = "this process gave up before the agent had answered"
	case patience > 0:
		sentence += " within " + netguard.Seconds(patience)
	default:
		sentence += " in time"
	}
	return &described{text: sentence, cause: ctx.Err()}
}

// describeAnswer says why mcp-go could not take an answer for one, as a clause about the answer.
func describeAnswer(err error) string {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	sentence := err.Error()
	switch {
	case errors.As(err, &syntax), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return "it is not JSON"
	case errors.As(err, &kind):
		return "it is JSON of another form than MCP has"
	case strings.Contains(sentence, "unexpected content type"):
		if _, named, ok := strings.Cut(sentence, "content type: "); ok && named != "" {
			return "its content type is " + named + ", neither JSON nor an event stream"
		}
		return "its content type is neither JSON nor an event stream"
	case strings.Contains(sentence, "response should contain RPC id"):
		return "it carries no id, so that nobody knows which request it answers"
	case strings.Contains(sentence, "unexpected nil response"):
		return "its event stream ended before the result"
	}
	return netguard.Explain("the agent", 0, err).Error()
}

// refusal words an HTTP status.
func (c *conn) refusal(s seen) string {
	sentence := fmt.Sprintf("the agent answered HTTP %d", s.status)
	if s.blocked != nil {
		return sentence + ", a redirect, which is not followed: " + c.masked(s.blocked.Error())
	}
	if s.status >= 300 && s.status < 400 {
		return sentence + ", a redirect, which is not followed; let the agent register its final address"
	}
	if name := http.StatusText(s.status); name != "" {
		sentence += " " + name
	}
	detail := string(s.body)
	if s.rpc != nil {
		detail = s.rpc.Message
	}
	if detail = text.Excerpt(c.masked(detail), 200); detail != "" {
		sentence += ": " + detail
	}
	return sentence
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
