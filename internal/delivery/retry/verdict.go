package retry

import (
	"time"

	"github.com/agentherald/herald/internal/reason"
)

// Ending is what a reason means for the delivery.
type Ending string

// The endings; Wait becomes dead when no attempts are left.
const (
	Skip   Ending = "skipped"
	Reject Ending = "rejected"
	Hold   Ending = "held"
	Wait   Ending = "waiting"
)

// endingOf maps every reason that a failure can have; the others are given by people or by the reconciler.
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

// isFree tells whether a wait or hold for this reason costs no attempt.
func isFree(r reason.Reason) bool {
	switch r {
	case reason.NotConfirmed, reason.ChainUnavailable, reason.AgentBusy, reason.BehindEarlier, reason.BreakerOpen,
		reason.Throttled, reason.OverBudget:
		return true
	}
	return endingOf(r) == Hold
}

// Verdict is a classified failure.
type Verdict struct {
	Reason     reason.Reason
	Ending     Ending
	Free       bool   // costs no attempt
	AgentFault bool   // the agent (its server, its document) is to blame, not this system
	Unknown    bool   // the call may have been executed: whether it is sent again is the agent's policy (onUnknown)
	Moved      bool   // another endpoint would explain it: what is known of the agent's endpoint may be stale
	Unwell     bool   // counts against the endpoint's health: it does not take calls, or does not finish them
	Text       string // a sentence for people, without secrets

	RetryAfter time.Duration // what the other side asked for; 0: nothing
	Pause      time.Duration // length of a free wait; 0: BackOff

	exact      bool // Pause is not spread
	thirdParty bool // somebody beside the agent failed: its endpoint may be well
}

// Limited tells whether the wait comes from what the agent's other deliveries would meet as well: a limit of Herald's,
// or a chain that is away. A 429 (RateLimited) is none: each delivery finds it out for itself.
func (v Verdict) Limited() bool {
	switch v.Reason {
	case reason.ChainUnavailable, reason.AgentBusy, reason.Throttled, reason.BreakerOpen, reason.OverBudget:
		return true
	}
	return false
}
