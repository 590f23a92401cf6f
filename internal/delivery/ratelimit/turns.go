package ratelimit

import (
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed" // the script
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/redis/go-redis/v9"
)

//go:embed lua/turn.lua
var turnSource string

const (
	// inlineTurn is how long a call may wait for its turn in the worker, where it occupies one of the worker's slots.
	// Such a short wait costs less than delaying the delivery, and is shorter than most calls.
	inlineTurn = 250 * time.Millisecond
	// maxTurn is the longest time ahead for which a turn can be reserved. A call that would have to wait longer gets no
	// reservation, and may ask again after maxTurn.
	maxTurn = 5 * time.Minute
	// slowestTurn is the longest time between two turns of one agent. A lower rate is raised to one call per
	// slowestTurn.
	slowestTurn = 24 * time.Hour
	// maxTurns bounds the agents of which this process remembers the last turn and the last reservation, to use them
	// while Redis does not answer. The least recently used agent is evicted.
	maxTurns = 4096
	// turnPause is how long this process does not ask Redis for turns after Redis failed to answer.
	turnPause = time.Second
)

// TurnsConfig configures Turns. Zero values mean the defaults.
type TurnsConfig struct {
	Redis   redis.UniversalClient // see Config.Redis; nil: this process counts alone
	Timeout time.Duration         // of one call to Redis; default 50 ms
	Logger  *slog.Logger          // default slog.Default()
	Now     func() time.Time      // default time.Now; Redis uses its own clock
}

// Turns space the calls of each agent evenly, at the rate that the agent asked for, without bursts. A turn is the right
// to begin one call at a certain time. All workers share the turns through Redis. Each worker also counts the turns
// itself, and decides by its own count while Redis does not answer. Turns are safe for concurrent use.
//
// A call whose turn would begin later than inlineTurn is refused, and a time is reserved for it. If the call asks again
// at that time, it gets its turn. A call that asks for the first time gets a time after all reservations.
type Turns struct {
	redis   redis.UniversalClient
	script  *redis.Script
	timeout time.Duration
	log     *slog.Logger
	now     func() time.Time
	clock   func() int64 // µs; nil: Redis' own clock. Only tests set it

	mu    sync.Mutex
	own   *lru.Cache[string, turns] // this process' own count, by the name of the agent
	later time.Time                 // Redis is not asked before this time, because it failed
}

// NewTurns returns Turns without calling Redis.
func NewTurns(cfg TurnsConfig) (*Turns, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	own, err := lru.New[string, turns](maxTurns)
	return &Turns{redis: cfg.Redis, script: redis.NewScript(turnSource), timeout: cmp.Or(cfg.Timeout, 50*time.Millisecond),
		log: cmp.Or(cfg.Logger, slog.Default()), now: cfg.Now, own: own}, err
}

// Turn is the answer to a call that asked for its turn.
type Turn struct {
	// Given means that the call has its turn and may begin after Wait, which is at most inlineTurn. If Given is false,
	// the call must not begin, and may ask again after Wait, which is at most maxTurn.
	Given bool
	Wait  time.Duration
	// Reserved means that Given is false, and that a turn is reserved for the time at which the call may ask again.
	Reserved bool

	of        *Turns
	name      string
	gap       int64 // µs between two turns
	at, atOwn int64 // when the turn begins, in µs: by the clock of Redis (0: not from Redis), and of this process
}

// Take asks for a turn of the agent called name, at perSecond calls per second. again means that the call may have
// asked before, so that a time may be reserved for it. Take returns an error only if ctx has ended or an argument is
// invalid: if Redis does not answer, this process decides alone.
func (t *Turns) Take(ctx context.Context, name string, perSecond float64, again bool) (Turn, error) {
	if name == "" || !(perSecond > 0) {
		return Turn{}, errors.New("ratelimit: a name and a rate are needed")
	}
	if err := ctx.Err(); err != nil {
		return Turn{}, err
	}
	turn := Turn{of: t, name: name, gap: findGap(perSecond)}

	t.mu.Lock()
	now := t.now().UnixMicro()
	state, _ := t.own.Get(name)
	answer := state.takeTurn(now, turn.gap, again)
	if answer.given {
		turn.atOwn = now + answer.wait
	}
	ask := t.redis != nil && !t.now().Before(t.later)
	if !ask {
		t.own.Add(name, state)
	}
	t.mu.Unlock()

	if ask {
		shared, at, err := t.askRedis(ctx, turn, again, 0)
		if err == nil {
			answer, turn.at, turn.atOwn = shared, at, 0
		}
		t.mu.Lock()
		if err != nil {
			t.postponeRedis(err)
			t.own.Add(name, state)
		} else if answer.given {
			state, _ = t.own.Get(name)
			state.last, turn.atOwn = now+answer.wait, now+answer.wait
			t.own.Add(name, state)
		}
		t.mu.Unlock()
	}
	turn.Given, turn.Wait = answer.given, fromMicros(answer.wait)
	turn.Reserved = !answer.given && turn.Wait < maxTurn
	return turn, nil
}

