package retry

import "time"

// Reason says why a delivery is not delivered (yet). The list is closed: operators filter by it (DESIGN §4), and
// package store spells some in SQL (grep the word): a delivery rejected event_not_found or invalid_job may give its key
// away. A new reason goes into Reasons, ending (without a case there it waits), isFree if its wait is free, and
// NextStep.
type Reason string

// Reasons of skipped deliveries: nothing is wrong, there is nobody to tell.
const (
	NoURI          Reason = "no_uri"
	NoDocument     Reason = "no_document"
	NoMCPEndpoint  Reason = "no_mcp_endpoint"
	AgentInactive  Reason = "agent_inactive"
	AgentNotFound  Reason = "agent_not_found"
	Revoked        Reason = "revoked"
	ToolNotOffered Reason = "tool_not_offered"
	NeverDelivered Reason = "never_delivered"
)

// Reasons of rejected deliveries: trying again would end the same.
const (
	InvalidJob         Reason = "invalid_job"
	EventNotFound      Reason = "event_not_found"
	ToolNotFound       Reason = "tool_not_found"
	SchemaMismatch     Reason = "schema_mismatch"
	HashMismatch       Reason = "hash_mismatch"
	EndpointUnverified Reason = "endpoint_unverified"
	AddressBlocked     Reason = "address_blocked"
	TransportRefused   Reason = "transport_refused"
	AuthFailed         Reason = "auth_failed"
	ToolError          Reason = "tool_error"
	BadResponse        Reason = "bad_response"
)

// Reasons of cancelled deliveries.
const (
	Operator Reason = "operator"
	Reorg    Reason = "reorg"
)

// Reasons of held deliveries: somebody or something has to release them.
const (
	AuthRequired      Reason = "auth_required"
	AgentDisabled     Reason = "agent_disabled"
	HeldUnknown       Reason = "held_unknown"
	ChainUnconfigured Reason = "chain_unconfigured"
	// GatewayUnconfigured is for documents and files on Arweave.
	GatewayUnconfigured Reason = "gateway_unconfigured"
)

// Reasons of waits that cost no attempt.
const (
	NotConfirmed     Reason = "not_confirmed"
	ChainUnavailable Reason = "chain_unavailable"
	AgentBusy        Reason = "agent_busy"
	BehindEarlier    Reason = "behind_earlier"
	BreakerOpen      Reason = "breaker_open"
	Throttled        Reason = "throttled"
	OverBudget       Reason = "over_budget"
)

// Reasons of waits that cost an attempt, and of death when the attempts are spent.
const (
	ContentUnavailable Reason = "content_unavailable"
	ConnectFailed      Reason = "connect_failed"
	Timeout            Reason = "timeout"
	RateLimited        Reason = "rate_limited" // somebody else's limit; Herald's own is Throttled
	ServerError        Reason = "server_error"
	OutcomeUnknown     Reason = "outcome_unknown"
	InternalError      Reason = "internal_error"
	Expired            Reason = "expired" // dead only
)

// Reasons lists every reason, for what asks an operator to name one.
func Reasons() []Reason {
	return []Reason{NoURI, NoDocument, NoMCPEndpoint, AgentInactive, AgentNotFound, Revoked, ToolNotOffered,
		NeverDelivered,
		InvalidJob, EventNotFound, ToolNotFound, SchemaMismatch, HashMismatch, EndpointUnverified, AddressBlocked,
		TransportRefused, AuthFailed, ToolError, BadResponse,
		Operator, Reorg,
		AuthRequired, AgentDisabled, HeldUnknown, ChainUnconfigured, GatewayUnconfigured,
		NotConfirmed, AgentBusy, BehindEarlier, BreakerOpen, Throttled, OverBudget,
		ChainUnavailable, ContentUnavailable, ConnectFailed, Timeout, RateLimited, ServerError, OutcomeUnknown,
		InternalError,
		Expired}
}

// Ending is what a reason means for the delivery.
type Ending string

// The endings; Wait becomes dead when no attempts are left.
const (
	Skip   Ending = "skipped"
	Reject Ending = "rejected"
	Hold   Ending = "held"
	Wait   Ending = "waiting"
)

// ending maps every reason that a failure can have; the others are given by people or by the reconciler.
func (r Reason) ending() Ending {
	switch r {
	case NoURI, NoDocument, NoMCPEndpoint, AgentInactive, AgentNotFound, Revoked, ToolNotOffered, NeverDelivered:
		return Skip
	case InvalidJob, EventNotFound, ToolNotFound, SchemaMismatch, HashMismatch, EndpointUnverified, AddressBlocked,
		TransportRefused, AuthFailed, ToolError, BadResponse:
		return Reject
	case AuthRequired, AgentDisabled, HeldUnknown, ChainUnconfigured, GatewayUnconfigured:
		return Hold
	}
	return Wait
}

// isFree tells whether a wait or hold for this reason costs no attempt.
func (r Reason) isFree() bool {
	switch r {
	case AuthRequired, AgentDisabled, HeldUnknown, ChainUnconfigured, GatewayUnconfigured,
		NotConfirmed, ChainUnavailable, AgentBusy, BehindEarlier, BreakerOpen, Throttled, OverBudget:
		return true
	}
	return false
}

// Verdict is a classified failure.
type Verdict struct {
	Reason     Reason
	Ending     Ending
	Free       bool   // costs no attempt
	AgentFault bool   // the agent (its server, its document) is to blame, not this system
	Unknown    bool   // the call may have been executed: whether it is sent again is the agent's policy (onUnknown)
	Moved      bool   // another endpoint would explain it: what is known of the agent's endpoint may be stale
	Unwell     bool   // counts against the endpoint's health: it does not take calls, or does not finish them
	Text       string // a sentence for people, without secrets

	RetryAfter time.Duration // what the other side asked for; 0: nothing
	Pause      time.Duration // length of a free wait; 0: BackOff

	thirdParty bool // somebody beside the agent failed: its endpoint may be well
}

// Limited tells whether the wait comes from what the agent's other deliveries would meet as well: a limit of Herald's,
// or a chain that is away. A 429 (RateLimited) is none: each delivery finds it out for itself.
func (v Verdict) Limited() bool {
	switch v.Reason {
	case ChainUnavailable, AgentBusy, Throttled, BreakerOpen, OverBudget:
		return true
	}
	return false
}
