package ratelimit

import (
	"cmp"
	"container/list"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/redis/go-redis/v9"
)

// Config configures a Limiter. Zero values mean the defaults; PermitTTL has no default.
type Config struct {
	// Redis is shared by all workers. If it is nil, this process counts alone. The caller closes it after Close. It
	// must have ContextTimeoutEnabled; otherwise a frozen Redis blocks Acquire and Release beyond Timeout. Timeout
	// includes the time to connect, so the client should keep a few idle connections.
	Redis redis.Scripter

	// Workers returns the number of other workers that Redis lists (others), and whether Redis lists this worker
	// (self). The limiter calls it every second. While there are no other workers, the limiter counts in this process,
	// without calls to Redis. Nil: the limits are always shared through Redis.
	Workers func(context.Context) (others int, self bool, err error)

	Inflight int     // most calls in flight at one origin, which its endpoints share (doc.go); default 4
	Rate     float64 // calls per second at one origin, 0.001 to a million; default 100
	Burst    int     // calls to one origin that may start at once; default Rate, rounded up

	// Timeout bounds one call to Redis. Default 50 ms. When Redis freezes, the first call waits for the timeout. With a
	// shorter timeout, workers would stop sharing the limits when Redis is merely busy.
	Timeout time.Duration

	Window   time.Duration // the breaker's window; default 5 min
	MinCalls int           // least calls in Window for the breaker to open; default 10
	OpenFor  time.Duration // how long the breaker stays open. Default 30 s

	// PermitTTL is how long a permit counts after its last Acquire if its worker died without releasing it. Required.
	// It must be the lease of a delivery: an attempt that calls later acquires its permit again. Otherwise the permit
	// of a running call could expire, and more than Inflight calls could run at once.
	PermitTTL time.Duration

	// MaxWaiters is how many calls of one endpoint may wait in this process for a permit. Further ones are refused, and
	// their deliveries try again a second later or more. Each waiting call occupies one of the worker's slots. Default
	// Inflight; negative: none.
	MaxWaiters int
	// MaxOriginWaiters bounds the calls that wait in this process for all endpoints of an origin together. Default and
	// least value: twice MaxWaiters.
	MaxOriginWaiters int
	// MaxWait is how long a call may wait in this process for a permit. Default 1 s.
	MaxWait time.Duration
	// FirstMean is the mean call time from which return times follow until a call of the endpoint has ended. Default 0.
	FirstMean time.Duration
	// Returns is how many refused calls of an endpoint get a return time in the time in which one call of it can be
	// granted. Default 1, which costs the fewest tries. With more, fewer permits stay unused: a call that returns while
	// calls are slower than the mean is refused again, and then returns after all others.
	Returns int
	// MaxEndpoints bounds the endpoints, and thereby the origins, that this process remembers. One takes about 700
	// bytes. Endpoints in use are always kept. Default 10,000.
	MaxEndpoints int

	Logger *slog.Logger     // default slog.Default()
	Now    func() time.Time // default time.Now; while the limits are shared, the clock of Redis counts instead

	lookForOthers, aloneAfter time.Duration // tests override the constants
}

const (
	// minWait and maxWait bound the retry delay returned with a refusal.
	minWait = time.Second
	maxWait = 5 * time.Minute
	// presence is how long a call that waits in a worker counts as waiting after its last try. It must be longer than
	// the time between two tries. slack is how late asynq and a busy worker may run a delayed call. recent is how long
	// after a granted call its endpoint counts as using the origin, so that the other endpoints may not use all permits
	// (doc.go).
	presence = 250 * time.Millisecond
	slack    = 5 * time.Second
	recent   = time.Minute
	// failureRatio is the least share of failed calls that opens a breaker.
	failureRatio = 0.7
	// keptAfter is how long an endpoint must wait before free permits are kept for it. A kept permit is unused until a
	// call of that endpoint tries again. After a shorter wait, that loss is larger than the benefit of serving
	// endpoints in the order in which they began to wait.
	keptAfter = 100 * time.Millisecond
)

// Limiter limits the calls to all origins. It is safe for concurrent use.
type Limiter struct {
	rules            rules
	redis            redis.Scripter // nil: no Redis
	process          string         // identifies this process in the tokens of its permits
	timeout          time.Duration
	room, originRoom int // Config.MaxWaiters and MaxOriginWaiters
	maxWait          time.Duration
	maxEndpoints     int
	log              *slog.Logger
	clock            func() time.Time
	ignoreRedisTime  bool // only tests set it

	firstPause, lookForOthers, aloneAfter time.Duration // the constants with these names, except in tests

	life  context.Context // ends when Close is called
	end   context.CancelFunc
	tasks sync.WaitGroup // background goroutines and calls to Redis; Add only under mu, while not closed

	mu        sync.Mutex // guards the fields below, each origin and each endpoint; not locked during I/O
	closed    bool
	origins   map[string]*origin
	endpoints map[string]*list.Element // values are *endpoint
	lru       *list.List               // the same endpoints, most recently used first
	outage    outage
	alone     bool      // there is no other worker
	epoch     time.Time // the time of clock at which now is 0
	timed     bool      // Redis has returned its time, and epoch fits it
}

