package mcpcall

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/base/netguard"
)

// Request is a tool call.
type Request struct {
	Tool      string
	Arguments map[string]any // as returned by Fit
	// Encoded is Arguments as encoding/json writes them, if the caller has encoded them, and nil otherwise. Call does
	// not read Arguments then.
	Encoded json.RawMessage
	Meta    map[string]any // added to the request's _meta
	// Traceparent (W3C Trace Context) is sent in _meta and, over HTTP, as a header of this request. Empty: none.
	Traceparent string
}

// Pool opens, keeps and closes the MCP clients of a process. It is safe for concurrent use.
type Pool struct {
	cfg  Config
	base *http.Transport

	// cfg.Guard and base for endpoints with Listed set: private addresses are allowed.
	listedGuard *netguard.Guard
	listedBase  *http.Transport

	ctx     context.Context // ends when Close aborts the calls in flight
	cancel  context.CancelFunc
	closing context.Context // ends when Close is called
	close   context.CancelFunc
	wg      sync.WaitGroup // all goroutines of the pool

	mu     sync.Mutex // guards the fields below, all slots, and some fields of conn
	closed bool
	slots  map[[sha256.Size]byte]*slot // by Endpoint.ClientKey
	held   int64                       // bytes of data from agents that idle clients keep in memory (countHeld)
	checks int                         // number of running health checks
}

// slot is the entry of an endpoint in Pool.slots: its client, if there is one, and the history of its connections.
// Pool.mu guards its fields. It is not one of the worker's slots.
type slot struct {
	conn     *conn    // the client; nil: none
	opening  *opening // the attempt to open a client that is in progress; nil: none
	lastUsed time.Time
	modern   *bool // the last client was of the modern era (open.go); nil: there was no client yet

	failures  int       // number of consecutive starts of the command after which it exited soon
	notBefore time.Time // earliest time of the next start of the command
}

// opening is an attempt to open a client. All callers that need this client wait for it.
type opening struct {
	done    chan struct{} // closed when the attempt has ended and err and dropped are set
	err     error         // the error of the attempt; nil: the slot has a client, unless dropped is set
	dropped bool          // the slot was removed during the attempt, so the callers need another client
}

const (
	// idlePerHost is the largest number of idle HTTP connections per host. If more calls run at the same time, each
	// further call needs a new connection.
	idlePerHost = 16
	// idleConn is how long an unused connection is kept. It must be shorter than at the agent's server: if the server
	// closes it while a call is sent, the outcome of the call is unknown. Node.js and uvicorn close after 5 s.
	idleConn = 4 * time.Second
)

// NewPool validates cfg and returns a Pool, whose goroutines run until Close.
func NewPool(cfg Config) (*Pool, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	// There is no timeout for response headers, because agents may work for long before they answer. The deadline of
	// the call bounds the wait.
	limits := netguard.Limits{Header: -1, Idle: idleConn, IdlePerHost: idlePerHost, IdleConns: cfg.MaxClients}
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

// Close rejects new calls, waits for the calls in flight until ctx ends, and then aborts them. It returns when all
// clients are closed and all processes have ended. It returns the error of ctx if ctx ended before that.
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

// Drop removes the client of ep, because the configuration of ep was removed or changed. Calls in flight finish with
// it. The next call opens a new client.
func (p *Pool) Drop(ep Endpoint) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := ep.ClientKey()
	if s, ok := p.slots[key]; ok {
		p.retireClient(s)
		delete(p.slots, key)
	}
}

// spawn runs f as a goroutine of the pool. The context ends when Close aborts the calls in flight. If the pool is
// closed, spawn does nothing.
func (p *Pool) spawn(f func(ctx context.Context)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.wg.Go(func() { f(p.ctx) })
}

// Tools returns the agent's tools. It may return a list that is up to toolsTTL old. With fresh, the list is at most
// Config.RelistAfter old. Callers set fresh before they report that a tool is missing or that arguments do not fit.
func (p *Pool) Tools(ctx context.Context, ep Endpoint, fresh bool) (ToolSet, error) {
	var set ToolSet
	err := p.withClient(ctx, ep, func(ctx context.Context, c *conn) error {
		var err error
		set, err = c.listTools(ctx, fresh)
		return err
	})
	return set, err
}

// Call calls a tool once. It sends the request a second time only if the agent cannot have run the tool because of the
// first one: for example because the session was unknown, because the agent asked for another MCP revision, or because
// a command exited before the request was written.
func (p *Pool) Call(ctx context.Context, ep Endpoint, req Request) (Answer, error) {
	var answer Answer
	err := p.withClient(ctx, ep, func(ctx context.Context, c *conn) error {
		var err error
		answer, err = c.callTool(ctx, req)
		return err
	})
	return answer, err
}

// errAgain wraps the error of a request that withClient may send once more with a new client.
type errAgain struct {
	error
	last error // the error that withClient returns if the second attempt also ends with errAgain
}

func (e errAgain) Unwrap() error { return e.error }

// withClient calls do with a client for ep. If do returns errAgain, withClient calls it once more with a new client. It
// applies Config.CallTimeout if ctx has no deadline.
func (p *Pool) withClient(ctx context.Context, ep Endpoint, do func(context.Context, *conn) error) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = WithTimeout(ctx, p.cfg.CallTimeout)
		defer cancel()
	}
	ctx = withTimeLimit(ctx)
	key := ep.ClientKey()
	for attempt := 0; ; attempt++ {
		c, err := p.acquireClient(ctx, ep, key)
		if err != nil {
			return err
		}
		err = do(ctx, c)
		p.releaseClient(c)
		again, isAgain := errors.AsType[errAgain](err)
		if !isAgain {
			return err
		}
		if attempt > 0 {
			return again.last
		}
	}
}

