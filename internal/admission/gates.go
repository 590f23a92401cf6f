package admission

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"time"

	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/admission/ratelimit"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/outcome"
)

// Config configures Gates. The zero value limits nothing.
type Config struct {
	// Slots is the number of the worker's slots, of which newcomers and costly agents may use a part. 0: all of them.
	Slots   int
	Efforts *effort.Budgets // effort budgets of the agents; nil: no budgets
	Origins Origins         // limits of the calls at each origin

	Logger *slog.Logger     // default slog.Default()
	Now    func() time.Time // default time.Now
}

// Gates are all limits that an attempt must pass. They are safe for concurrent use. Nil Gates limit nothing.
type Gates struct {
	efforts *effort.Budgets
	origins Origins
	groups  *groups // nil: the slots of groups are not bounded
}

// New validates cfg and returns Gates. The caller calls Close after the last attempt.
func New(cfg Config) (*Gates, error) {
	if cfg.Slots < 0 {
		return nil, errors.New("admission: the number of slots is negative")
	}
	g := &Gates{efforts: cfg.Efforts, origins: cfg.Origins}
	if cfg.Slots == 0 {
		return g, nil
	}
	var err error
	g.groups, err = newGroups(cfg)
	return g, err
}

// Close stops the background work of the groups' limiters and waits for its end. The owner of the effort budgets and of
// the limiters of origins closes these.
func (g *Gates) Close() {
	if g != nil {
		g.groups.closeLimiters()
	}
}

// NoteOutcome remembers whether an agent's attempt succeeded (ok). After a success the agent is no newcomer, even
// before Postgres has recorded the success.
func (g *Gates) NoteOutcome(agent erc8004.Agent, ok bool) {
	if g != nil {
		g.groups.noteOutcome(agent, ok)
	}
}

// Pass has the worker time and the group permits that one attempt got at the gates. It is not safe for concurrent use,
// except CheckFiles. The methods of a nil Pass admit the attempt and count nothing: a member of a batch has none,
// because it uses its leader's.
type Pass struct {
	gates    *Gates
	token    string        // identifies the attempt: a second permit with the same token is the first one again
	agent    erc8004.Agent // the agent that AdmitAgent admitted
	hold     *effort.Hold  // reserved worker time; nil: no effort budget
	newcomer bool
	held     []groupPermit
	costs    mcpcall.Costs // number and duration of the connections and tool lists of this attempt
}

// Begin returns a Pass with which an attempt asks the gates. token identifies the attempt. Nil Gates return a nil Pass.
func (g *Gates) Begin(token string) *Pass {
	if g == nil {
		return nil
	}
	return &Pass{gates: g, token: token}
}

// AdmitAgent reserves worker time in the agent's effort budget, and acquires the group permits that a newcomer or a
// costly agent needs in addition to the worker's slot. If the budget is used up or a group has no free slot, the error
// is a free wait (over_budget, agent_busy). The caller calls Leave even after an error. succeeded says that Postgres
// knows a success of the agent in the last hour (store.RecentSuccess).
func (p *Pass) AdmitAgent(ctx context.Context, agent erc8004.Agent, succeeded bool) (err error) {
	if p == nil {
		return nil
	}
	p.agent = agent
	if p.hold, err = p.gates.efforts.Begin(ctx, agent); err != nil {
		return pauseOverBudget(err)
	}
	if p.gates.groups == nil {
		return nil
	}
	var failed bool
	p.newcomer, failed = p.gates.groups.weighAgent(agent, succeeded)
	costly := p.hold != nil && !p.newcomer && p.hold.Costly()
	for _, enter := range []struct {
		group group
		when  bool
	}{{failedNewcomers, failed}, {newcomers, p.newcomer}, {costlyAgents, costly},
		{lentSlots, costly || p.newcomer}} {
		if !enter.when {
			continue
		}
		if err := p.enterGroup(ctx, enter.group, ""); err != nil {
			return err
		}
	}
	return nil
}

// AdmitDomain acquires a group permit of the domain of rawURL (registrableDomain), before a request to that URL. own
// says that the domain confirms the agent. If own is false, AdmitDomain first acquires a group permit of the part of
// the domain's slots that files and unconfirmed agents share. If a group has no free slot, the error is a free wait
// (agent_busy). release, which is never nil, releases these permits. If the agent is no newcomer, rawURL has no domain,
// or the attempt already has a group permit of the domain, AdmitDomain does nothing.
func (p *Pass) AdmitDomain(ctx context.Context, rawURL string, own bool) (release func(), err error) {
	if !p.Newcomer() {
		return func() {}, nil
	}
	name := registrableDomain(rawURL)
	if name == "" || p.isIn(domain, name) {
		return func() {}, nil
	}
	before := len(p.held)
	if !own {
		if err = p.enterGroup(ctx, namedDomain, name); err != nil {
			return func() {}, err
		}
	}
	err = p.enterGroup(ctx, domain, name)
	return func() { p.leaveGroups(before) }, err
}

// AdmitCheck returns the context for the check of an event on a chain (checking). If the check takes longer than
// quickStep, it needs group permits of slowChecks and of lentSlots, because a slow node of one chain must not occupy
// the slots of the others. If a group has no free slot, checking ends with a free wait (agent_busy) as its cause. The
// caller calls release, which is never nil, after the check. release releases the permits.
func (p *Pass) AdmitCheck(ctx context.Context, chainID uint64) (checking context.Context, release func()) {
	return p.admitSlow(ctx, groupPermit{group: slowChecks, name: strconv.FormatUint(chainID, 10)},
		groupPermit{group: lentSlots})
}

