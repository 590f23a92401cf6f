package event

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/ethereum/go-ethereum/common"
)

// chooseAction returns a ledger.Binding with the event and the action (tool, endpoint, headers, template) of one of the
// hints. A hint qualifies if its job names no transaction or the event's transaction. Of the hints that qualify,
// chooseAction takes the one with the most trusted source, and the first in hints if several are equal. sender is the
// job of that hint, or the event if no hint qualifies.
//
// b.Corrected lists the fields in which the job of a hint differs from the event. The row's own job is not compared if
// it is bound.
func chooseAction(claim *ledger.Claim, event job.Job, hints []ledger.Hint) (b ledger.Binding, sender job.Job) {
	b, sender = ledger.Binding{Job: event, Source: ledger.Source{Name: ledger.SourceChain}}, event
	chosen := false
	for _, h := range hints {
		own := h.Rank < 0 && claim.Bound
		if !own {
			for _, f := range h.Job.Differences(event) {
				if !slices.Contains(b.Corrected, f) {
					b.Corrected = append(b.Corrected, f)
				}
			}
		}
		isThere := h.Job.TransactionHash == (common.Hash{}) || h.Job.TransactionHash == event.TransactionHash
		if isThere && (!chosen || h.Source.Trust > b.Source.Trust) {
			chosen, sender = true, h.Job
			b.Job.Action, b.Job.Meta, b.SealedHeaders, b.Source = h.Job.Action, h.Job.Meta, h.SealedHeaders, h.Source
			b.Job.Retracts = h.Job.Retracts
		}
	}
	return b, sender
}

// bindEvent stores b as the job of the delivery, which binds the delivery, and updates the claim. The agent is called
// only with this job. If the claim is already bound to the same event and action, bindEvent does nothing.
//
// It returns a free wait (not_confirmed) if b has another agent or ordering key than the claim had, or if a new hint
// arrived during the check. The next attempt checks the event again.
func (c *Checker) bindEvent(ctx context.Context, claim *ledger.Claim, r *Result, b ledger.Binding) error {
	if claim.Bound && b.Job.EventSum() == claim.Job.EventSum() && b.Job.ActionSum() == claim.Job.ActionSum() &&
		b.Source == claim.Source && b.Job.Retracts == claim.Job.Retracts &&
		(b.Corrected == nil || slices.Equal(b.Corrected, claim.Corrected)) {
		return nil
	}
	agent, orderKey, corrected := claim.Agent(), claim.Job.OrderKey(), claim.Corrected
	err := c.Ledger.Bind(ctx, claim, b)
	if errors.Is(err, ledger.ErrNewHint) {
		r.Undecided = true
		return outcome.Pause(outcome.NotConfirmed, minConfirmationPause, err.Error())
	}
	if err != nil {
		return err
	}
	for _, field := range b.Corrected {
		if !slices.Contains(corrected, field) {
			c.CountCorrected(field)
		}
	}
	if claim.Agent() != agent || claim.Job.OrderKey() != orderKey {
		r.Rerouted = true
		return outcome.Pause(outcome.NotConfirmed, minConfirmationPause,
			"the event is of another agent than the job said")
	}
	return nil
}

// resealHeaders decrypts b.SealedHeaders and encrypts them again for the agent of the event. sender is the job that
// contained the headers; they were encrypted for sender's agent. If both agents are the same, or there are no headers,
// resealHeaders does nothing.
func (c *Checker) resealHeaders(b *ledger.Binding, sender job.Job) error {
	if b.SealedHeaders == nil || b.Job.Action.Endpoint == nil {
		return nil
	}
	from, to := sender.HeaderBinding(b.Job.Action.Endpoint.URL), b.Job.HeaderBinding(b.Job.Action.Endpoint.URL)
	if from == to {
		return nil
	}
	plain, err := c.Keys.Open(b.SealedHeaders, from)
	if err == nil {
		b.SealedHeaders, err = c.Keys.Seal(plain, to)
	}
	if err != nil {
		return fmt.Errorf("seal the job's headers for the event's agent: %w", err)
	}
	return nil
}
