package retry

import (
	"time"

	"github.com/agentherald/herald/internal/reason"
)

// Ending is the effect of a reason on the delivery: the status that it gets.
type Ending string

// The endings. A delivery whose ending is Wait becomes dead when it has no attempts left.
const (
	Skip   Ending = "skipped"
	Reject Ending = "rejected"
	Hold   Ending = "held"
	Wait   Ending = "waiting"
)

// endingOf returns the ending of a delivery whose attempt failed for reason r. It is Wait for each reason that the
// function does not name. No attempt fails for the reasons operator, reorg and expired, so it is never called for them.
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

// isFree reports whether a wait or hold for the reason r is free: the attempt does not count. All holds are free, and
// the waits for confirmations, for the chain's node, for an earlier delivery, and for one of Herald's limits.
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
	Free       bool   // the wait or hold is free: the attempt does not count
	AgentFault bool   // the agent's server or document is at fault, not Herald
	Unknown    bool   // the agent may have executed the call; its policy onUnknown decides about another call
	Moved      bool   // the agent may have moved to another endpoint: cached data about its endpoint may be stale
	Unwell     bool   // the endpoint accepted no call or did not finish it; its breaker counts this as failed
	Text       string // a sentence for the operator, without secrets

	RetryAfter time.Duration // the Retry-After of the agent or server; 0: none
	Pause      time.Duration // length of a free wait; 0: BackOff

	thirdParty bool // another server than the agent's failed; the agent's endpoint may work
}

// Limited reports whether the agent's other deliveries would have to wait for the same cause, so that dispatching them
// now is useless: one of Herald's limits, or an unavailable chain. A 429 (RateLimited) is no such cause, because it is
// the agent's answer to one delivery only.
func (v Verdict) Limited() bool {
	switch v.Reason {
	case reason.ChainUnavailable, reason.AgentBusy, reason.Throttled, reason.BreakerOpen, reason.OverBudget:
		return true
	}
	return false
}
