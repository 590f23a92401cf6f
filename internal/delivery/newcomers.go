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

	"github.com/agentherald/herald/internal/admission/ratelimit"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/net/publicsuffix"
)

// Newcomers bounds how many of the worker's slots are used by newcomers: agents without a success in the last hour
// (store.RecentSuccess). So agents that do not answer cannot occupy all slots. All newcomers together may use half of
// the slots, rounded down and at least one. It also bounds the slots of costly agents (effort.go).
//
// Newcomers gives out group permits. A group permit lets one attempt use a slot that its group may use. The attempt
// acquires it in addition to the slot, and releases it when the agent has answered.
//
// Within the half of the newcomers, three groups are bounded:
//
//   - Newcomers that failed in the last hour may use half of it, so that agents without a failure do not wait for them.
//   - One registrable domain may use half of it, for agents' endpoints and feedback files together. While an endpoint
//     is resolved, its domain is unknown and not bounded.
//   - Files, and agents that the domain does not confirm, may use half of a domain's part. So agents that only name a
//     domain cannot block the domain's own agents.
//
// If no group permit is free, an attempt waits up to maxSlotWait for one, unless the expected wait is longer. If it
// gets none, its delivery waits until a group permit is expected to be free. The expected waits follow from the mean
// duration of the group's attempts.
//
// A nil *Newcomers bounds no agent.
type Newcomers struct {
	slots   *ratelimit.Limiter                     // group permits of all newcomers
	bounded *ratelimit.Limiter                     // one group for each domain, and one for newcomers that failed
	named   *ratelimit.Limiter                     // a second group for each domain (namedShare)
	costly  *ratelimit.Limiter                     // group permits of costly agents that are not newcomers (effort.go)
	lent    *ratelimit.Limiter                     // group permits of costly agents and newcomers together
	latest  *lru.Cache[store.Agent, latestOutcome] // latest outcomes in this process, some not yet in Postgres
	share   int                                    // how many slots all newcomers may use
	total   int                                    // number of the worker's slots
	now     func() time.Time

	mu         sync.Mutex
	lastReturn time.Time // the latest time at which spreadWait let a delivery try again
}

// latestOutcome is when an agent's latest attempt in this process ended, and whether it succeeded.
type latestOutcome struct {
	at time.Time
	ok bool
}

// groupPermit is a group permit of an attempt. group is the name of its group: allNewcomers, failedNewcomers,
// costlySlot, lentSlot, or a domain with the prefix domainSlot or namedDomainSlot.
type groupPermit struct {
	group  string
	permit *ratelimit.Permit
}

const (
	// newcomerShare and domainShare: all newcomers together use at most 1/newcomerShare of the worker's slots. Of this
	// share, one domain uses at most 1/domainShare, and all newcomers that failed in the last hour together use at most
	// 1/domainShare. Each number is rounded down, but is at least one.
	newcomerShare = 2
	domainShare   = 2
	// namedShare: of a domain's slots, at most 1/namedShare (rounded down, at least one) serve attempts that only fetch
	// a feedback file from the domain, or that call an agent which the domain does not confirm.
	namedShare = 2
	// The names of groups (groupPermit.group): all newcomers, those that failed in the last hour, and prefixes of a
	// domain. The prefix is needed because a host may be called newcomers.
	allNewcomers    = "newcomers"
	failedNewcomers = "newcomers that failed"
	domainSlot      = "domain "
	namedDomainSlot = "named domain "
	// maxRememberedAgents bounds the number of agents in Newcomers.latest. An agent without an entry stays a newcomer until
	// Postgres has recorded its success.
	maxRememberedAgents = 4096
	// maxSlotWait is how long an attempt waits for a group permit while it uses a slot. A short wait is cheaper than
	// another claim and record. If the expected wait is longer, the attempt does not wait.
	maxSlotWait = 200 * time.Millisecond
	// minReturnGap is the gap between the times at which spreadWait lets deliveries that got no group permit try again.
	// The limiter computes its wait from the duration of earlier attempts. Before the first one has ended, each wait is
	// short, and hundreds of deliveries would try again at once. Therefore spreadWait spreads waits of at most
	// spreadWithin.
	minReturnGap = 100 * time.Millisecond
	spreadWithin = 2 * time.Second
	// maxReturnWait is the longest wait to which spreadWait extends a shorter one. If the gaps would need a longer
	// wait, the wait is random, between half of maxReturnWait and all of it.
	maxReturnWait = 5 * time.Minute
	// slotTTL is how long a group permit stays acquired if it is never released. Each attempt releases its group
	// permits, so slotTTL only has to be longer than any attempt.
	slotTTL = 24 * time.Hour
)

// NewNewcomers returns the Newcomers of a worker with this number of slots. If now is nil, it is time.Now.
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

