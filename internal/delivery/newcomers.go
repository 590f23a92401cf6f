package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/delivery/ratelimit"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/net/publicsuffix"
)

// Newcomers bounds the slots of newcomers: agents without a success in the last hour (store.RecentSuccess). Newcomers
// share half of this worker's slots, rounded down and at least one, until the agent has answered. So agents that do not
// answer cannot occupy all slots.
//
// One registrable domain has at most half of these slots, for agents' endpoints and for feedback files together. Files
// and agents that the domain does not confirm may use half of the domain's slots, so that agents which merely name a
// domain cannot block the domain's own agents. While an endpoint is resolved, its domain is unknown and not bounded.
// Agents that failed in the last hour have at most half of the newcomers' slots, so that unknown agents do not wait
// behind them.
//
// An attempt that finds no free slot waits a moment for one, if attempts usually take no longer than that. Otherwise
// its delivery returns when a slot is expected to be free for it, computed from the mean time of newcomers' attempts.
//
// Nil Newcomers bound no agent.
type Newcomers struct {
	slots   *ratelimit.Limiter                     // one origin for all newcomers
	bounded *ratelimit.Limiter                     // origins: each registrable domain, and the agents that failed
	named   *ratelimit.Limiter                     // origins: each registrable domain, for files and unconfirmed agents
	costly  *ratelimit.Limiter                     // costly agents that are not newcomers (effort.go)
	lent    *ratelimit.Limiter                     // costly agents and newcomers together
	latest  *lru.Cache[store.Agent, latestOutcome] // latest outcomes in this process, which Postgres may not have yet
	share   int                                    // slots of all newcomers
	total   int                                    // slots of the worker
	now     func() time.Time

	mu         sync.Mutex
	lastReturn time.Time // latest return time that spreadWait has returned
}

// latestOutcome is the result of an agent's latest attempt in this process: when it ended, and whether it succeeded.
type latestOutcome struct {
	at time.Time
	ok bool
}

// newcomerSlot is a slot that an attempt holds. of names the agents or files that share such slots: allNewcomers,
// failedNewcomers, costlySlot, lentSlot, or a domain after domainSlot or namedDomainSlot.
type newcomerSlot struct {
	of     string
	permit *ratelimit.Permit
}

const (
	// Newcomers have 1/newcomerShare of a worker's slots. A domain, and the agents that failed, each have at most
	// 1/domainShare of the newcomers' slots.
	newcomerShare = 2
	domainShare   = 2
	// Files and unconfirmed agents have at most 1/namedShare of a domain's slots.
	namedShare = 2
	// allNewcomers and failedNewcomers name the slots of all newcomers and of those that failed (newcomerSlot.of).
	allNewcomers    = "newcomers"
	failedNewcomers = "newcomers that failed"
	domainSlot      = "domain " // prefix of a domain: a host may be called newcomers
	namedDomainSlot = "named domain "
	// maxRememberedAgents bounds Newcomers.latest. Without an entry there, an agent is known to have succeeded only
	// once Postgres has its success.
	maxRememberedAgents = 4096
	// maxSlotWait is how long an attempt may wait for a newcomers' slot while it occupies a slot of the worker, because
	// a delay would cost a claim and a record. It does not wait if newcomers' attempts take longer than that.
	maxSlotWait = 200 * time.Millisecond
	// minReturnGap is the least time between the returns of two deliveries within spreadWithin. Before the first
	// attempt has ended, its duration is unknown, and hundreds of deliveries that return together would block the
	// others.
	minReturnGap = 100 * time.Millisecond
	spreadWithin = 2 * time.Second
	// maxReturnWait bounds the delays that spreadWait chooses for waits of at most spreadWithin. If the next free return
	// time is later than that, the delay is random, between half of maxReturnWait and all of it.
	maxReturnWait = 5 * time.Minute
	// slotTTL is how long a permit of these limiters lasts without a release. Each attempt releases its own slots, so
	// it is longer than any attempt.
	slotTTL = 24 * time.Hour
)

// NewNewcomers returns the Newcomers of a worker that has so many slots in all. If now is nil, it uses time.Now.
func NewNewcomers(slots int, logger *slog.Logger, now func() time.Time) (*Newcomers, error) {
	if now == nil {
		now = time.Now
	}
	share := max(1, slots/newcomerShare)
	bound := func(n int) (*ratelimit.Limiter, error) {
		return ratelimit.New(ratelimit.Config{Inflight: n, Rate: 1e6, MaxWaiters: slots, MaxWait: maxSlotWait,
			PermitTTL: slotTTL, Logger: logger, Now: now})
	}
	all, err := bound(share)
	if err != nil {
		return nil, err
	}
	parts, err := bound(max(1, share/domainShare))
	if err != nil {
		return nil, err
	}
	named, err := bound(max(1, share/domainShare/namedShare))
	if err != nil {
		return nil, err
	}
	costly, err := bound(max(1, slots/costlyShare))
	if err != nil {
		return nil, err
	}
	lent, err := bound(max(1, slots-slots/quickShare))
	if err != nil {
		return nil, err
	}
	latest, err := lru.New[store.Agent, latestOutcome](maxRememberedAgents)
	if err != nil {
		return nil, err
	}
	return &Newcomers{slots: all, bounded: parts, named: named, costly: costly, lent: lent,
		latest: latest, share: share, total: slots, now: now}, nil
}

// Close stops the background work of the limiters and waits for it. Call it after the last attempt.
func (n *Newcomers) Close() {
	n.slots.Close()
	n.bounded.Close()
	n.named.Close()
	n.costly.Close()
	n.lent.Close()
}

