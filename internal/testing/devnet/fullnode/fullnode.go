// Package fullnode is the node of a development chain: go-ethereum's full node, which answers over HTTP and WebSocket on
// loopback and mines on demand. It takes longer to compile and to link than the rest of a development chain. So only
// the demo and the program devnode link it, and tests run devnode.
package fullnode

import (
	"errors"
	"fmt"
	"math/big"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core"
	"github.com/ethereum/go-ethereum/core/rawdb"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/eth"
	"github.com/ethereum/go-ethereum/eth/catalyst"
	"github.com/ethereum/go-ethereum/eth/ethconfig"
	"github.com/ethereum/go-ethereum/eth/filters"
	"github.com/ethereum/go-ethereum/node"
	"github.com/ethereum/go-ethereum/p2p"
	"github.com/ethereum/go-ethereum/params"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/scripts/script"
)

// Node is a running node. It is like go-ethereum's simulated.Backend, but gives access to the node's database. The
// simulated backend marks every 32nd block as final at once, and once a minute moves final blocks to a store in which
// they cannot be replaced. After a reorg below such a block, the backend would not mine any blocks.
type Node struct {
	beacon *catalyst.SimulatedBeacon
	stack  *node.Node
	eth    *eth.Ethereum
	client *rpc.Client
}

// Start starts a node whose genesis block gives each of the accounts 1,000,000 ether.
func Start(chainID uint64, funded []common.Address) (*Node, error) {
	nodeConf, ethConf := configureNode(chainID, funded)
	stack, err := node.New(&nodeConf)
	if err != nil {
		return nil, err
	}
	n := &Node{stack: stack}
	if err := script.Try(func() { n.startNode(&ethConf) }); err != nil {
		return nil, errors.Join(err, stack.Close())
	}
	return n, nil
}

func (n *Node) startNode(conf *ethconfig.Config) {
	n.eth = script.Must(eth.New(n.stack, conf))
	n.stack.RegisterAPIs([]rpc.API{
		{Namespace: "eth", Service: filters.NewFilterAPI(filters.NewFilterSystem(n.eth.APIBackend, filters.Config{}))},
		{Namespace: "dev", Service: &control{n}},
	})
	script.Check(n.stack.Start())
	n.beacon = script.Must(catalyst.NewSimulatedBeacon(0, common.Address{}, n.eth))
	script.Check(n.beacon.Fork(n.eth.BlockChain().GetCanonicalHash(0)))
	n.client = n.stack.Attach()
}

// configureNode returns the configuration of a node with HTTP and WebSocket on one port, which the kernel selects. With a
// number that another process could take, the node would fail to start, and a node that failed to start never stops its
// goroutines.
func configureNode(chainID uint64, funded []common.Address) (node.Config, ethconfig.Config) {
	nodeConf := node.DefaultConfig
	nodeConf.DataDir, nodeConf.IPCPath = "", "" // keeps the data in memory
	nodeConf.P2P = p2p.Config{NoDiscovery: true}
	nodeConf.HTTPHost, nodeConf.HTTPPort, nodeConf.HTTPModules = "127.0.0.1", 0, []string{"eth", "net", "web3"}
	nodeConf.WSHost, nodeConf.WSPort, nodeConf.WSModules = "127.0.0.1", 0, []string{"eth", "net", "web3"}

	alloc := core.SystemContractAllocs()
	for _, account := range funded {
		alloc[account] = types.Account{Balance: new(big.Int).Mul(big.NewInt(1e6), big.NewInt(params.Ether))}
	}
	rules := *params.AllDevChainProtocolChanges
	rules.ChainID = new(big.Int).SetUint64(chainID)
	rules.BogotaTime = nil // active on no chain, and it prices storage differently
	ethConf := ethconfig.Defaults
	ethConf.Genesis = &core.Genesis{Config: &rules, GasLimit: ethconfig.Defaults.Miner.GasCeil, Alloc: alloc}
	ethConf.SyncMode, ethConf.TxPool.NoLocals, ethConf.LogNoHistory = ethconfig.FullSync, true, true
	ethConf.StateScheme, ethConf.NoPruning = rawdb.HashScheme, true // makes it an archive node
	// The default cache sizes are for a mainnet node.
	ethConf.DatabaseCache, ethConf.TrieCleanCache, ethConf.TrieDirtyCache, ethConf.SnapshotCache = 16, 16, 16, 16
	return nodeConf, ethConf
}

// Client returns a client that calls the node without a connection. Close closes it.
func (n *Node) Client() *rpc.Client { return n.client }

// Serve answers the requests of one client until its connection ends.
func (n *Node) Serve(client rpc.Conn) error {
	handler, err := n.stack.RPCHandler()
	if err != nil {
		return err
	}
	handler.ServeCodec(rpc.NewCodec(client), 0)
	return nil
}

// Close stops the node and discards the chain.
func (n *Node) Close() error {
	n.client.Close()
	return errors.Join(n.beacon.Stop(), n.stack.Close())
}

// control is the namespace "dev", which Net calls and which HTTP and WebSocket do not offer.
type control struct{ node *Node }

// Endpoints returns the addresses for HTTP and WebSocket.
func (c *control) Endpoints() []string {
	return []string{c.node.stack.HTTPEndpoint(), c.node.stack.WSEndpoint()}
}

// Mine mines a block with the pending transactions and returns its hash. It compares the block number, because the node
// reports a failure only in its log.
func (c *control) Mine() (common.Hash, error) {
	chain := c.node.eth.BlockChain()
	before := chain.CurrentBlock().Number.Uint64()
	hash := c.node.beacon.Commit()
	// Prevents the move of final blocks; "finalized" is answered from memory.
	rawdb.WriteFinalizedBlockHash(c.node.eth.ChainDb(), common.Hash{})
	if now := chain.CurrentBlock().Number.Uint64(); now != before+1 {
		return common.Hash{}, fmt.Errorf("no block was mined on block %d: the head is %d", before, now)
	}
	return hash, nil
}

// Fork makes a block the parent of the next one.
func (c *control) Fork(parent common.Hash) error { return c.node.beacon.Fork(parent) }

// Rollback drops the pending transactions.
func (c *control) Rollback() { c.node.beacon.Rollback() }
