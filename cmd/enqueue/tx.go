package main

import (
	"fmt"
	"slices"

	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/door/watch"
	"github.com/agentherald/herald/internal/store"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
)

type txCommand struct {
	Chain uint64 `arg:"" help:"The chain's id; RPC_URL_<id> names its nodes."`
	Hash  string `arg:"" help:"The transaction's hash, 0x and 64 digits."`
}

// Run enqueues the events of one transaction. Exit codes: 0 done (known counts as done); 1 failed, or the chain has no
// such transaction, or no registry emitted an event in it; 2 misuse; 3 an event was refused or is in conflict.
func (c *txCommand) Run(t *task) error {
	hash, err := hexutil.Decode(c.Hash)
	if err != nil || len(hash) != common.HashLength {
		return misuse{fmt.Errorf("%q is no transaction's hash: 0x and 64 hexadecimal digits", c.Hash)}
	}
	return t.openChain(c.Chain, watch.Config{}, func(wc watch.Config) error {
		read, err := watch.AcceptTransaction(t.ctx, wc, common.BytesToHash(hash))
		wc.Report(read)
		switch {
		case err != nil:
			return err
		case len(read.Answers) == 0:
			return fmt.Errorf("no registry of chain %d emitted an event in this transaction: "+
				"`worker config` shows the registries", c.Chain)
		case slices.ContainsFunc(read.Events, func(e chain.RangeEvent) bool { return e.Err != nil }) ||
			slices.ContainsFunc(read.Answers, func(a store.Acceptance) bool { return a.Verdict == store.Conflict }):
			return errRefused
		}
		return nil
	})
}
