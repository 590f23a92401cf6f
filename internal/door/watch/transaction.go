package watch

import (
	"context"

	"github.com/ethereum/go-ethereum/common"
)

// AcceptTransaction accepts the events of one transaction, whether its chain is followed or not. It uses cfg's Chain,
// Deployment, Ledger, Limits and Dispatcher. It does not watch for reorgs: if an event is gone when its delivery gets its
// turn, the delivery is refused.
func AcceptTransaction(ctx context.Context, cfg Config, hash common.Hash) (Report, error) {
	events, block, err := cfg.Chain.ReadTransaction(ctx, hash, cfg.Deployment, cfg.Limits)
	if err != nil {
		return Report{}, err
	}
	r := Report{To: block, Head: block, Events: events}
	r.Answers, err = acceptAll(ctx, cfg.Ledger, cfg.Dispatcher, makeIntakes(cfg.Chain.ChainID(), events, false))
	return r, err
}
