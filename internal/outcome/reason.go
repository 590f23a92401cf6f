// Package outcome is the vocabulary of an attempt's end: the reasons why a delivery was skipped, rejected or cancelled,
// is held, waits or is dead, their effect on the delivery (verdict.go), the retry schedule, and the next step for an
// operator (nextstep.go). The package does no I/O and reads no clock. Package delivery/classify maps errors to verdicts.
//
// The list of reasons is closed. Rows and metrics contain these words and operators filter by them, so a word never
// changes. A new reason has to be added to this list, to Reasons, Reason.Ending, Reason.Free and NextStep, and to the
// tables of the tests (go test ./internal/outcome ./internal/delivery/classify). Let Ending return Hold only if
// something releases the deliveries that are held for the reason; otherwise let it return Reject. The SQL of package
// store also contains some of the words: search it for the constant's text.
package outcome

// Reason is one of the constants below, or empty for a delivery without a reason.
type Reason string

// Reasons of skipped deliveries: nothing failed, but the delivery has no recipient or no purpose.
const (
	// NoURI: the agent has no tokenURI.
	NoURI Reason = "no_uri"
	// NoDocument: there is no registration document at the tokenURI, or it is not valid.
	NoDocument Reason = "no_document"
	// NoMCPEndpoint: the registration document lists no MCP server.
	NoMCPEndpoint Reason = "no_mcp_endpoint"
	// AgentInactive: the registration document says "active": false.
	AgentInactive Reason = "agent_inactive"
	// AgentNotFound: the identity registry has no such agent.
	AgentNotFound Reason = "agent_not_found"
	// Revoked: the client revoked the feedback before the agent received it.
	Revoked Reason = "revoked"
	// ToolNotOffered: the agent does not have the tool for revocations, responses or validations, and need not have it,
	// or the servers file (HERALD_SERVERS_FILE) does not list that tool. For feedback, the reason is ToolNotFound.
	ToolNotOffered Reason = "tool_not_offered"
	// NeverDelivered: the agent never received the feedback to which this revocation, response or retraction refers.
	NeverDelivered Reason = "never_delivered"
	// MinedAgain: a retraction is not needed, because the event that it retracts is on the chain again.
	MinedAgain Reason = "mined_again"
)

// Reasons of rejected deliveries: another attempt would end in the same way.
const (
	// InvalidJob: the job or its event is not valid, its payloadTemplate cannot be filled, or its arguments are too
	// large.
	InvalidJob Reason = "invalid_job"
	// EventNotFound: the chain has no such event, or Herald does not accept events of its registry
	// (erc8004.Registries).
	EventNotFound Reason = "event_not_found"
	// ToolNotFound: the agent has no tool for feedback, which every agent must have, or the servers file
	// (HERALD_SERVERS_FILE) does not list that tool.
	ToolNotFound Reason = "tool_not_found"
	// SchemaMismatch: the arguments do not fit the tool's input schema, or the agent refused them as invalid parameters
	// (JSON-RPC error -32602).
	SchemaMismatch Reason = "schema_mismatch"
	// HashMismatch: the hash of the feedback file differs from the hash on the chain, or HERALD_HASH_POLICY=require
	// demands a hash and the event contains no hash.
	HashMismatch Reason = "hash_mismatch"
	// EndpointUnverified: the endpoint's domain does not confirm that the endpoint belongs to the agent, and
	// HERALD_BINDING is require.
	EndpointUnverified Reason = "endpoint_unverified"
	// AddressBlocked: package netguard refuses to connect to a host that the delivery needs, for example because its
	// address is private: the host of the endpoint, of a document or file, or of an authorization server.
	AddressBlocked Reason = "address_blocked"
	// TransportRefused: Herald does not support the transport of the agent's endpoint, or the operator does not allow
	// its command. The endpoint is that of the job, or else every MCP server in the registration document is refused.
	TransportRefused Reason = "transport_refused"
	// AuthFailed: the agent refused the headers in the job (job.Endpoint.Headers) with HTTP status 401 or 403.
	AuthFailed Reason = "auth_failed"
	// ToolError: the tool ran, and its result is marked as an error (isError of MCP).
	ToolError Reason = "tool_error"
	// BadResponse: the answer violates MCP, or the agent rejected the request as invalid, other than its arguments
	// (SchemaMismatch).
	BadResponse Reason = "bad_response"
)

// Reasons of cancelled deliveries.
const (
	// Operator: an operator cancelled the delivery.
	Operator Reason = "operator"
	// Reorg: the event's block left the chain.
	Reorg Reason = "reorg"
)

