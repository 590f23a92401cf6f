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
	Arguments map[string]any // as Fit returned them
	Meta      map[string]any // of _meta; keys of the protocol's own are added
	// Traceparent (W3C) goes into _meta, and over HTTP into the header of this one request; empty: none is sent.
	Traceparent string
}

// Pool owns the clients. It is safe for concurrent use.
type Pool struct {
	cfg  Config
	base *http.Transport

	// For endpoints that the operator listed.
	listedGuard *netguard.Guard
	listedBase  *http.Transport

	ctx     context.Context // ends when clients must be given up at once
	cancel  context.CancelFunc
	closing context.Context // ends with ctx, and as soon as the pool closes
	close   context.CancelFunc
	wg      sync.WaitGroup // every goroutine of the pool

	mu     sync.Mutex
	closed bool
	slots  map[[sha256.Size]byte]*slot
	held   int64 // bytes of all clients in slots that nobody uses, see countHeld
	checks int   // health checks that run
}

// slot is the place of one endpoint's client. Its fields are guarded by Pool.mu.
type slot struct {
	conn     *conn    // ready, or nil
	opening  *opening // in progress, or nil
	lastUsed time.Time
	modern   *bool // the era that worked last, nil before the first success

	failures  int       // starts of a command in a row that did not last
	notBefore time.Time // when a command may be started again
}

// opening is one attempt that all who need the client wait for.
type opening struct {
	done    chan struct{}
	err     error // this and dropped are set before done is closed
	dropped bool  // the endpoint was dropped meanwhile; there is no client, and that is not the agent's doing
}

// idlePerHost is how many idle connections are kept per host; calls in flight per agent beyond it cost a handshake.
const idlePerHost = 16

// NewPool checks cfg and starts the pool.
func NewPool(cfg Config) (*Pool, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	// Agents think before they answer; the call's deadline bounds that.
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

// Close refuses new work, waits for calls in flight until ctx ends, then cuts them off, and closes every client and
// process. It returns when all of them are gone; the error is ctx's when calls were cut off.
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

// Drop takes ep's client out of use: calls in flight end with it, and the next call opens another. For endpoints that
// are configured no more, or differently.
func (p *Pool) Drop(ep Endpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := ep.clientKey()
	if s, ok := p.slots[key]; ok {
		p.retireClient(s)
		delete(p.slots, key)
	}
}

// spawn runs f as one of the pool's goroutines, with a context that ends when the pool cuts off. A closing pool begins
// nothing.
func (p *Pool) spawn(f func(ctx context.Context)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.wg.Go(func() { f(p.ctx) })
}

// Tools returns what the agent offers, from memory when it is recent enough. fresh asks the agent anew unless its last
// word is younger than Config.RelistAfter: use it before a verdict that a tool or an argument is missing.
func (p *Pool) Tools(ctx context.Context, ep Endpoint, fresh bool) (ToolSet, error) {
	var set ToolSet
	err := p.withClient(ctx, ep, func(ctx context.Context, c *conn) error {
		var err error
		set, err = c.listTools(ctx, fresh)
		return err
	})
	return set, err
}

// Call calls a tool once. It sends a second time only where the agent said, or the transport proves, that the first was
// not looked at: the session was unknown, or a command had died before anything was written.
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
	last error // what it means when the second attempt ends with it
}

func (e errAgain) Unwrap() error { return e.error }

// withClient runs do with a client for ep, a second time with a new one when do says so.
func (p *Pool) withClient(ctx context.Context, ep Endpoint, do func(context.Context, *conn) error) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = WithTimeout(ctx, p.cfg.CallTimeout)
		defer cancel()
	}
	ctx = withPatience(ctx)
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

// acquireClient returns a ready client and counts its use; release ends that.
func (p *Pool) acquireClient(ctx context.Context, ep Endpoint, key [sha256.Size]byte) (*conn, error) {
	for tries := 0; tries < 3; tries++ {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			if err := ep.checkFields(&p.cfg); err != nil { // what is refused is refused by a closed pool too
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

// findSlot returns key's slot, making room for it when there is none. Whatever has a slot was checked.
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

// dropOldest drops the slot that was used longest ago, of those that nobody uses now and that may go. It returns false
// when there is none. p.mu is held.
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

// countHeld notes that c holds so many bytes more, or less, of what its agent sent. What a client in use holds counts
// when it is released: else a few large ones would have all others dropped, which cannot make room for them.
func (p *Pool) countHeld(c *conn, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held -= c.heldIdle()
	c.held += bytes
	p.held += c.heldIdle()
	p.makeRoom()
}

// holdsTooMuch tells whether the clients in use hold more than all idle ones may, and c has a large part in it: how long
// it is in use is up to its agent.
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

// heldIdle is what the client adds to Pool.held. Pool.mu is held.
func (c *conn) heldIdle() int64 {
	if !c.counted || c.inflight > 0 {
		return 0
	}
	return c.held
}

// makeRoom drops clients until the others hold no more than they may. p.mu is held.
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

// retireClient takes the slot's client out of use and closes it in the background once nobody uses it. p.mu is held.
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
		case <-exited: // the calls of a dead command end by themselves
		case <-p.ctx.Done():
		}
		c.close(p.ctx)
	})
}

// retireIfBroken retires the slot's client if it is broken, or a process that is too old. p.mu is held.
func (p *Pool) retireIfBroken(s *slot, now time.Time) {
	if c := s.conn; c != nil && (c.isBroken() || c.process != nil && now.Sub(c.opened) >= p.cfg.MaxAge) {
		s.recordUptime(now.Sub(c.opened), now)
		p.retireClient(s)
	}
}

// sweepLoop closes clients that were idle for long, and has a look at the others.
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

// contextError is the error of a request whose context ended before anything was sent.
func contextError(ctx context.Context, stage string) error {
	timeout := errors.Is(ctx.Err(), context.DeadlineExceeded)
	return &CallError{Stage: stage, Timeout: timeout, Err: describeTimeout(ctx, "the agent did not answer")}
}

type patienceKey struct{}

// WithTimeout bounds a request, as context.WithTimeout does, and has the error of one that takes longer name this
// bound: what is left of it when the request begins is an odd number that nobody has set.
func WithTimeout(ctx context.Context, bound time.Duration) (context.Context, context.CancelFunc) {
	if end, ok := ctx.Deadline(); !ok || time.Until(end) >= bound {
		ctx = context.WithValue(ctx, patienceKey{}, bound)
	}
	return context.WithTimeout(ctx, bound)
}

// withPatience remembers how long a request may take, for the error when it takes longer. It is for a context that
// WithTimeout did not make.
func withPatience(ctx context.Context) context.Context {
	deadline, ok := ctx.Deadline()
	if _, known := ctx.Value(patienceKey{}).(time.Duration); known || !ok {
		return ctx
	}
	return context.WithValue(ctx, patienceKey{}, time.Until(deadline))
}

// patienceOf is what withPatience remembered; 0: nothing.
func patienceOf(ctx context.Context) time.Duration {
	d, _ := ctx.Value(patienceKey{}).(time.Duration)
	return d
}
