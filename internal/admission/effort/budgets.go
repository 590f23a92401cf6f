package effort

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/base/logging"
	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/redis/go-redis/v9"
)

// Config configures Budgets.
type Config struct {
	// Size is the worker time that an agent may use at once. It is the capacity of the agent's token bucket, and the
	// bucket refills by Size per minute. Required.
	Size time.Duration
	// Redis stores the sums of all workers. If it is nil, this process counts alone. The caller closes it after Close.
	// It must have ContextTimeoutEnabled.
	Redis redis.Scripter
	// Timeout bounds one call to Redis. Default 50 ms.
	Timeout time.Duration
	// MaxAgents bounds the agents that this process remembers. One takes about 400 bytes. Default 10,000.
	MaxAgents int

	Logger *slog.Logger     // default slog.Default()
	Now    func() time.Time // default time.Now
	Random func() float64   // jitter of waits, in [0, 1); default rand.Float64
}

const (
	// longAttempt is the mean cost of an agent's latest attempts above which the agent is costly.
	longAttempt = time.Second
	// meanWeight is the weight of the newest attempt in the mean. One attempt of 25 s makes a quick agent costly for
	// its next seven attempts.
	meanWeight = 0.25
	// filesPart is the part of a bucket that fetching the files of feedback may use. responsesPart is the part that
	// fetching the files of responses may use. Begin counts at most filesPart for both together. An agent that has used
	// costlyPart of its bucket is costly.
	filesPart, responsesPart, costlyPart = 0.5, filesPart / 4, 0.5
	// reportPart is the part of a bucket that a worker may charge to an agent before it writes to Redis: one second for
	// a bucket of 60 s.
	reportPart = 1.0 / 60
	// minWait and maxWait bound the wait returned with a refusal.
	minWait, maxWait = time.Second, 5 * time.Minute
	// awayFor is how long the worker does not call Redis after a failed call.
	awayFor = time.Second
	// maxPending bounds the accounts in the channel Budgets.pending. If the channel is full, an account is queued with
	// its next charge.
	maxPending = 1024
)

// Budgets are the effort budgets of all agents. They are safe for concurrent use. Nil Budgets limit no agent.
type Budgets struct {
	rules   rules
	size    time.Duration
	shared  *shared // nil: there is no Redis
	timeout time.Duration
	log     *slog.Logger
	clock   func() time.Time
	random  func() float64
	start   time.Time

	life    context.Context // ends when Close is called
	end     context.CancelFunc
	tasks   sync.WaitGroup
	pending chan *account // accounts whose charges have to be added to Redis

	mu        sync.Mutex // guards the fields below and each account; not locked during I/O
	accounts  *simplelru.LRU[erc8004.Agent, *account]
	awayUntil int64
	totals    [kindCount]float64 // µs charged since the start
}

// account is the effort budget of one agent as this process knows it: the worker time that the agent has used, the mean
// cost of its attempts, and its running attempts. Budgets.mu guards it.
type account struct {
	agent erc8004.Agent
	bucket
	mean       float64            // mean cost of the latest attempts in µs, without the fetching of files; 0: unknown
	unreported [kindCount]float64 // charges that are not in Redis yet
	queued     bool               // the account is in Budgets.pending, or reportPending is writing its charges to Redis
	running    []*Hold
	nextReturn int64 // µs: from when the next refused delivery may try again (refuseHold)
}

// New validates the configuration. It does not wait for Redis. With Redis it starts a goroutine, which Close stops.
func New(cfg Config) (*Budgets, error) {
	if cfg.Size <= 0 {
		return nil, errors.New("effort: a budget needs a size above 0")
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, 50*time.Millisecond)
	cfg.MaxAgents = cmp.Or(cfg.MaxAgents, 10_000)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Random == nil {
		cfg.Random = randomFloat
	}
	accounts, err := simplelru.NewLRU[erc8004.Agent, *account](cfg.MaxAgents, nil)
	if err != nil {
		return nil, err
	}
	b := &Budgets{rules: newRules(float64(cfg.Size.Microseconds())), size: cfg.Size, timeout: cfg.Timeout,
		log: cfg.Logger, clock: cfg.Now, random: cfg.Random, start: cfg.Now(), accounts: accounts,
		pending: make(chan *account, maxPending)}
	b.life, b.end = context.WithCancel(context.Background())
	if cfg.Redis != nil {
		b.shared = newShared(cfg.Redis, b.rules)
		b.tasks.Go(b.reportPending)
	}
	return b, nil
}

// Close stops the background work and waits for it, at most about Timeout. Call it after the last Hold.End.
func (b *Budgets) Close() {
	b.end()
	b.tasks.Wait()
}

// readClock returns this process' monotonic clock in µs. It never returns 0, which means "never".
func (b *Budgets) readClock() int64 { return b.clock().Sub(b.start).Microseconds() + 1 }

