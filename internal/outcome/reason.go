// Package outcome is the vocabulary of an attempt's end. It has the statuses of deliveries, the reasons for which a
// delivery is skipped, rejected, cancelled, held, waiting or dead, the effect of each reason, the retry schedule, and
// the next step for an operator. The package does no I/O and reads no clock. Package delivery/classify maps errors to
// verdicts.
//
// The list of reasons is closed. Rows and metrics contain these words and operators filter by them, so a word never
// changes. A new reason is one row below, and one line of docs/reference/reasons.md. Its ending may be Held only if
// something releases the deliveries that are held for the reason; without that, a held delivery never ends. The SQL of
// package store contains some of the words too, so search it before you change a reason's effect. A new free wait that
// begins before the check needs no SQL: the attempt is still in the stage claim.
package outcome

import "slices"

// Reason is the word of one of the rows below, or empty for a delivery without a reason.
type Reason string

// row describes a reason. fill (nextstep.go) fills the texts for an operator.
type row struct {
	word   Reason
	ending Status
	free   bool   // the attempt does not count. Holds never count.
	limits bool   // the agent's other deliveries would have to wait for the same cause (Verdict.Limited)
	step   string // the next step
	over   string // the next step for a final delivery; empty: step
	listed string // the next step for an agent that is in the servers file; empty: step
}

var (
	reasons []Reason // all, in the order of the rows
	rows    = map[Reason]row{}
)

// add adds a reason and returns its word.
func add(r row) Reason {
	r.free = r.free || r.ending == Held
	rows[r.word], reasons = r, append(reasons, r.word)
	return r.word
}

// Reasons returns all reasons, for commands and pages that offer a choice.
func Reasons() []Reason { return slices.Clone(reasons) }

// Ending returns the status of a delivery whose attempt failed for the reason. If it is Waiting, and the delivery has
// no attempts left, the delivery becomes dead. No attempt fails for a reason with the ending Cancelled or Dead.
func (r Reason) Ending() Status { return rows[r].ending }

// Free reports whether an attempt that ended for the reason is free: it does not count. All holds are free.
func (r Reason) Free() bool { return rows[r].free }

// Texts of several reasons.
const (
	again         = "nothing to do: it is tried again by itself"
	whenItAnswers = "once the agent answers again{ (@probe)}{: @replay}"
)

// Reasons of skipped deliveries: nothing failed, but the delivery has no recipient or no purpose.
var (
	// NoURI: the agent has no tokenURI.
	NoURI = add(row{word: "no_uri", ending: Skipped,
		step: "the agent's owner has to set a tokenURI in the identity registry{; then: @replay}"})
	// NoDocument: there is no registration document at the tokenURI, or it is not valid.
	NoDocument = add(row{word: "no_document", ending: Skipped,
		step: "the agent's owner has to publish a registration document where its tokenURI leads{, see @resolve}" +
			"{; then: @replay}"})
	// NoMCPEndpoint: the registration document lists no MCP server.
	NoMCPEndpoint = add(row{word: "no_mcp_endpoint", ending: Skipped,
		step: "the agent's owner has to register an MCP endpoint{; then: @replay}"})
	// AgentInactive: the registration document says "active": false.
	AgentInactive = add(row{word: "agent_inactive", ending: Skipped,
		step: `the agent's owner has to end "active": false in its registration document{; then: @replay}`})
	// AgentNotFound: the identity registry has no such agent.
	AgentNotFound = add(row{word: "agent_not_found", ending: Skipped,
		step: "nothing to do, unless IDENTITY_REGISTRY_{@chain} or the job names the wrong registry: this one has no " +
			"such agent"})
	// Revoked: the client revoked the feedback before the agent received it.
	Revoked = add(row{word: "revoked", ending: Skipped,
		step: "nothing to do: the client took its feedback back before it was delivered"})
	// ToolNotOffered: the agent does not offer a tool that agents need not have, for revocations, responses or
	// validations. Or the servers file (HERALD_SERVERS_FILE) does not list this tool. For feedback, the reason is
	// ToolNotFound.
	ToolNotOffered = add(row{word: "tool_not_offered", ending: Skipped,
		step: "nothing to do: the agent does not ask for this kind of event; to get it, it has to offer the tool " +
			"{@tool|of its name}"})
	// NeverDelivered: the agent never received the feedback to which this revocation, response or retraction refers.
	NeverDelivered = add(row{word: "never_delivered", ending: Skipped, free: true,
		step: "nothing to do: the agent never got the feedback that this is about"})
	// Filtered: a filter of the agent's policy skips the event.
	Filtered = add(row{word: "filtered", ending: Skipped, free: true,
		step: "nothing to do: a filter of the agent's policy skips the event{; to deliver it all the same: @replay " +
			"--force}"})
	// MinedAgain: a retraction is not needed, because the event that it retracts is on the chain again.
	MinedAgain = add(row{word: "mined_again", ending: Skipped,
		step: "nothing to do: the event that it would have taken back is on the chain again"})
)

