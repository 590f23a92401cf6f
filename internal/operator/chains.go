package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/chain/follower"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/store/cursor"
)

// ChainState is the progress of reading a chain, and the current state of its nodes.
type ChainState struct {
	ChainID uint64        `json:"chainId"`
	Watched bool          `json:"watched"` // this process's HERALD_WATCH lists the chain
	Nodes   []NodeState   `json:"nodes"`
	Problem string        `json:"problem,omitempty"` // why its nodes could not be asked
	Cursors []CursorState `json:"cursors"`
}

// NodeState is the state of one node of RPC_URL_<chain>. Number is its position there, from 1.
type NodeState struct {
	Number  int    `json:"number"`
	Problem string `json:"problem,omitempty"` // empty if it answers
}

// CursorState describes the cursor of a contract or of a backfill. The fields that come from the node are missing if it
// does not answer.
type CursorState struct {
	Contracts []string   `json:"contracts"`          // one, or those of a backfill
	Backfill  string     `json:"backfill,omitempty"` // its blocks; empty: the cursor of a contract
	Former    bool       `json:"former,omitempty"`   // see markFormer
	Start     uint64     `json:"startBlock"`
	End       *uint64    `json:"endBlock,omitempty"`
	Next      uint64     `json:"nextBlock"`           // the first block that is not read
	Head      *uint64    `json:"headBlock,omitempty"` // the newest block of the node
	Finalized *uint64    `json:"finalizedBlock,omitempty"`
	Settled   *uint64    `json:"settledBlock,omitempty"` // no reorg is expected to replace this block
	LagBlocks *uint64    `json:"lagBlocks,omitempty"`
	LagTime   *float64   `json:"lagSeconds,omitempty"`
	Reorgs    uint64     `json:"reorgs"` // how often blocks were read again
	MovedAt   *time.Time `json:"movedAt"`

	// nil: all blocks are checked before they are accepted, or none
	Checks       *follower.Checks `json:"checks,omitempty"`
	StalledSince *time.Time       `json:"stalledSince,omitempty"`
	StalledWhy   string           `json:"stalledWhy,omitempty"` // error of the node
}

// ListChains lists every chain that has a cursor or that HERALD_WATCH lists, and asks its nodes for their state.
func (o *Operator) ListChains(ctx context.Context) ([]ChainState, error) {
	return o.listChains(ctx, 0, true)
}

// ReadChains lists the same chains as ListChains, but only from stored state: it makes no request to a node.
func (o *Operator) ReadChains(ctx context.Context) ([]ChainState, error) {
	return o.listChains(ctx, 0, false)
}

// ShowChain returns the state of one chain, as ListChains does. It returns a *MisuseError if the chain is not among
// them.
func (o *Operator) ShowChain(ctx context.Context, id uint64) (shown ChainState, err error) {
	all, err := o.listChains(ctx, id, true)
	if err == nil && len(all) == 0 {
		err = NewMisuse("chain %d was never read: `enqueue watch %[1]d` does, or a worker with HERALD_WATCH=%[1]d", id)
	}
	if err != nil {
		return shown, err
	}
	return all[0], nil
}

// listChains lists all chains, or only the one with an id that is not 0.
func (o *Operator) listChains(ctx context.Context, id uint64, askNodes bool) (all []ChainState, err error) {
	err = o.ReadBounded(ctx, func(ctx context.Context, st *Session) error {
		cursors, err := st.Cursors(ctx, id)
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(o.groupChains(cursors), func(c ChainState) bool { return id != 0 && c.ChainID != id })
		var asked sync.WaitGroup
		for i := range all {
			if askNodes {
				asked.Go(func() { o.askChain(ctx, &all[i]) })
			}
		}
		asked.Wait()
		return nil
	})
	return all, err
}

