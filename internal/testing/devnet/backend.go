package devnet

import (
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/rawdb"
	"github.com/ethereum/go-ethereum/eth"
	"github.com/ethereum/go-ethereum/eth/catalyst"
	"github.com/ethereum/go-ethereum/eth/ethconfig"
	"github.com/ethereum/go-ethereum/eth/filters"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/node"
	"github.com/ethereum/go-ethereum/rpc"
)

// backend is a node that mines a block on demand. It is like go-ethereum's simulated.Backend, but gives access to the
// node's database. The simulated backend marks every 32nd block as final at once, and once a minute moves final
// blocks to a store in which they cannot be replaced. After a reorg below such a block, the backend would not mine
// any blocks.
type backend struct {
	*catalyst.SimulatedBeacon
	stack  *node.Node
	eth    *eth.Ethereum
	client *ethclient.Client
}

// startBackend starts a node with a filter API and a beacon that mines on demand.
func startBackend(nodeConf *node.Config, ethConf *ethconfig.Config) (_ *backend, err error) {
	b := &backend{}
	if b.stack, err = node.New(nodeConf); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.stack.Close())
		}
	}()
	if b.eth, err = eth.New(b.stack, ethConf); err != nil {
		return nil, err
	}
	b.stack.RegisterAPIs([]rpc.API{{Namespace: "eth",
		Service: filters.NewFilterAPI(filters.NewFilterSystem(b.eth.APIBackend, filters.Config{}))}})
	if err = b.stack.Start(); err != nil {
		return nil, err
	}
	if b.SimulatedBeacon, err = catalyst.NewSimulatedBeacon(0, common.Address{}, b.eth); err != nil {
		return nil, err
	}
	if err = b.Fork(b.eth.BlockChain().GetCanonicalHash(0)); err != nil {
		return nil, err
	}
	b.client = ethclient.NewClient(b.stack.Attach())
	return b, nil
}

// mineBlock mines a block with the pending transactions and returns its hash. It compares the block number, because
// the node reports a failure only in its log.
func (b *backend) mineBlock() (common.Hash, error) {
	before := b.eth.BlockChain().CurrentBlock().Number.Uint64()
	hash := b.Commit()
	// Prevents the move of final blocks; "finalized" is answered from memory.
	rawdb.WriteFinalizedBlockHash(b.eth.ChainDb(), common.Hash{})
	if now := b.eth.BlockChain().CurrentBlock().Number.Uint64(); now != before+1 {
		return common.Hash{}, fmt.Errorf("devnet: no block was mined on block %d: the head is %d", before, now)
	}
	return hash, nil
}

func (b *backend) close() error {
	b.client.Close()
	return errors.Join(b.Stop(), b.stack.Close())
}