// noteOutcome remembers the result of an agent's attempt. After a success, the agent stops being a newcomer at once,
// even before the success is in Postgres.
func (n *Newcomers) noteOutcome(agent store.Agent, ok bool) {
	if n != nil {
		n.latest.Add(agent, latestOutcome{n.now(), ok})
	}
}

// weighAgent reports whether the claim's agent is a newcomer, and whether its latest attempt was in the last hour and
// failed.
func (n *Newcomers) weighAgent(c *store.Claim) (newcomer, failed bool) {
	if n == nil || c.Succeeded {
		return false, false
	}
	last, known := n.latest.Get(c.Agent())
	known = known && n.now().Sub(last.at) < store.RecentSuccess
	return !known || !last.ok, known && !last.ok
}

// newcomerSlots are the slots of Newcomers that one attempt holds. They are nil for an agent that needs none.
type newcomerSlots struct {
	newcomers *Newcomers
	token     string
	held      []newcomerSlot
}

// acquireSlot acquires the slots that an attempt needs because its agent is a newcomer. For other agents it returns nil
// and no error. The result must be released even after an error.
func (n *Newcomers) acquireSlot(ctx context.Context, c *store.Claim) (*newcomerSlots, error) {
	newcomer, failed := n.weighAgent(c)
	if !newcomer {
		return nil, nil
	}
	s := &newcomerSlots{newcomers: n, token: fmt.Sprintf("%s:%d", c.ID, c.No)}
	if failed {
		err := s.acquire(ctx, n.bounded, failedNewcomers,
			"agents that failed in the last hour share a part of a worker's slots")
		if err != nil {
			return s, err
		}
	}
	return s, s.acquire(ctx, n.slots, allNewcomers,
		fmt.Sprintf("agents without a success in the last hour share %d of this worker's slots", n.share))
}

// acquireDomain acquires a slot of the URL's domain before a request to it, until release is called. own says that the
// domain confirms the agent. If s is nil or the attempt holds a slot of the domain already, it acquires none. release
// is never nil.
func (s *newcomerSlots) acquireDomain(ctx context.Context, rawURL string, own bool) (release func(), err error) {
	domain := registrableDomain(rawURL)
	if s == nil || domain == "" || s.holdsSlot(domainSlot+domain) {
		return func() {}, nil
	}
	before := len(s.held)
	if !own {
		err = s.acquire(ctx, s.newcomers.named, namedDomainSlot+domain,
			"agents without a success in the last hour that a domain does not name itself share a part of its slots")
		if err != nil {
			return func() {}, err
		}
	}
	err = s.acquire(ctx, s.newcomers.bounded, domainSlot+domain,
		"agents without a success in the last hour share a worker's slots, and one domain has a part of them")
	return func() { s.releaseAfter(ctx, before) }, err
}

// acquire acquires a slot from a limiter. of is the slot's name (see newcomerSlot) and the limiter's origin. If the
// attempt holds a slot with this name already, acquire does nothing. If no slot becomes free in time, the error is a
// free wait whose text begins with why.
func (s *newcomerSlots) acquire(ctx context.Context, from *ratelimit.Limiter, of, why string) error {
	if s.holdsSlot(of) {
		return nil
	}
	permit, err := from.Acquire(ctx, of, of, s.token)
	var refused *ratelimit.RefusedError
	if errors.As(err, &refused) {
		wait := s.newcomers.spreadWait(refused.Wait)
		return retry.Pause(reason.AgentBusy, wait, fmt.Sprintf("%s, and these are in use; this one returns in %s",
			why, wait.Round(100*time.Millisecond)))
	}
	if err != nil {
		return fmt.Errorf("take a slot of newcomers: %w", err)
	}
	s.held = append(s.held, newcomerSlot{of, permit})
	return nil
}

func (s *newcomerSlots) holdsSlot(of string) bool {
	return slices.ContainsFunc(s.held, func(h newcomerSlot) bool { return h.of == of })
}

// release releases all slots of the attempt. It is nil-safe.
func (s *newcomerSlots) release(ctx context.Context) {
	if s != nil {
		s.releaseAfter(ctx, 0)
	}
}

// releaseAfter releases all slots except the n that were acquired first.
func (s *newcomerSlots) releaseAfter(ctx context.Context, n int) {
	for _, h := range s.held[min(n, len(s.held)):] {
		h.permit.Release(ctx, ratelimit.Neutral)
	}
	s.held = s.held[:min(n, len(s.held))]
}

// spreadWait returns how long a refused delivery has to wait: wait itself if it is longer than spreadWithin. Otherwise
// it returns at least wait and at most maxReturnWait, so that deliveries return with gaps of minReturnGap.
func (n *Newcomers) spreadWait(wait time.Duration) time.Duration {
	if wait > spreadWithin {
		return wait // it was computed from the duration of attempts
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.now()
	if n.lastReturn = n.lastReturn.Add(minReturnGap); n.lastReturn.Before(now.Add(wait)) {
		n.lastReturn = now.Add(wait)
	}
	if latest := now.Add(maxReturnWait); n.lastReturn.After(latest) {
		n.lastReturn = latest
		return maxReturnWait/2 + rand.N(maxReturnWait/2)
	}
	return n.lastReturn.Sub(now)
}

// registrableDomain returns the part of a URL's host that one owner registered: the public suffix and one more label,
// or the IP address (of IPv6 the /64, which one customer has). It returns "" for a URL that is not http or https.
func registrableDomain(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return ""
	}
	host := netguard.Host(u)
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip = ip.Unmap().WithZone(""); ip.Is6() {
			return netip.PrefixFrom(ip, 64).Masked().String()
		}
		return ip.String()
	}
	if domain, err := publicsuffix.EffectiveTLDPlusOne(host); err == nil {
		return domain
	}
	return host // a public suffix, or a single label
}