// Reasons of rejected deliveries: another attempt would end in the same way.
var (
	// InvalidJob: the job or its event is not valid, its payloadTemplate cannot be filled, or its arguments are too
	// large.
	InvalidJob = add(row{word: "invalid_job", ending: Rejected,
		step: "the sender of the job has to correct it as the error says, and enqueue it again"})
	// EventNotFound: the chain has no such event, or Herald does not accept events of its registry
	// (erc8004.Registries).
	EventNotFound = add(row{word: "event_not_found", ending: Rejected,
		step: "compare the job with chain {@chain} and enqueue it corrected; if the node of RPC_URL_{@chain} was " +
			"wrong, mend that{; then: @replay}"})
	// ToolNotFound: the agent has no tool for feedback, which every agent must have, or the servers file
	// (HERALD_SERVERS_FILE) does not list that tool.
	ToolNotFound = add(row{word: "tool_not_found", ending: Rejected,
		step: "the agent has to offer the tool {@tool|of the job}; one of another name counts when " +
			"HERALD_TOOL_ALIASES says so{; then: @replay}"})
	// SchemaMismatch: the arguments do not fit the tool's input schema, or the agent refused them as invalid parameters
	// (JSON-RPC error -32602).
	SchemaMismatch = add(row{word: "schema_mismatch", ending: Rejected,
		step: "the agent has to accept these arguments{, see @probe}{; then: @replay}"})
	// HashMismatch: the hash of the feedback file differs from the hash on the chain, or HERALD_HASH_POLICY=require
	// demands a hash and the event contains no hash.
	HashMismatch = add(row{word: "hash_mismatch", ending: Rejected,
		step: "the file's owner has to serve the file that was hashed, or HERALD_HASH_POLICY=annotate delivers such " +
			"files labelled{; then: @replay}"})
	// EndpointUnverified: the endpoint's domain does not confirm that the endpoint belongs to the agent, and
	// HERALD_BINDING is require.
	EndpointUnverified = add(row{word: "endpoint_unverified", ending: Rejected,
		step: "the operator of the endpoint has to name the agent as the error says, or HERALD_BINDING=warn lets it " +
			"be called all the same{; then: @replay}"})
	// AddressBlocked: package netguard refuses to connect to the host of the endpoint, of a document or file, or of an
	// authorization server, for example because the host's address is private.
	AddressBlocked = add(row{word: "address_blocked", ending: Rejected,
		step: "if the address is intended, let it through by HERALD_ALLOW_NETWORKS, plain http by " +
			"HERALD_ALLOW_HTTP=true, and restart the worker{; then: @replay}"})
	// TransportRefused: Herald does not support the transport of the agent's endpoint, or the operator does not allow
	// its command. Or the job names no endpoint, and none of the MCP servers in the registration document is supported
	// by Herald and allowed by the operator.
	TransportRefused = add(row{word: "transport_refused", ending: Rejected,
		step: "the agent's owner has to register an http endpoint; a command is run when HERALD_STDIO_COMMANDS lists " +
			"exactly it{; then: @replay}"})
	// AuthFailed: the agent refused the headers in the job (job.Endpoint.Headers) with HTTP status 401 or 403.
	AuthFailed = add(row{word: "auth_failed", ending: Rejected,
		step: "the headers that came with the job were refused, and are not replaced: once the agent accepts " +
			"them{: @replay}"})
	// ToolError: the tool ran, and its result is marked as an error (isError of MCP).
	ToolError = add(row{word: "tool_error", ending: Rejected,
		step: "the agent's tool ran and refused: ask its author; once that is repaired{: @replay}"})
	// BadResponse: the answer violates MCP, or the agent rejected the request as invalid. If it rejected the arguments,
	// the reason is SchemaMismatch.
	BadResponse = add(row{word: "bad_response", ending: Rejected,
		step: "the agent's author has to mend its answer{, see @probe}{; then: @replay}"})
)

