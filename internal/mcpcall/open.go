package mcpcall

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
)

// The two eras of the protocol. Which one is tried first is decided by the hint; mcp-go's own probing is not used, because it takes
// any answer for a yes and any failure, a dead network included, for a no.
const (
	modernVersion = mcp.ProtocolVersion20260728
	legacyVersion = mcp.ProtocolVersion20251125
)

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

// open makes the slot's client, for all who wait on o.
func (p *Pool) open(ep Endpoint, s *slot, o *opening) {
	defer p.wg.Done()
	ctx, cancel := context.WithTimeout(p.ctx, p.cfg.OpenTimeout)
	defer cancel()
	go func() { // a closing pool does not wait for handshakes
		select {
		case <-p.closing:
			cancel()
		case <-ctx.Done():
		}
	}()

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
	case p.closed:
		o.err = &CallError{Stage: StageOpen, Err: ErrClosed}
		if err == nil {
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
		p.cfg.Logger.Debug("connected to an agent", "endpoint", ep.place(), "protocol", c.protocol, "server", c.server.Name)
	}
	close(o.done)
}

// place names the endpoint in a log: an origin or a command, nothing that could be secret.
func (e Endpoint) place() string {
	if e.Transport == TransportStdio {
		return e.Command
	}
	u, err := url.Parse(e.URL)
	if err != nil {
		return e.Transport
	}
	return origin(u)
}

// connect tries the expected era and, when the agent's behaviour says that it speaks the other one, that, once.
func (p *Pool) connect(ctx context.Context, ep Endpoint, modern bool) (*conn, error) {
	c, s, err := p.handshake(ctx, ep, modern)
	if err == nil {
		return c, nil
	}
	if ctx.Err() != nil || !otherEra(modern, ep.Transport, s, err) {
		return nil, err
	}
	c, _, second := p.handshake(ctx, ep, !modern)
	if second != nil {
		return nil, err // the first says more about an agent that speaks neither
	}
	return c, nil
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

// handshake makes a client of one era. On failure it returns what was seen, and leaves nothing behind but what the pool waits for.
func (p *Pool) handshake(ctx context.Context, ep Endpoint, modern bool) (*conn, seen, error) {
	c := &conn{
		modern:  modern,
		redact:  ep.redactor(),
		cfg:     &p.cfg,
		drained: make(chan struct{}),
		listing: make(chan struct{}, 1),
		opened:  p.cfg.Clock(),
		log:     p.cfg.Logger.With("endpoint", ep.place()),
	}
	t := &tap{modern: modern, onNote: c.notified}
	var inner transport.Interface = t
	switch ep.Transport {
	case TransportHTTP:
		u, err := url.Parse(ep.URL)
		if err == nil {
			err = p.cfg.Guard.CheckURL(u)
		}
		if err != nil {
			return nil, seen{}, &CallError{Stage: StageOpen, Err: withoutURL(err)}
		}
		u.Fragment, u.RawFragment = "", ""
		rt := &roundTripper{base: p.base, origin: origin(u), headers: http.Header{}, guard: p.cfg.Guard, limit: p.cfg.MaxAnswerBytes, now: p.cfg.Clock}
		for name, value := range ep.Headers {
			rt.headers.Set(name, value.Reveal())
		}
		t.inner, err = transport.NewStreamableHTTP(u.String(),
			transport.WithHTTPBasicClient(&http.Client{
				Transport:     rt,
				CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			}),
			transport.WithHTTPLogger(slog.New(slog.DiscardHandler)), // it logs what agents send
		)
		if err != nil {
			return nil, seen{}, &CallError{Stage: StageOpen, Err: &described{text: "its address cannot be used", cause: withoutURL(err)}}
		}
		inner = httpTap{t}
	case TransportStdio:
		proc, err := startProcess(append([]string{ep.Command}, ep.Args...), append(p.cfg.StdioEnv[:len(p.cfg.StdioEnv):len(p.cfg.StdioEnv)], ep.Env...),
			ep.Dir, p.cfg.MaxAnswerBytes)
		if err != nil {
			return nil, seen{}, &CallError{Stage: StageOpen, Err: err}
		}
		c.proc = proc
		t.inner = transport.NewIO(proc.stdout, proc.stdin, nil)
		t.track = proc.stdin.track
	}
	answerRequests(t.inner, p.cfg.Clock)

	version := legacyVersion
	if modern {
		version = modernVersion
	}
	c.client = client.NewClient(inner, client.WithProtocolVersion(version), client.WithDiscoverTimeout(p.cfg.ProbeTimeout),
		client.WithMaxInputRoundTrips(1))
	ctx, j := withJournal(ctx)
	stop := c.watchdog(ctx)
	err := safely(func() error {
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
		c.server = ServerInfo{Name: excerpt(result.ServerInfo.Name, 200), Version: excerpt(result.ServerInfo.Version, 100)}
		c.protocol = c.client.ProtocolVersion()
		return nil
	})
	stop()
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

// safely turns a panic over a stranger's answer into an error.
func safely(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &BadAnswerError{Why: "reading it failed: " + excerpt(fmt.Sprint(v), 200)}
		}
	}()
	return f()
}