// GiveBack returns a given turn that the call did not use, so that another call can begin earlier. It does nothing if
// the turn was not given, or if another, later turn of the agent has been given meanwhile. It reports no error: at
// worst, the turn is lost.
func (t Turn) GiveBack(ctx context.Context) {
	if !t.Given {
		return
	}
	t.of.mu.Lock()
	state, _ := t.of.own.Get(t.name)
	if state.last == t.atOwn {
		state.last = max(state.last-t.gap, 0)
		t.of.own.Add(t.name, state)
	}
	t.of.mu.Unlock()
	if t.at > 0 {
		_, _, err := t.of.askRedis(ctx, t, false, t.at)
		if err != nil {
			t.of.mu.Lock()
			t.of.postponeRedis(err)
			t.of.mu.Unlock()
		}
	}
}

// postponeRedis stops calls to Redis for turnPause after a failure. The caller holds mu.
func (t *Turns) postponeRedis(err error) {
	if now := t.now(); now.After(t.later) {
		t.later = now.Add(turnPause)
		t.log.Debug("Redis does not say whose turn it is; this worker decides by itself for a moment", "error", err)
	}
}

// askRedis asks Redis for a turn. at is the time, in µs by the clock of Redis, at which a given turn begins. If unused
// is not 0, askRedis does not ask for a turn, but gives back the unused turn that begins at the time unused.
func (t *Turns) askRedis(ctx context.Context, turn Turn, again bool, unused int64) (answer turnAnswer, at int64, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.timeout)
	defer cancel()
	clock := int64(0)
	if t.clock != nil {
		clock = t.clock()
	}
	got, err := t.script.Run(ctx, t.redis, []string{turnsKey(turn.name)}, clock, turn.gap, boolArg(again),
		toMicros(inlineTurn), toMicros(maxTurn), unused).Int64Slice()
	if err != nil {
		return answer, 0, fmt.Errorf("ask for a turn: %w", err)
	}
	if len(got) != 3 {
		return answer, 0, fmt.Errorf("ask for a turn: Redis answers %d numbers instead of 3", len(got))
	}
	return turnAnswer{given: got[0] == 1, wait: got[1]}, got[2], nil
}

// turnsKey returns the Redis key of an agent's turns. It contains a hash of name, whose length is not bounded, because
// clients choose the number of the agent.
func turnsKey(name string) string {
	sum := sha256.Sum256([]byte(name))
	return "herald:turns:" + hex.EncodeToString(sum[:16])
}

// findGap returns the time in µs between two calls at this rate, between 1 µs and slowestTurn.
func findGap(perSecond float64) int64 {
	return int64(min(max(math.Ceil(1e6/perSecond), 1), float64(toMicros(slowestTurn))))
}

func fromMicros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// turns is the state of one agent: last is when the last given turn begins, and line is the latest reserved time. Both
// are in µs, by the clock of takeTurn's argument now. 0 means none.
type turns struct{ last, line int64 }

// turnAnswer is the answer of turn.lua. wait is in µs: until the turn if it is given, otherwise until the call may ask
// again.
type turnAnswer struct {
	given bool
	wait  int64
}

// takeTurn gives a call its turn, or reserves a time for it, or refuses it without a reservation if that time would be
// more than maxTurn ahead. turn.lua does the same in Redis. now is in µs, gap is the time in µs between two turns, and
// again is as in Take.
func (s *turns) takeTurn(now, gap int64, again bool) turnAnswer {
	inline, most := toMicros(inlineTurn), toMicros(maxTurn)
	if s.last > now+2*inline {
		s.last = 0
	}
	if s.line > now+2*most {
		s.line = 0
	}
	at := now
	if s.last > 0 {
		at = max(now, s.last+gap)
	}
	if at <= now+inline && (again || s.line <= now) {
		s.last = at
		return turnAnswer{true, at - now}
	}
	slot := max(at, s.line+gap)
	if slot > now+most {
		return turnAnswer{false, most}
	}
	s.line = slot
	return turnAnswer{false, slot - now}
}
