package eventlog

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
)

// errNoIndex is the error for the NewFeedback forms of 2025, which lack the feedback's index. CountFeedback can add
// it.
var errNoIndex = errors.New("this form of NewFeedback has no feedbackIndex")

// errNotDelivered is the error for events that do not become jobs.
var errNotDelivered = errors.New("this event is not delivered")

// Job converts an event to a job. The job's registries are those of d, except the event's own emitter. blockTime is
// in seconds since 1970; 0, and a time after job.MaxTimestamp, omit it. Registered, URIUpdated, MetadataSet,
// MetadataUpdate, Transfer and BatchMetadataUpdate become AgentUpdated; for BatchMetadataUpdate, the job is about its
// first agent.
// ValidationRequest is refused with errNotDelivered, and a NewFeedback without an index with errNoIndex. Other errors
// are those of job.Make.
func Job(e erc8004.Event, chainID uint64, d erc8004.Deployment, blockTime uint64, limits job.Limits) (job.Job, error) {
	if blockTime > job.MaxTimestamp {
		blockTime = 0 // an event counts, whatever time the node states; a worker's check reads the block's time
	}
	index := e.LogIndex
	j := job.Job{Kind: job.Kind(e.Kind), ChainID: chainID, IdentityRegistry: d.Identity, AgentID: e.AgentID,
		BlockNumber: e.BlockNumber, BlockHash: e.BlockHash, TransactionHash: e.TxHash, LogIndex: &index,
		Timestamp: int64(blockTime)}
	switch e.Kind {
	case erc8004.NewFeedback:
		if !e.HasIndex {
			return job.Job{}, errNoIndex
		}
		setPair(&j, e)
		j.Value, j.ValueDecimals, j.LegacyScore = e.Value, e.ValueDecimals, e.LegacyScore
		j.Tag1, j.Tag2, j.Endpoint = e.Tag1, e.Tag2, e.Endpoint
		j.FeedbackURI, j.FeedbackHash = e.FeedbackURI, e.FeedbackHash
	case erc8004.FeedbackRevoked:
		setPair(&j, e)
		j.Reason = job.RevokedByClient
	case erc8004.ResponseAppended:
		setPair(&j, e)
		j.Responder, j.ResponseURI, j.ResponseHash = e.Responder, e.ResponseURI, e.ResponseHash
	case erc8004.ValidationResponse:
		j.ValidationRegistry, j.ValidatorAddress, j.RequestHash = e.Address, e.Validator, e.RequestHash
		j.Response, j.ResponseURI, j.ResponseHash, j.Tag = e.Response, e.ResponseURI, e.ResponseHash, e.Tag
	case erc8004.Registered, erc8004.URIUpdated, erc8004.MetadataSet, erc8004.MetadataUpdate,
		erc8004.BatchMetadataUpdate, erc8004.Transfer:
		j.Kind, j.IdentityRegistry = job.KindAgentUpdated, e.Address
	default:
		return job.Job{}, fmt.Errorf("%s: %w", e.Kind, errNotDelivered)
	}
	return job.Make(j, limits)
}

// setPair sets the fields that all feedback events share.
func setPair(j *job.Job, e erc8004.Event) {
	j.ReputationRegistry, j.ClientAddress, j.FeedbackIndex = e.Address, e.Client, e.FeedbackIndex
}

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