// Reasons of cancelled deliveries.
var (
	// Operator: an operator cancelled the delivery.
	Operator = add(row{word: "operator", ending: Cancelled,
		step: "nothing to do: an operator cancelled it; to deliver it all the same{: @replay}"})
	// Reorg: the event's block left the chain.
	Reorg = add(row{word: "reorg", ending: Cancelled,
		step: "nothing to do: its block left the chain; it is queued anew when its event is mined again"})
)

// Reasons of held deliveries. Each constant names the condition that has to change before the delivery is released.
var (
	// AuthRequired: the agent requires a credential and none is stored. Or the stored one cannot be used: the agent or
	// its OAuth server refused it, or it cannot be decrypted.
	AuthRequired = add(row{word: "auth_required", ending: Held,
		step: "{store a token: worker token set @credential (where it wants OAuth: worker token login " +
			"@credential)|store a token for the agent: worker token set --help}" +
			"{; if the fault was repaired without a new token: @replay}",
		listed: "give the agent auth or headers in HERALD_SERVERS_FILE; that releases its deliveries"})
	// AgentDisabled: an operator disabled the agent, or Herald disabled it because all its calls failed for the time
	// HERALD_DISABLE_AFTER.
	AgentDisabled = add(row{word: "agent_disabled", ending: Held,
		step: "enable the agent: worker agent enable {@agent|CHAIN:AGENT}; if a policy disables it, change that: " +
			"worker agent policy {@agent|CHAIN:AGENT}",
		listed: `say "enabled": true of the agent in HERALD_SERVERS_FILE, or if its row is disabled: worker agent ` +
			`enable {@agent|CHAIN:AGENT}`})
	// HeldUnknown: it is unknown whether the agent executed the call, and its policy onUnknown=hold forbids a second
	// call.
	HeldUnknown = add(row{word: "held_unknown", ending: Held,
		step: "ask the agent's author whether {deliveryId @delivery arrived; if not: worker delivery replay " +
			"@delivery; if it did: worker delivery cancel @delivery|the call arrived}"})
	// ChainUnconfigured: the setting RPC_URL_<chainId> is missing.
	ChainUnconfigured = add(row{word: "chain_unconfigured", ending: Held,
		step: "set RPC_URL_{@chain} and restart the worker, which releases its deliveries"})
	// GatewayUnconfigured: a document or file is on Arweave, and ARWEAVE_GATEWAY is not set.
	GatewayUnconfigured = add(row{word: "gateway_unconfigured", ending: Held,
		step: "set ARWEAVE_GATEWAY and restart the worker, which releases its deliveries"})
)

