//go:build chain

package chaintrial

import (
	"context"
	"fmt"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/devnet"
)

// ChainID is that of both chains.
const ChainID = devnet.DefaultChainID

// Call is a transaction to an emitter.
type Call struct {
	To   common.Address
	Data []byte
}

// Node is a development chain. Only one goroutine changes it.
type Node interface {
	// Name is told in the figures.
	Name() string
	// URL is where it answers honestly.
	URL() string
	// Deploy makes a contract in a block of its own.
	Deploy(ctx context.Context, code []byte) (common.Address, error)
	// Mine makes a block of these calls, in order.
	Mine(ctx context.Context, calls []Call) error
	// Replace puts other blocks in the place of the newest depth. The first of them holds the calls again, which are
	// those that the replaced blocks had; the others are empty. It returns how many blocks there are more than
	// before.
	Replace(ctx context.Context, depth int, again []Call) (further int, err error)
	// Rollback takes the newest depth blocks away, or replaces them by empty ones where the node cannot go back. It
	// returns how many empty blocks there are.
	Rollback(ctx context.Context, depth int) (empty int, err error)
}

// inProcess is internal/devnet.
type inProcess struct {
	net *devnet.Net
	by  devnet.Account
}

func (n inProcess) Name() string { return "devnet" }
func (n inProcess) URL() string  { return n.net.URL() }

func (n inProcess) Deploy(ctx context.Context, code []byte) (common.Address, error) {
	return n.net.Create(ctx, n.by, code)
}

func (n inProcess) Mine(ctx context.Context, calls []Call) error {
	for _, c := range calls {
		if _, err := n.net.Submit(ctx, n.by, c.To, c.Data); err != nil {
			return fmt.Errorf("submit to %s: %w", c.To, err)
		}
	}
	_, err := n.net.Commit()
	return err
}

// Replace leaves it to the node to mine what it has taken out again.
func (n inProcess) Replace(ctx context.Context, depth int, _ []Call) (further int, err error) {
	return 1, n.net.Reorg(ctx, uint64(depth), true)
}

func (n inProcess) Rollback(ctx context.Context, depth int) (empty int, err error) {
	return depth + 1, n.net.Reorg(ctx, uint64(depth), false)
}
