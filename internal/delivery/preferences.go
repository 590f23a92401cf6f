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

// What an agent asks for (_meta of its answers, mcpcall.Preferences) is for its own deliveries only, and only ever makes
// them fewer, slower or later: that is why it needs no proof of who said it beyond having been called. Who can answer
// the calls to an agent could as well not answer them. It does not count where an enqueuer chose who is called.

// Turns keep the calls of an agent apart that asked for it.
type Turns interface {
	Take(ctx context.Context, name string, perSecond float64, again bool) (ratelimit.Turn, error)
}

const (
	// pauseLook is how often a delivery of an agent that paused looks whether it still does: its line is held meanwhile,
	// so these are few.
	pauseLook = 5 * time.Minute
	// holdSlack is how much longer than the wait of its deliveries the line of an agent is held, so that they come back
	// first and can hold it again.
	holdSlack = 30 * time.Second
	// dispatchAhead is how long before the last of an agent's turns that are given out its line is held no longer: the
	// reconciler, which dispatches the next, looks that often.
	dispatchAhead = 5 * time.Second
)

// preferences are what one attempt found of its agent's.
type preferences struct {
	hold time.Duration  // how long the agent's line is held; 0: it is not
	turn ratelimit.Turn // zero: the agent asked for none
}

// agentWishes are the agent's preferences as far as they are about this delivery.
func (a *attempt) agentWishes() store.Preferences {
	if !a.claim.Job.Action.ResolveEndpoint {
		return store.Preferences{}
	}
	return a.claim.Preferences
}

// checkPause puts off what is for an agent that wants no calls now. It comes before anything is asked, but of a job that
// may name another agent than its event, which would wait in the place of the right one.
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

// holdPaused is how long the line of an agent is held that pauses for so long, until a delivery looks again.
func holdPaused(left time.Duration) time.Duration { return min(left, pauseLook+holdSlack) }

// checkWishes skips what the agent does not want.
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

// awaitTurn waits for the agent's next call, if that is near, or puts the delivery off: no more a second than the agent
// asked for, by all workers together.
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

// hearPreferences are those of the agent's answer, to be stored; nil: it said nothing of them. An enqueuer's own endpoint
// says nothing for the agent.
func (e *Executor) hearPreferences(a *attempt) *store.Preferences {
	said := a.answer.Preferences
	if said == nil || !a.claim.Job.Action.ResolveEndpoint {
		return nil
	}
	known, now := a.claim.Preferences, e.Now()
	heard := &store.Preferences{Kinds: said.Kinds, BatchSize: said.BatchSize, MaxPerSecond: said.MaxPerSecond,
		NotUnderstood: said.NotUnderstood, SaidAt: now}
	if latest := now.Add(store.MaxPause); said.PauseUntil.After(latest) {
		heard.PauseUntil = latest
	} else if said.PauseUntil.After(now) {
		heard.PauseUntil = said.PauseUntil
	}
	if a.claim.Policy.Preferences != store.PreferencesIgnore && !heard.PauseUntil.IsZero() {
		a.preferences.hold = holdPaused(heard.PauseUntil.Sub(now))
	}
	if said.Unreadable { // what it asked for before stays, and no longer than it would have
		*heard = known
		heard.NotUnderstood = []string{"all of it"}
		if heard.SaidAt.IsZero() {
			heard.SaidAt = now
		}
	}
	if len(heard.NotUnderstood) > 0 && !slices.Equal(heard.NotUnderstood, known.NotUnderstood) {
		e.Logger.Info("an agent's preferences are not understood", "agent", nameAgent(a), "delivery", a.claim.ID,
			"members", strings.Join(heard.NotUnderstood, ", "))
	}
	return heard
}
