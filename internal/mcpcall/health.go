package mcpcall

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/mark3labs/mcp-go/mcp"

	"github.com/agentherald/herald/internal/mcpcall/transport"
)

// maxChecks is the largest number of health checks that run at the same time.
const maxChecks = 16

// checkIdle starts health checks of the clients with state that were idle for PingAfter, and of all clients with a
// request that timed out (conn.suspect). A client that fails the check is retired, so that no delivery uses it again.
func (p *Pool) checkIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.startChecks()
}

// startChecks starts the health checks of checkIdle while fewer than maxChecks run. A check that ends calls it again.
// The caller holds p.mu.
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

// runCheck checks c and retires it if it does not answer. suspect is the value of c.suspect and uses that of c.uses
// when the check was started. If c did not answer but was not suspect, and c.uses has grown, runCheck keeps c: its next
// request detects a failure.
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

// deferRestart reports whether a command that did not answer a health check is kept until the next check. The command
// may be busy with a call whose caller gave up, and a restart would lose its state. deferRestart returns false if the
// command also did not answer the check before, and sent nothing in between. It returns false for other transports. The
// caller holds Pool.mu.
func (c *conn) deferRestart() bool {
	before, now := c.silentAt, c.countReceived()+1
	c.silentAt = now
	return c.process != nil && before != now
}

// countReceived returns a number that grows with each message or byte from the agent.
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

// noteResponse updates c.answers and c.suspect after a request: an answer clears c.suspect, and a timeout after the
// request was sent sets it.
func (c *conn) noteResponse(ctx context.Context, response transport.Response) {
	switch {
	case response.Answered():
		c.answers.Add(1)
		c.suspect.Store(false)
	case response.Written && errors.Is(ctx.Err(), context.DeadlineExceeded):
		c.suspect.Store(true)
	}
}

// hasState reports whether the client has state that can be lost while it is idle: a process, an event stream or a
// session.
func (c *conn) hasState() bool {
	return c.kind != TransportHTTP || c.recording.GetSessionId() != ""
}

// signOfLife is the result of a health check.
type signOfLife int

const (
	silent    signOfLife = iota // nothing arrived in time
	answering                   // something arrived
	gone                        // the transport ended or the agent does not know the session
)

// checkHealth sends ping, or server/discover with revision 2026-07-28, and waits for a sign of life. For a command or
// an event stream it then also tries tools/list, because some agents ignore ping, and a wrong result would end the
// process or the stream.
func (c *conn) checkHealth(ctx context.Context) signOfLife {
	found, wait := silent, c.pool.cfg.OpenTimeout
	if c.kind != TransportHTTP {
		wait /= 2
	}
	if !c.noPing {
		found = c.awaitSign(ctx, wait, func(ctx context.Context) error {
			if c.modern { // this revision has no ping
				_, err := c.client.Discover(ctx, mcp.DiscoverRequest{})
				return err
			}
			//lint:ignore SA1019 deprecated because newer revisions, which do not come here, have no ping
			return c.client.Ping(ctx)
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

// awaitSign sends a request and waits for a sign of life, at most for the time wait. A sign of life is any answer, even
// an error or an invalid one, or any other message from the agent. Two answers do not count: one that reports an
// unknown session, and over an event stream the HTTP answer to the POST, because the stream itself may be dead.
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
	case err == nil, response.Answered(), c.kind == TransportHTTP && response.Status != 0,
		c.countReceived() != received:
		return answering
	}
	return silent
}

// cancelRequest notifies the agent in the background that the request id was abandoned because of why. It does so for
// the HTTP transports before revision 2026-07-28. In other cases mcp-go sends the notice, or the closed connection has
// the same meaning. The agent may run the tool nevertheless.
func (c *conn) cancelRequest(id mcp.RequestId, why error) {
	if c.modern || c.kind != TransportHTTP && c.kind != TransportSSE || id.IsNil() {
		return
	}
	notice := mcp.JSONRPCNotification{JSONRPC: mcp.JSONRPC_VERSION, Notification: mcp.Notification{
		Method: string(mcp.MethodNotificationCancelled),
		Params: mcp.NotificationParams{AdditionalFields: map[string]any{"requestId": id, "reason": why.Error()}},
	}}
	c.pool.spawn(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, transport.NoticeWait)
		defer cancel()
		// The notice only saves the agent work, so its error is ignored.
		_ = transport.Safely(func() error { return c.recording.SendNotification(ctx, notice) })
	})
}
