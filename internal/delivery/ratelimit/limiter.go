package ratelimit

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/reason"
	"github.com/redis/go-redis/v9"
)

// Config makes a Limiter. Zero values mean the defaults; PermitTTL has none.
type Config struct {
	// Redis is shared by all workers; nil: this process by itself. The caller closes it, after Close. It must have
	// ContextTimeoutEnabled, or a Redis that hangs holds Acquire and Release up beyond Timeout. Connecting has to fit
	// into Timeout too, so let the client keep a few idle connections.
	Redis redis.UniversalClient

	// Workers tells how many other workers there are, and whether this one is listed. It is asked every second: while
	// there are none the limits are counted in this process, and Redis is asked nothing. nil: there are always others.
	Workers func(context.Context) (others int, self bool, err error)

	Inflight int     // calls at one origin at a time; doc.go says what one endpoint of it gets. Default 4
	Rate     float64 // calls a second at one origin, 0.001 to a million. Default 100
	Burst    int     // calls that may come at once. Default Rate, rounded up

	// Timeout of one question to Redis. Default 50 ms. Longer makes a Redis that hangs cost more, once; shorter makes
	// workers go by themselves when Redis is only busy.
	Timeout time.Duration

	Window   time.Duration // what the breaker looks back on. Default 5 min
	MinCalls int           // least calls in Window for it to open. Default 10
	OpenFor  time.Duration // how long the breaker stays open. Default 30 s

	// PermitTTL is how long a permit is taken whose worker died. Needed, at least the lease: a shorter one would let
	// more calls than Inflight run at once.
	PermitTTL time.Duration

	// MaxWaiters is how many deliveries of one endpoint may wait in this process for a permit, instead of being put off
	// for at least a second. Default Inflight; below zero: none. Each holds one of the worker's slots meanwhile.
	MaxWaiters int
	// MaxOriginWaiters is how many of one origin may. Default twice MaxWaiters, which is also the least.
	MaxOriginWaiters int
	// MaxWait is how long they wait. Default 1 s.
	MaxWait time.Duration
	// MaxEndpoints bounds the endpoints remembered in this process, and with them the origins. Default 10,000 (about
	// 700 bytes each). What is in use is always kept.
	MaxEndpoints int

	Logger *slog.Logger     // default slog.Default()
	Now    func() time.Time // default time.Now; while Redis answers, its clock counts instead

	lookForOthers, aloneAfter time.Duration // tests have others than the constants
}

const (
	// minWait and maxWait bound what a refused call is told to wait.
	minWait = time.Second
	maxWait = 5 * time.Minute
	// presence is longer than a waiter's pause between two looks, slack is how late asynq and a busy worker bring a
	// call back, and recent is how long after its last call an endpoint is taken to need the origin again.
	presence = 250 * time.Millisecond
	slack    = 5 * time.Second
	recent   = time.Minute
	// failureRatio is the least share of failed calls that opens a breaker.
	failureRatio = 0.7
	// keptAfter is how long an endpoint waits before permits are kept for it. A kept permit stands idle until its
	// waiter looks again, which costs more than the order of those who wait for moments is worth.
	keptAfter = 100 * time.Millisecond
)

// Limiter are safe for concurrent use.
type Limiter struct {
	rules            rules
	remote           *redisState // nil: none
	timeout          time.Duration
	room, originRoom int
	patience         time.Duration
	maxEndpoints     int // endpoints
	log              *slog.Logger
	clock            func() time.Time
	start            time.Time

	firstLook, lookForOthers, aloneAfter time.Duration // the constants, but in tests

	life  context.Context // ends with Close
	end   context.CancelFunc
	tasks sync.WaitGroup // calls to Redis and the one that looks for it; Add under mu, while not closed

	mu        sync.Mutex // over memory only, never held during I/O
	closed    bool
	origins   map[string]*origin
	endpoints map[string]*list.Element // of *endpoint
	recent    *list.List               // most recently used first
	outage    outage
	alone     bool // there is no other worker
}

// Stats are gauges of this process.
type Stats struct {
	Open, HalfOpen int  // endpoints whose breaker is, as this process saw it last
	Endpoints      int  // remembered
	Local          bool // Redis does not answer: this worker applies limits of its own. False without Redis
}

