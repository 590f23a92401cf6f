package chaintrial

import (
	"context"
	"errors"
	"fmt"
	"math/big"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
)

// Ask sends one JSON-RPC question and decodes the answer into result. It does not retry, because the node is honest.
func Ask(ctx context.Context, url string, result any, method string, params ...any) error {
	client, err := rpc.DialContext(ctx, url)
	if err != nil {
		return fmt.Errorf("ask %s: %w", method, err)
	}
	defer client.Close()
	if err := client.CallContext(ctx, result, method, params...); err != nil {
		return fmt.Errorf("ask %s: %w", method, err)
	}
	return nil
}

// Head returns the number of the newest block.
func Head(ctx context.Context, url string) (uint64, error) {
	var head hexutil.Uint64
	err := Ask(ctx, url, &head, "eth_blockNumber")
	return uint64(head), err
}

// ReadBlocks is the plain reading: it returns the logs of the blocks from first to last, with one question for each
// block.
func ReadBlocks(ctx context.Context, url string, first, last uint64, of erc8004.Deployment) ([]types.Log, error) {
	var all []types.Log
	for n := first; n <= last; n++ {
		var logs []types.Log
		err := Ask(ctx, url, &logs, "eth_getLogs", map[string]any{"fromBlock": hexutil.Uint64(n),
			"toBlock": hexutil.Uint64(n),
			"address": []common.Address{of.Identity, of.Reputation, of.Validation}})
		if err != nil {
			return nil, fmt.Errorf("read block %d: %w", n, err)
		}
		all = append(all, logs...)
	}
	return all, nil
}

// Position is the position of an event on the chain.
type Position struct {
	Block       uint64
	BlockHash   common.Hash
	Transaction common.Hash
	LogIndex    uint
}

// Wanted is the row that Herald should have for one log: a delivery, or a rejected row if Refused contains the
// reason.
type Wanted struct {
	Key      string // empty if the log is refused and its event has no key
	Job      job.Job
	Position Position
	Refused  string
	// Incomplete is true if the log lacks the index, or contains only the hash of tag1. A worker then asks the registry,
	// and an emitter does not answer.
	Incomplete bool
}

// CountedBefore returns how many feedbacks without an index a client had given an agent before the first of some
// logs.
type CountedBefore func(registry common.Address, agentID *big.Int, client common.Address) (uint64, error)

// countedNone returns 0, the count before the first block.
func countedNone(common.Address, *big.Int, common.Address) (uint64, error) { return 0, nil }

// Want returns the rows for the logs of successive blocks. Logs that become no delivery (AgentUpdated,
// ValidationRequest) yield none.
func Want(logs []types.Log, chainID uint64, of erc8004.Deployment, before CountedBefore) ([]Wanted, error) {
	counted := map[string]uint64{}
	var wanted []Wanted
	seen := map[string]bool{}
	for _, l := range logs {
		at := Position{l.BlockNumber, l.BlockHash, l.TxHash, l.Index}
		event, err := erc8004.Decode(l)
		if _, ok := errors.AsType[*erc8004.NotKnownError](err); ok {
			continue
		}
		if err != nil {
			wanted = append(wanted, Wanted{Position: at, Refused: err.Error()})
			continue
		}
		if event.Kind == erc8004.ValidationRequest || event.Kind == erc8004.BatchMetadataUpdate {
			continue
		}
		incomplete := event.Kind == erc8004.NewFeedback && (!event.HasIndex || event.Tag1Lost)
		if event.Kind == erc8004.NewFeedback && !event.HasIndex {
			pair := fmt.Sprint(event.Address, event.AgentID, event.Client)
			if _, known := counted[pair]; !known {
				if counted[pair], err = before(event.Address, event.AgentID, event.Client); err != nil {
					return nil, err
				}
			}
			counted[pair]++
			event.FeedbackIndex, event.HasIndex = counted[pair], true
		}
		made, err := eventlog.Job(event, chainID, of, l.BlockTimestamp, job.Limits{MaxTimeout: maxTimeout})
		switch {
		case err != nil && event.Kind == erc8004.NewFeedback:
			key := job.Job{Kind: job.KindNewFeedback, ChainID: chainID, ReputationRegistry: event.Address, AgentID: event.AgentID,
				ClientAddress: event.Client, FeedbackIndex: event.FeedbackIndex}.Key()
			wanted = append(wanted, Wanted{Key: key, Position: at, Refused: err.Error()})
		case err != nil:
			wanted = append(wanted, Wanted{Position: at, Refused: err.Error()})
		case made.Kind == job.KindAgentUpdated:
		case seen[made.Key()]:
			return nil, fmt.Errorf("the chain has %s twice, at last in block %d: the generator is at fault", made.Key(),
				at.Block)
		default:
			seen[made.Key()] = true
			wanted = append(wanted, Wanted{Key: made.Key(), Job: made, Position: at, Incomplete: incomplete})
		}
	}
	return wanted, nil
}