// Stats are the current numbers of this process, for its metrics.
type Stats struct {
	Open, HalfOpen int  // endpoints with that breaker state, as this process last knew it
	Endpoints      int  // endpoints that this process remembers
	Local          bool // Redis does not answer, so this process counts alone; false if Config.Redis is nil
}

// New validates the configuration. It does not wait for Redis. If Config.Redis and Config.Workers are set, it starts a
// goroutine, which Close stops.
func New(cfg Config) (*Limiter, error) {
	cfg.Inflight = cmp.Or(cfg.Inflight, 4)
	cfg.Rate = cmp.Or(cfg.Rate, 100)
	cfg.Burst = cmp.Or(cfg.Burst, int(math.Ceil(cfg.Rate)))
	cfg.MaxWaiters = cmp.Or(cfg.MaxWaiters, cfg.Inflight)
	cfg.MinCalls = cmp.Or(cfg.MinCalls, 10)
	cfg.Returns = cmp.Or(cfg.Returns, 1)
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
		return nil, errors.New("ratelimit: PermitTTL is required and must be at least the lease: the permit of a " +
			"dead worker expires after it")
	}
	room := max(cfg.MaxWaiters, 0)
	l := &Limiter{timeout: cfg.Timeout, room: room, originRoom: max(cfg.MaxOriginWaiters, 2*room),
		maxWait: cfg.MaxWait, maxEndpoints: cfg.MaxEndpoints, log: cfg.Logger,
		clock: cfg.Now, epoch: epochOf(cfg.Now(), cfg.Now().UnixMicro()), process: rand.Text()[:8], redis: cfg.Redis,
		firstPause: firstPause, lookForOthers: lookForOthers, aloneAfter: aloneAfter,
		origins: map[string]*origin{}, endpoints: map[string]*list.Element{}, lru: list.New()}
	l.rules = rules{inflight: cfg.Inflight, gap: max(1, int64(math.Round(1e6/cfg.Rate))), burst: int64(cfg.Burst),
		hold: toMicros(cfg.PermitTTL), firstMean: toMicros(cfg.FirstMean), returns: int64(cfg.Returns),
		bucket: toMicros(cfg.Window / buckets), minCalls: int64(cfg.MinCalls), ratio: failureRatio,
		openFor: toMicros(cfg.OpenFor),
		minWait: toMicros(minWait), maxWait: toMicros(maxWait), presence: toMicros(presence), slack: toMicros(slack),
		recent: toMicros(recent), keptAfter: toMicros(keptAfter)}
	l.life, l.end = context.WithCancel(context.Background())
	l.outage.pause = firstTest
	if cfg.lookForOthers > 0 {
		l.lookForOthers, l.aloneAfter = cfg.lookForOthers, cfg.aloneAfter
	}
	switch {
	case cfg.Redis == nil:
		l.outage.local = true
	case cfg.Workers != nil:
		l.tasks.Add(1)
		go l.watchOthers(cfg.Workers)
	}
	return l, nil
}

// ErrClosed is returned by Acquire after Close.
var ErrClosed = errors.New("ratelimit: closed")

// Close stops the background work and waits until it has ended, at most about Timeout. Call it after the last Release.
// A later Release is recorded in this process only, and the permit expires in Redis after PermitTTL.
func (l *Limiter) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.end()
	l.tasks.Wait()
}

// Breaker returns the state of an endpoint's breaker, as this process last knew it: "closed", "open", "half_open", or
// "" if the process remembers no call to the endpoint. The arguments are those of Acquire.
func (l *Limiter) Breaker(origin, endpointName string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.endpoints[endpointKey(originKey(origin), endpointID(endpointName))]
	if !ok {
		return ""
	}
	switch breakerState(known.Value.(*endpoint).OpenUntil, l.now()) {
	case opened:
		return "open"
	case halfOpen:
		return "half_open"
	}
	return "closed"
}

// Stats computes the current numbers. It visits all endpoints in memory.
func (l *Limiter) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := Stats{Endpoints: len(l.endpoints), Local: l.redis != nil && l.outage.local}
	now := l.now()
	for e := l.lru.Front(); e != nil; e = e.Next() {
		switch breakerState(e.Value.(*endpoint).OpenUntil, now) {
		case opened:
			s.Open++
		case halfOpen:
			s.HalfOpen++
		}
	}
	return s
}

