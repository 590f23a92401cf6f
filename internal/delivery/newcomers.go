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

// Newcomers are the agents without a success in the last hour (store.RecentSuccess). They share half of this worker's
// slots, rounded down and at least one, until the agent has answered: as many silent agents as there are slots do not
// stop those that answer. One registrable domain has at most half of that half, for the agent's endpoint
// and for the feedback's file; half of that is for agents that are not bound to it and for files, so that who names a
// domain does not keep its own agents out. While an agent is being resolved it is not known which domain that will be.
// Those that failed in the last hour have at most half of the half too, so that who is not known yet does not wait
// behind them.
// Who finds no slot free waits for one a moment, where attempts take no longer than that; else its delivery comes back
// when its turn is expected, by the mean time that the attempts of newcomers take.
//
// A nil *Newcomers bounds nobody.
type Newcomers struct {
	slots   *ratelimit.Limiter                     // one origin, which is all of them
	bounded *ratelimit.Limiter                     // an origin is a registrable domain, or those that failed
	named   *ratelimit.Limiter                     // an origin is a registrable domain that others than its own name
	costly  *ratelimit.Limiter                     // costly agents that are no newcomers (effort.go)
	lent    *ratelimit.Limiter                     // these and newcomers together
	latest  *lru.Cache[store.Agent, latestOutcome] // in this process, which knows it before the claims do
	share   int
	total   int
	now     func() time.Time

	mu         sync.Mutex
	lastReturn time.Time // when who was put off last, for a moment, comes back
}

// latestOutcome is how an agent's latest attempt ended here.
type latestOutcome struct {
	at time.Time
	ok bool
}

// newcomerSlot is one of the slots of all newcomers, of those that failed, or of a domain.
type newcomerSlot struct {
	of     string
	permit *ratelimit.Permit
}

const (
	// Newcomers share one in newcomerShare of a worker's slots. One domain, or those that failed, have one in
	// domainShare of these.
	newcomerShare = 2
	domainShare   = 2
	// namedShare is the part of a domain's slots for attempts that the domain did not ask for itself.
	namedShare = 2
	// allNewcomers and failedNewcomers name what is no domain.
	allNewcomers    = "newcomers"
	failedNewcomers = "newcomers that failed"
	domainSlot      = "domain " // goes before a domain's name: a host may be called newcomers
	namedDomainSlot = "named domain "
	// maxRememberedAgents bounds the agents whose latest outcome is remembered; of others a success is known once it is
	// committed.
	maxRememberedAgents = 4096
	// maxSlotWait is how long an attempt waits in one of the other slots for one of the newcomers', where theirs take
	// no longer than that: being put off costs a claim and a record. While theirs hang nobody waits.
	maxSlotWait = 200 * time.Millisecond
	// minReturnGap is the least time between two that come back within soon: how long attempts take is not known before
	// one has ended, and hundreds that come back in the same moment would be in everybody's way.
	minReturnGap = 100 * time.Millisecond
	spreadWithin = 2 * time.Second
	// maxReturnWait is the longest wait of one that was put off; behind so many others it is from a half of that on, at
	// random.
	maxReturnWait = 5 * time.Minute
	// slotTTL is longer than any attempt: its slot is given back by the attempt itself.
	slotTTL = 24 * time.Hour
)

// NewNewcomers makes the bound for a worker of that many slots. now: nil for time.Now.
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

// Close comes after the last attempt.
func (n *Newcomers) Close() {
	n.slots.Close()
	n.bounded.Close()
	n.named.Close()
	n.costly.Close()
	n.lent.Close()
}

// noteOutcome remembers how an attempt ended: a success makes the agent no newcomer, at once.
func (n *Newcomers) noteOutcome(agent store.Agent, ok bool) {
	if n != nil {
		n.latest.Add(agent, latestOutcome{n.now(), ok})
	}
}

// weighAgent tells whether the claim's agent is a newcomer, and whether it failed in the last hour.
func (n *Newcomers) weighAgent(c *store.Claim) (newcomer, failed bool) {
	if n == nil || c.Succeeded {
		return false, false
	}
	last, known := n.latest.Get(c.Agent())
	known = known && n.now().Sub(last.at) < store.RecentSuccess
	return !known || !last.ok, known && !last.ok
}

// newcomerSlots are the slots that one attempt at a newcomer holds. The nil one is of an agent that is none: it needs
// no slot.
type newcomerSlots struct {
	newcomers *Newcomers
	token     string
	held      []newcomerSlot
}

// acquireSlot takes a newcomer's slot for an attempt. What it returns is to be released also beside an error.
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

// acquireDomain takes one of the slots of the domain that the attempt is about to ask, until release. own says that the
// domain itself names the agent. A domain that the attempt has a slot of costs no other.
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

func (s *newcomerSlots) acquire(ctx context.Context, from *ratelimit.Limiter, of, why string) error {
	if s.holdsSlot(of) {
		return nil
	}
	permit, err := from.Acquire(ctx, of, of, s.token)
	var refused *ratelimit.RefusedError
	if errors.As(err, &refused) {
		wait := s.newcomers.spreadWait(refused.Wait)
		return retry.Pause(reason.AgentBusy, wait, fmt.Sprintf("%s, and these are taken; this one comes back in %s",
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

// release gives all slots back.
func (s *newcomerSlots) release(ctx context.Context) {
	if s != nil {
		s.releaseAfter(ctx, 0)
	}
}

// releaseAfter gives back all slots but the first n.
func (s *newcomerSlots) releaseAfter(ctx context.Context, n int) {
	for _, h := range s.held[min(n, len(s.held)):] {
		h.permit.Release(ctx, ratelimit.Neutral)
	}
	s.held = s.held[:min(n, len(s.held))]
}

// spreadWait is the wait, or a longer one up to maxReturnWait, of those that shall come back soon.
func (n *Newcomers) spreadWait(wait time.Duration) time.Duration {
	if wait > spreadWithin {
		return wait // it is by how long attempts take
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

// registrableDomain is what one owner registered of a URL's host: the public suffix and one label more, or the address
// (of IPv6 the /64, which one customer has). Empty for a URL that leads to no host.
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
	return host // a public suffix itself, or one label
}