// New checks the configuration. It asks Redis nothing.
func New(cfg Config) (*Limiter, error) {
	cfg.Inflight = cmp.Or(cfg.Inflight, 4)
	cfg.Rate = cmp.Or(cfg.Rate, 100)
	cfg.Burst = cmp.Or(cfg.Burst, int(math.Ceil(cfg.Rate)))
	cfg.MaxWaiters = cmp.Or(cfg.MaxWaiters, cfg.Inflight)
	cfg.MinCalls = cmp.Or(cfg.MinCalls, 10)
	cfg.MaxEndpoints = cmp.Or(cfg.MaxEndpoints, 10_000)
	cfg.Timeout = cmp.Or(cfg.Timeout, 50*time.Millisecond)
	cfg.Window = cmp.Or(cfg.Window, 5*time.Minute)
	cfg.OpenFor = cmp.Or(cfg.OpenFor, 30*time.Second)
	cfg.MaxWait = cmp.Or(cfg.MaxWait, time.Second)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.PermitTTL <= 0 {
		return nil, errors.New("ratelimit: PermitTTL is needed and must be at least the lease: how long a permit is taken whose worker died")
	}
	room := max(cfg.MaxWaiters, 0)
	l := &Limiter{timeout: cfg.Timeout, room: room, originRoom: max(cfg.MaxOriginWaiters, 2*room),
		patience: cfg.MaxWait, maxEndpoints: cfg.MaxEndpoints, log: cfg.Logger,
		clock: cfg.Now, start: cfg.Now(), firstLook: firstLook, lookForOthers: lookForOthers, aloneAfter: aloneAfter, origins: map[string]*origin{},
		endpoints: map[string]*list.Element{},
		recent:    list.New()}
	l.rules = rules{inflight: cfg.Inflight, gap: max(1, int64(math.Round(1e6/cfg.Rate))), burst: int64(cfg.Burst),
		hold:   toMicros(cfg.PermitTTL),
		bucket: toMicros(cfg.Window / buckets), minCalls: int64(cfg.MinCalls), ratio: failureRatio,
		openFor: toMicros(cfg.OpenFor),
		minWait: toMicros(minWait), maxWait: toMicros(maxWait), presence: toMicros(presence), slack: toMicros(slack),
		recent: toMicros(recent), keptAfter: toMicros(keptAfter)}
	l.life, l.end = context.WithCancel(context.Background())
	l.outage.pause = firstProbe
	if cfg.lookForOthers > 0 {
		l.lookForOthers, l.aloneAfter = cfg.lookForOthers, cfg.aloneAfter
	}
	if cfg.Redis != nil {
		l.remote = newRedisState(cfg.Redis, l.rules)
		if cfg.Workers != nil {
			l.tasks.Add(1)
			go l.watchOthers(cfg.Workers)
		}
	} else {
		l.outage.local = true
	}
	return l, nil
}

// ErrClosed is what Acquire says after Close.
var ErrClosed = errors.New("ratelimit: closed")

// Close ends what runs in the background and waits for it, about Timeout. It comes after the last Release; a later one
// returns its permit in this process only, and elsewhere after PermitTTL.
func (l *Limiter) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.end()
	l.tasks.Wait()
}

// Breaker tells how the breaker of an endpoint stands, as this process saw it last: closed, open, half_open, or empty
// when it has not called there lately. Origin and endpoint are those of Acquire.
func (l *Limiter) Breaker(origin, endpointName string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.endpoints[endpointKey(originKey(origin), endpointID(endpointName))]
	if !ok {
		return ""
	}
	switch now, _ := breakerState(known.Value.(*endpoint).open, l.now()); now {
	case opened:
		return "open"
	case halfOpen:
		return "half_open"
	}
	return "closed"
}

// Stats walks the endpoints in memory.
func (l *Limiter) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Stats{Endpoints: len(l.endpoints), Local: l.remote != nil && l.outage.local}
	now := l.now()
	for e := l.recent.Front(); e != nil; e = e.Next() {
		switch state, _ := breakerState(e.Value.(*endpoint).open, now); state {
		case opened:
			s.Open++
		case halfOpen:
			s.HalfOpen++
		}
	}
	return s
}

// now is this process' clock in µs, not moved by changes of the machine's.
func (l *Limiter) now() int64 { return toMicros(l.clock().Sub(l.start)) + 1 } // 0 means never

// RefusedError means that a call must not be made now. That says nothing about the delivery: it costs no attempt.
type RefusedError struct {
	Reason reason.Reason // AgentBusy, Throttled or BreakerOpen
	Wait   time.Duration // when to come back: a reservation of this call's own, 1 s to 5 min
	Text   string        // a sentence for people
}

func (e *RefusedError) Error() string { return e.Text }

// Result is how a call went. The zero value is Neutral.
type Result int

const (
	Neutral Result = iota // it says nothing about whether the endpoint works
	OK
	Failed
)

// String is for logs.
func (r Result) String() string {
	switch r {
	case OK:
		return "ok"
	case Failed:
		return "failed"
	default:
		return "neutral"
	}
}

// Permit is a permit at an origin, for a call of one of its endpoints.
type Permit struct {
	limiter    *Limiter
	endpoint   *endpoint
	token      string
	acquiredAt time.Time
	shared     bool // Redis knows of it
	released   atomic.Bool
}

// Release gives the permit back and tells how the call went and how long it took; further calls do nothing. It does not
// depend on ctx being alive. If Redis cannot be told, this process still knows, and Redis is told when it is back.
func (p *Permit) Release(ctx context.Context, result Result) {
	if p.released.Swap(true) {
		return
	}
	if result != OK && result != Failed {
		result = Neutral
	}
	p.limiter.release(context.WithoutCancel(ctx), p, result, max(1, toMicros(p.limiter.clock().Sub(p.acquiredAt))))
}

func newRefusedError(v acquireAnswer, r *rules, spread float64) *RefusedError {
	wait := time.Duration(v.wait) * time.Microsecond
	if wait >= maxWait {
		// The line is full: all who come now would be told the same.
		wait = maxWait/2 + time.Duration(spread*float64(maxWait/2))
	}
	e := &RefusedError{Wait: max(wait, minWait)}
	back := e.Wait.Round(100 * time.Millisecond)
	switch v.code {
	case open:
		e.Reason = reason.BreakerOpen
		e.Text = fmt.Sprintf("most of the latest calls to the agent's endpoint failed. The breaker stays open for %.3g s; then one probe call decides "+
			"whether it closes. This one comes back in %s", float64(r.openFor)/1e6, back)
	case throttled:
		e.Reason = reason.Throttled
		e.Text = fmt.Sprintf("the origin of the agent's endpoint has had its %s calls a second; this one comes back in %s",
			fmt.Sprintf("%.3g", 1e6/float64(r.gap)), back)
	default:
		e.Reason = reason.AgentBusy
		e.Text = fmt.Sprintf("the origin of the agent's endpoint is busy with %d calls, or this endpoint with its share of them; this one comes back in %s",
			r.inflight, back)
	}
	return e
}
