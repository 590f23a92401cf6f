package mcpcall

import (
	"context"
	"errors"
	"math"
	"net/http"
	"time"

	mcptransport "github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/agentherald/herald/internal/mcpcall/transport"
)

// maxChecks bounds the health checks that run at the same time.
const maxChecks = 16

// checkIdle checks the clients that have been idle for PingAfter, and, even if they are in use, the clients with a
// request that timed out. A client that fails the check is retired before another delivery uses it.
func (p *Pool) checkIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.startChecks()
}

// startChecks starts health checks up to maxChecks. Each check that ends calls it again. p.mu is held.
func (p *Pool) startChecks() {
	if p.closed {
		return
	}
	now := p.cfg.Clock()
	for _, s := range p.slots {
		c := s.conn
		if p.checks >= maxChecks {
			return
		}
		if c == nil || c.checking || !c.hasState() {
			continue
		}
		suspect := c.suspect.Load()
		recently := now.Sub(s.lastUsed) < p.cfg.PingAfter || now.Sub(c.checked) < p.cfg.PingAfter
		if !suspect && (c.inflight > 0 || recently) {
			continue
		}
		c.suspect.Store(false) // the check that starts now decides
		c.checked, c.checking = now, true
		p.held -= c.heldIdle()
		c.inflight++
		p.checks++
		uses := c.uses
		p.wg.Go(func() { p.runCheck(s, c, suspect, uses) })
	}
}

// runCheck checks c and retires it if it does not respond. A client that was not suspect and was used after uses was
// counted is kept: its next request detects a failure by itself.
func (p *Pool) runCheck(s *slot, c *conn, suspect bool, uses int) {
	ctx, cancel := p.openContext()
	defer cancel()
	found := c.checkHealth(ctx)
	p.releaseClient(c)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.checks--
	c.checking = false
	if p.closed {
		return
	}
	defer p.startChecks()
	if found == answering || found == silent && (!suspect && c.uses != uses || c.deferRestart()) {
		return
	}
	c.bad.Store(true)
	c.log.Info("an agent no longer answers; it is connected anew when it is needed", "transport", c.kind)
	if s.conn == c {
		p.retireIfBroken(s, p.cfg.Clock())
	}
}

// deferRestart reports whether a silent command is kept until the next check. The command may be busy with a call whose
// caller gave up, and a restart would lose its state. It returns false when the command is silent a second time and
// sent nothing in between. Pool.mu is held.
func (c *conn) deferRestart() bool {
	before, now := c.silentAt, c.countReceived()+1
	c.silentAt = now
	return c.process != nil && before != now
}

// countReceived returns a counter that grows with every message or byte from the agent.
func (c *conn) countReceived() int64 {
	n := c.answers.Load()
	if c.process != nil {
		n += c.process.Received()
	}
	if c.stream != nil {
		n += c.stream.Received()
	}
	return n
}

// noteResponse records whether a request was answered, and marks the client as suspect after a timeout.
func (c *conn) noteResponse(ctx context.Context, response transport.Response) {
	switch {
	case response.Answered():
		c.answers.Add(1)
		c.suspect.Store(false)
	case response.Written && errors.Is(ctx.Err(), context.DeadlineExceeded):
		c.suspect.Store(true)
	}
}

// hasState reports whether the client has state (a process, stream or session) that can be lost before its next use.
// Stateless HTTP has none.
func (c *conn) hasState() bool {
	return c.kind != TransportHTTP || c.recording.GetSessionId() != ""
}

// signOfLife is the result of a health check.
type signOfLife int

const (
	silent signOfLife = iota
	answering
	gone // the transport ended or the agent does not know the session
)

// pingID is a number because some agents accept only numeric ids. mcp-go's own counter does not reach it.
const pingID = int64(math.MaxInt32)

// checkHealth sends ping, or server/discover on 2026-07-28. If the agent does not answer and the transport is not HTTP,
// it sends tools/list, because not every agent knows ping and a wrong verdict would cost the process or stream.
func (c *conn) checkHealth(ctx context.Context) signOfLife {
	found, wait := silent, c.cfg.OpenTimeout
	if c.kind != TransportHTTP {
		wait /= 2
	}
	if !c.noPing {
		found = c.awaitSign(ctx, wait, func(ctx context.Context) error {
			if c.modern { // this revision has no ping
				_, err := c.client.Discover(ctx, mcp.DiscoverRequest{})
				return err
			}
			_, err := c.recording.SendRequest(ctx, mcptransport.JSONRPCRequest{
				JSONRPC: mcp.JSONRPC_VERSION, ID: mcp.NewRequestId(pingID), Method: string(mcp.MethodPing)})
			return err
		})
	}
	if found != silent || c.kind == TransportHTTP {
		return found
	}
	found = c.awaitSign(ctx, wait, func(ctx context.Context) error {
		_, err := c.client.ListToolsByPage(ctx, mcp.ListToolsRequest{})
		return err
	})
	c.noPing = found == answering
	return found
}

// awaitSign sends a request and waits for a sign of life. Any answer counts, including an error or an invalid one, and
// so does any other message that arrives in the meantime. An answer that reports a lost session does not count. For an
// event stream, an accepted POST does not count either, because the stream itself may be dead.
func (c *conn) awaitSign(ctx context.Context, wait time.Duration, send func(context.Context) error) signOfLife {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	received := c.countReceived()
	response, err := c.recordRequest(ctx, send)
	unknownMethod := response.Error != nil && response.Error.Code == mcp.METHOD_NOT_FOUND
	switch {
	case c.transportEnded():
		return gone
	case response.Session && response.Status == http.StatusNotFound && !unknownMethod:
		return gone
	case err == nil, response.Answered(), c.kind == TransportHTTP && response.Status != 0, c.countReceived() != received:
		return answering
	}
	return silent
}

// cancelRequest notifies an agent that a request was abandoned. It does so for HTTP and HTTP+SSE of the older era,
// where a closed connection does not mean cancellation and mcp-go sends no notice. The agent may have run the tool
// regardless.
func (c *conn) cancelRequest(id mcp.RequestId, why error) {
	if c.modern || c.kind != TransportHTTP && c.kind != TransportSSE || id.IsNil() {
		return
	}
	notice := mcp.JSONRPCNotification{JSONRPC: mcp.JSONRPC_VERSION, Notification: mcp.Notification{
		Method: string(mcp.MethodNotificationCancelled),
		Params: mcp.NotificationParams{AdditionalFields: map[string]any{"requestId": id, "reason": why.Error()}},
	}}
	c.spawn(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, transport.NoticeWait)
		defer cancel()
		// The notice only saves the agent work, so its error is ignored.
		_ = transport.Safely(func() error { return c.recording.SendNotification(ctx, notice) })
	})
}
