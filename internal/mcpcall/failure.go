package mcpcall

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	mcptransport "github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/mcpcall/transport"
)

// callError returns the *CallError for a request that brought no result. If the request may be sent once more with a
// new client, callError wraps the error in errAgain. It marks the client as broken (c.bad) if the client must not be
// used again.
//
// response is the recorded response, and err the error of mcp-go, which is nil for an answer without a result.
func (c *conn) callError(stage string, ctx context.Context, response transport.Response, err error) error {
	e := &CallError{Stage: stage, Written: stage == StageCall && response.Written}
	again := false
	var last error // the error to return if the second attempt ends in the same way; nil: e
	if response.Error != nil {
		e.Code = response.Error.Code
	}
	switch {
	case response.Refused():
		e.Status, e.RetryAfter = response.Status, response.RetryAfter
		for _, value := range response.Challenge {
			e.Challenge = append(e.Challenge, c.mask(value))
		}
		e.Err = &netguard.FailureError{Text: c.describeRefusal(response), Cause: response.Blocked}
		if again = response.Session && sessionGone(stage, response); !again {
			again = stage != StageOpen && c.modern && eraGone(response)
			break
		}
		// For a session that was just created, all statuses except 404, and 400 with a JSON-RPC error, are about the
		// request itself.
		if s := response.Status; s != http.StatusNotFound && (s != http.StatusBadRequest || response.Error == nil) {
			refusal := *e
			last = &refusal
		}
		e.Status, e.Challenge, e.Written = 0, nil, false // the agent did not process it
		if namesSession(response.Error) {
			e.Code = 0 // it says nothing about the tools
		}
		text := ErrSessionGone.Error() + ": " + c.describeRefusal(response)
		e.Err = &netguard.FailureError{Text: text, Cause: ErrSessionGone}
	case response.Error != nil:
		message := text.Excerpt(c.mask(response.Error.Message), 300)
		e.Err = fmt.Errorf("the agent answered with error %d: %s", response.Error.Code, message)
		if again = stage != StageOpen && response.Session && sessionRefused(response.Error); !again {
			break
		}
		if !namesSession(response.Error) {
			refusal := *e
			last = &refusal
		}
		e.Code, e.Written = 0, false // the agent did not process it
		e.Err = &netguard.FailureError{Text: ErrSessionGone.Error() + ": " + e.Err.Error(), Cause: ErrSessionGone}
	case response.TooLarge != nil:
		e.Err = response.TooLarge
	case errors.Is(err, mcptransport.ErrSessionTerminated) && !response.Written && response.Status == 0:
		// An earlier call of the same client made mcp-go mark the session as terminated.
		e.Err = ErrSessionGone
		again = true
	case ctx.Err() != nil:
		e.Timeout = errors.Is(ctx.Err(), context.DeadlineExceeded)
		e.Err = describeTimeout(ctx, "the agent did not answer")
		if e.Timeout && !response.Written && response.Status == 0 {
			e.Err = describeTimeout(ctx, "there was no connection to the agent")
		}
	case transport.StreamEnded(err): // the agent may have been restarted
		e.Err = errors.New("the agent's event stream ended before the result")
	case c.process != nil && c.process.OutputTooLong():
		e.Err = &TooLargeError{Limit: c.pool.cfg.MaxAnswerBytes, Unit: "bytes in one line"}
	case c.process != nil && (errors.Is(err, mcptransport.ErrTransportClosed) || c.process.Ended()):
		e.Err = errors.New(c.process.ExitReason(c.mask))
		again = !response.Written
		c.bad.Store(true)
	case c.stream != nil && c.stream.Opened() && c.stream.Ended():
		e.Err = c.describeLostStream(c.stream.EndedBecause())
		again = !response.Written
		c.bad.Store(true)
	case errors.Is(err, transport.ErrWrongEra), errors.Is(err, transport.ErrWrongID):
		e.Err = &BadAnswerError{Why: err.Error()}
		// A client that receives answers to other requests is unusable. A list may be requested again.
		wrongID := errors.Is(err, transport.ErrWrongID)
		again = wrongID && stage == StageList
		c.bad.Store(c.bad.Load() || wrongID)
	default:
		e.Err = c.describeError(response, err)
	}
	if stage == StageOpen && refusesFurtherSession(response.Error) {
		e.Err = &netguard.FailureError{Text: e.Err.Error(), Cause: ErrOccupied}
	}
	if e.Code == mcp.UNSUPPORTED_PROTOCOL_VERSION && stage != StageOpen {
		again = true
	}
	// Some agents report a lost session in a way of their own, such as with 500. So a session that is not new is
	// replaced after any error, and an agent that always fails gets a new one each PingAfter at most. A command may be
	// a bridge to a server, such as mcp-remote, and keep a session that the server forgot. It is replaced only if the
	// error names a session, because it may have a state.
	lost := response.Session || c.process != nil && namesSession(response.Error)
	old := lost && response.Answered() && c.pool.cfg.Clock().Sub(c.opened) >= c.pool.cfg.PingAfter
	if again || old || response.TooLarge != nil && c.process != nil {
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

// describeLostStream returns an error that explains why the event stream ended. why is the error of its last read.
func (c *conn) describeLostStream(why error) error {
	var large *TooLargeError
	var bad *BadAnswerError
	if errors.As(why, &large) || errors.As(why, &bad) {
		return why
	}
	sentence := "the agent ended its event stream"
	if !errors.Is(why, io.EOF) {
		reason := c.mask(netguard.Explain("the agent", 0, why).Error())
		sentence = "the agent's event stream broke off: " + text.Excerpt(reason, 200)
	}
	return &netguard.FailureError{Text: sentence, Cause: withoutURL(why)}
}

// describeError returns an error for an operator in place of err, an error of mcp-go or of the network.
func (c *conn) describeError(response transport.Response, err error) error {
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
	if response.Status != 0 && !errors.As(inner, &op) && !errors.Is(inner, io.ErrUnexpectedEOF) {
		return &BadAnswerError{Why: text.Excerpt(c.mask(transport.DescribeUnusable(inner)), 200)}
	}
	sentence := c.mask(netguard.Explain("the agent", 0, inner).Error())
	return &netguard.FailureError{Text: text.Excerpt(sentence, 300), Cause: inner}
}

// describeTimeout returns an error for a request whose ctx ended. lack is the beginning of its text: the event that did
// not happen in time, such as "the agent did not answer".
func describeTimeout(ctx context.Context, lack string) error {
	sentence := lack
	switch limit := timeLimitOf(ctx); {
	case !errors.Is(ctx.Err(), context.DeadlineExceeded):
		sentence = "this process gave up before the agent had answered"
	case limit > 0:
		sentence += " within " + netguard.Seconds(limit)
	default:
		sentence += " in time"
	}
	return &netguard.FailureError{Text: sentence, Cause: ctx.Err()}
}

// describeRefusal describes an HTTP response with a status other than 2xx in a sentence.
func (c *conn) describeRefusal(response transport.Response) string {
	sentence := fmt.Sprintf("the agent answered HTTP %d", response.Status)
	if response.Blocked != nil {
		return sentence + ", a redirect, which is not followed: " + c.mask(response.Blocked.Error())
	}
	if response.Status >= 300 && response.Status < 400 {
		return sentence + ", a redirect, which is not followed; let the agent register its final address"
	}
	if name := http.StatusText(response.Status); name != "" {
		sentence += " " + name
	}
	detail := string(response.Body)
	if response.Error != nil {
		detail = response.Error.Message
	}
	if detail = text.Excerpt(c.mask(detail), 200); detail != "" {
		sentence += ": " + detail
	}
	return sentence
}
