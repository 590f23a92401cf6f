package admission

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/admission/ratelimit"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/net/publicsuffix"
)

// group is a group of attempts that together may use a part of the worker's slots. An attempt acquires a group permit
// in addition to the worker's slot, and releases it when the agent has answered.
//
// The groups of newcomers keep agents that do not answer from occupying all slots. A newcomer is an agent without a
// success in the last hour (ledger.RecentSuccess). While an endpoint is resolved, its domain is unknown and unbounded.
type group int

const (
	newcomers group = iota // all newcomers: half of the slots
	// newcomers that failed in the last hour: agents without a failure do not wait for them
	failedNewcomers
	domain // agents' endpoints and feedback files at one registrable domain
	// of these, files and agents that the domain does not confirm: they only name the domain
	namedDomain
	costlyAgents // costly agents (effort.Hold.Costly) that are no newcomers
	slowChecks   // slow checks of the events of one chain
	// costly agents, newcomers, and slow checks, resolutions and fetches of files together: the other slots are for
	// quick agents
	lentSlots
	groupCount
)

// groupRules has the rules of each group: the number of its slots on a worker with n slots (at least one), and the
// beginning of the sentence that says why a delivery waits. %d in it is the number of slots.
var groupRules = [groupCount]struct {
	slots func(n int) int
	why   string
}{
	newcomers: {func(n int) int { return n / 2 },
		"agents without a success in the last hour share %d of this worker's slots"},
	failedNewcomers: {func(n int) int { return max(1, n/2) / 2 },
		"agents that failed in the last hour share %d of this worker's slots"},
	domain: {func(n int) int { return max(1, n/2) / 2 },
		"agents without a success in the last hour share a worker's slots, and one domain has %d of them"},
	namedDomain: {func(n int) int { return max(1, n/2) / 4 },
		"agents without a success in the last hour that a domain does not name itself share %d of its slots"},
	costlyAgents: {func(n int) int { return n / 2 }, "agents whose latest attempts took more than a second each, " +
		"or that have used half of their effort budget, share %d of this worker's slots"},
	slowChecks: {func(n int) int { return n / 2 },
		"checks of one chain's events that take more than a second share %d of this worker's slots"},
	lentSlots: {func(n int) int { return n - n/4 }, "slow agents, slow nodes and files, and agents without a success " +
		"in the last hour together share %d of this worker's slots"},
}

// groups gives out group permits. If a group has no free slot, an attempt waits up to maxSlotWait for one, unless the
// expected wait is longer. If it gets none, its delivery waits until a slot is expected to be free. The expected waits
// follow from the mean duration of the group's attempts.
type groups struct {
	limiters [groupCount]*ratelimit.Limiter
	why      [groupCount]string
	latest   *lru.Cache[erc8004.Agent, latestOutcome] // latest outcomes in this process, some not yet in Postgres
	now      func() time.Time
}

// latestOutcome is when an agent's latest attempt in this process ended, and whether it succeeded.
type latestOutcome struct {
	at time.Time
	ok bool
}

// groupPermit is a group permit of an attempt. name is the domain or the chain id of the group, or "" if it has none.
type groupPermit struct {
	group  group
	name   string
	permit *ratelimit.Permit
}

const (
	// maxRememberedAgents bounds the number of agents in groups.latest. An agent without an entry stays a newcomer
	// until Postgres has recorded its success.
	maxRememberedAgents = 4096
	// maxSlotWait is how long an attempt waits for a group permit while it uses a slot. A short wait is cheaper than
	// another claim and record. If the expected wait is longer, the attempt does not wait.
	maxSlotWait = 200 * time.Millisecond
	// firstReturnGap is the gap between the times at which refused deliveries of a group try again, until an attempt of
	// the group has ended. Without it, hundreds would try again at once.
	firstReturnGap = 100 * time.Millisecond
	// returns is ratelimit.Config.Returns of a group. The attempts of a group are for many agents, and some take a
	// thousand times as long as others. With 1, twice as much time of the slots is unused (TestGroupsUseTheirSlots).
	returns = 2
	// quickStep is how long a step may take before it needs group permits (admitSlow).
	quickStep = time.Second
	// slotTTL is how long a group permit stays acquired if it is never released. Each attempt releases its group
	// permits, so slotTTL only has to be longer than any attempt.
	slotTTL = 24 * time.Hour
)

// newGroups returns the groups of a worker with cfg.Slots slots.
func newGroups(cfg Config) (*groups, error) {
	g := &groups{now: cfg.Now}
	if g.now == nil {
		g.now = time.Now
	}
	for i, rule := range groupRules {
		slots := max(1, rule.slots(cfg.Slots))
		limiter, err := ratelimit.New(ratelimit.Config{Inflight: slots, Rate: 1e6, MaxWaiters: cfg.Slots,
			MaxWait: maxSlotWait, FirstMean: time.Duration(slots*returns) * firstReturnGap, Returns: returns,
			PermitTTL: slotTTL, Logger: cfg.Logger, Now: g.now})
		if err != nil {
			return nil, err
		}
		g.limiters[i], g.why[i] = limiter, fmt.Sprintf(rule.why, slots)
	}
	var err error
	g.latest, err = lru.New[erc8004.Agent, latestOutcome](maxRememberedAgents)
	return g, err
}

func (g *groups) closeLimiters() {
	if g == nil {
		return
	}
	for _, l := range g.limiters {
		l.Close()
	}
}

// noteOutcome is Gates.NoteOutcome.
func (g *groups) noteOutcome(agent erc8004.Agent, ok bool) {
	if g != nil {
		g.latest.Add(agent, latestOutcome{g.now(), ok})
	}
}

// weighAgent reports whether the agent is a newcomer. failed reports whether a newcomer's latest attempt
// in this process ended in the last hour and failed.
func (g *groups) weighAgent(agent erc8004.Agent, succeeded bool) (newcomer, failed bool) {
	if succeeded {
		return false, false
	}
	last, known := g.latest.Get(agent)
	known = known && g.now().Sub(last.at) < ledger.RecentSuccess
	return !known || !last.ok, known && !last.ok
}

// enterGroup acquires a group permit. name is that of groupPermit. If the attempt already has this permit, enterGroup
// does nothing. If no slot becomes free in time, the error is a free wait (agent_busy).
func (p *Pass) enterGroup(ctx context.Context, of group, name string) error {
	if p.isIn(of, name) {
		return nil
	}
	g := p.gates.groups
	// The limiter bounds calls per origin, and gets the name in place of an origin.
	key := cmp.Or(name, "all")
	permit, err := g.limiters[of].Acquire(ctx, key, key, p.token)
	if refused, ok := errors.AsType[*ratelimit.RefusedError](err); ok {
		return outcome.Pause(outcome.AgentBusy, refused.Wait, fmt.Sprintf("%s, and these are in use; this one "+
			"returns in %s", g.why[of], refused.Wait.Round(100*time.Millisecond)))
	}
	if err != nil {
		return fmt.Errorf("acquire a slot of a group: %w", err)
	}
	p.held = append(p.held, groupPermit{of, name, permit})
	return nil
}

func (p *Pass) isIn(of group, name string) bool {
	return slices.ContainsFunc(p.held, func(h groupPermit) bool { return h.group == of && h.name == name })
}

// leaveGroups releases all group permits of the attempt except the n that it acquired first.
func (p *Pass) leaveGroups(n int) {
	for _, h := range p.held[min(n, len(p.held)):] {
		h.permit.Release(ratelimit.Neutral)
	}
	p.held = p.held[:min(n, len(p.held))]
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