var errCommandKeepsEnding = errors.New("the agent's command keeps ending; it is started again later")

// acquireClient returns the client for ep, and opens one if necessary. The client counts as in use until
// releaseClient is called. key is ep.ClientKey().
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
			if loop.Pause(ctx, wait) != nil {
				return nil, contextError(ctx, StageOpen)
			}
			p.mu.Lock()
			if p.closed || p.slots[key] != s || s.conn != nil {
				p.mu.Unlock()
				continue
			}
		}
		costs := costsOf(ctx)
		waited := measureWait(&costs.Connecting, p.cfg.Clock) // before the connection can be ready
		if s.opening == nil {
			o := &opening{done: make(chan struct{})}
			s.opening = o
			p.wg.Go(func() { p.openClient(ep, key, s, o) })
			costs.Connections++
		}
		o := s.opening
		p.mu.Unlock()

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

// findSlot returns the slot for key. If it does not exist, findSlot validates ep and adds it. If the pool is full, it
// removes an idle slot first, or returns ErrBusy if all are in use. The caller holds p.mu.
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

// dropOldest removes the least recently used idle slot for which may returns true, and closes its client. It returns
// false if there is no such slot. The caller holds p.mu.
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

// countHeld adds bytes, which may be negative, to the size of the data from the agent that c keeps in memory. If idle
// clients then exceed Config.MaxHeldBytes, it removes some. A client in use does not count until it is released.
// Otherwise a few large clients in use would cause the removal of all idle ones, and the limit would still be exceeded.
func (p *Pool) countHeld(c *conn, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held -= c.heldIdle()
	c.held += bytes
	p.held += c.heldIdle()
	p.makeRoom()
}

// holdsTooMuch reports whether the data of all clients in use exceeds Config.MaxHeldBytes, and the data of c is larger
// than 1/64 of it. Clients in use need this check because an agent can keep its client in use by answering slowly.
func (p *Pool) holdsTooMuch(c *conn) bool {
	const largePart = 64
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.held <= p.cfg.MaxHeldBytes/largePart {
		return false
	}
	used := int64(0)
	for _, s := range p.slots {
		if s.conn != nil && s.conn.inflight > 0 {
			used += s.conn.held
		}
	}
	return used > p.cfg.MaxHeldBytes
}

// heldIdle returns the part of Pool.held that c contributes: c.held if c counts and is idle, and otherwise 0. The
// caller holds Pool.mu.
func (c *conn) heldIdle() int64 {
	if !c.counted || c.inflight > 0 {
		return 0
	}
	return c.held
}

// makeRoom removes idle slots with data from agents until p.held is at most Config.MaxHeldBytes. The caller holds p.mu.
func (p *Pool) makeRoom() {
	holds := func(s *slot) bool { return s.conn != nil && s.conn.counted && s.conn.held > 0 }
	for p.held > p.cfg.MaxHeldBytes && p.dropOldest(holds) {
	}
}

// releaseClient ends the use of a client that acquireClient returned.
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

// retireClient removes the client from slot s, if there is one, and closes it in the background when its last call has
// ended. The caller holds p.mu.
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

// retireIfBroken calls retireClient if the slot's client is broken, or is a process older than Config.MaxAge. The
// caller holds p.mu.
func (p *Pool) retireIfBroken(s *slot, now time.Time) {
	if c := s.conn; c != nil && (c.isBroken() || c.process != nil && now.Sub(c.opened) >= p.cfg.MaxAge) {
		s.recordUptime(now.Sub(c.opened), now)
		p.retireClient(s)
	}
}

// sweepLoop calls closeIdle and checkIdle at regular intervals until the pool is closed.
func (p *Pool) sweepLoop() {
	often := min(p.cfg.IdleTimeout/4, p.cfg.PingAfter/2)
	for range loop.Every(p.closing, min(max(often, 10*time.Millisecond), 30*time.Second)) {
		p.closeIdle()
		p.checkIdle()
	}
}

// closeIdle removes slots that were idle for Config.IdleTimeout, and retires broken clients.
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

// contextError returns the error of a request whose ctx ended before anything was sent. stage is CallError.Stage.
func contextError(ctx context.Context, stage string) error {
	timeout := errors.Is(ctx.Err(), context.DeadlineExceeded)
	return &CallError{Stage: stage, Timeout: timeout, Err: describeTimeout(ctx, "the agent did not answer")}
}

type patienceKey struct{}

// WithTimeout is context.WithTimeout, except that the errors of this package for an expired deadline contain bound.
// Without it, they contain the time that remained when the request began, a number that no setting contains.
func WithTimeout(ctx context.Context, bound time.Duration) (context.Context, context.CancelFunc) {
	if end, ok := ctx.Deadline(); !ok || time.Until(end) >= bound {
		ctx = context.WithValue(ctx, patienceKey{}, bound)
	}
	return context.WithTimeout(ctx, bound)
}

// withTimeLimit stores the time until the deadline of ctx for describeTimeout, unless WithTimeout stored a bound there.
func withTimeLimit(ctx context.Context) context.Context {
	deadline, ok := ctx.Deadline()
	if _, known := ctx.Value(patienceKey{}).(time.Duration); known || !ok {
		return ctx
	}
	return context.WithValue(ctx, patienceKey{}, time.Until(deadline))
}

// timeLimitOf returns the duration that WithTimeout or withTimeLimit stored in ctx, or 0.
func timeLimitOf(ctx context.Context) time.Duration {
	d, _ := ctx.Value(patienceKey{}).(time.Duration)
	return d
}
