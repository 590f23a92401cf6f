package mcpcall

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/netguard"
)

// Config of a Pool. Zero values take the defaults.
type Config struct {
	// Guard dials every HTTP endpoint. Required.
	Guard *netguard.Guard
	// MaxAnswerBytes bounds one answer: a JSON body, all events of one request, or a line of a command's output. What is longer is
	// a *TooLargeError. Default 1 MiB.
	MaxAnswerBytes int64
	// MaxRequestBytes bounds the arguments of one call. Default 8 MiB.
	MaxRequestBytes int
	// OpenTimeout bounds connecting and the handshake together. Default 10 s.
	OpenTimeout time.Duration
	// ProbeTimeout bounds the wait for server/discover, which agents of older revisions may ignore. Default 2 s, at most half of
	// OpenTimeout, so that there is time for the older handshake.
	ProbeTimeout time.Duration
	// CallTimeout bounds a Tools or Call whose context has no deadline. Default 30 s.
	CallTimeout time.Duration
	// IdleTimeout is how long an unused client is kept. Default 5 min.
	IdleTimeout time.Duration
	// ToolsTTL is how long a tool list is believed. Default 10 min.
	ToolsTTL time.Duration
	// RelistAfter is how old a list must be before Tools with fresh asks again, so that a stream of jobs for a tool that does not
	// exist does not become a stream of listings. Default 1 s.
	RelistAfter time.Duration
	// MaxClients bounds the clients; the longest unused one makes room, and when all are in use the answer is ErrBusy. It
	// bounds the idle connections too: an agent without one costs a handshake each time. Default 1,024.
	MaxClients int
	// IdlePerHost is how many idle connections are kept per host; calls in flight per agent beyond it cost a handshake. Default 16.
	IdlePerHost int
	// StdioCommands (HERALD_STDIO_COMMANDS) are the commands that may be run, each with all its arguments. Default none.
	StdioCommands [][]string
	// StdioEnv ("NAME=value") is all that a command sees of this process's environment. Default: its PATH, HOME and LANG.
	StdioEnv []string
	// ClientVersion is what agents are told beside the name "herald". Default "dev".
	ClientVersion string
	// Logger, default discards. Clock, default time.Now, decides about idleness and age; deadlines are the contexts'.
	Logger *slog.Logger
	Clock  func() time.Time
}

func (c Config) withDefaults() (Config, error) {
	if c.Guard == nil {
		return c, errors.New("mcpcall: Config.Guard is required")
	}
	for name, d := range map[string]*time.Duration{"OpenTimeout": &c.OpenTimeout, "ProbeTimeout": &c.ProbeTimeout, "CallTimeout": &c.CallTimeout,
		"IdleTimeout": &c.IdleTimeout, "ToolsTTL": &c.ToolsTTL, "RelistAfter": &c.RelistAfter} {
		if *d < 0 {
			return c, fmt.Errorf("mcpcall: Config.%s is negative", name)
		}
	}
	if c.MaxAnswerBytes < 0 || c.MaxRequestBytes < 0 || c.MaxClients < 0 || c.IdlePerHost < 0 {
		return c, errors.New("mcpcall: a bound in Config is negative")
	}
	for _, argv := range c.StdioCommands {
		if len(argv) == 0 || argv[0] == "" {
			return c, errors.New("mcpcall: Config.StdioCommands has an empty command")
		}
	}
	setDefault(&c.MaxAnswerBytes, 1<<20)
	setDefault(&c.MaxRequestBytes, 8<<20)
	setDefault(&c.OpenTimeout, 10*time.Second)
	setDefault(&c.ProbeTimeout, 2*time.Second)
	c.ProbeTimeout = min(c.ProbeTimeout, c.OpenTimeout/2)
	setDefault(&c.CallTimeout, 30*time.Second)
	setDefault(&c.IdleTimeout, 5*time.Minute)
	setDefault(&c.ToolsTTL, 10*time.Minute)
	setDefault(&c.RelistAfter, time.Second)
	setDefault(&c.MaxClients, 1024)
	setDefault(&c.IdlePerHost, 16)
	setDefault(&c.ClientVersion, "dev")
	if c.StdioEnv == nil {
		for _, name := range []string{"PATH", "HOME", "LANG"} {
			if v, ok := os.LookupEnv(name); ok {
				c.StdioEnv = append(c.StdioEnv, name+"="+v)
			}
		}
	}
	c.StdioEnv = slices.Clone(c.StdioEnv)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	return c, nil
}

