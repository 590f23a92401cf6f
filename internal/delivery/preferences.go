package delivery

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/delivery/ratelimit"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
)

// An agent can ask for fewer, slower or later deliveries in _meta of its answers (mcpcall.Preferences). That affects
// only its own deliveries. So the answer itself is sufficient proof: a server that answers an agent's calls could also
// ignore them. The preferences do not apply to jobs that name their endpoint themselves.

// Turns spaces the calls of agents that asked for a maximum rate. Take is that of ratelimit.Turns: name identifies the
// agent, and again says that the delivery may have asked for a turn before.
type Turns interface {
	Take(ctx context.Context, name string, perSecond float64, again bool) (ratelimit.Turn, error)
}

const (
	// pauseLook is the time between two checks of a waiting delivery whether its agent still pauses. Frequent checks
	// would be useless, because the agent's other deliveries are not dispatched during the pause.
	pauseLook = 5 * time.Minute
	// holdSlack is added to the wait of one delivery to get the time during which the agent's other deliveries are not
	// dispatched. So the waiting delivery runs before the others and can extend that time.
	holdSlack = 30 * time.Second
	// dispatchAhead: further deliveries of an agent are dispatched so long before the time of its last reserved turn.
	// The reconciler, which dispatches them, runs at that interval.
	dispatchAhead = 5 * time.Second
)

// preferences are the effects of the agent's preferences on one attempt and on the agent's backlog.
type preferences struct {
	hold time.Duration  // no other delivery of the agent is dispatched for so long (Outcome.HoldLine); 0: no hold
	turn ratelimit.Turn // the right to call now; zero: the agent asked for no rate
}

// agentWishes returns the preferences of the agent that apply to the attempt: those that it stated, or none if the job
// names its endpoint itself.
func (a *attempt) agentWishes() store.Preferences {
	if !a.claim.Job.Action.ResolveEndpoint {
		return store.Preferences{}
	}
	return a.claim.Preferences
}

// checkPause returns a free wait if the agent asked for no calls at this time, and sets a.preferences.hold, so that the
// agent's other deliveries are not dispatched meanwhile. Otherwise it returns nil, also if the agent is disabled. It
// precedes all requests. Only for a job that may name a wrong agent, checkEvent precedes it: such a job would wait and
// block the right one.
func (e *Executor) checkPause(a *attempt) error {
	until := a.agentWishes().PauseUntil
	left := until.Sub(e.Now())
	if left <= 0 || !a.claim.Enabled || disabledByFile(a.server) {
		return nil
	}
	wait := min(left, pauseLook)
	a.preferences.hold = holdPaused(left)
	return retry.PauseExactly(reason.Throttled, wait, fmt.Sprintf("the agent asked for no calls until %s: "+
		"`worker agent policy %s preferences=ignore` calls it nevertheless", until.UTC().Format(time.RFC3339), nameAgent(a)))
}

// holdPaused returns how long the other deliveries of an agent are not dispatched, if left is the rest of its pause:
// until the waiting delivery has checked the pause again.
func holdPaused(left time.Duration) time.Duration { return min(left, pauseLook+holdSlack) }

// checkWishes returns a free wait if the agent asked for no calls at this time (checkPause), an error that skips the
// delivery if the agent does not want its kind, and otherwise nil.
func (e *Executor) checkWishes(a *attempt) error {
	if err := e.checkPause(a); err != nil {
		return err
	}
	wanted, kind := a.agentWishes().Kinds, string(a.claim.Job.Kind)
	if wanted == nil || slices.Contains(wanted, kind) {
		return nil
	}
	only := "nothing"
	if len(wanted) > 0 {
		only = "only " + strings.Join(wanted, ", ")
	}
	return retry.Fail(reason.ToolNotOffered, fmt.Sprintf("the agent asked not to receive %s (it wants %s): after "+
		"`worker agent policy %s preferences=ignore`, a replay delivers it nevertheless", kind, only, nameAgent(a)))
}

func nameAgent(a *attempt) string {
	agent := a.claim.Agent()
	return fmt.Sprintf("%d:%s", agent.ChainID, agent.ID)
}

// awaitTurn asks for the agent's next turn, so that all workers together make at most as many calls per second as the
// agent asked for. If the turn begins within a quarter of a second, awaitTurn sleeps until then and stores the turn in
// a.preferences. Otherwise it returns a free wait and sets a.preferences.hold. It does nothing if the agent asked for
// no rate.
func (e *Executor) awaitTurn(ctx context.Context, a *attempt) error {
	perSecond := a.agentWishes().MaxPerSecond
	if perSecond <= 0 || e.Turns == nil {
		return nil
	}
	agent := a.claim.Agent()
	name := fmt.Sprintf("%d:%s:%s", agent.ChainID, agent.Registry, agent.ID)
	turn, err := e.Turns.Take(ctx, name, perSecond, a.claim.Again)
	if err != nil {
		return fmt.Errorf("ask for the agent's next turn: %w", err)
	}
	if !turn.Given {
		a.preferences.hold = max(turn.Wait-dispatchAhead, 0)
		if !turn.Reserved {
			a.preferences.hold = turn.Wait + holdSlack
		}
		return retry.PauseExactly(reason.Throttled, turn.Wait,
			fmt.Sprintf("the agent asked for at most %v calls a second", perSecond))
	}

	a.preferences.turn = turn
	timer := time.NewTimer(turn.Wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		turn.GiveBack(ctx)
		return context.Cause(ctx)
	}
}

// readPreferences returns the preferences in the agent's answer, to be stored, or nil if the answer contains none or
// the job names its endpoint itself. If the answer's preferences cannot be read, it returns the known ones, marked as
// not understood. If the answer asks for a pause, it also sets a.preferences.hold.
func (e *Executor) readPreferences(a *attempt) *store.Preferences {
	stated := a.answer.Preferences
	if stated == nil || !a.claim.Job.Action.ResolveEndpoint {
		return nil
	}
	known, now := a.claim.Preferences, e.Now()
	preferences := &store.Preferences{Kinds: stated.Kinds, BatchSize: stated.BatchSize, MaxPerSecond: stated.MaxPerSecond,
		NotUnderstood: stated.NotUnderstood, SaidAt: now}
	if latest := now.Add(store.MaxPause); stated.PauseUntil.After(latest) {
		preferences.PauseUntil = latest
	} else if stated.PauseUntil.After(now) {
		preferences.PauseUntil = stated.PauseUntil
	}
	if a.claim.Policy.Preferences != store.PreferencesIgnore && !preferences.PauseUntil.IsZero() {
		a.preferences.hold = holdPaused(preferences.PauseUntil.Sub(now))
	}
	if stated.Unreadable { // keep the earlier preferences, with their own end
		*preferences = known
		preferences.NotUnderstood = []string{"all of it"}
		if preferences.SaidAt.IsZero() {
			preferences.SaidAt = now
		}
	}
	if len(preferences.NotUnderstood) > 0 && !slices.Equal(preferences.NotUnderstood, known.NotUnderstood) {
		e.Logger.Info("an agent's preferences are not understood", "agent", nameAgent(a), "delivery", a.claim.ID,
			"members", strings.Join(preferences.NotUnderstood, ", "))
	}
	return preferences
}