// findAccount returns the agent's account, and creates it if the agent has none. The caller holds mu.
func (b *Budgets) findAccount(agent erc8004.Agent) *account {
	if a, ok := b.accounts.Get(agent); ok {
		return a
	}
	a := &account{agent: agent, bucket: bucket{at: b.readClock()}}
	b.accounts.Add(agent, a)
	return a
}

// loadShared reads the agent's used worker time and the mean cost of its attempts from Redis into its account. Other
// workers or an earlier process may have stored them there. If Redis does not answer, the account does not change.
func (b *Budgets) loadShared(ctx context.Context, a *account) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	k, err := b.shared.readSpent(ctx, a.agent)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil || context.Cause(ctx) == context.DeadlineExceeded {
			b.suspendRedis(err)
		}
		return
	}
	b.adoptShared(a, k)
}

// adoptShared sets the account's used time to k.used, the sum of all workers in Redis, plus the charges that are not in
// Redis yet. If the account's mean cost is unknown, it also adopts k.mean. The caller holds mu.
func (b *Budgets) adoptShared(a *account, k known) {
	now := b.readClock()
	a.addRefill(b.rules, now)
	a.capUnreported()
	a.at, a.used = now, k.used
	for i := range a.used {
		a.used[i] += a.unreported[i]
	}
	if a.mean == 0 {
		a.mean = k.mean
	}
}

// suspendRedis logs err, with which a call to Redis failed, and stops further calls for awayFor. After Close it does
// nothing. The caller holds mu.
func (b *Budgets) suspendRedis(err error) {
	if b.life.Err() != nil {
		return
	}
	b.awayUntil = b.readClock() + awayFor.Microseconds()
	b.log.Debug("effort is counted by this worker alone for now", logging.About(logging.Redis), "error", err)
}

// isAway reports whether Redis must not be called now, because there is no Redis or a call to it failed less than
// awayFor ago. The caller holds mu.
func (b *Budgets) isAway() bool { return b.shared == nil || b.readClock() < b.awayUntil }

// chargeAccount charges the cost of an attempt to its agent. spent is the cost in µs for each kind of work. When the
// charges that Redis does not know yet are at least the share reportPart of a bucket, chargeAccount queues the account
// for reportPending. The caller holds mu.
func (b *Budgets) chargeAccount(a *account, spent [kindCount]float64) {
	a.bucket.chargeSpent(b.rules, b.readClock(), spent)
	for i := range spent {
		b.totals[i] += spent[i]
		a.unreported[i] += spent[i]
	}
	if b.shared == nil {
		a.unreported = [kindCount]float64{}
		return
	}
	a.capUnreported()
	if sumKinds(a.unreported) < reportPart*b.rules.size || a.queued {
		return
	}
	select {
	case b.pending <- a:
		a.queued = true
	default:
	}
}

// capUnreported reduces the charges that are not in Redis yet to the agent's used worker time, if they exceed it. The
// part above it has been refilled since it was charged, so Redis must not count it. The caller holds Budgets.mu.
func (a *account) capUnreported() {
	if unreported, used := sumKinds(a.unreported), a.sumUsed(); unreported > used {
		for i := range a.unreported {
			a.unreported[i] *= used / unreported
		}
	}
}

// reportPending adds the charges of queued accounts to Redis, one account after the other, until Close. If Redis does
// not answer, it tries the same account again after awayFor. Without that, other workers would not learn that an agent
// is slow if the agent gets no further delivery.
func (b *Budgets) reportPending() {
	for {
		select {
		case a := <-b.pending:
			for !b.reportAccount(a) {
				if loop.Pause(b.life, awayFor) != nil {
					return
				}
			}
		case <-b.life.Done():
			return
		}
	}
}

// reportAccount adds the charges of one account to Redis and adopts the sums of all workers from the answer. It returns
// false if that failed. The account then keeps the charges.
func (b *Budgets) reportAccount(a *account) bool {
	b.mu.Lock()
	if b.isAway() {
		b.mu.Unlock()
		return false
	}
	a.addRefill(b.rules, b.readClock())
	a.capUnreported()
	spent, all := a.unreported, known{a.mean, a.used}
	a.unreported = [kindCount]float64{}
	b.mu.Unlock()

	ctx, cancel := context.WithTimeout(b.life, b.timeout)
	defer cancel()
	k, err := b.shared.addSpent(ctx, a.agent, spent, all)

	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		// Redis may have added the charges although its answer is missing. Charging twice is better than losing a
		// charge, and the refill corrects it.
		for i := range spent {
			a.unreported[i] += spent[i]
		}
		b.suspendRedis(err)
		return false
	}
	a.queued = false
	b.adoptShared(a, k)
	return true
}