func setDefault[T comparable](v *T, value T) {
	var zero T
	if *v == zero {
		*v = value
	}
}

// Request is one tool call.
type Request struct {
	Tool      string
	Arguments map[string]any // as Fit returned them
	Meta      map[string]any // of _meta; keys of the protocol's own are added
}

// Pool owns the clients. It is safe for concurrent use.
type Pool struct {
	cfg  Config
	base *http.Transport

	ctx    context.Context // ends when clients must be given up at once
	cancel context.CancelFunc
	wg     sync.WaitGroup // every goroutine of the pool

	mu      sync.Mutex
	closed  bool
	closing chan struct{} // closed with closed
	slots   map[[sha256.Size]byte]*slot
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
	done chan struct{}
	err  error // set before done is closed
}

// NewPool checks cfg and starts the pool.
func NewPool(cfg Config) (*Pool, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Pool{
		cfg: cfg,
		// Agents think before they answer; the call's deadline bounds that.
		base:    cfg.Guard.Transport(netguard.Limits{Header: -1, IdlePerHost: cfg.IdlePerHost, IdleConns: cfg.MaxClients}),
		ctx:     ctx,
		cancel:  cancel,
		closing: make(chan struct{}),
		slots:   map[[sha256.Size]byte]*slot{},
	}
	p.wg.Add(1)
	go p.sweeper()
	return p, nil
}

// Close refuses new work, waits for calls in flight until ctx ends, then cuts them off, and closes every client and process. It
// returns when all of them are gone; the error is ctx's when calls were cut off.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.closing)
		for _, s := range p.slots {
			p.retire(s)
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
	return err
}

// Tools returns what the agent offers, from memory when it is recent enough. fresh asks the agent anew unless its last word is
// younger than Config.RelistAfter: use it before a verdict that a tool or an argument is missing.
func (p *Pool) Tools(ctx context.Context, ep Endpoint, fresh bool) (ToolSet, error) {
	var set ToolSet
	err := p.use(ctx, ep, func(ctx context.Context, c *conn) error {
		var err error
		set, err = c.list(ctx, fresh)
		return err
	})
	return set, err
}

// Call calls a tool once. It sends a second time only where the agent said, or the transport proves, that the first was not
// looked at: the session was unknown, or a command had died before anything was written.
func (p *Pool) Call(ctx context.Context, ep Endpoint, req Request) (Answer, error) {
	var answer Answer
	err := p.use(ctx, ep, func(ctx context.Context, c *conn) error {
		var err error
		answer, err = c.call(ctx, req)
		return err
	})
	return answer, err
}

// errAgain wraps an error after which the request may be sent once more with a new client.
type errAgain struct{ error }

func (e errAgain) Unwrap() error { return e.error }

// use runs do with a client for ep, a second time with a new one when do says so.
func (p *Pool) use(ctx context.Context, ep Endpoint, do func(context.Context, *conn) error) error {
	if err := ep.check(p.cfg.StdioCommands); err != nil {
		return err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.cfg.CallTimeout)
		defer cancel()
	}
	key := ep.key()
	for attempt := 0; ; attempt++ {
		c, err := p.acquire(ctx, ep, key)
		if err != nil {
			return err
		}
		err = do(ctx, c)
		p.release(c)
		var again errAgain
		if !errors.As(err, &again) {
			return err
		}
		if attempt > 0 {
			return again.error
		}
	}
}

