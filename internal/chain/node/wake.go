package node

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"github.com/agentherald/herald/internal/base/loop"
)

// subscribeAgain is the pause before a failed or ended subscription is tried again.
const subscribeAgain = 15 * time.Second

// WatchHeads subscribes to new blocks on each node with a websocket address. wake holds a token when a node announced
// a block. Subscriptions are used for nothing else: they lose blocks while the connection is down, so the follower
// reads the content of blocks with requests, as it does after every poll. stop ends the subscriptions and waits until
// they ended.
func (p *Pool) WatchHeads(ctx context.Context) (wake <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	woken := make(chan struct{}, 1)
	var running sync.WaitGroup
	for _, n := range p.nodes {
		if !strings.HasPrefix(n.URL.Reveal(), "ws") {
			continue
		}
		running.Go(func() {
			for ctx.Err() == nil {
				err := n.watchHeads(ctx, woken)
				p.log.Debug("a subscription to new blocks ended: the chain is polled", "chain", p.chainID, "node",
					n.number, "error", err)
				_ = loop.Pause(ctx, subscribeAgain)
			}
		})
	}
	return woken, func() {
		cancel()
		running.Wait()
	}
}

// WatchHeads runs one subscription to its end. The error can be shown.
func (n *node) watchHeads(ctx context.Context, woken chan<- struct{}) error {
	const op = "subscribing to new blocks"
	subscribe, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	conn, err := n.connect(subscribe)
	if err != nil {
		return err
	}
	heads := make(chan json.RawMessage)
	subscription, err := conn.EthSubscribe(subscribe, heads, "newHeads")
	if err != nil {
		return n.NewUnavailable(op, err)
	}
	defer subscription.Unsubscribe()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-subscription.Err():
			n.requireChainID() // the next connection may reach another node
			if err != nil {
				err = n.NewUnavailable(op, err)
			}
			return err
		case <-heads:
			select {
			case woken <- struct{}{}:
			default: // it is awake already
			}
		}
	}
}
