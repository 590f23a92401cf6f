package mcpcall

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/netguard"
)

// Request is one tool call.
type Request struct {
	Tool      string
	Arguments map[string]any // as returned by Fit
	Meta      map[string]any // added to _meta next to the protocol's own keys
	// Traceparent (W3C) is sent in _meta and, over HTTP, in the header of this request. Empty: it is not sent.
	Traceparent string
}

// Pool owns the MCP clients. It is safe for concurrent use.
type Pool struct {
	cfg  Config
	base *http.Transport

	// For endpoints with Listed set.
	listedGuard *netguard.Guard
	listedBase  *http.Transport

	ctx     context.Context // ends when all clients must stop at once
	cancel  context.CancelFunc
	closing context.Context // ends when the pool begins to close
	close   context.CancelFunc
	wg      sync.WaitGroup // all goroutines of the pool

	mu     sync.Mutex
	closed bool
	slots  map[[sha256.Size]byte]*slot
	held   int64 // bytes from agents that idle clients keep in memory, see countHeld
	checks int   // running health checks
}

// slot holds the client of one endpoint. Pool.mu guards its fields.
type slot struct {
	conn     *conn    // ready, or nil
	opening  *opening // in progress, or nil
	lastUsed time.Time
	modern   *bool // whether 2026-07-28 was negotiated last; nil before the first success

	failures  int       // consecutive starts of a command that exited soon
	notBefore time.Time // earliest time of the next start of the command
}

// opening is one attempt to open a client. All callers that need the client wait for it.
type opening struct {
	done    chan struct{}
	err     error // err and dropped are set before done is closed
	dropped bool  // Drop removed the slot during the attempt, so the error is not the agent's fault
}

// idlePerHost bounds the idle connections per host. Each concurrent call beyond it costs a handshake.
const idlePerHost = 16

// NewPool validates cfg and starts the pool.
func NewPool(cfg Config) (*Pool, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	// There is no timeout for response headers, because agents may work for long before they answer. The deadline of
	// the call bounds the wait.
	limits := netguard.Limits{Header: -1, IdlePerHost: idlePerHost, IdleConns: cfg.MaxClients}
	configured := cfg.Guard.Configured()
	p := &Pool{
		cfg:         cfg,
		base:        cfg.Guard.Transport(limits),
		listedGuard: configured,
		listedBase:  configured.Transport(limits),
		ctx:         ctx,
		cancel:      cancel,
		slots:       map[[sha256.Size]byte]*slot{},
	}
	p.closing, p.close = context.WithCancel(ctx)
	p.wg.Go(p.sweepLoop)
	return p, nil
}

// Close rejects new work, waits for calls in flight until ctx ends, aborts the rest, and closes every client and
// process. It returns when all of them have ended. The error is that of ctx if calls were aborted.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		p.close()
		for _, s := range p.slots {
			p.retireClient(s)
		}
		clear(p.slots)
	}
	p.mu.Unlock()

	gone := make(chan struct{})
	go func() {
		p.wg.Wait()
		close(gone)
	}()
	var err error
	select {
	case <-gone:
	case <-ctx.Done():
		err = ctx.Err()
	}
	p.cancel()
	<-gone
	p.base.CloseIdleConnections()
	p.listedBase.CloseIdleConnections()
	return err
}

// Drop retires the client of ep, whose configuration was removed or changed. Calls in flight finish on it; the next
// call opens a new client.
func (p *Pool) Drop(ep Endpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := ep.clientKey()
	if s, ok := p.slots[key]; ok {
		p.retireClient(s)
		delete(p.slots, key)
	}
}

// spawn runs f as a goroutine of the pool, with a context that ends when the pool aborts its calls. It does nothing if
// the pool is closed.
func (p *Pool) spawn(f func(ctx context.Context)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.wg.Go(func() { f(p.ctx) })
}

// Tools returns the agent's tools, from the cache if the list is recent enough. With fresh it lists them again unless
// the list is younger than Config.RelistAfter. Use fresh before reporting that a tool or an argument is missing.
func (p *Pool) Tools(ctx context.Context, ep Endpoint, fresh bool) (ToolSet, error) {
	var set ToolSet
	err := p.withClient(ctx, ep, func(ctx context.Context, c *conn) error {
		var err error
		set, err = c.listTools(ctx, fresh)
		return err
	})
	return set, err
}

// Call calls a tool once. It sends the request again only if the agent did not process the first one: for example
// because the session was unknown, the agent asked for another protocol revision, or a command exited before the
// request was written.
func (p *Pool) Call(ctx context.Context, ep Endpoint, req Request) (Answer, error) {
	var answer Answer
	err := p.withClient(ctx, ep, func(ctx context.Context, c *conn) error {
		if p.holdsTooMuch(c) {
			c.forgetTools()
		}
		var err error
		answer, err = c.callTool(ctx, req)
		return err
	})
	return answer, err
}

