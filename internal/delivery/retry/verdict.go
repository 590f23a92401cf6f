package retry

import (
	"time"

	"github.com/agentherald/herald/internal/reason"
)

// Ending is the effect of a reason on the delivery.
type Ending string

// The endings. A delivery whose ending is Wait becomes dead when it has no attempts left.
const (
	Skip   Ending = "skipped"
	Reject Ending = "rejected"
	Hold   Ending = "held"
	Wait   Ending = "waiting"
)

// endingOf returns the ending of a reason for which an attempt failed. All reasons without an ending of their own wait.
// Reasons of operators and of the reconciler (operator, reorg, expired) never get here.
func endingOf(r reason.Reason) Ending {
	switch r {
	case reason.NoURI, reason.NoDocument, reason.NoMCPEndpoint, reason.AgentInactive, reason.AgentNotFound,
		reason.Revoked, reason.ToolNotOffered, reason.NeverDelivered, reason.MinedAgain:
		return Skip
	case reason.InvalidJob, reason.EventNotFound, reason.ToolNotFound, reason.SchemaMismatch, reason.HashMismatch,
		reason.EndpointUnverified, reason.AddressBlocked, reason.TransportRefused, reason.AuthFailed, reason.ToolError,
		reason.BadResponse:
		return Reject
	case reason.AuthRequired, reason.AgentDisabled, reason.HeldUnknown, reason.ChainUnconfigured,
		reason.GatewayUnconfigured:
		return Hold
	}
	return Wait
}

// isFree reports whether a wait or hold for this reason costs no attempt.
func isFree(r reason.Reason) bool {
	switch r {
	case reason.NotConfirmed, reason.ChainUnavailable, reason.AgentBusy, reason.BehindEarlier, reason.BreakerOpen,
		reason.Throttled, reason.OverBudget:
		return true
	}
	return endingOf(r) == Hold
}

// Verdict is the classification of an attempt's failure.
type Verdict struct {
	Reason     reason.Reason
	Ending     Ending
	Free       bool   // the wait or hold costs no attempt
	AgentFault bool   // the agent's server or document is at fault, not Herald
	Unknown    bool   // the agent may have executed the call; its policy onUnknown decides about another call
	Moved      bool   // the agent may have moved to another endpoint: cached data about its endpoint may be stale
	Unwell     bool   // the endpoint accepts no calls or does not finish them; its circuit breaker counts this
	Text       string // a sentence for the operator, without secrets

	RetryAfter time.Duration // the Retry-After of the agent or server; 0: none
	Pause      time.Duration // length of a free wait; 0: BackOff

	exact      bool // Pause gets no jitter
	thirdParty bool // a server other than the agent failed; the agent's endpoint may be healthy
}

// Limited reports whether the agent's other deliveries would have to wait for the same cause, so that dispatching them
// now is useless: one of Herald's limits, or an unavailable chain. A 429 (RateLimited) is not such a cause, because
// each delivery has to get its own answer.
func (v Verdict) Limited() bool {
	switch v.Reason {
	case reason.ChainUnavailable, reason.AgentBusy, reason.Throttled, reason.BreakerOpen, reason.OverBudget:
		return true
	}
	return false
}
