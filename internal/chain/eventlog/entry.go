package eventlog

import (
	"context"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
)

// Entry is a log together with its job, or with the reason Err why it becomes none.
type Entry struct {
	Log   types.Log
	Event erc8004.Event // zero if the log cannot be decoded
	Job   job.Job
	Err   error
}

// readBlockTimes returns the timestamp of every block that the logs name. It reads a block only if the node did not
// send the timestamp with the log.
func (r *Reader) readBlockTimes(ctx context.Context, logs []types.Log) (map[common.Hash]uint64, error) {
	times := make(map[common.Hash]uint64)
	var elems []rpc.BatchElem
	for _, l := range logs {
		if l.BlockTimestamp != 0 {
			times[l.BlockHash] = l.BlockTimestamp
		}
		if _, known := times[l.BlockHash]; known {
			continue
		}
		times[l.BlockHash] = 0
		elems = append(elems, rpc.BatchElem{Method: "eth_getBlockByHash", Args: []any{l.BlockHash, false},
			Result: new(*node.Block)})
	}
	if err := r.SendParts(ctx, "reading the times of blocks", elems); err != nil {
		return nil, err
	}
	for _, e := range elems {
		b, _ := e.Result.(**node.Block)
		if b == nil || *b == nil {
			return nil, ErrReorganised
		}
		times[(*b).Hash] = uint64((*b).Time)
	}
	return times, nil
}

// MakeEntries converts logs to events and jobs, in their order.
func (r *Reader) MakeEntries(
	ctx context.Context, logs []types.Log, d erc8004.Deployment, limits job.Limits,
) ([]Entry, error) {
	logs = slices.DeleteFunc(logs, func(l types.Log) bool { return l.Removed })
	times, err := r.readBlockTimes(ctx, logs)
	if err != nil {
		return nil, err
	}
	made := make([]Entry, len(logs))
	events := make([]erc8004.Event, len(logs))
	for i, l := range logs {
		made[i].Log = l
		events[i], made[i].Err = erc8004.Decode(l)
	}
	uncountable, err := r.CountFeedback(ctx, events)
	if err != nil {
		return nil, err
	}
	for i := range made {
		made[i].Event = events[i]
		if err := uncountable[i]; err != nil {
			made[i].Err = err
		}
		if made[i].Err == nil {
			made[i].Job, made[i].Err = Job(events[i], r.ChainID(), d, times[logs[i].BlockHash],
				limits)
		}
	}
	return made, nil
}
