// Package reason is the closed list of why a delivery ended other than delivered, is held or waits. Operators filter by
// these words, rows and metrics hold them (DESIGN §4): a word is never changed.
//
// What a reason does to a delivery is decided by package retry: endingOf (skipped, rejected, held or tried again) and
// isFree (whether the wait costs an attempt) in verdict.go, NextStep (what a person can do) in nextstep.go. A new reason
// goes into this list, into All, into those three, and into the tables of their tests
// (go test ./internal/reason ./internal/delivery/retry). It is one that holds only if something releases what is held
// for it; else it rejects. Package store also spells some in SQL: grep the word.
package reason

// Reason is one of the constants below, or empty.
type Reason string

// Reasons of skipped deliveries: nothing is wrong, there is nobody to deliver to.
const (
	// NoURI: the agent has no tokenURI.
	NoURI Reason = "no_uri"
	// NoDocument: nothing is at the tokenURI that can be a registration file.
	NoDocument Reason = "no_document"
	// NoMCPEndpoint: the registration document lists no MCP server.
	NoMCPEndpoint Reason = "no_mcp_endpoint"
	// AgentInactive: the registration document says "active": false.
	AgentInactive Reason = "agent_inactive"
	// AgentNotFound: the identity registry knows no such agent.
	AgentNotFound Reason = "agent_not_found"
	// Revoked: the client took its feedback back before it was delivered.
	Revoked Reason = "revoked"
	// ToolNotOffered: the agent does not offer the tool for a revocation, response or validation, which are optional.
	ToolNotOffered Reason = "tool_not_offered"
	// NeverDelivered: the agent never got the feedback that this revocation or response is about.
	NeverDelivered Reason = "never_delivered"
	// MinedAgain: the event that a retraction takes back is on the chain again.
	MinedAgain Reason = "mined_again"
)

// Reasons of rejected deliveries: trying again would end the same.
const (
	// InvalidJob: the job cannot be read, or its arguments are too large to be sent.
	InvalidJob Reason = "invalid_job"
	// EventNotFound: the chain does not show the event.
	EventNotFound Reason = "event_not_found"
	// ToolNotFound: the agent lacks the tool for feedback, which every agent is to have, or the job may not name it.
	ToolNotFound Reason = "tool_not_found"
	// SchemaMismatch: the arguments do not fit the tool's input schema.
	SchemaMismatch Reason = "schema_mismatch"
	// HashMismatch: the feedback file is not the one that was hashed.
	HashMismatch Reason = "hash_mismatch"
	// EndpointUnverified: nothing shows that the endpoint is the agent's, and HERALD_BINDING is require.
	EndpointUnverified Reason = "endpoint_unverified"
	// AddressBlocked: the address is one that netguard does not dial.
	AddressBlocked Reason = "address_blocked"
	// TransportRefused: the agent lists only transports or commands that Herald does not use.
	TransportRefused Reason = "transport_refused"
	// AuthFailed: the headers that came with the job were refused.
	AuthFailed Reason = "auth_failed"
	// ToolError: the tool answered that it failed.
	ToolError Reason = "tool_error"
	// BadResponse: the answer is none that MCP allows.
	BadResponse Reason = "bad_response"
)

// Reasons of cancelled deliveries.
const (
	// Operator: a person cancelled it.
	Operator Reason = "operator"
	// Reorg: the event's block left the chain.
	Reorg Reason = "reorg"
)

// Reasons of held deliveries: somebody or something has to release them.
const (
	// AuthRequired: the agent wants a credential, or another one.
	AuthRequired Reason = "auth_required"
	// AgentDisabled: an operator disabled the agent.
	AgentDisabled Reason = "agent_disabled"
	// HeldUnknown: the call may have arrived, and the agent's policy is not to send it again.
	HeldUnknown Reason = "held_unknown"
	// ChainUnconfigured: the chain has no RPC_URL.
	ChainUnconfigured Reason = "chain_unconfigured"
	// GatewayUnconfigured: a document or file is on Arweave, and there is no ARWEAVE_GATEWAY.
	GatewayUnconfigured Reason = "gateway_unconfigured"
)

// Reasons of waits that cost no attempt.
const (
	// NotConfirmed: the event's block has too few confirmations.
	NotConfirmed Reason = "not_confirmed"
	// ChainUnavailable: the chain's node does not answer. Rows of earlier versions may have died of it.
	ChainUnavailable Reason = "chain_unavailable"
	// AgentBusy: every permit, slot or share of memory that the agent may have is in use.
	AgentBusy Reason = "agent_busy"
	// BehindEarlier: an earlier delivery of the same client goes first (HERALD_ORDER).
	BehindEarlier Reason = "behind_earlier"
	// BreakerOpen: most of the endpoint's latest calls failed.
	BreakerOpen Reason = "breaker_open"
	// Throttled: Herald's own rate limit for the origin is used up.
	Throttled Reason = "throttled"
	// OverBudget: the agent's effort budget is used up, or what files may have of it.
	OverBudget Reason = "over_budget"
)

// Reasons of waits that cost an attempt, and of death when the attempts are spent.
const (
	// ContentUnavailable: a document or file could not be fetched.
	ContentUnavailable Reason = "content_unavailable"
	// ConnectFailed: no connection, and certainly nothing executed.
	ConnectFailed Reason = "connect_failed"
	// Timeout: no answer in time, and certainly nothing executed.
	Timeout Reason = "timeout"
	// RateLimited: the agent or its authorization server answered 429, or the agent asked for patience
	// (input_required). Herald's own limit is Throttled.
	RateLimited Reason = "rate_limited"
	// ServerError: the other side answered that it failed.
	ServerError Reason = "server_error"
	// OutcomeUnknown: the call was written and not answered.
	OutcomeUnknown Reason = "outcome_unknown"
	// InternalError: Herald failed, the log says how.
	InternalError Reason = "internal_error"
	// Expired: its time was used up. Only dead deliveries have it.
	Expired Reason = "expired"
)

// All lists every reason, for what asks an operator to name one.
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
