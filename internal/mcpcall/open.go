package mcpcall

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/mark3labs/mcp-go/client"
	mcptransport "github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/agentherald/herald/internal/base/buildinfo"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/mcpcall/transport"
)

// The revisions that are requested in the two eras of MCP. The modern era is revision 2026-07-28; it begins with
// server/discover. The legacy era is all earlier revisions; they begin with initialize. Endpoint.ProtocolHint decides
// which era is tried first. mcp-go's own choice is not used, because it treats any answer to server/discover as
// support, and any failure, even of the network, as lack of support.
const (
	modernVersion = mcp.ProtocolVersion20260728
	legacyVersion = mcp.ProtocolVersion20251125
)

// shortestSession is the length, in bytes, from which a value in the query of an event stream's POST URL is regarded as
// a session id and masked.
const shortestSession = 16

// Delays before the restart of a command that exited soon after its start.
const (
	steadyAfter = 10 * time.Second       // a command that ran this long is restarted without a delay
	firstWait   = 100 * time.Millisecond // the first delay; each further exit doubles it
	longestWait = 10 * time.Second
)

// recordUptime sets s.notBefore, the earliest time of the next start, from the uptime of the slot's command: the time
// for which it ran. It does nothing for HTTP clients, for which package delivery delays retries.
func (s *slot) recordUptime(uptime time.Duration, now time.Time) {
	if s.conn != nil && s.conn.process == nil {
		return
	}
	if uptime >= steadyAfter {
		s.failures, s.notBefore = 0, time.Time{}
		return
	}
	s.notBefore = now.Add(min(firstWait<<min(s.failures, 10), longestWait))
	s.failures++
}

// openContext returns the context of a handshake or health check. It ends after Config.OpenTimeout, or when Pool.Close
// is called.
func (p *Pool) openContext() (context.Context, context.CancelFunc) {
	return WithTimeout(p.closing, p.cfg.OpenTimeout)
}

// openClient opens the client of slot s. It stores the client in s, or the error in o, and wakes up all callers that
// wait for o.
func (p *Pool) openClient(ep Endpoint, key [sha256.Size]byte, s *slot, o *opening) {
	ctx, cancel := p.openContext()
	defer cancel()

	p.mu.Lock()
	modern := mcp.IsModernProtocol(ep.ProtocolHint)
	if s.modern != nil {
		modern = *s.modern
	}
	p.mu.Unlock()

	c, err := p.connectAnyEra(ctx, ep, modern)

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
		// The pool was closed or the slot dropped while connecting. Callers of a dropped slot open another client.
		if err == nil {
			s.conn = c
			p.retireClient(s)
		}
	case err != nil:
		if ep.Transport == TransportStdio {
			s.recordUptime(0, now)
		}
		p.cfg.Logger.Debug("no connection to an agent", "endpoint", ep.logLocation(), "err", err)
	default:
		s.conn = c
		s.modern = &c.modern
		c.counted = c.process == nil // commands do not count: the operator lists them, and they are few
		p.held += c.heldIdle()
		p.makeRoom()
		c.log.Debug("connected to an agent", "protocol", c.protocol, "server", c.server.Name)
	}
	close(o.done)
}

// logLocation returns the origin or the command of the endpoint for a log line, with secrets masked.
func (e Endpoint) logLocation() string {
	where := e.Command
	if e.Transport == TransportHTTP || e.Transport == TransportSSE {
		u, err := url.Parse(e.URL)
		if err != nil {
			return e.Transport
		}
		where = string(netguard.OriginOf(u))
	}
	if r := e.newMasker(); r != nil {
		where = r.Replace(where)
	}
	return where
}

// connectAnyEra opens a client of the era that modern selects. Depending on the failure, it then tries the other era,
// and for TransportHTTP also HTTP+SSE. It tries the modern era a second time if the agent refuses revision 2026-07-28
// but lists it as supported. If all attempts fail, it returns the error of the first era.
func (p *Pool) connectAnyEra(ctx context.Context, ep Endpoint, modern bool) (*conn, error) {
	if ep.Transport == TransportSSE {
		c, _, err := p.connectEra(ctx, ep, false, 0)
		return c, err
	}
	c, response, err := p.connectEra(ctx, ep, modern, 0)
	if err != nil && modern && ctx.Err() == nil && wantsModern(response) {
		c, response, err = p.connectEra(ctx, ep, true, 0)
	}
	if err == nil {
		return c, nil
	}
	if ctx.Err() == nil && otherEra(modern, ep.Transport, response, err) {
		other, otherResponse, second := p.connectEra(ctx, ep, !modern, 0)
		if second == nil {
			return other, nil
		}
		if modern {
			response = otherResponse // the answer to initialize
		}
	}
	if ep.Transport == TransportHTTP && ctx.Err() == nil && olderTransport(response) {
		ep.Transport = TransportSSE
		if older, _, third := p.connectEra(ctx, ep, false, p.cfg.ProbeTimeout); third == nil {
			return older, nil
		}
	}
	return nil, err
}

