package store

import (
	"context"
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
)

// AgentChange has the details of an AgentUpdated event that the chain follower read.
type AgentChange struct {
	// LastID is the last id of a range of agents that changed (ERC-4906, BatchMetadataUpdate). The job's agent is the
	// first. Agents of the range without a row in herald.agents are ignored. Nil: only the job's agent changed.
	LastID *big.Int
	// From and To are the old and the new owner, if the agent was transferred (ERC-721, Transfer); otherwise both are
	// zero.
	From, To common.Address
}

// Transfer is one transfer of an agent to another owner. Its fields are in the order in which Transfers selects them.
type Transfer struct {
	From            string    `json:"from"`
	To              string    `json:"to"`
	At              time.Time `json:"at"` // timestamp of the block
	BlockNumber     uint64    `json:"blockNumber"`
	TransactionHash string    `json:"transactionHash"`
}

// queueAgentChange queues in b the statements for an AgentUpdated event. They raise the epochs of the changed agents,
// so that workers resolve these agents again, and store a transfer to another owner.
func queueAgentChange(b *pgx.Batch, a arrival) {
	switch c := a.AgentChange; {
	case c.LastID != nil:
		b.Queue(statement("raise_epochs"), a.agent.ChainID, a.agent.Registry, a.agent.ID, c.LastID.String())
		return
	case c.To != (common.Address{}) && a.Job.LogIndex != nil:
		note := namedStatement("note_transfer")
		b.Queue(note.text, note.args(pgx.NamedArgs{"chain_id": a.agent.ChainID, "registry": a.agent.Registry,
			"agent_id": a.agent.ID, "transaction_hash": a.Job.TransactionHash.Hex(),
			"log_index": int64(*a.Job.LogIndex), "block_number": a.Job.BlockNumber, "at": a.Job.Timestamp,
			"from": strings.ToLower(c.From.Hex()), "to": strings.ToLower(c.To.Hex())})...)
	}
	b.Queue(statement("raise_epoch"), a.agent.ChainID, a.agent.Registry, a.agent.ID)
}

// maxTransfers limits the result of Transfers.
const maxTransfers = 10

// Transfers lists the last maxTransfers transfers of an agent that the chain follower read, newest first.
func (s *Store) Transfers(ctx context.Context, a Agent) (list []Transfer, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "list the transfers of agent %s", a)
	rows, _ := s.pool.Query(ctx, `SELECT from_address, to_address, at, block_number, transaction_hash
		FROM herald.agent_transfers WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3
		ORDER BY block_number DESC, log_index DESC LIMIT `+fmt.Sprint(maxTransfers), a.ChainID, a.Registry, a.ID)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Transfer])
}
