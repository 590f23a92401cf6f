package mcpcall

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/agentherald/herald/internal/text"
)

// The two eras of the protocol. Which one is tried first is decided by the hint; mcp-go's own probing is not used, because it takes
// any answer for a yes and any failure, a dead network included, for a no.
const (
	modernVersion = mcp.ProtocolVersion20260728
	legacyVersion = mcp.ProtocolVersion20251125
)

// shortestSession: shorter values in an event stream's address are taken for ordinary words. Bytes.
const shortestSession = 16

// Backoff of commands that do not stay alive.
const (
	steadyAfter = 10 * time.Second // a command that lived longer starts with a clean slate
	firstWait   = 100 * time.Millisecond
	longestWait = 10 * time.Second
)

// lived notes how long a command stayed, and when it may be started again. HTTP clients are not held back: delivery does that.
func (s *slot) lived(d time.Duration, now time.Time) {
	if s.conn != nil && s.conn.proc == nil {
		return
	}
	if d >= steadyAfter {
		s.failures, s.notBefore = 0, time.Time{}
		return
	}
	s.notBefore = now.Add(min(firstWait<<min(s.failures, 10), longestWait))
	s.failures++
}

// briefly is a context for what takes OpenTimeout at most and what a closing pool does not wait for: a handshake, a health check.
func (p *Pool) briefly() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(p.ctx, p.cfg.OpenTimeout)
	go func() {
		select {
		case <-p.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// open makes the slot's client, for all who wait on o.
func (p *Pool) open(ep Endpoint, key [sha256.Size]byte, s *slot, o *opening) {
	defer p.wg.Done()
	ctx, cancel := p.briefly()
	defer cancel()
	ctx = withPatience(ctx)

	p.mu.Lock()
	modern := mcp.IsModernProtocol(ep.ProtocolHint)
	if s.modern != nil {
		modern = *s.modern
	}
	p.mu.Unlock()

	c, err := p.connect(ctx, ep, modern)

	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.cfg.Clock()
	s.opening = nil
	o.err = err
	switch {
	case p.closed || p.slots[key] != s:
		if o.dropped = !p.closed; p.closed {
			o.err = &CallError{Stage: StageOpen, Err: ErrClosed}
		}
		if err == nil { // closed or dropped meanwhile; who waited for a dropped one opens another
			s.conn = c
			p.retire(s)
		}
	case err != nil:
		if ep.Transport == TransportStdio {
			s.lived(0, now)
		}
		p.cfg.Logger.Debug("no connection to an agent", "endpoint", ep.place(), "err", err)
	default:
		s.conn = c
		s.modern = &c.modern
		c.counted = c.proc == nil // commands are the operator's, and few
		p.held += c.heldIdle()
		p.makeRoom()
		p.cfg.Logger.Debug("connected to an agent", "endpoint", ep.place(), "protocol", c.protocol, "server", c.server.Name)
	}
	close(o.done)
}

// place names the endpoint in a log: an origin or a command, with what of them is secret masked.
func (e Endpoint) place() string {
	where := e.Command
	if e.Transport == TransportHTTP || e.Transport == TransportSSE {
		u, err := url.Parse(e.URL)
		if err != nil {
			return e.Transport
		}
		where = origin(u)
	}
	if r := e.redactor(); r != nil {
		where = r.Replace(where)
	}
	return where
}

// connect tries the expected era and, when the agent's behaviour says so, the other one, and then the transport from before both, each
// once. The first error says most about an agent that speaks none of them.
func (p *Pool) connect(ctx context.Context, ep Endpoint, modern bool) (*conn, error) {
	if ep.Transport == TransportSSE {
		c, _, err := p.handshake(ctx, ep, false, 0)
		return c, err
	}
	c, s, err := p.handshake(ctx, ep, modern, 0)
	if err != nil && modern && ctx.Err() == nil && wantsModern(s) {
		c, s, err = p.handshake(ctx, ep, true, 0)
	}
	if err == nil {
		return c, nil
	}
	if ctx.Err() == nil && otherEra(modern, ep.Transport, s, err) {
		other, otherSeen, second := p.handshake(ctx, ep, !modern, 0)
		if second == nil {
			return other, nil
		}
		if modern {
			s = otherSeen // of initialize
		}
	}
	if ep.Transport == TransportHTTP && ctx.Err() == nil && olderTransport(s) {
		ep.Transport = TransportSSE
		if older, _, third := p.handshake(ctx, ep, false, p.cfg.ProbeTimeout); third == nil {
			return older, nil
		}
	}
	return nil, err
}

// wantsModern: the agent refuses the revision and names the very same one as supported, as a server does that begins to speak it.
func wantsModern(s seen) bool {
	if s.rpc == nil || s.rpc.Code != mcp.UNSUPPORTED_PROTOCOL_VERSION {
		return false
	}
	data, _ := s.rpc.Data.(map[string]any)
	supported, _ := data["supported"].([]any)
	return slices.Contains(supported, any(modernVersion))
}

// olderTransport reads the refusal of initialize: only these statuses may mean a server that knows nothing but HTTP+SSE.
func olderTransport(s seen) bool {
	if s.method != string(mcp.MethodInitialize) || s.rpc != nil {
		return false
	}
	return s.status == http.StatusBadRequest || s.status == http.StatusNotFound || s.status == http.StatusMethodNotAllowed
}

// otherEra reads a failed handshake.
func otherEra(modern bool, kind string, s seen, err error) bool {
	if s.tooLarge != nil {
		return false
	}
	switch s.status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests, http.StatusRequestTimeout:
		return false
	}
	if s.status >= 500 || s.status >= 300 && s.status < 400 {
		return false
	}
	if !modern {
		if s.method != string(mcp.MethodInitialize) {
			return false
		}
		if s.rpc != nil {
			switch s.rpc.Code {
			case mcp.METHOD_NOT_FOUND, mcp.UNSUPPORTED_PROTOCOL_VERSION, mcp.HEADER_MISMATCH:
				return true
			}
		}
		return s.status == http.StatusBadRequest
	}
	if kind == TransportStdio {
		// It may ignore an unknown method, refuse it, or exit over it; it did start.
		var start *startError
		return !errors.As(err, &start)
	}
	// Over HTTP: refused, answered with something else, or taken without a word.
	return s.status != 0 || s.written
}

// handshake makes a client of one era. On failure it returns what was seen, and leaves nothing behind but what the pool waits for. An
// event stream has streamWait to open, 0: as long as ctx lasts.
func (p *Pool) handshake(ctx context.Context, ep Endpoint, modern bool, streamWait time.Duration) (*conn, seen, error) {
	c := &conn{
		kind:    ep.Transport,
		modern:  modern,
		redact:  ep.redactor(),
		cfg:     &p.cfg,
		spawn:   p.background,
		drained: make(chan struct{}),
		listing: make(chan struct{}, 1),
		opened:  p.cfg.Clock(),
		log:     p.cfg.Logger.With("endpoint", ep.place()),
	}
	c.hold = func(bytes int64) { p.hold(c, bytes) }
	c.tap = &tap{modern: modern, onNote: c.notified}
	inner, err := p.attach(ep, c)
	if err != nil {
		return nil, seen{}, &CallError{Stage: StageOpen, Err: &described{text: c.masked(err.Error()), cause: err}}
	}
	answerRequests(c.tap.inner, p.cfg.Clock)

	version := legacyVersion
	if modern {
		version = modernVersion
	}
	c.client = client.NewClient(inner, client.WithProtocolVersion(version), client.WithDiscoverTimeout(p.cfg.ProbeTimeout),
		client.WithMaxInputRoundTrips(1))
	ctx, j := withJournal(ctx)
	stop := c.watchdog(ctx)
	err = safely(func() error {
		if c.stream != nil {
			x := &exchange{method: http.MethodGet, stream: true}
			j.note(x)
			if err := c.stream.openWithin(context.WithValue(ctx, exchangeKey{}, x), streamWait); err != nil {
				return err
			}
		}
		if err := c.client.Start(p.ctx); err != nil {
			return err
		}
		var request mcp.InitializeRequest
		request.Params.ProtocolVersion = version
		request.Params.ClientInfo = mcp.Implementation{Name: "herald", Version: p.cfg.ClientVersion}
		result, err := c.client.Initialize(ctx, request)
		if err != nil {
			return err
		}
		c.server = ServerInfo{Name: text.Excerpt(c.masked(result.ServerInfo.Name), 200), Version: text.Excerpt(c.masked(result.ServerInfo.Version), 100)}
		c.protocol = c.client.ProtocolVersion()
		return nil
	})
	stop()
	c.redact = ep.redactor(c.sessionTexts()...)
	if err != nil {
		s := j.seen()
		failure := c.failure(StageOpen, ctx, s, err)
		p.wg.Add(1)
		go func() {
			defer p.wg.Done()
			c.close(p.ctx)
		}()
		return nil, s, failure
	}
	return c, seen{}, nil
}

// sessionTexts are what the agent gave out to know this session by: whoever has them can speak in our place.
func (c *conn) sessionTexts() []string {
	texts := []string{c.tap.GetSessionId()}
	if c.stream == nil || c.stream.post == "" {
		return texts
	}
	u, err := url.Parse(c.stream.post)
	if err != nil {
		return texts
	}
	texts = append(texts, u.RawQuery)
	for _, values := range u.Query() {
		for _, v := range values {
			if len(v) >= shortestSession {
				texts = append(texts, v)
			}
		}
	}
	return texts
}

// attach makes c's transport and returns what mcp-go's client is to see of it.
func (p *Pool) attach(ep Endpoint, c *conn) (transport.Interface, error) {
	t := c.tap
	switch ep.Transport {
	case TransportStdio:
		proc, err := startProcess(append([]string{ep.Command}, ep.Args...), append(p.cfg.StdioEnv[:len(p.cfg.StdioEnv):len(p.cfg.StdioEnv)], ep.Env...),
			ep.Dir, p.cfg.MaxAnswerBytes, p.cfg.Supervised && canSupervise)
		if err != nil {
			return nil, err
		}
		c.proc = proc
		t.inner = transport.NewIO(proc.stdout, proc.stdin, nil)
		t.track = proc.stdin.track
		return t, nil
	}
	guard, base := p.cfg.Guard, p.base
	if ep.Listed {
		guard, base = p.listedGuard, p.listedBase
	}
	u, err := url.Parse(ep.URL)
	if err == nil {
		err = guard.CheckURL(u)
	}
	if err != nil {
		return nil, withoutURL(err)
	}
	u.Fragment, u.RawFragment = "", ""
	rt := &roundTripper{base: base, origin: origin(u), headers: http.Header{}, guard: guard, limit: p.cfg.MaxAnswerBytes, now: p.cfg.Clock,
		life: p.ctx}
	for name, value := range ep.Headers {
		rt.headers.Set(name, value.Reveal())
	}
	web := &http.Client{
		Transport:     rt,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if ep.Transport == TransportSSE {
		c.stream = newSSE(p.ctx, u, web, p.cfg.MaxAnswerBytes, p.cfg.Clock)
		c.stream.hold = c.hold
		t.inner = c.stream
		return httpTap{t}, nil
	}
	t.inner, err = transport.NewStreamableHTTP(u.String(),
		transport.WithHTTPBasicClient(web),
		transport.WithHTTPLogger(slog.New(slog.DiscardHandler)), // it logs what agents send
	)
	if err != nil {
		return nil, &described{text: "its address cannot be used", cause: withoutURL(err)}
	}
	return httpTap{t}, nil
}

// safely turns a panic over a stranger's answer into an error.
func safely(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &BadAnswerError{Why: "reading it failed: " + text.Excerpt(fmt.Sprint(v), 200)}
		}
	}()
	return f()
}