// wantsModern reports whether the agent refused revision 2026-07-28 but lists it as supported. Servers do that while
// they are being upgraded.
func wantsModern(response transport.Response) bool {
	if response.Error == nil || response.Error.Code != mcp.UNSUPPORTED_PROTOCOL_VERSION {
		return false
	}
	return slices.Contains(supportedVersions(response), any(modernVersion))
}

// olderTransport reports whether a server that supports only HTTP+SSE may have sent this response to initialize.
func olderTransport(response transport.Response) bool {
	if response.Method != string(mcp.MethodInitialize) || response.Error != nil {
		return false
	}
	switch response.Status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed:
		return true
	}
	return false
}

// otherEra reports whether a handshake that failed with response and err may succeed in the other era. modern is the
// era of the failed handshake, and kind its transport.
func otherEra(modern bool, kind string, response transport.Response, err error) bool {
	if response.TooLarge != nil {
		return false
	}
	switch response.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests, http.StatusRequestTimeout:
		return false
	}
	if response.Status >= 500 || response.Status >= 300 && response.Status < 400 {
		return false
	}
	if !modern {
		if response.Method != string(mcp.MethodInitialize) {
			return false
		}
		if response.Error != nil {
			switch response.Error.Code {
			case mcp.METHOD_NOT_FOUND, mcp.UNSUPPORTED_PROTOCOL_VERSION, mcp.HEADER_MISMATCH:
				return true
			}
		}
		return response.Status == http.StatusBadRequest
	}
	if kind == TransportStdio {
		// The command may ignore, refuse or exit on an unknown method. The error shows whether it started at all.
		var start *transport.StartError
		return !errors.As(err, &start)
	}
	// Over HTTP: the agent refused, sent something else, or never answered.
	return response.Status != 0 || response.Written
}

// connectEra opens a client of one era: the modern one if modern is set. If the agent refuses the legacy revision but
// lists older ones as supported, it tries the newest of these. The other parameters and the results are those of
// connectVersion.
func (p *Pool) connectEra(ctx context.Context, ep Endpoint, modern bool,
	streamWait time.Duration) (*conn, transport.Response, error) {
	if modern {
		return p.connectVersion(ctx, ep, modernVersion, streamWait)
	}
	c, response, err := p.connectVersion(ctx, ep, legacyVersion, streamWait)
	if err != nil && ctx.Err() == nil && !wantsModern(response) {
		if older := olderVersion(response); older != "" {
			return p.connectVersion(ctx, ep, older, streamWait)
		}
	}
	return c, response, err
}

// olderVersion returns the newest revision before legacyVersion that a refusal of initialize lists as supported, or "".
// MCP gives such a refusal, with the code -32602, as an example (2025-11-25, Lifecycle, Error Handling).
func olderVersion(response transport.Response) string {
	if response.Method != string(mcp.MethodInitialize) {
		return ""
	}
	supported := supportedVersions(response)
	for _, version := range mcp.LegacyProtocolVersions() { // the newest first
		if version != legacyVersion && slices.Contains(supported, any(version)) {
			return version
		}
	}
	return ""
}

// supportedVersions returns the revisions that the agent's JSON-RPC error lists as supported.
func supportedVersions(response transport.Response) []any {
	if response.Error == nil {
		return nil
	}
	data, _ := response.Error.Data.(map[string]any)
	supported, _ := data["supported"].([]any)
	return supported
}

