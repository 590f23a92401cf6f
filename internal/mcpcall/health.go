package mcpcall

import (
	"context"
	"errors"
	"math"
	"net/http"
	"time"

	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
)

// noticeWait bounds what is sent to an agent without waiting for it.
const noticeWait = 2 * time.Second

// maxChecks is how many health checks run at the same time.
const maxChecks = 16

// checkIdle asks the clients that nobody used for long whether they are still there, and, used or not, those that let a request wait
// in vain. One that is not is retired before another delivery meets it.
func (p *Pool) checkIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.checkDue()
}

// checkDue begins as many checks as there is room for; each one that ends makes room for another. p.mu is held.
func (p *Pool) checkDue() {
	if p.closed {
		return
	}
	now := p.cfg.Clock()
	for _, s := range p.slots {
		c := s.conn
		if p.checks >= maxChecks {
			return
		}
		if c == nil || c.checking || !c.losable() {
			continue
		}
		suspect := c.suspect.Load()
		if !suspect && (c.inflight > 0 || now.Sub(s.lastUsed) < p.cfg.PingAfter || now.Sub(c.checked) < p.cfg.PingAfter) {
			continue
		}
		c.suspect.Store(false) // this check clears it up
		c.checked, c.checking = now, true
		p.held -= c.heldIdle()
		c.inflight++
		p.checks++
		p.wg.Add(1)
		go p.check(s, c, suspect, c.uses)
	}
}

// check retires c if it shows no sign of life. Unless it was suspect, whoever used it since uses was counted will find out by himself.
func (p *Pool) check(s *slot, c *conn, suspect bool, uses int) {
	defer p.wg.Done()
	ctx, cancel := p.briefly()
	defer cancel()
	found := c.health(ctx)
	p.release(c)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.checks--
	c.checking = false
	if p.closed {
		return
	}
	defer p.checkDue()
	if found == answering || found == silent && (!suspect && c.uses != uses || c.excused()) {
		return
	}
	c.bad.Store(true)
	c.log.Info("an agent no longer answers; it is connected anew when it is needed", "transport", c.kind)
	if s.conn == c {
		p.tidy(s, p.cfg.Clock())
	}
}

// excused: a command may be busy with a call that nobody waits for any more, and what it remembers would be lost with it. It is given up
// when it is silent for a second time and said nothing in between. Pool.mu is held.
func (c *conn) excused() bool {
	before, now := c.silentAt, c.heard()+1
	c.silentAt = now
	return c.proc != nil && before != now
}

// heard grows with what the agent says.
func (c *conn) heard() int64 {
	n := c.answers.Load()
	if c.proc != nil {
		n += c.proc.reader.bytes.Load()
	}
	if c.stream != nil {
		n += c.stream.heard.Load()
	}
	return n
}

// note remembers whether a request brought anything.
func (c *conn) note(ctx context.Context, s seen) {
	switch {
	case s.result != nil, s.rpc != nil, s.refused():
		c.answers.Add(1)
		c.suspect.Store(false)
	case s.written && errors.Is(ctx.Err(), context.DeadlineExceeded):
		c.suspect.Store(true)
	}
}

// losable: the client has something that can be gone without its next user knowing. Stateless HTTP has nothing.
func (c *conn) losable() bool {
	return c.kind != TransportHTTP || c.tap.GetSessionId() != ""
}

// sign is what a health check found.
type sign int

const (
	silent sign = iota
	answering
	gone // for certain
)

// pingID is a number, because some agents know no other ids, and none that a client of mcp-go counts up to.
const pingID = int64(math.MaxInt32)

// health asks the agent for a sign of life: with ping, which not every agent knows, and then, if it has anything to lose by being
// misjudged, with what every one knows.
func (c *conn) health(ctx context.Context) sign {
	found, wait := silent, c.cfg.OpenTimeout
	if c.kind != TransportHTTP {
		wait /= 2
	}
	if !c.noPing {
		found = c.ask(ctx, wait, func(ctx context.Context) error {
			if c.modern { // which has no ping
				_, err := c.client.Discover(ctx, mcp.DiscoverRequest{})
				return err
			}
			_, err := c.tap.SendRequest(ctx, transport.JSONRPCRequest{JSONRPC: mcp.JSONRPC_VERSION, ID: mcp.NewRequestId(pingID), Method: string(mcp.MethodPing)})
			return err
		})
	}
	if found != silent || c.kind == TransportHTTP {
		return found
	}
	found = c.ask(ctx, wait, func(ctx context.Context) error {
		_, err := c.client.ListToolsByPage(ctx, mcp.ListToolsRequest{})
		return err
	})
	c.noPing = found == answering
	return found
}

// ask sends and waits. Any answer is a sign of life, a refusal and one that makes no sense too, unless it says that the session is gone,
// and so is whatever else the agent says meanwhile. That a stream's agent takes a POST is none: its stream may lead nowhere.
func (c *conn) ask(ctx context.Context, wait time.Duration, send func(context.Context) error) sign {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	heard := c.heard()
	ctx, j := withJournal(ctx)
	stop := c.watchdog(ctx)
	err := safely(func() error { return send(ctx) })
	stop()
	s := j.seen()
	switch {
	case c.proc != nil && c.proc.ended(), c.stream != nil && c.stream.ended():
		return gone
	case s.session && s.status == http.StatusNotFound && (s.rpc == nil || s.rpc.Code != mcp.METHOD_NOT_FOUND):
		return gone
	case err == nil, s.result != nil, s.rpc != nil, s.refused(), c.kind == TransportHTTP && s.status != 0, c.heard() != heard:
		return answering
	}
	return silent
}

// abandon tells an agent of the older era that nobody waits for a request any more; over HTTP a lost connection does not say so there,
// and mcp-go leaves it at that. The agent may have run the tool all the same.
func (c *conn) abandon(id mcp.RequestId, why error) {
	if c.modern || c.kind != TransportHTTP && c.kind != TransportSSE || id.IsNil() {
		return
	}
	notice := mcp.JSONRPCNotification{JSONRPC: mcp.JSONRPC_VERSION, Notification: mcp.Notification{
		Method: string(mcp.MethodNotificationCancelled),
		Params: mcp.NotificationParams{AdditionalFields: map[string]any{"requestId": id, "reason": why.Error()}},
	}}
	c.spawn(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, noticeWait)
		defer cancel()
		_ = safely(func() error { return c.tap.SendNotification(ctx, notice) }) // for the agent's good, not for ours
	})
}
