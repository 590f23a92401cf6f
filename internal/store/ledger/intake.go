package ledger

import (
	"encoding/json"
	"math/big"
	"strings"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// MaxAccept limits the jobs of one Accept call, because one transaction accepts all of them and locks all their agents.
const MaxAccept = 500

// Intake is one job to accept, with its sender.
type Intake struct {
	Job           job.Job
	SealedHeaders []byte // encrypted action.endpoint.headers of the job; nil: it has none
	Source        Source // the sender of the job
	// SameHeaders reports whether sealed, the encrypted headers of another job, decrypts to the same headers as
	// SealedHeaders. Only the caller has the key. If SameHeaders is nil, encrypted headers of two jobs always count as
	// different.
	SameHeaders func(sealed []byte) bool

	// Refused, if not empty, is the reason why the job is invalid, as a sentence. Accept then stores a rejected
	// delivery (invalid_job), because a job from the chain or from Redis has no caller that could get an error.
	Refused string
	// Filtered, if not empty, is a sentence about the filter of the default policy that skips the event. Accept then
	// stores a skipped delivery (filtered), unless the agent has filters of its own: then a worker's check decides. It
	// is set only for events that were read from the chain.
	Filtered string
	// Key, if not empty, replaces Job.Key() as the delivery's key. It is set for Refused jobs only: the key of the
	// event, or "invalid:<sha256>" if the event is unknown.
	Key string
	// Received, for a Refused job only, is the text that arrived, as JSON with masked secrets. Accept stores it as the
	// delivery's result. Nil: no result is stored.
	Received json.RawMessage

	AgentChange AgentChange // for an AgentUpdated read from the chain (a change of registration or owner): its details

	// Traceparent is the trace in which the job was sent (W3C Trace Context). A new delivery continues this trace. An
	// invalid value is ignored. An existing delivery keeps its trace.
	Traceparent string

	// Bulk marks the job as part of a backfill. Its delivery is dispatched after all other deliveries of its agent, and
	// its tasks go to the lane bulk. All jobs of one call must have the same Bulk. An existing delivery keeps its own.
	Bulk bool
}

// Verdict states how Accept handled one Intake.
type Verdict string

// The verdicts.
const (
	Accepted Verdict = "accepted" // a delivery was inserted, or an ended delivery was queued again
	Known    Verdict = "known"    // the key already has a delivery
	// Conflict: the key's delivery has another action. Or it has another event, and workers do not check on the chain
	// which event is real.
	Conflict  Verdict = "conflict"
	Refreshed Verdict = "refreshed" // AgentUpdated: the agent's epoch was raised; no delivery was inserted
)

// Acceptance is the answer of Accept to one Intake. For Known and Conflict, ID and Status are those of the existing
// delivery. For Refreshed, only Verdict is set.
type Acceptance struct {
	Verdict Verdict
	ID      uuid.UUID
	Key     string
	Field   string         // for Conflict: the first field of the event that differs, or "action"
	Stored  string         // for Conflict: the value of Field in the delivery; "" for "action"
	Differs []string       // for Known: the job's fields that differ from the event that was read from the chain
	Status  outcome.Status // of the delivery with ID
}

// AgentChange has the details of an AgentUpdated event that the chain follower read.
type AgentChange struct {
	// LastID is the last id of a range of agents that changed (ERC-4906, BatchMetadataUpdate). The job's agent is the
	// first. Agents of the range without a row in herald.agents are ignored. Nil: only the job's agent changed.
	LastID *big.Int
	// From and To are the old and the new owner, if the agent was transferred (ERC-721, Transfer); otherwise both are
	// zero.
	From, To common.Address
}

// AgentOf returns the agent that a job names. A job without an agent id gets the id "0".
func AgentOf(j job.Job) erc8004.Agent {
	id := "0"
	if j.AgentID != nil {
		id = j.AgentID.String()
	}
	return erc8004.Agent{ChainID: j.ChainID, Registry: strings.ToLower(j.IdentityRegistry.Hex()), ID: id}
}