// connectVersion opens a client for one revision. If it fails, it returns the last response and closes the client in
// the background; Pool.Close waits for that. streamWait bounds the opening of an event stream; 0 means that only ctx
// bounds it.
func (p *Pool) connectVersion(ctx context.Context, ep Endpoint, version string,
	streamWait time.Duration) (*conn, transport.Response, error) {
	modern := mcp.IsModernProtocol(version)
	c := &conn{
		kind:    ep.Transport,
		modern:  modern,
		redact:  ep.newMasker(),
		pool:    p,
		drained: make(chan struct{}),
		listing: make(chan struct{}, 1),
		opened:  p.cfg.Clock(),
		log:     p.cfg.Logger.With("endpoint", ep.logLocation()),
	}
	inner, err := p.newTransport(ep, c)
	if err != nil {
		failure := &netguard.FailureError{Text: c.mask(err.Error()), Cause: err}
		return nil, transport.Response{}, &CallError{Stage: StageOpen, Err: failure}
	}
	c.recording = transport.NewRecording(inner, modern, c.onNotification, p.cfg.Clock)
	c.client = client.NewClient(c.recording.ForClient(), client.WithProtocolVersion(version),
		client.WithDiscoverTimeout(p.cfg.ProbeTimeout), client.WithMaxInputRoundTrips(1))
	response, err := c.recordRequest(ctx, func(ctx context.Context) error {
		if c.stream != nil {
			if err := c.stream.Open(ctx, streamWait); err != nil {
				return err
			}
		}
		if err := c.client.Start(p.ctx); err != nil {
			return err
		}
		return c.initializeClient(ctx, version)
	})
	c.redact = ep.newMasker(c.sessionTexts()...)
	if err != nil {
		failure := c.callError(StageOpen, ctx, response, err)
		p.wg.Go(func() { c.close(p.ctx) })
		return nil, response, failure
	}
	return c, transport.Response{}, nil
}

// initializeClient performs the handshake for the revision version, and stores the server's name and the negotiated
// revision.
func (c *conn) initializeClient(ctx context.Context, version string) error {
	var request mcp.InitializeRequest
	request.Params.ProtocolVersion = version
	request.Params.ClientInfo = mcp.Implementation{Name: "herald", Version: buildinfo.Name()}
	result, err := c.client.Initialize(ctx, request)
	if err != nil {
		return err
	}
	c.server.Name = text.Excerpt(c.mask(result.ServerInfo.Name), 200)
	c.server.Version = text.Excerpt(c.mask(result.ServerInfo.Version), 100)
	c.protocol = c.client.ProtocolVersion()
	return nil
}

// sessionTexts returns the ids by which the agent identifies the session of this client. They are masked like
// credentials, because anyone with these ids can send requests in the session.
func (c *conn) sessionTexts() []string {
	texts := []string{c.recording.GetSessionId()}
	if c.stream == nil || c.stream.PostURL() == "" {
		return texts
	}
	u, err := url.Parse(c.stream.PostURL())
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

// newTransport returns the transport of mcp-go for ep. For a command it starts the process and sets c.process. For
// HTTP+SSE it sets c.stream.
func (p *Pool) newTransport(ep Endpoint, c *conn) (mcptransport.Interface, error) {
	if ep.Transport == TransportStdio {
		argv, env := append([]string{ep.Command}, ep.Args...), slices.Concat(p.cfg.StdioEnv, ep.Env)
		process, err := transport.StartProcess(argv, env, ep.Dir, p.cfg.MaxAnswerBytes, p.cfg.Supervised)
		if err != nil {
			return nil, err
		}
		c.process = process
		return process.Transport(), nil
	}
	cfg := transport.HTTPConfig{Guard: p.cfg.Guard, Base: p.base, Headers: http.Header{}, Signer: p.cfg.Signer,
		MaxAnswerBytes: p.cfg.MaxAnswerBytes, Now: p.cfg.Clock, Life: p.ctx}
	if ep.Unsigned {
		cfg.Signer = nil
	}
	if ep.Listed {
		cfg.Guard, cfg.Base = p.listedGuard, p.listedBase
	}
	u, err := url.Parse(ep.URL)
	if err == nil {
		err = cfg.Guard.CheckURL(u)
	}
	if err != nil {
		return nil, withoutURL(err)
	}
	u.Fragment, u.RawFragment = "", ""
	cfg.URL = u
	for name, value := range ep.Headers {
		cfg.Headers.Set(name, value.Reveal())
	}
	if ep.Transport == TransportSSE {
		c.stream = transport.NewStream(cfg, func(bytes int64) { p.countHeld(c, bytes) })
		return c.stream, nil
	}
	inner, err := transport.NewHTTP(cfg)
	if err != nil {
		return nil, &netguard.FailureError{Text: "its address cannot be used", Cause: withoutURL(err)}
	}
	return inner, nil
}
