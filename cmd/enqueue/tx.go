package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/door/watch"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/store"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
)

type txCommand struct {
	Chain uint64 `arg:"" help:"The chain's id; RPC_URL_<id> names its nodes."`
	Hash  string `arg:"" help:"The transaction's hash, 0x and 64 digits."`
}

// run enqueues the events of one transaction. Exit codes: 0 done (known counts as done); 1 failed, or the chain has no
// such transaction, or no registry emitted an event in it; 2 misuse; 3 an event was refused or is in conflict.
func (c *txCommand) run(ctx context.Context, p process, cfg *config.Config, asJSON bool, wait time.Duration) int {
	hash, err := hexutil.Decode(c.Hash)
	if err != nil || len(hash) != common.HashLength {
		fmt.Fprintf(p.stderr, "enqueue: %q is no transaction's hash: 0x and 64 hexadecimal digits\n", c.Hash)
		return exitMisuse
	}
	return onChain(ctx, p, cfg, asJSON, wait, c.Chain, watch.Config{},
		func(wc watch.Config, conn *connection) (int, error) {
			read, err := watch.AcceptTransaction(ctx, wc, conn.store, common.BytesToHash(hash))
			wc.Report(read)
			switch {
			case err != nil:
				return exitFailed, err
			case len(read.Answers) == 0:
				return exitFailed, fmt.Errorf("no registry of chain %d emitted an event in this transaction: "+
					"`worker config` shows the registries", c.Chain)
			case slices.ContainsFunc(read.Events, isRefused) || slices.ContainsFunc(read.Answers, isConflict):
				return exitRefused, nil
			}
			return exitDone, nil
		})
}

func isConflict(a store.Acceptance) bool { return a.Verdict == store.Conflict }

func isRefused(e eventlog.Entry) bool { return e.Err != nil }
