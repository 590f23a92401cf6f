package effort

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/logging"
	"github.com/agentherald/herald/internal/store"
	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/redis/go-redis/v9"
)

// Config makes Budgets.
type Config struct {
	// Size is how many seconds of worker time an agent has, and gets back in a minute. Needed.
	Size time.Duration
	// Redis is where workers count together; nil: this process by itself. The caller closes it, after Close. It must
	// have ContextTimeoutEnabled.
	Redis redis.UniversalClient
	// Timeout of one question to Redis. Default 50 ms.
	Timeout time.Duration
	// MaxAgents bounds the agents remembered in this process, about 400 bytes each. Default 10,000.
	MaxAgents int

	Logger *slog.Logger     // default slog.Default()
	Now    func() time.Time // default time.Now
	Random func() float64   // spreads waits: [0, 1). Default rand.Float64
}

const (
	// longAttempt: agents whose latest attempts took longer than this in the mean are costly.
	longAttempt = time.Second
	// meanWeight is the part of the newest attempt in the mean: one of 25 s makes a quick agent costly for its
	// next seven attempts.
	meanWeight = 0.25
	// filesPart of a bucket is what the files that feedback names may eat, costlyPart what is used by who is costly.
	filesPart, costlyPart = 0.5, 0.5
	// tellPart of a bucket is how much a worker keeps to itself before it tells Redis: a second of the default.
	tellPart = 1.0 / 60
	// minWait and maxWait bound what who is refused is told to wait.
	minWait, maxWait = time.Second, 5 * time.Minute
	// awayFor is how long Redis is left alone after a question that failed.
	awayFor = time.Second
	// maxUntold is how many agents wait for Redis to be told; of others it is told with their next charge.
	maxUntold = 1024
)

// Budgets are safe for concurrent use. The nil ones bound nobody.
type Budgets struct {
	rules   rules
	size    time.Duration
	shared  *shared // nil: none
	timeout time.Duration
	log     *slog.Logger
	clock   func() time.Time
	random  func() float64
	start   time.Time

	life  context.Context // ends with Close
	end   context.CancelFunc
	tasks sync.WaitGroup
	tell  chan *account // whom Redis is to be told of

	mu        sync.Mutex // over memory only, never held during I/O
	accounts  *simplelru.LRU[store.Agent, *account]
	awayUntil int64
	totals    [whats]float64 // µs since the start
}

// account is one agent's. Budgets.mu guards it.
type account struct {
	agent store.Agent
	bucket
	mean    float64        // µs of its latest attempts, without files; 0: none has ended
	untold  [whats]float64 // what Redis has not been told of
	telling bool           // it is in tell, or being told
	running []*Hold
	line    int64 // when who was refused last comes back
}

// New checks the configuration. It asks Redis nothing.
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
	accounts, err := simplelru.NewLRU[store.Agent, *account](cfg.MaxAgents, nil)
	if err != nil {
		return nil, err
	}
	b := &Budgets{rules: newRules(float64(cfg.Size.Microseconds())), size: cfg.Size, timeout: cfg.Timeout, log: cfg.Logger,
		clock: cfg.Now, random: cfg.Random, start: cfg.Now(), accounts: accounts, tell: make(chan *account, maxUntold)}
	b.life, b.end = context.WithCancel(context.Background())
	if cfg.Redis != nil {
		b.shared = newShared(cfg.Redis, b.rules)
		b.tasks.Go(b.tellRedis)
	}
	return b, nil
}

// Close ends what runs in the background and waits for it, about Timeout. It comes after the last End.
func (b *Budgets) Close() {
	b.end()
	b.tasks.Wait()
}

// now is this process' clock in µs, not moved by changes of the machine's.
func (b *Budgets) readClock() int64 { return b.clock().Sub(b.start).Microseconds() + 1 } // 0 means never

// findAccount returns the agent's account; met says that there was one. The caller holds mu.
func (b *Budgets) findAccount(agent store.Agent) (a *account, met bool) {
	if a, met = b.accounts.Get(agent); met {
		return a, true
	}
	a = &account{agent: agent, bucket: bucket{at: b.readClock()}}
	b.accounts.Add(agent, a)
	return a, false
}

// loadShared asks Redis what other workers, or this one before it was restarted, know of an agent.
func (b *Budgets) loadShared(ctx context.Context, a *account) {
	ctx, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	k, err := b.shared.readSpent(ctx, a.agent)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		if ctx.Err() == nil || context.Cause(ctx) == context.DeadlineExceeded {
			b.leaveAlone(err)
		}
		return
	}
	b.adoptShared(a, k)
}

// adoptShared takes over what all workers together know; what Redis was not told of is added. The caller holds mu.
func (b *Budgets) adoptShared(a *account, k known) {
	a.at, a.parts = b.readClock(), k.parts
	for i := range a.parts {
		a.parts[i] += a.untold[i]
	}
	if a.mean == 0 {
		a.mean = k.mean
	}
}

// leaveAlone is after a question that Redis did not answer. The caller holds mu.
func (b *Budgets) leaveAlone(err error) {
	if b.life.Err() != nil {
		return
	}
	b.awayUntil = b.readClock() + awayFor.Microseconds()
	b.log.Debug("effort is counted by this worker alone for now", logging.About(logging.Redis), "error", err)
}

// isAway tells whether Redis is left alone. The caller holds mu.
func (b *Budgets) isAway() bool { return b.shared == nil || b.readClock() < b.awayUntil }

// chargeAccount takes what an attempt spent out of its agent's bucket. The caller holds mu.
func (b *Budgets) chargeAccount(a *account, spent [whats]float64) {
	a.bucket.chargeSpent(b.rules, b.readClock(), spent)
	for i := range spent {
		b.totals[i] += spent[i]
		a.untold[i] += spent[i]
	}
	if b.shared == nil {
		a.untold = [whats]float64{}
		return
	}
	// What was refilled since needs not be told of: after a time without Redis it may be most of it.
	if untold, used := sumParts(a.untold), a.sumUsed(); untold > used {
		for i := range a.untold {
			a.untold[i] *= used / untold
		}
	}
	if sumParts(a.untold) < tellPart*b.rules.size || a.telling || b.isAway() {
		return
	}
	select {
	case b.tell <- a:
		a.telling = true
	default:
	}
}

// tellRedis tells it what agents have used, one after the other.
func (b *Budgets) tellRedis() {
	for {
		select {
		case a := <-b.tell:
			b.tellOf(a)
		case <-b.life.Done():
			return
		}
	}
}

func (b *Budgets) tellOf(a *account) {
	b.mu.Lock()
	if b.isAway() {
		a.telling = false
		b.mu.Unlock()
		return
	}
	a.addRefill(b.rules, b.readClock())
	spent, all := a.untold, known{a.mean, a.parts}
	a.untold = [whats]float64{}
	b.mu.Unlock()

	ctx, cancel := context.WithTimeout(b.life, b.timeout)
	defer cancel()
	k, err := b.shared.addSpent(ctx, a.agent, spent, all)

	b.mu.Lock()
	defer b.mu.Unlock()
	a.telling = false
	if err != nil {
		// It may have been counted all the same: twice is better than never, and is refilled.
		for i := range spent {
			a.untold[i] += spent[i]
		}
		b.leaveAlone(err)
		return
	}
	b.adoptShared(a, k)
}
