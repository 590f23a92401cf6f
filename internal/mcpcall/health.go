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

// maxChecks is how many health checks run at the same time.
const maxChecks = 16

// checkIdle asks the clients that nobody used for long whether they are still there, and, used or not, those that let a
// request wait in vain. One that is not is retired before another delivery meets it.
func (p *Pool) checkIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.startChecks()
}

// startChecks begins as many checks as there is room for; each one that ends makes room for another. p.mu is held.
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
		c.suspect.Store(false) // this check clears it up
		c.checked, c.checking = now, true
		p.held -= c.heldIdle()
		c.inflight++
		p.checks++
		uses := c.uses
		p.wg.Go(func() { p.runCheck(s, c, suspect, uses) })
	}
}

// runCheck retires c if it shows no sign of life. Unless it was suspect, whoever used it since uses was counted will
// find out by himself.
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

// deferRestart: a command may be busy with a call that nobody waits for any more, and what it remembers would be lost
// with it. It is given up when it is silent for a second time and said nothing in between. Pool.mu is held.
func (c *conn) deferRestart() bool {
	before, now := c.silentAt, c.countHeard()+1
	c.silentAt = now
	return c.process != nil && before != now
}

// countHeard grows with what the agent says.
func (c *conn) countHeard() int64 {
	n := c.answers.Load()
	if c.process != nil {
		n += c.process.Heard()
	}
	if c.stream != nil {
		n += c.stream.Heard()
	}
	return n
}

// noteResponse remembers whether a request brought anything.
func (c *conn) noteResponse(ctx context.Context, response transport.Response) {
	switch {
	case response.Answered():
		c.answers.Add(1)
		c.suspect.Store(false)
	case response.Written && errors.Is(ctx.Err(), context.DeadlineExceeded):
		c.suspect.Store(true)
	}
}

// hasState: the client has something that can be gone without its next user knowing. Stateless HTTP has nothing.
func (c *conn) hasState() bool {
	return c.kind != TransportHTTP || c.recording.GetSessionId() != ""
}

// signOfLife is what a health check found.
type signOfLife int

const (
	silent signOfLife = iota
	answering
	gone // for certain
)

// pingID is a number, because some agents know no other ids, and none that a client of mcp-go counts up to.
const pingID = int64(math.MaxInt32)

// checkHealth asks the agent for a sign of life: with ping, which not every agent knows, and then, if it has anything
// to lose by being misjudged, with what every one knows.
func (c *conn) checkHealth(ctx context.Context) signOfLife {
	found, wait := silent, c.cfg.OpenTimeout
	if c.kind != TransportHTTP {
		wait /= 2
	}
	if !c.noPing {
		found = c.awaitSign(ctx, wait, func(ctx context.Context) error {
			if c.modern { // which has no ping
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

// awaitSign sends and waits. Any answer is a sign of life, a refusal and one that makes no sense too, unless it says
// that the session is gone, and so is whatever else the agent says meanwhile. That a stream's agent takes a POST is
// none: its stream may lead nowhere.
func (c *conn) awaitSign(ctx context.Context, wait time.Duration, send func(context.Context) error) signOfLife {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	heard := c.countHeard()
	response, err := c.recordRequest(ctx, send)
	unknownMethod := response.Error != nil && response.Error.Code == mcp.METHOD_NOT_FOUND
	switch {
	case c.transportEnded():
		return gone
	case response.Session && response.Status == http.StatusNotFound && !unknownMethod:
		return gone
	case err == nil, response.Answered(), c.kind == TransportHTTP && response.Status != 0, c.countHeard() != heard:
		return answering
	}
	return silent
}

// cancelRequest tells an agent of the older era that nobody waits for a request any more; over HTTP a lost connection
// does not say so there, and mcp-go leaves it at that. The agent may have run the tool all the same.
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
		// For the agent's good, not for ours.
		_ = transport.Safely(func() error { return c.recording.SendNotification(ctx, notice) })
	})
}