// Reasons of free waits: the attempt does not count.
var (
	// NotConfirmed: the event's block has too few confirmations. Or the event has to be checked again, because a new
	// hint arrived, or because the chain shows another agent than the job.
	NotConfirmed = add(row{word: "not_confirmed", ending: Waiting, free: true,
		step: "nothing to do: it is delivered once its block has as many confirmations as HERALD_CONFIRMATIONS asks " +
			"for"})
	// AgentBusy: the permits, slots or memory that calls to this agent may use are all in use.
	AgentBusy = add(row{word: "agent_busy", ending: Waiting, free: true, limits: true, step: again})
	// BehindEarlier: an earlier delivery with the same ordering key goes first (HERALD_ORDER). Or a revocation,
	// response or retraction waits until the delivery of its feedback has ended, or a response waits for other
	// responses to the agent.
	BehindEarlier = add(row{word: "behind_earlier", ending: Waiting, free: true, step: again})
	// BreakerOpen: the circuit breaker is open because most of the endpoint's latest calls failed.
	BreakerOpen = add(row{word: "breaker_open", ending: Waiting, free: true, limits: true,
		step: again + ", after one probe call succeeded{; to see the fault: @probe}"})
	// Throttled: the origin has reached Herald's own rate limit, the agent the rate in its policy, or that policy
	// pauses its calls.
	Throttled = add(row{word: "throttled", ending: Waiting, free: true, limits: true, step: again})
	// OverBudget: the agent's effort budget is used up, or the part of it for fetching feedback files.
	OverBudget = add(row{word: "over_budget", ending: Waiting, free: true, limits: true, step: again})
	// ChainUnavailable: the chain's node does not answer. Some rows of earlier versions are dead with this reason.
	ChainUnavailable = add(row{word: "chain_unavailable", ending: Waiting, free: true, limits: true,
		step: again + "; if the node of RPC_URL_{@chain} stays away, set another: worker doctor",
		over: "once the node of RPC_URL_{@chain} answers (worker doctor){: @replay}"})
)

// Reasons of waits after an attempt that counts, and of deliveries that are dead after their last attempt.
var (
	// ContentUnavailable: the registration document or the feedback file could not be fetched now. NoDocument is the
	// reason if the document certainly does not exist or is invalid.
	ContentUnavailable = add(row{word: "content_unavailable", ending: Waiting,
		step: again + ", and after six failures the feedback is delivered without its file{; to see what is fetched: " +
			"@resolve}",
		over: "once the document that it needs can be fetched{ (@resolve)}{: @replay}"})
	// ConnectFailed: no connection to the agent could be made, the agent refused the call because it no longer knows
	// the MCP session, or a former endpoint of the agent refused the call. Or a server, perhaps a proxy in front of the
	// agent, answered 404 or 421, or a page instead of the handshake. In all cases the agent executed nothing.
	ConnectFailed = add(row{word: "connect_failed", ending: Waiting,
		step: again + "{; to see how the agent does: @probe}",
		over: whenItAnswers})
	// Timeout: the call timed out before any byte of it was sent, so the agent executed nothing.
	Timeout = add(row{word: "timeout", ending: Waiting,
		step: again + "{; to see how the agent does: @probe}",
		over: whenItAnswers})
	// RateLimited: the agent or its authorization server answered with status 429, or the agent asked to be called
	// later (input_required). That is its answer to one delivery, so it limits no other. Throttled is the reason for
	// Herald's own limit.
	RateLimited = add(row{word: "rate_limited", ending: Waiting,
		step: again + "{; to see how the agent does: @probe}",
		over: whenItAnswers})
	// ServerError: the agent or its authorization server answered that it failed, such as with status 503.
	ServerError = add(row{word: "server_error", ending: Waiting,
		step: again + "{; to see how the agent does: @probe}",
		over: whenItAnswers})
	// Unknown: at least a part of the call was sent, but it is unknown whether the agent executed it. Either no
	// usable answer arrived, or the answer to a batch does not contain this delivery exactly once.
	Unknown = add(row{word: "outcome_unknown", ending: Waiting,
		step: again + "{; to see how the agent does: @probe}",
		over: "ask the agent's author whether it arrived; if not{: @replay}"})
	// InternalError: an error in Herald itself, whose cause is in the log.
	InternalError = add(row{word: "internal_error", ending: Waiting,
		step: again + "; the worker's log says more of it",
		over: "see the worker's log for the cause; once that is repaired{: @replay}"})
	// Expired: the delivery did not end within the longest time for which a delivery may be open, so it is dead. No
	// wait has this reason.
	Expired = add(row{word: "expired", ending: Dead, step: "if it is still wanted{: @replay}"})
)
