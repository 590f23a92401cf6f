// Package reason is the closed list of reasons why a delivery was not delivered, is held or waits. Operators filter by
// these words, and rows and metrics contain them, so a word never changes.
//
// Package retry decides the effect of a reason on a delivery. In verdict.go, endingOf decides whether the delivery is
// skipped, rejected, held or tried again, and isFree whether a wait costs an attempt. In nextstep.go, NextStep says how
// an operator can proceed. A new reason has to be added to this list, to All, to these three functions, and to the
// tables of their tests (go test ./internal/reason ./internal/delivery/retry). Use Hold only if something releases the
// deliveries that are held for the reason; otherwise use Reject. The SQL of package store also contains some of the
// words: grep.
package reason

// Reason is one of the constants below, or empty.
type Reason string

// Reasons of skipped deliveries: nothing failed, but the delivery has no recipient or no purpose.
const (
	// NoURI: the agent has no tokenURI.
	NoURI Reason = "no_uri"
	// NoDocument: the tokenURI does not lead to a registration file.
	NoDocument Reason = "no_document"
	// NoMCPEndpoint: the registration document lists no MCP server.
	NoMCPEndpoint Reason = "no_mcp_endpoint"
	// AgentInactive: the registration document says "active": false.
	AgentInactive Reason = "agent_inactive"
	// AgentNotFound: the identity registry has no such agent.
	AgentNotFound Reason = "agent_not_found"
	// Revoked: the client revoked its feedback before it was delivered.
	Revoked Reason = "revoked"
	// ToolNotOffered: the agent does not offer the tool for a revocation, response or validation. These tools are
	// optional.
	ToolNotOffered Reason = "tool_not_offered"
	// NeverDelivered: the agent never received the feedback to which this revocation or response refers.
	NeverDelivered Reason = "never_delivered"
	// MinedAgain: the event that a retraction withdraws is on the chain again.
	MinedAgain Reason = "mined_again"
)

// Reasons of rejected deliveries: another attempt would end the same way.
const (
	// InvalidJob: the job or its event is not valid, its payloadTemplate cannot be filled, or its arguments are too
	// large.
	InvalidJob Reason = "invalid_job"
	// EventNotFound: the event is not on the chain.
	EventNotFound Reason = "event_not_found"
	// ToolNotFound: the agent does not offer the tool for feedback, which every agent has to offer, or the job names a
	// tool that jobs may not name.
	ToolNotFound Reason = "tool_not_found"
	// SchemaMismatch: the arguments do not fit the tool's input schema.
	SchemaMismatch Reason = "schema_mismatch"
	// HashMismatch: the hash of the feedback file differs from the hash on the chain.
	HashMismatch Reason = "hash_mismatch"
	// EndpointUnverified: nothing proves that the endpoint belongs to the agent, and HERALD_BINDING is require.
	EndpointUnverified Reason = "endpoint_unverified"
	// AddressBlocked: package netguard refuses to connect to the address.
	AddressBlocked Reason = "address_blocked"
	// TransportRefused: the agent lists only transports or commands that Herald does not use.
	TransportRefused Reason = "transport_refused"
	// AuthFailed: the agent refused the headers that the job contains.
	AuthFailed Reason = "auth_failed"
	// ToolError: the tool answered with an error.
	ToolError Reason = "tool_error"
	// BadResponse: the answer violates MCP, or refuses the request itself.
	BadResponse Reason = "bad_response"
)

// Reasons of cancelled deliveries.
const (
	// Operator: an operator cancelled the delivery.
	Operator Reason = "operator"
	// Reorg: the event's block left the chain.
	Reorg Reason = "reorg"
)

// Reasons of held deliveries: an operator or an event has to release them.
const (
	// AuthRequired: the agent requires a credential, or the stored one cannot be used: the agent or its OAuth server
	// refused it, or it cannot be decrypted.
	AuthRequired Reason = "auth_required"
	// AgentDisabled: an operator disabled the agent, or Herald did so after HERALD_DISABLE_AFTER.
	AgentDisabled Reason = "agent_disabled"
	// HeldUnknown: the call may have arrived, and the agent's policy onUnknown forbids a second call.
	HeldUnknown Reason = "held_unknown"
	// ChainUnconfigured: no RPC_URL is set for the chain.
	ChainUnconfigured Reason = "chain_unconfigured"
	// GatewayUnconfigured: a document or file is on Arweave, and ARWEAVE_GATEWAY is not set.
	GatewayUnconfigured Reason = "gateway_unconfigured"
)

// Reasons of waits that cost no attempt.
const (
	// NotConfirmed: the event's block has too few confirmations.
	NotConfirmed Reason = "not_confirmed"
	// ChainUnavailable: the chain's node does not answer. Rows of earlier versions may be dead for this reason.
	ChainUnavailable Reason = "chain_unavailable"
	// AgentBusy: all permits, slots or memory that the agent may use are in use.
	AgentBusy Reason = "agent_busy"
	// BehindEarlier: an earlier delivery of the same client has to be delivered first (HERALD_ORDER).
	BehindEarlier Reason = "behind_earlier"
	// BreakerOpen: the circuit breaker is open because most of the endpoint's latest calls failed.
	BreakerOpen Reason = "breaker_open"
	// Throttled: the origin has reached Herald's own rate limit.
	Throttled Reason = "throttled"
	// OverBudget: the agent's effort budget is used up, or the part of it that feedback files may use.
	OverBudget Reason = "over_budget"
)

// Reasons of waits that cost an attempt, and of deliveries that are dead because their attempts are used up.
const (
	// ContentUnavailable: a document or file could not be fetched.
	ContentUnavailable Reason = "content_unavailable"
	// ConnectFailed: there was no connection, so the agent executed nothing.
	ConnectFailed Reason = "connect_failed"
	// Timeout: the time ran out before the call was written, so the agent executed nothing.
	Timeout Reason = "timeout"
	// RateLimited: the agent or its authorization server answered 429, or the agent asked for a pause
	// (input_required). The reason for Herald's own limit is Throttled.
	RateLimited Reason = "rate_limited"
	// ServerError: the agent or its authorization server answered that it failed.
	ServerError Reason = "server_error"
	// OutcomeUnknown: the call was written, and no answer arrived.
	OutcomeUnknown Reason = "outcome_unknown"
	// InternalError: Herald failed. The log has the cause.
	InternalError Reason = "internal_error"
	// Expired: the delivery did not end in time. Only dead deliveries have this reason.
	Expired Reason = "expired"
)

// All returns every reason, for commands and pages that offer a choice.
func All() []Reason {
	return []Reason{NoURI, NoDocument, NoMCPEndpoint, AgentInactive, AgentNotFound, Revoked, ToolNotOffered,
		NeverDelivered, MinedAgain,
		InvalidJob, EventNotFound, ToolNotFound, SchemaMismatch, HashMismatch, EndpointUnverified, AddressBlocked,
		TransportRefused, AuthFailed, ToolError, BadResponse,
		Operator, Reorg,
		AuthRequired, AgentDisabled, HeldUnknown, ChainUnconfigured, GatewayUnconfigured,
		NotConfirmed, AgentBusy, BehindEarlier, BreakerOpen, Throttled, OverBudget,
		ChainUnavailable, ContentUnavailable, ConnectFailed, Timeout, RateLimited, ServerError, OutcomeUnknown,
		InternalError,
		Expired}
}
