package main

import (
	"math"
	"strings"

	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/report"
)

type chainCmd struct {
	List chainListCmd `cmd:"" help:"List the chains that are read, how far, and how far behind they are."`
	Show chainShowCmd `cmd:"" help:"Show how far a chain is read, and the current state of its nodes."`
}

type chainListCmd struct{ jsonFlag }

func (c *chainListCmd) Run(a *command) error {
	chains, err := a.newOperator().ListChains(a.ctx)
	return c.printAnswer(a, chains, err, func() {
		t := a.newTable("CHAIN", "CONTRACTS", "BLOCKS", "NEXT", "HEAD", "LAG", "FINALIZED", "REORGS", "NODES", "MOVED")
		for _, one := range chains {
			if len(one.Cursors) == 0 {
				t.addRow(one.ChainID, "", "never read", "", "", "", "", "", report.Nodes(one), "")
			}
			for _, f := range one.Cursors {
				t.addRow(one.ChainID, strings.Join(f.Contracts, " "), report.Blocks(f), f.Next, report.Block(f.Head),
					report.Lag(f), report.Block(f.Finalized), f.Reorgs, report.Nodes(one), report.Time(f.MovedAt))
			}
		}
		t.Flush()
	})
}

type chainShowCmd struct {
	Chain uint64 `arg:"" help:"The chain's id." placeholder:"ID"`
	jsonFlag
}

func (c *chainShowCmd) Run(a *command) error {
	if err := checkChain(c.Chain); err != nil {
		return err
	}
	shown, err := a.newOperator().ShowChain(a.ctx, c.Chain)
	return c.printAnswer(a, shown, err, func() { a.printFacts(report.Chain(shown)) })
}

// checkChain refuses 0, which the ledger takes for all chains, and numbers that it cannot store.
func checkChain(id uint64) error {
	if id == 0 || id > math.MaxInt64 {
		return operator.NewMisuse("%d is no chain's id", id)
	}
	return nil
}