// now returns the time in µs since 1970, by the clock of Redis as far as this process knows it (setTime). Between two
// answers of Redis, the monotonic clock moves it ahead. The caller holds mu.
func (l *Limiter) now() int64 { return toMicros(l.clock().Sub(l.epoch)) }

// setTime makes now return the time at, in µs since 1970. The caller holds mu.
func (l *Limiter) setTime(at int64) { l.epoch = epochOf(l.clock(), at) }

// maxDrift is how much the clock of Redis may differ from now before adoptTime moves the permits.
const maxDrift = time.Second

// adoptTime makes now return at, the time of Redis. If now jumps, because Redis has answered for the first time or has
// moved to another machine, the permits of this process move with it. Otherwise they would expire during their calls,
// or would not count (countHeld). The caller holds mu.
func (l *Limiter) adoptTime(at int64) {
	l.timed = true
	if l.ignoreRedisTime {
		return
	}
	jump := at - l.now()
	l.setTime(at)
	if max(jump, -jump) < toMicros(maxDrift) {
		return
	}
	for _, o := range l.origins {
		for token := range o.Permits {
			o.Permits[token] += jump
		}
	}
}

// epochOf returns the time 0 of a clock, which shows now at the time at, in µs since 1970. The result has now's
// monotonic reading, if now has one.
func epochOf(now time.Time, at int64) time.Time {
	return now.Add(-time.Duration(at) * time.Microsecond)
}

// RefusedError means that the call must not be made now. The delivery gets a free wait: a wait after which the attempt
// does not count.
type RefusedError struct {
	Reason outcome.Reason // AgentBusy, Throttled or BreakerOpen
	Wait   time.Duration  // how long the delivery waits before it tries again: 1 s to 5 min
	Text   string         // a sentence for the operator
}

func (e *RefusedError) Error() string { return e.Text }

// Result is the result of a call, as it counts for the endpoint's breaker. The zero value is Neutral.
type Result int

const (
	Neutral Result = iota // the call says nothing about the endpoint's health
	OK                    // the endpoint works
	Failed                // the endpoint does not work
)

// String returns the result for logs.
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

// Permit is the right to make one call to an endpoint of an origin.
type Permit struct {
	Fault string // set before Release(Failed): a short text for operators, for the refusals of the endpoint's breaker

	limiter    *Limiter
	endpoint   *endpoint
	token      string
	acquiredAt time.Time
	released   atomic.Bool
}

// Release releases the permit, and counts the call's result and its duration since Acquire. Further calls of Release do
// nothing. If Redis does not answer, it takes at most about Config.Timeout. If other workers use the origin too, it may
// need several requests (maxTries).
func (p *Permit) Release(result Result) {
	if p.released.Swap(true) {
		return
	}
	p.limiter.release(p, result, max(1, toMicros(p.limiter.clock().Sub(p.acquiredAt))))
}

// newRefusedError returns the error for a call that was refused with answer v. The wait of the error is v.wait, but at
// least minWait. If v.wait reaches maxWait, the wait is random instead, between half of maxWait and maxWait. spread is
// the random number, in [0, 1). fault is the latest Permit.Fault at the endpoint, or "".
func newRefusedError(v acquireAnswer, r *rules, spread float64, fault string) *RefusedError {
	wait := time.Duration(v.wait) * time.Microsecond
	if wait >= maxWait {
		// The latest return time that can be reserved is maxWait ahead, so many calls may have reserved it. A random
		// wait keeps them from returning together.
		wait = maxWait/2 + time.Duration(spread*float64(maxWait/2))
	}
	e := &RefusedError{Wait: max(wait, minWait)}
	back := e.Wait.Round(100 * time.Millisecond)
	switch v.code {
	case open:
		e.Reason = outcome.BreakerOpen
		if fault != "" {
			fault = ", the last with: " + fault
		}
		e.Text = fmt.Sprintf("most of the latest calls to the agent's endpoint failed%s. The breaker stays open for "+
			"%.3g s; then one probe call decides whether it closes. This one comes back in %s",
			fault, float64(r.openFor)/1e6, back)
	case throttled:
		e.Reason = outcome.Throttled
		e.Text = fmt.Sprintf("the calls to the origin of the agent's endpoint are limited to %.3g a second; "+
			"this one comes back in %s", 1e6/float64(r.gap), back)
	default:
		e.Reason = outcome.AgentBusy
		e.Text = fmt.Sprintf("the origin of the agent's endpoint is busy with %s, or this endpoint with its "+
			"share of them; this one comes back in %s", text.Count(r.inflight, "call", "calls"), back)
	}
	return e
}