// Reasons of held deliveries. Each constant names the condition that has to change before the delivery is released.
const (
	// AuthRequired: the agent requires a credential and none is stored. Or the stored one cannot be used: the agent or
	// its OAuth server refused it, or it cannot be decrypted.
	AuthRequired Reason = "auth_required"
	// AgentDisabled: an operator disabled the agent, or Herald disabled it because all its calls failed for the time
	// HERALD_DISABLE_AFTER.
	AgentDisabled Reason = "agent_disabled"
	// HeldUnknown: it is unknown whether the agent executed the call, and its policy onUnknown=hold forbids a second
	// call.
	HeldUnknown Reason = "held_unknown"
	// ChainUnconfigured: the setting RPC_URL_<chainId> is missing.
	ChainUnconfigured Reason = "chain_unconfigured"
	// GatewayUnconfigured: a document or file is on Arweave, and ARWEAVE_GATEWAY is not set.
	GatewayUnconfigured Reason = "gateway_unconfigured"
)

// Reasons of free waits: the attempt does not count.
const (
	// NotConfirmed: the event's block has too few confirmations. Or the event has to be checked again, because a new
	// hint arrived, or because the chain shows another agent than the job.
	NotConfirmed Reason = "not_confirmed"
	// ChainUnavailable: the chain's node does not answer. Some rows of earlier versions are dead with this reason.
	ChainUnavailable Reason = "chain_unavailable"
	// AgentBusy: the permits, slots or memory that calls to this agent may use are all in use.
	AgentBusy Reason = "agent_busy"
	// BehindEarlier: it is the turn of an earlier delivery with the same ordering key (HERALD_ORDER), or a retraction
	// waits until the delivery of the feedback has ended.
	BehindEarlier Reason = "behind_earlier"
	// BreakerOpen: the circuit breaker is open because most of the endpoint's latest calls failed.
	BreakerOpen Reason = "breaker_open"
	// Throttled: the origin has reached Herald's own rate limit.
	Throttled Reason = "throttled"
	// OverBudget: the agent's effort budget is used up, or the part of it for fetching feedback files.
	OverBudget Reason = "over_budget"
)

// Reasons of waits after an attempt that counts, and of deliveries that are dead after their last attempt.
const (
	// ContentUnavailable: the registration document or the feedback file could not be fetched now. NoDocument is the
	// reason if the document certainly does not exist or is invalid.
	ContentUnavailable Reason = "content_unavailable"
	// ConnectFailed: no connection to the agent could be made, or the agent refused the call because it no longer knows
	// the MCP session. In both cases the agent executed nothing.
	ConnectFailed Reason = "connect_failed"
	// Timeout: the call timed out before any byte of it was sent, so the agent executed nothing.
	Timeout Reason = "timeout"
	// RateLimited: the agent or its authorization server answered with status 429, or the agent asked to be called
	// later (input_required). Throttled is the reason for Herald's own limit.
	RateLimited Reason = "rate_limited"
	// ServerError: the agent or its authorization server answered that it failed, such as with status 503.
	ServerError Reason = "server_error"
	// Unknown: at least a part of the call was sent, but it is unknown whether the agent executed it. Either no
	// usable answer arrived, or the answer to a batch does not contain this delivery exactly once.
	Unknown Reason = "outcome_unknown"
	// InternalError: an error in Herald itself, whose cause is in the log.
	InternalError Reason = "internal_error"
	// Expired: the delivery did not end within the longest time for which a delivery may be open, so it is dead. No
	// wait has this reason.
	Expired Reason = "expired"
)

// Reasons returns all reasons, for commands and pages that offer a choice.
func Reasons() []Reason {
	return []Reason{NoURI, NoDocument, NoMCPEndpoint, AgentInactive, AgentNotFound, Revoked, ToolNotOffered,
		NeverDelivered, MinedAgain,
		InvalidJob, EventNotFound, ToolNotFound, SchemaMismatch, HashMismatch, EndpointUnverified, AddressBlocked,
		TransportRefused, AuthFailed, ToolError, BadResponse,
		Operator, Reorg,
		AuthRequired, AgentDisabled, HeldUnknown, ChainUnconfigured, GatewayUnconfigured,
		NotConfirmed, AgentBusy, BehindEarlier, BreakerOpen, Throttled, OverBudget,
		ChainUnavailable, ContentUnavailable, ConnectFailed, Timeout, RateLimited, ServerError, Unknown,
		InternalError,
		Expired}
}
