package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/chain/follower"
	"github.com/agentherald/herald/internal/operator"
)

type chainCmd struct {
	List chainListCmd `cmd:"" help:"List the chains that are read, how far, and how far behind they are."`
	Show chainShowCmd `cmd:"" help:"Show how far a chain is read, and the current state of its nodes."`
}

type chainListCmd struct{ jsonFlag }

func (c *chainListCmd) Run(a *command) error {
	chains, err := a.newOperator().ListChains(a.ctx)
	return c.printAnswer(a, chains, err, func() error {
		t := a.newTable("CHAIN", "CONTRACTS", "BLOCKS", "NEXT", "HEAD", "LAG", "FINALIZED", "REORGS", "NODES", "MOVED")
		for _, one := range chains {
			if len(one.Cursors) == 0 {
				t.addRow(one.ChainID, "", "never read", "", "", "", "", "", describeNodes(one), "")
			}
			for _, f := range one.Cursors {
				t.addRow(one.ChainID, strings.Join(f.Contracts, " "), describeBlocks(f), f.Next, formatBlock(f.Head),
					describeLag(f), formatBlock(f.Finalized), f.Reorgs, describeNodes(one), formatTime(f.MovedAt))
			}
		}
		return a.endPage(t, "")
	})
}

type chainShowCmd struct {
	Chain uint64 `arg:"" help:"The chain's id." placeholder:"ID"`
	jsonFlag
}

func (c *chainShowCmd) Run(a *command) error {
	shown, err := a.newOperator().ShowChain(a.ctx, c.Chain)
	return c.printAnswer(a, shown, err, func() error { return printChain(a, shown) })
}

func printChain(a *command, c operator.ChainState) error {
	f := a.newFields()
	f.addRow("chain", fmt.Sprint(c.ChainID))
	f.addRow("nodes", describeNodes(c))
	for _, n := range c.Nodes {
		if n.Problem != "" {
			f.addRow("", fmt.Sprintf("node %d: %s", n.Number, text.Printable(n.Problem)))
		}
	}
	if c.Problem != "" {
		f.addRow("problem", text.Printable(c.Problem))
	}
	if len(c.Cursors) == 0 {
		f.addRow("blocks", "never read")
	}
	for _, r := range c.Cursors {
		f.addRow("", "")
		f.addRow("contracts", strings.Join(r.Contracts, " "))
		f.addRow("blocks", describeBlocks(r))
		f.addRow("began at", fmt.Sprint(r.Start))
		f.addRow("next", fmt.Sprint(r.Next))
		f.addRow("head", formatBlock(r.Head))
		f.addRow("lag", describeLag(r))
		f.addRow("finalized", formatBlock(r.Finalized))
		f.addRow("settled", formatBlock(r.Settled))
		f.addRow("reorgs", fmt.Sprint(r.Reorgs))
		f.addRow("moved", formatTime(r.MovedAt))
		if r.Checks != nil {
			f.addRow("checked", describeChecks(*r.Checks))
			if r.Checks.Omission != nil {
				f.addRow("omission", describeOmission(*r.Checks))
			}
		}
		if r.StalledSince != nil {
			f.addRow("stalled", fmt.Sprintf("since %s: %s", formatTime(r.StalledSince), text.Printable(r.StalledWhy)))
		}
	}
	return f.Flush()
}

func formatBlock(n *uint64) string {
	if n == nil {
		return "unknown"
	}
	return fmt.Sprint(*n)
}

// describeBlocks names the blocks that a cursor moves over.
func describeBlocks(f operator.CursorState) string {
	switch {
	case f.Backfill != "":
		return "backfill " + f.Backfill
	case f.Former:
		return "stopped: not a registry of the settings"
	}
	return "head"
}

// describeLag returns how far a cursor is behind the node's newest block.
func describeLag(f operator.CursorState) string {
	switch {
	case f.LagBlocks == nil:
		return "unknown"
	case *f.LagBlocks == 0:
		return "none"
	case f.LagTime == nil: // from the cursor: no node answered
		return fmt.Sprintf("%d blocks", *f.LagBlocks)
	}
	behind := time.Duration(*f.LagTime * float64(time.Second))
	return fmt.Sprintf("%d blocks, %s", *f.LagBlocks, behind.Round(time.Second))
}

// describeChecks says up to which block all logs are known to be complete.
func describeChecks(c follower.Checks) string {
	return fmt.Sprintf("%.0f %% of the newest blocks; all up to %d, %d after it are not",
		100*c.Share, c.Complete, c.Unchecked)
}

// describeOmission describes a node's omission, and the blocks that are still being read again.
func describeOmission(c follower.Checks) string {
	o := *c.Omission
	described := fmt.Sprintf("node %d left out %d logs of block %d, found %s",
		o.Node, o.Logs, o.Block, formatTime(&o.At))
	if c.Recheck != nil {
		described += fmt.Sprintf("; blocks %d to %d are still read again", c.Recheck[0], c.Recheck[1])
	}
	return described
}

// describeNodes counts the nodes that answer.
func describeNodes(c operator.ChainState) string {
	answer := 0
	for _, n := range c.Nodes {
		if n.Problem == "" {
			answer++
		}
	}
	if len(c.Nodes) == 0 {
		return "none"
	}
	return fmt.Sprintf("%d of %d answer", answer, len(c.Nodes))
}