// AdmitResolution is AdmitCheck for the reading of an agent's registration, which needs only lentSlots: also servers
// that the agent chose may be slow.
func (p *Pass) AdmitResolution(ctx context.Context) (resolving context.Context, release func()) {
	return p.admitSlow(ctx, groupPermit{group: lentSlots})
}

// AdmitFile calls AdmitDomain for the file at rawURL, whose server a client chose, and returns the context for the
// fetch (fetching). If the fetch takes longer than quickStep, it needs a group permit of lentSlots. If that group has
// no free slot, fetching ends with a free wait (agent_busy) as its cause. The caller calls release, which is never nil,
// after the fetch. release releases the permits.
func (p *Pass) AdmitFile(ctx context.Context, rawURL string) (fetching context.Context, release func(), err error) {
	if p == nil || p.gates.groups == nil {
		return ctx, func() {}, nil
	}
	leave, err := p.AdmitDomain(ctx, rawURL, false)
	if err != nil {
		return ctx, leave, err
	}
	fetching, end := p.admitSlow(ctx, groupPermit{group: lentSlots})
	return fetching, func() { end(); leave() }, nil
}

// admitSlow returns the context for a step of the attempt. If the step takes longer than quickStep, it acquires these
// group permits. If a group has no free slot, the context ends with a free wait as its cause. Until release, the
// attempt must not enter or leave groups otherwise.
func (p *Pass) admitSlow(ctx context.Context, of ...groupPermit) (step context.Context, release func()) {
	if p == nil || p.gates.groups == nil {
		return ctx, func() {}
	}
	before := len(p.held)
	step, cancel := context.WithCancelCause(ctx)
	entered := make(chan struct{})
	timer := time.AfterFunc(quickStep, func() {
		defer close(entered)
		for _, needed := range of {
			if err := p.enterGroup(step, needed.group, needed.name); err != nil {
				cancel(err)
				return
			}
		}
	})
	return step, func() {
		cancel(nil)
		if !timer.Stop() {
			<-entered
		}
		p.leaveGroups(before)
	}
}

// AdmitRate acquires a call of the rate in the agent's policy (maxPerSecond). If the call is too early, the error is a
// free wait (throttled). A call that another gate refuses afterwards counts for the rate nevertheless. So the agent may
// get fewer calls than its rate, but never more. If perSecond is 0, AdmitRate does nothing.
func (p *Pass) AdmitRate(ctx context.Context, perSecond float64) error {
	if p == nil || perSecond == 0 {
		return nil
	}
	return p.gates.origins.acquireRate(ctx, p.agent, p.token, perSecond)
}

// AdmitOrigin acquires a permit for a call to the endpoint, at its origin. The caller calls it before the first
// request, because a hanging handshake costs as much as a call, and releases the permit with the result of the call. If
// there is no limit, the permit is nil. If the origin accepts no call now, the error is a free wait.
func (p *Pass) AdmitOrigin(ctx context.Context, e mcpcall.Endpoint, by Caller) (*ratelimit.Permit, error) {
	if p == nil {
		return nil, nil
	}
	return p.gates.origins.Acquire(ctx, e, p.agent, by, p.token)
}

// Newcomer reports whether AdmitAgent found that the agent had no success in the last hour.
func (p *Pass) Newcomer() bool { return p != nil && p.newcomer }

// CheckFiles returns a free wait (over_budget) if the agent has used up the part of its effort budget that is for files
// of the kind what.
func (p *Pass) CheckFiles(what effort.What) error {
	if p == nil {
		return nil
	}
	return pauseOverBudget(p.hold.CheckFiles(what))
}

// Spend charges n operations of the kind what, which took d together, to the agent's effort budget.
func (p *Pass) Spend(what effort.What, n int, d time.Duration) {
	if p != nil {
		p.hold.Spend(what, n, d)
	}
}

// ObserveCosts is called before the first request to the agent. From then on, the attempt reserves in its agent's
// effort budget at least the time that has passed since this call (effort.Hold.Reach). It returns a context for the
// requests: each request with it counts its connections and tool lists. If there is no effort budget, it returns ctx.
func (p *Pass) ObserveCosts(ctx context.Context) context.Context {
	if p == nil || p.hold == nil {
		return ctx
	}
	p.hold.Reach()
	return mcpcall.WithCosts(ctx, &p.costs)
}

// Connecting returns the time that the requests of this attempt have spent on connections.
func (p *Pass) Connecting() time.Duration {
	if p == nil {
		return 0
	}
	return p.costs.Connecting
}

// Leave charges the cost of the attempt to its agent's effort budget, and releases its group permits. A second call
// does nothing.
func (p *Pass) Leave() {
	if p == nil {
		return
	}
	c := &p.costs
	p.hold.Spend(effort.Connections, c.Connections, c.Connecting)
	p.hold.Spend(effort.Listings, c.Listings, c.Listing)
	p.hold.End()
	p.leaveGroups(0)
}

// pauseOverBudget converts an *effort.OverError to a free wait (over_budget) of OverError.Wait. It returns other errors
// unchanged.
func pauseOverBudget(err error) error {
	if over, ok := errors.AsType[*effort.OverError](err); ok {
		return outcome.Pause(outcome.OverBudget, over.Wait, over.Text)
	}
	return err
}
