package records

import (
	"context"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/jackc/pgx/v5"
)

// Transfer is one transfer of an agent to another owner. Its fields are in the order in which Transfers selects them.
type Transfer struct {
	From            string    `json:"from"`
	To              string    `json:"to"`
	At              time.Time `json:"at"` // timestamp of the block
	BlockNumber     uint64    `json:"blockNumber"`
	TransactionHash string    `json:"transactionHash"`
}

// maxTransfers limits the result of Transfers.
const maxTransfers = 10

// Transfers lists the last maxTransfers transfers of an agent that the chain follower read, newest first.
func (s *Store) Transfers(ctx context.Context, a erc8004.Agent) (list []Transfer, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "list the transfers of agent %s", a)
	defer end()
	rows, _ := s.db.Conns.Query(ctx, `SELECT from_address, to_address, at, block_number, transaction_hash
		FROM herald.agent_transfers WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3
		ORDER BY block_number DESC, log_index DESC LIMIT `+fmt.Sprint(maxTransfers), a.ChainID, a.Registry, a.ID)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Transfer])
}