// errAgain wraps an error after which the request may be sent once more with a new client.
type errAgain struct {
	error
	last error // the error to return if the second attempt fails in the same way
}

func (e errAgain) Unwrap() error { return e.error }

// withClient calls do with a client for ep. If do returns errAgain, it calls do once more with a new client.
func (p *Pool) withClient(ctx context.Context, ep Endpoint, do func(context.Context, *conn) error) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = WithTimeout(ctx, p.cfg.CallTimeout)
		defer cancel()
	}
	ctx = withTimeLimit(ctx)
	key := ep.clientKey()
	for attempt := 0; ; attempt++ {
		c, err := p.acquireClient(ctx, ep, key)
		if err != nil {
			return err
		}
		err = do(ctx, c)
		p.releaseClient(c)
		var again errAgain
		if !errors.As(err, &again) {
			return err
		}
		if attempt > 0 {
			return again.last
		}
	}
}

var errCommandKeepsEnding = errors.New("the agent's command keeps ending; it is started again later")

// acquireClient returns a ready client and counts it as in use until releaseClient.
func (p *Pool) acquireClient(ctx context.Context, ep Endpoint, key [sha256.Size]byte) (*conn, error) {
	for tries := 0; tries < 3; tries++ {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			if err := ep.checkFields(&p.cfg); err != nil { // an invalid endpoint gets the same error from a closed pool
				return nil, err
			}
			return nil, &CallError{Stage: StageOpen, Err: ErrClosed}
		}
		now := p.cfg.Clock()
		s, err := p.findSlot(ep, key)
		if err != nil {
			p.mu.Unlock()
			return nil, err
		}
		s.lastUsed = now
		p.retireIfBroken(s, now)
		if c := s.conn; c != nil {
			p.held -= c.heldIdle()
			c.inflight++
			c.uses++
			p.mu.Unlock()
			return c, nil
		}
		if wait := s.notBefore.Sub(now); s.opening == nil && wait > 0 {
			p.mu.Unlock()
			if wait > time.Second {
				return nil, &CallError{Stage: StageOpen, RetryAfter: wait, Err: errCommandKeepsEnding}
			}
			if sleep(ctx, wait) != nil {
				return nil, contextError(ctx, StageOpen)
			}
			p.mu.Lock()
			if p.closed || p.slots[key] != s || s.conn != nil {
				p.mu.Unlock()
				continue
			}
		}
		costs := costsOf(ctx)
		if s.opening == nil {
			o := &opening{done: make(chan struct{})}
			s.opening = o
			p.wg.Go(func() { p.openClient(ep, key, s, o) })
			costs.Connections++
		}
		o := s.opening
		p.mu.Unlock()

		waited := costs.beginConnecting(p.cfg.Clock)
		select {
		case <-o.done:
			waited()
			if o.err != nil {
				return nil, o.err
			}
			if o.dropped {
				tries--
			}
		case <-ctx.Done():
			waited()
			return nil, contextError(ctx, StageOpen)
		}
	}
	return nil, &CallError{Stage: StageOpen, Err: errors.New("the agent drops every connection as soon as it is made")}
}

// findSlot returns the slot for key or creates one, evicting an idle one if the pool is full. Endpoints are validated
// before they get a slot.
func (p *Pool) findSlot(ep Endpoint, key [sha256.Size]byte) (*slot, error) {
	if s, ok := p.slots[key]; ok {
		return s, nil
	}
	if err := ep.checkFields(&p.cfg); err != nil {
		return nil, err
	}
	if len(p.slots) >= p.cfg.MaxClients {
		if !p.dropOldest(func(*slot) bool { return true }) {
			return nil, &CallError{Stage: StageOpen, Err: ErrBusy}
		}
	}
	s := &slot{}
	p.slots[key] = s
	return s, nil
}

// dropOldest evicts the least recently used idle slot for which may returns true. It returns false if no slot
// qualifies. p.mu is held.
func (p *Pool) dropOldest(may func(*slot) bool) bool {
	var oldest [sha256.Size]byte
	var victim *slot
	for k, s := range p.slots {
		idle := s.opening == nil && (s.conn == nil || s.conn.inflight == 0)
		if idle && may(s) && (victim == nil || s.lastUsed.Before(victim.lastUsed)) {
			oldest, victim = k, s
		}
	}
	if victim == nil {
		return false
	}
	p.retireClient(victim)
	delete(p.slots, oldest)
	return true
}

// countHeld adds bytes, which may be negative, to the bytes that c keeps in memory. A client in use counts only when it
// is released. Otherwise a few large clients in use would evict all idle ones without bringing the total below the
// limit.
func (p *Pool) countHeld(c *conn, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held -= c.heldIdle()
	c.held += bytes
	p.held += c.heldIdle()
	p.makeRoom()
}