// Close stops the background work of the limiters and waits for its end. The caller calls it after the last attempt.
func (n *Newcomers) Close() {
	n.slots.Close()
	n.bounded.Close()
	n.named.Close()
	n.costly.Close()
	n.lent.Close()
}

// noteOutcome remembers whether an agent's attempt succeeded (ok). After a success the agent is no newcomer, even
// before Postgres has recorded the success.
func (n *Newcomers) noteOutcome(agent store.Agent, ok bool) {
	if n != nil {
		n.latest.Add(agent, latestOutcome{n.now(), ok})
	}
}

// weighAgent reports whether the agent of the claim c is a newcomer. failed reports whether a newcomer's latest attempt
// in this process ended in the last hour and failed.
func (n *Newcomers) weighAgent(c *store.Claim) (newcomer, failed bool) {
	if n == nil || c.Succeeded {
		return false, false
	}
	last, known := n.latest.Get(c.Agent())
	known = known && n.now().Sub(last.at) < store.RecentSuccess
	return !known || !last.ok, known && !last.ok
}

// groupPermits are the group permits of one attempt. Nil: the attempt needs none.
type groupPermits struct {
	newcomers *Newcomers
	token     string
	held      []groupPermit
}

// acquireSlot acquires the group permits that an attempt needs if its agent is a newcomer: one of allNewcomers and, if
// the agent failed in the last hour, one of failedNewcomers. For other agents it returns nil and no error. The caller
// releases the result even after an error.
func (n *Newcomers) acquireSlot(ctx context.Context, c *store.Claim) (*groupPermits, error) {
	newcomer, failed := n.weighAgent(c)
	if !newcomer {
		return nil, nil
	}
	s := &groupPermits{newcomers: n, token: fmt.Sprintf("%s:%d", c.ID, c.No)}
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

// acquireDomain acquires a group permit of the domain of rawURL (registrableDomain), before a request to that URL. own
// says that the domain confirms the agent. If own is false, acquireDomain first acquires a group permit of the part of
// the domain's slots that files and unconfirmed agents share. release, which is never nil, releases these permits. If s
// is nil, rawURL has no domain, or the attempt already has a group permit of the domain, acquireDomain does nothing.
func (s *groupPermits) acquireDomain(ctx context.Context, rawURL string, own bool) (release func(), err error) {
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

// acquire acquires a group permit from one of the limiters. group is the name of the group (groupPermit.group). The
// limiter bounds calls per origin, and gets this name in place of an origin. If the attempt already has a group permit
// of that name, acquire does nothing. If none becomes free in time, the error is a free wait (agent_busy), and its text
// begins with why.
func (s *groupPermits) acquire(ctx context.Context, from *ratelimit.Limiter, group, why string) error {
	if s.holdsSlot(group) {
		return nil
	}
	permit, err := from.Acquire(ctx, group, group, s.token)
	var refused *ratelimit.RefusedError
	if errors.As(err, &refused) {
		wait := s.newcomers.spreadWait(refused.Wait)
		return outcome.Pause(outcome.AgentBusy, wait, fmt.Sprintf("%s, and these are in use; this one returns in %s",
			why, wait.Round(100*time.Millisecond)))
	}
	if err != nil {
		return fmt.Errorf("take a slot of newcomers: %w", err)
	}
	s.held = append(s.held, groupPermit{group, permit})
	return nil
}

func (s *groupPermits) holdsSlot(group string) bool {
	return slices.ContainsFunc(s.held, func(h groupPermit) bool { return h.group == group })
}

// release releases all group permits of the attempt. s may be nil.
func (s *groupPermits) release(ctx context.Context) {
	if s != nil {
		s.releaseAfter(ctx, 0)
	}
}

// releaseAfter releases all group permits of the attempt except the n that it acquired first.
func (s *groupPermits) releaseAfter(ctx context.Context, n int) {
	for _, h := range s.held[min(n, len(s.held)):] {
		h.permit.Release(ctx, ratelimit.Neutral)
	}
	s.held = s.held[:min(n, len(s.held))]
}

// spreadWait returns how long a delivery that got no group permit waits before it tries again. wait is the wait that
// the limiter returned. A wait of more than spreadWithin is returned unchanged. A shorter one is extended, up to
// maxReturnWait, so that such deliveries try again with gaps of minReturnGap.
func (n *Newcomers) spreadWait(wait time.Duration) time.Duration {
	if wait > spreadWithin {
		return wait // the limiter reserved this time for the delivery, so it needs no further gap
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

// registrableDomain returns the part of the URL's host that one owner registers: the public suffix and one more label.
// For an IPv4 address it returns the address, and for IPv6 its /64, which one customer has. For a URL that is not http
// or https it returns "".
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
