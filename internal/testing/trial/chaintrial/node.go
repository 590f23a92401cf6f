//go:build chain

package chaintrial

import (
	"context"
	"fmt"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/testing/devnet"
)

// ChainID is the chain id of both chains.
const ChainID = devnet.DefaultChainID

// Call is a transaction to an emitter.
type Call struct {
	To   common.Address
	Data []byte
}

// Node is a development chain. Only one goroutine may change it.
type Node interface {
	// URL is the address of the honest node.
	URL() string
	// Deploy creates a contract in a block of its own.
	Deploy(ctx context.Context, code []byte) (common.Address, error)
	// Mine mines a block with these calls, in order.
	Mine(ctx context.Context, calls []Call) error
	// Replace replaces the newest depth blocks. The first new block contains the calls again, which are those of the
	// replaced blocks; the others are empty.
	Replace(ctx context.Context, depth int, again []Call) error
	// Rollback removes the newest depth blocks, or replaces them with empty ones if the node cannot go back.
	Rollback(ctx context.Context, depth int) error
}

// onDevnet is internal/testing/devnet.
type onDevnet struct {
	net *devnet.Net
	by  devnet.Account
}

func (n onDevnet) URL() string { return n.net.URL() }

func (n onDevnet) Deploy(ctx context.Context, code []byte) (common.Address, error) {
	return n.net.Create(ctx, n.by, code)
}

func (n onDevnet) Mine(ctx context.Context, calls []Call) error {
	for _, c := range calls {
		if _, err := n.net.Submit(ctx, n.by, c.To, c.Data); err != nil {
			return fmt.Errorf("submit to %s: %w", c.To, err)
		}
	}
	_, err := n.net.Commit()
	return err
}

// Replace relies on the node, which mines the transactions of the replaced blocks again.
func (n onDevnet) Replace(ctx context.Context, depth int, _ []Call) error {
	return n.net.Reorg(ctx, uint64(depth), true)
}

func (n onDevnet) Rollback(ctx context.Context, depth int) error {
	return n.net.Reorg(ctx, uint64(depth), false)
}
