package chain

import (
	"context"
	"errors"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
)

// Bounds of the search for the event of a job without a transactionHash.
const (
	searchTimeouts = 3                // the whole search may take this many times the timeout of one request
	searchRequests = 128              // with searchWidth, this covers a day of blocks of 0.09 s
	searchWidth    = 10_000           // blocks per request; fewer if the node refuses
	searchMargin   = 10 * time.Minute // on both sides of the job's blockNumber: a reorg may have moved its event
)

// listTopics returns the topics that select a job's event. It uses only parameters that are indexed in every form of
// the kind.
func listTopics(j job.Job) [][]common.Hash {
	topics := func(kind erc8004.Kind, indexed ...common.Hash) [][]common.Hash {
		out := [][]common.Hash{erc8004.Topics(kind)}
		for _, t := range indexed {
			out = append(out, []common.Hash{t})
		}
		return out
	}
	address := func(a common.Address) common.Hash { return common.BytesToHash(a.Bytes()) }
	agent, client := common.BigToHash(j.AgentID), address(j.ClientAddress)
	switch j.Kind {
	case job.KindFeedbackRevoked:
		return topics(erc8004.FeedbackRevoked, agent, client, common.BigToHash(new(big.Int).SetUint64(j.FeedbackIndex)))
	case job.KindResponseAppended:
		return topics(erc8004.ResponseAppended, agent, client, address(j.Responder))
	case job.KindValidationResponse:
		return topics(erc8004.ValidationResponse, address(j.ValidatorAddress), agent, j.RequestHash)
	}
	return topics(erc8004.NewFeedback, agent, client)
}

// newFilter returns the filter of a job's event.
func newFilter(j job.Job) eventlog.Filter {
	registry, _ := emitterOf(j)
	return eventlog.Filter{Address: []common.Address{registry}, Topics: listTopics(j)}
}

// findSearchRange returns the range in which to search for the event of a job without a transactionHash. The range is
// empty if from is above to.
func (c *Client) findSearchRange(ctx context.Context, j job.Job, head uint64) (from, to uint64) {
	if j.BlockNumber != 0 {
		margin := c.countBlocks(ctx, searchMargin)
		return j.BlockNumber - min(j.BlockNumber, margin), min(addSaturated(j.BlockNumber, margin), head)
	}
	blocks := c.logRange.Blocks
	if c.logRange.Time > 0 {
		blocks = min(c.countBlocks(ctx, c.logRange.Time), searchRequests*searchWidth)
	}
	if blocks == 0 {
		return 1, 0
	}
	return head - min(head, blocks-1), head
}

// searchEvent searches for the event of a job without a transactionHash, in the newest blocks first. The registry's
// state is not sufficient: only the log contains the endpoint, URI and hash of a feedback.
func (c *Client) searchEvent(
	ctx context.Context, j job.Job, stored *erc8004.StoredFeedback, head uint64,
) (erc8004.Event, Standing, error) {
	from, to := c.findSearchRange(ctx, j, head)
	if from > to || j.HasPositionKey() {
		return erc8004.Event{}, newContradiction("transactionHash"), nil
	}
	search, cancel := context.WithTimeout(node.MarkSearch(ctx), searchTimeouts*c.Timeout())
	defer cancel()
	filter := newFilter(j)
	why := ""
	left, width := to-from+1, uint64(searchWidth)
	var refusal error
	for n := 0; n < searchRequests && left > 0; n++ {
		last := from + left - 1
		asked := min(width, left)
		filter.FromBlock, filter.ToBlock = hexutil.Uint64(last+1-asked), hexutil.Uint64(last)
		logs, _, err := c.ReadLogs(search, filter)
		switch {
		case err != nil && asked > 1 && search.Err() == nil && node.IsRefusedRange(err):
			width, refusal = node.NarrowWidth(err, asked), err
			continue
		case err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
			if _, err := c.ReadHead(ctx); err != nil {
				return erc8004.Event{}, Standing{}, err
			}
			// The node answers other calls and is too slow for this one, so a retry would fail as well.
			return erc8004.Event{}, newContradiction("transactionHash"), nil
		case err != nil && asked == 1 && node.IsRefusedForGood(err):
			return erc8004.Event{}, newContradiction("transactionHash"), nil
		case err != nil:
			return erc8004.Event{}, Standing{}, err
		}
		left -= asked
		found := matchLogs(j, logs, filter)
		if len(found) == 0 {
			continue
		}
		e, field, err := c.pickFeedback(search, j, stored, found)
		if err != nil || field == "" {
			return e, Standing{Found: err == nil}, err
		}
		why = field
	}
	if left > 0 && refusal != nil && !node.IsRangeLimit(refusal) {
		return erc8004.Event{}, Standing{}, refusal // the node had another problem than the width of the ranges
	}
	if why != "" {
		return erc8004.Event{}, newContradiction(why), nil
	}
	return erc8004.Event{}, Standing{Disagrees: "transactionHash", SearchedFrom: from + left, SearchedTo: to}, nil
}

// matchLogs returns the events that may have the job's key among the logs that a node returned for filter, oldest
// first. The node may have ignored the filter.
func matchLogs(j job.Job, logs []types.Log, filter eventlog.Filter) (found []erc8004.Event) {
	for _, l := range eventlog.Sort(logs) {
		if l.Removed || l.BlockNumber < uint64(filter.FromBlock) || l.BlockNumber > uint64(filter.ToBlock) {
			continue
		}
		if e, err := erc8004.Decode(l); err == nil && compareKey(j, e) == "" {
			found = append(found, e)
		}
	}
	return found
}