// groupChains groups cursors by chain. It adds the chains of HERALD_WATCH that have no cursor yet.
func (o *Operator) groupChains(cursors []cursor.State) (all []ChainState) {
	find := func(id uint64) *ChainState {
		i := slices.IndexFunc(all, func(c ChainState) bool { return c.ChainID == id })
		if i < 0 {
			i = len(all)
			all = append(all, ChainState{ChainID: id, Watched: slices.Contains(o.Settings.Watch, id),
				Nodes: []NodeState{}, Cursors: []CursorState{}})
		}
		return &all[i]
	}
	for _, c := range cursors {
		chain := find(c.ChainID)
		chain.Cursors = append(chain.Cursors, describeCursor(c))
	}
	for _, c := range all {
		markFormer(c.Cursors, o.Settings.Chains[c.ChainID].Registries.Default().List())
	}
	for _, id := range o.Settings.Watch {
		find(id)
	}
	slices.SortFunc(all, func(a, b ChainState) int { return cmp.Compare(a.ChainID, b.ChainID) })
	return all
}

// formerAfter is how long a cursor must be idle, compared with another cursor of its chain, to count as a former one.
const formerAfter = time.Minute

// markFormer marks cursors of contracts that the settings no longer list. An `enqueue watch` may also read other
// contracts than the settings list, but their cursors move with each block and are not marked.
func markFormer(all []CursorState, listed []string) {
	var newest time.Time
	for _, f := range all {
		if f.End == nil && f.MovedAt.After(newest) {
			newest = *f.MovedAt
		}
	}
	for i, f := range all {
		all[i].Former = f.End == nil && len(listed) > 0 && !slices.Contains(listed, f.Contracts[0]) &&
			newest.Sub(*f.MovedAt) > formerAfter
	}
}

func describeCursor(c cursor.State) CursorState {
	f := CursorState{Contracts: strings.Split(c.Contracts, ","), Backfill: c.Backfill,
		Start: c.Start, End: c.End, Next: c.Next,
		Finalized: knownBlock(c.Finalized), Settled: knownBlock(c.Settled), Head: knownBlock(c.Head),
		Reorgs: c.Reorgs, MovedAt: &c.MovedAt, StalledSince: c.StalledSince, StalledWhy: c.StalledWhy}
	_ = json.Unmarshal(c.Checks, &f.Checks) // checks in a newer version's format are ignored
	if behind := c.Head + 1 - c.Next; c.Head >= c.Next {
		f.LagBlocks = &behind
	}
	return f
}

// knownBlock returns nil for block 0: the number is not known.
func knownBlock(n uint64) *uint64 {
	if n == 0 {
		return nil
	}
	return &n
}

// askChain asks the chain's nodes for their state and adds the lag of each cursor. If the nodes do not answer, it
// sets Problem and keeps the stored values.
func (o *Operator) askChain(ctx context.Context, c *ChainState) {
	known := o.Settings.Chains[c.ChainID]
	if len(known.RPCURLs) == 0 {
		c.Problem = "it has no node here: set RPC_URL_<chain> to see how far behind it is"
		return
	}
	client, err := node.New(node.Config{ChainID: c.ChainID, URLs: known.RPCURLs, Logger: o.Logger})
	if err != nil {
		c.Problem = err.Error()
		return
	}
	defer client.Close()

	nodes, err := client.PingNodes(ctx)
	for _, n := range nodes {
		state := NodeState{Number: n.Number}
		if n.Err != nil {
			state.Problem = n.Err.Error()
		}
		c.Nodes = append(c.Nodes, state)
	}
	if err != nil {
		c.Problem = err.Error()
		return
	}
	lags := make(map[uint64]node.Lag) // by the last block that was read
	for i := range c.Cursors {
		f := &c.Cursors[i]
		if f.LagBlocks = nil; f.Next == 0 || f.Former {
			continue
		}
		lag, asked := lags[f.Next-1]
		if !asked {
			if lag, err = client.Lag(ctx, f.Next-1); err != nil {
				c.Problem = err.Error()
				continue
			}
			lags[f.Next-1] = lag
		}
		seconds := lag.Time.Seconds()
		f.Head, f.LagBlocks, f.LagTime = &lag.Head, &lag.Blocks, &seconds
	}
}