// holdsTooMuch reports whether the clients in use together exceed MaxHeldBytes and c holds more than 1/64 of
// MaxHeldBytes. Clients in use need this extra check because their agents decide how long they stay in use.
func (p *Pool) holdsTooMuch(c *conn) bool {
	const largePart = 64
	p.mu.Lock()
	defer p.mu.Unlock()
	used := int64(0)
	for _, s := range p.slots {
		if s.conn != nil && s.conn.inflight > 0 {
			used += s.conn.held
		}
	}
	return used > p.cfg.MaxHeldBytes && c.held > p.cfg.MaxHeldBytes/largePart
}

// heldIdle returns the client's share of Pool.held. Pool.mu is held.
func (c *conn) heldIdle() int64 {
	if !c.counted || c.inflight > 0 {
		return 0
	}
	return c.held
}

// makeRoom evicts idle clients until p.held is at most MaxHeldBytes. p.mu is held.
func (p *Pool) makeRoom() {
	holds := func(s *slot) bool { return s.conn != nil && s.conn.counted && s.conn.held > 0 }
	for p.held > p.cfg.MaxHeldBytes && p.dropOldest(holds) {
	}
}

func (p *Pool) releaseClient(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.inflight--
	if c.retired && c.inflight == 0 {
		close(c.drained)
	}
	p.held += c.heldIdle()
	p.makeRoom()
}

// retireClient removes the slot's client and closes it in the background after its last call. p.mu is held.
func (p *Pool) retireClient(s *slot) {
	c := s.conn
	if c == nil {
		return
	}
	s.conn = nil
	c.retired = true
	p.held -= c.heldIdle()
	c.counted = false
	if c.inflight == 0 {
		close(c.drained)
	}
	p.wg.Go(func() {
		var exited <-chan struct{}
		if c.process != nil {
			exited = c.process.Exited()
		}
		select {
		case <-c.drained:
		case <-exited: // calls to a command that exited end by themselves
		case <-p.ctx.Done():
		}
		c.close(p.ctx)
	})
}

// retireIfBroken retires the slot's client if it is broken, or if it is a process older than MaxAge. p.mu is held.
func (p *Pool) retireIfBroken(s *slot, now time.Time) {
	if c := s.conn; c != nil && (c.isBroken() || c.process != nil && now.Sub(c.opened) >= p.cfg.MaxAge) {
		s.recordUptime(now.Sub(c.opened), now)
		p.retireClient(s)
	}
}

// sweepLoop periodically closes clients that were idle for IdleTimeout, and checks the health of the others.
func (p *Pool) sweepLoop() {
	often := min(p.cfg.IdleTimeout/4, p.cfg.PingAfter/2)
	ticker := time.NewTicker(min(max(often, 10*time.Millisecond), 30*time.Second))
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			p.closeIdle()
			p.checkIdle()
		case <-p.closing.Done():
			return
		}
	}
}

func (p *Pool) closeIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.cfg.Clock()
	for key, s := range p.slots {
		p.retireIfBroken(s, now)
		if s.opening != nil || s.conn != nil && s.conn.inflight > 0 || now.Sub(s.lastUsed) < p.cfg.IdleTimeout {
			continue
		}
		p.retireClient(s)
		delete(p.slots, key)
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// contextError returns the error of a request whose context ended before anything was sent.
func contextError(ctx context.Context, stage string) error {
	timeout := errors.Is(ctx.Err(), context.DeadlineExceeded)
	return &CallError{Stage: stage, Timeout: timeout, Err: describeTimeout(ctx, "the agent did not answer")}
}

type patienceKey struct{}

// WithTimeout is context.WithTimeout, except that timeout errors name bound. The time that remains when the request
// begins would be an odd number that is configured nowhere.
func WithTimeout(ctx context.Context, bound time.Duration) (context.Context, context.CancelFunc) {
	if end, ok := ctx.Deadline(); !ok || time.Until(end) >= bound {
		ctx = context.WithValue(ctx, patienceKey{}, bound)
	}
	return context.WithTimeout(ctx, bound)
}

// withTimeLimit stores the remaining time of a context that WithTimeout did not create, for timeout errors.
func withTimeLimit(ctx context.Context) context.Context {
	deadline, ok := ctx.Deadline()
	if _, known := ctx.Value(patienceKey{}).(time.Duration); known || !ok {
		return ctx
	}
	return context.WithValue(ctx, patienceKey{}, time.Until(deadline))
}

// timeLimitOf returns the bound stored by WithTimeout or withTimeLimit, or 0.
func timeLimitOf(ctx context.Context) time.Duration {
	d, _ := ctx.Value(patienceKey{}).(time.Duration)
	return d
}
