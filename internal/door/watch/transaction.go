package watch

import (
	"context"

	"github.com/agentherald/herald/internal/store"
	"github.com/ethereum/go-ethereum/common"
)

// Acceptor commits jobs without a cursor.
type Acceptor interface {
	Accept(ctx context.Context, in []store.Intake) ([]store.Acceptance, []store.Task, error)
}

// AcceptTransaction accepts the events of one transaction, whether its chain is followed or not. It uses cfg's Chain,
// Deployment, Limits and Dispatcher. It does not watch for reorgs: if an event is gone when its delivery gets its
// turn, the delivery is refused.
func AcceptTransaction(ctx context.Context, cfg Config, ledger Acceptor, hash common.Hash) (Report, error) {
	events, block, err := cfg.Chain.ReadTransaction(ctx, hash, cfg.Deployment, cfg.Limits)
	if err != nil {
		return Report{}, err
	}
	in := makeIntakes(cfg.Chain.ChainID(), events, false)
	r := Report{To: block, Head: block, Events: events}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	for len(in) > 0 {
		part := in[:min(len(in), store.MaxAccept)]
		in = in[len(part):]
		answers, tasks, err := ledger.Accept(ctx, part)
		if err != nil {
			return r, err
		}
		r.Answers = append(r.Answers, answers...)
		if cfg.Dispatcher != nil {
			cfg.Dispatcher.Dispatch(ctx, tasks)
		}
	}
	return r, nil
}
