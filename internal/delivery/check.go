package delivery

import (
	"context"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/job"
)

// blockTime is how long a missing confirmation is waited for; slower chains simply wait more than once.
const blockTime = 3 * time.Second

// Disabled holds what is for an agent that the servers file disables, or its row; nil: neither does.
func Disabled(byFile, byRow bool) error {
	switch {
	case byFile:
		return retry.Fail(retry.AgentDisabled, "the servers file disables the agent (enabled: false); its deliveries are released when it does not any more")
	case byRow:
		return retry.Fail(retry.AgentDisabled, "the agent is disabled: `worker agent enable` releases its deliveries")
	}
	return nil
}

// check holds what is for a disabled agent, and asks the chain whether the event is real, confirmed and not revoked. Without an RPC URL for the chain, or with
// HERALD_VERIFY_EVENT=off, the job is believed.
func (p *Pipeline) check(ctx context.Context, a *attempt) (string, error) {
	a.out.Elsewhere = a.listed && !a.server.Enabled
	if err := Disabled(a.out.Elsewhere, !a.claim.Enabled); err != nil {
		return "", err
	}
	c, ok := p.Chain(a.job.ChainID)
	if !ok || p.Verify == chain.VerifyOff {
		return "not asked", nil
	}
	verify := p.Verify
	if verify == "" {
		verify = chain.VerifyReceipt
	}
	s, err := c.Check(ctx, a.job, verify)
	switch {
	case err != nil:
		return "", err
	case !s.Found && s.Disagrees != "":
		return "", retry.Fail(retry.EventNotFound, fmt.Sprintf("the event on the chain differs from the job in %s", s.Disagrees))
	case !s.Found:
		return "", retry.Fail(retry.EventNotFound, "the chain has no such event")
	case s.Revoked && a.job.Kind == job.KindNewFeedback:
		return "", retry.Fail(retry.Revoked, "the client revoked this feedback before it was delivered")
	case !s.Confirmed:
		pause := min(max(time.Duration(s.ConfirmedIn)*blockTime, time.Second), 5*time.Minute)
		return "", retry.Pause(retry.NotConfirmed, pause, fmt.Sprintf("the event's block needs %d more confirmations", s.ConfirmedIn))
	}
	return "event found and confirmed", nil
}