// acquire returns a ready client and counts its use; release ends that.
func (p *Pool) acquire(ctx context.Context, ep Endpoint, key [sha256.Size]byte) (*conn, error) {
	for range 3 {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return nil, &CallError{Stage: StageOpen, Err: ErrClosed}
		}
		now := p.cfg.Clock()
		s, err := p.slot(key)
		if err != nil {
			p.mu.Unlock()
			return nil, &CallError{Stage: StageOpen, Err: err}
		}
		s.lastUsed = now
		if s.conn != nil && s.conn.broken() {
			s.lived(now.Sub(s.conn.opened), now)
			p.retire(s)
		}
		if c := s.conn; c != nil {
			c.inflight++
			p.mu.Unlock()
			return c, nil
		}
		if wait := s.notBefore.Sub(now); s.opening == nil && wait > 0 {
			p.mu.Unlock()
			if wait > time.Second {
				return nil, &CallError{Stage: StageOpen, RetryAfter: wait, Err: errors.New("the agent's command keeps ending; it is started again later")}
			}
			if err := sleep(ctx, wait); err != nil {
				return nil, contextError(StageOpen, err)
			}
			p.mu.Lock()
			if p.closed || p.slots[key] != s || s.conn != nil {
				p.mu.Unlock()
				continue
			}
		}
		if s.opening == nil {
			s.opening = &opening{done: make(chan struct{})}
			p.wg.Add(1)
			go p.open(ep, s, s.opening)
		}
		o := s.opening
		p.mu.Unlock()

		select {
		case <-o.done:
			if o.err != nil {
				return nil, o.err
			}
		case <-ctx.Done():
			return nil, contextError(StageOpen, ctx.Err())
		}
	}
	return nil, &CallError{Stage: StageOpen, Err: errors.New("the agent drops every connection as soon as it is made")}
}

// slot returns key's slot, making room for it when there is none.
func (p *Pool) slot(key [sha256.Size]byte) (*slot, error) {
	if s, ok := p.slots[key]; ok {
		return s, nil
	}
	if len(p.slots) >= p.cfg.MaxClients {
		var oldest [sha256.Size]byte
		var victim *slot
		for k, s := range p.slots {
			if s.opening == nil && (s.conn == nil || s.conn.inflight == 0) && (victim == nil || s.lastUsed.Before(victim.lastUsed)) {
				oldest, victim = k, s
			}
		}
		if victim == nil {
			return nil, ErrBusy
		}
		p.retire(victim)
		delete(p.slots, oldest)
	}
	s := &slot{}
	p.slots[key] = s
	return s, nil
}

func (p *Pool) release(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.inflight--
	if c.retired && c.inflight == 0 {
		close(c.drained)
	}
}

// retire takes the slot's client out of use and closes it in the background once nobody uses it. p.mu is held.
func (p *Pool) retire(s *slot) {
	c := s.conn
	if c == nil {
		return
	}
	s.conn = nil
	c.retired = true
	if c.inflight == 0 {
		close(c.drained)
	}
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		if !c.broken() || c.proc == nil { // a dead command's callers only wait for being told
			select {
			case <-c.drained:
			case <-p.ctx.Done():
			}
		}
		c.close(p.ctx)
	}()
}

// sweeper closes clients that were idle for long.
func (p *Pool) sweeper() {
	defer p.wg.Done()
	ticker := time.NewTicker(min(max(p.cfg.IdleTimeout/4, 10*time.Millisecond), 30*time.Second))
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			p.sweep()
		case <-p.closing:
			return
		}
	}
}

func (p *Pool) sweep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.cfg.Clock()
	for key, s := range p.slots {
		if s.conn != nil && s.conn.broken() {
			s.lived(now.Sub(s.conn.opened), now)
			p.retire(s)
		}
		if s.opening != nil || s.conn != nil && s.conn.inflight > 0 || now.Sub(s.lastUsed) < p.cfg.IdleTimeout {
			continue
		}
		p.retire(s)
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
func contextError(stage string, err error) error {
	return &CallError{Stage: stage, Timeout: errors.Is(err, context.DeadlineExceeded), Err: err}
}
