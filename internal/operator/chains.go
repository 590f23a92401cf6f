package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/store"
)

// ChainState is how far a chain is read, and what its nodes say of it now.
type ChainState struct {
	ChainID   uint64          `json:"chainId"`
	Watched   bool            `json:"watched"` // HERALD_WATCH of this shell names it
	Nodes     []NodeState     `json:"nodes"`
	Problem   string          `json:"problem,omitempty"` // why none of them could be asked
	Followers []FollowerState `json:"followers"`
}

// NodeState is a node of RPC_URL_<chain>, by its place there.
type NodeState struct {
	Number  int    `json:"number"`
	Problem string `json:"problem,omitempty"` // empty: it answers
}

// FollowerState is a cursor. What the node tells of it is missing where it does not answer.
type FollowerState struct {
	Follower  string     `json:"follower"` // head: it goes on for ever; else the range of a backfill
	Registry  []string   `json:"registries"`
	Former    bool       `json:"former,omitempty"` // see markFormer
	Start     uint64     `json:"startBlock"`
	End       *uint64    `json:"endBlock,omitempty"`
	Next      uint64     `json:"nextBlock"`           // the first that is not read
	Head      *uint64    `json:"headBlock,omitempty"` // the node's newest
	Finalized *uint64    `json:"finalizedBlock,omitempty"`
	Settled   *uint64    `json:"settledBlock,omitempty"` // no reorg of it or what is before would be taken back
	LagBlocks *uint64    `json:"lagBlocks,omitempty"`
	LagTime   *float64   `json:"lagSeconds,omitempty"`
	Reorgs    uint64     `json:"reorgs"` // how often blocks were read again
	MovedAt   *time.Time `json:"movedAt"`

	Checks       *chain.Checks `json:"checks,omitempty"` // of blocks; missing: all are checked, or none
	StalledSince *time.Time    `json:"stalledSince,omitempty"`
	StalledWhy   string        `json:"stalledWhy,omitempty"` // in the node's words
}

// IsDone tells whether a backfill has read its range.
func (f FollowerState) IsDone() bool { return f.End != nil && f.Next > *f.End }

// ListChains lists every chain that was read, or is to be.
func (o *Operator) ListChains(ctx context.Context) (all []ChainState, err error) {
	err = o.ReadBounded(ctx, func(ctx context.Context, st *Session) error {
		cursors, err := st.Cursors(ctx, 0)
		if err != nil {
			return err
		}
		all = o.groupChains(cursors)
		var asked sync.WaitGroup
		for i := range all {
			asked.Go(func() { o.askChain(ctx, &all[i]) })
		}
		asked.Wait()
		return nil
	})
	return all, err
}

// ReadChains is ListChains by what was noted last: no node is asked.
func (o *Operator) ReadChains(ctx context.Context) (all []ChainState, err error) {
	err = o.ReadBounded(ctx, func(ctx context.Context, st *Session) error {
		cursors, err := st.Cursors(ctx, 0)
		all = o.groupChains(cursors)
		return err
	})
	return all, err
}

// ShowChain is one of ListChains'.
func (o *Operator) ShowChain(ctx context.Context, id uint64) (shown ChainState, err error) {
	err = o.ReadBounded(ctx, func(ctx context.Context, st *Session) error {
		cursors, err := st.Cursors(ctx, id)
		if err != nil {
			return err
		}
		all := o.groupChains(cursors)
		i := slices.IndexFunc(all, func(c ChainState) bool { return c.ChainID == id })
		if i < 0 {
			return NewMisuse("chain %d was never read: `enqueue watch %[1]d` does, or a worker with HERALD_WATCH=%[1]d", id)
		}
		shown = all[i]
		o.askChain(ctx, &shown)
		return nil
	})
	return shown, err
}

// groupChains makes a chain of the cursors that belong to it, and of each that HERALD_WATCH names.
func (o *Operator) groupChains(cursors []store.CursorState) (all []ChainState) {
	find := func(id uint64) *ChainState {
		i := slices.IndexFunc(all, func(c ChainState) bool { return c.ChainID == id })
		if i < 0 {
			i = len(all)
			all = append(all, ChainState{ChainID: id, Watched: slices.Contains(o.Settings.Watch, id),
				Nodes: []NodeState{}, Followers: []FollowerState{}})
		}
		return &all[i]
	}
	for _, c := range cursors {
		chain := find(c.ChainID)
		chain.Followers = append(chain.Followers, describeCursor(c))
	}
	for _, c := range all {
		markFormer(c.Followers, o.Settings.Chains[c.ChainID].Registries.Default().List())
	}
	for _, id := range o.Settings.Watch {
		find(id)
	}
	slices.SortFunc(all, func(a, b ChainState) int { return cmp.Compare(a.ChainID, b.ChainID) })
	return all
}

// formerAfter is the time that a cursor stays behind another one of its chain before it counts as a former one.
const formerAfter = 10 * time.Minute

// markFormer marks followers of registries that the settings listed before. A second `enqueue watch` reads other
// registries than the settings' too, but its cursor moves with each block, as the first one's does.
func markFormer(all []FollowerState, listed []string) {
	var newest time.Time
	for _, f := range all {
		if f.End == nil && f.MovedAt.After(newest) {
			newest = *f.MovedAt
		}
	}
	for i, f := range all {
		all[i].Former = f.End == nil && len(listed) > 0 && !slices.Equal(listed, f.Registry) &&
			newest.Sub(*f.MovedAt) > formerAfter
	}
}

func describeCursor(c store.CursorState) FollowerState {
	name, registries, _ := strings.Cut(c.Follower, " of ")
	f := FollowerState{Follower: name, Registry: strings.Split(registries, ","), Start: c.Start, End: c.End, Next: c.Next,
		Reorgs: c.Reorgs, MovedAt: &c.MovedAt, StalledSince: c.StalledSince, StalledWhy: c.StalledWhy}
	_ = json.Unmarshal(c.Checks, &f.Checks) // a newer version's are not shown
	for _, known := range []struct {
		at **uint64
		n  uint64
	}{{&f.Finalized, c.Finalized}, {&f.Settled, c.Settled}, {&f.Head, c.Head}} {
		if known.n > 0 {
			*known.at = &known.n
		}
	}
	if behind := c.Head + 1 - c.Next; c.Head >= c.Next && !f.IsDone() {
		f.LagBlocks = &behind
	}
	return f
}

// askChain asks the chain's nodes about it. What they do not tell is left as it is.
func (o *Operator) askChain(ctx context.Context, c *ChainState) {
	known := o.Settings.Chains[c.ChainID]
	if len(known.RPCURLs) == 0 {
		c.Problem = "it has no node here: set RPC_URL_<chain> to see how far behind it is"
		return
	}
	client, err := chain.New(chain.Config{ChainID: c.ChainID, URLs: known.RPCURLs, Logger: o.Logger})
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
	for i := range c.Followers {
		f := &c.Followers[i]
		if f.Next == 0 || f.IsDone() || f.Former {
			f.LagBlocks = nil
			continue
		}
		lag, err := client.Lag(ctx, f.Next-1)
		if err != nil {
			c.Problem, f.LagBlocks = err.Error(), nil
			continue
		}
		seconds := lag.Time.Seconds()
		f.Head, f.LagBlocks, f.LagTime = &lag.Head, &lag.Blocks, &seconds
	}
}
