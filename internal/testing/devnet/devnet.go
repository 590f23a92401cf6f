package devnet

import (
	"context"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"math/big"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/rpc"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/testing/devnet/contracts"
	"github.com/agentherald/herald/scripts/script"
)

// DefaultChainID is the chain id that development chains use by convention.
const DefaultChainID = 31337

// Node is a running node of package fullnode, in this process or in another.
type Node interface {
	// Client returns the node's client, which can also call the namespace dev.
	Client() *rpc.Client
	// Close closes the client, stops the node and discards the chain.
	Close() error
}

// Config configures a chain. Only Launch is required; devnettest.Start sets it.
type Config struct {
	// Launch starts a node whose genesis block gives each of the accounts 1,000,000 ether.
	Launch func(chainID uint64, funded []common.Address) (Node, error)
	// ChainID is the chain id. The default is 31337.
	ChainID uint64
	// Interval is the time between empty blocks. The default 0 means that only Commit and the helpers mine blocks, as
	// tests need it. Each block's timestamp is at least one second after its parent's, so with an interval below a
	// second the chain's clock runs ahead.
	Interval time.Duration
	// Accounts is the number of accounts, each with 1,000,000 ether. The default is 10.
	Accounts int
}

// Account is a funded account.
type Account struct {
	Address common.Address
	key     *ecdsa.PrivateKey
}

// Net is a running chain.
type Net struct {
	chainID    *big.Int
	accounts   []Account
	deployment erc8004.Deployment

	node       Node
	client     *ethclient.Client
	url, wsURL string

	mu      sync.Mutex                // held during every change of the chain
	pending map[common.Address]uint64 // number of transactions that wait for a block, by sender
	closed  bool

	paused atomic.Bool // set by Pause, read by mine
	stop   chan struct{}
	miner  sync.WaitGroup
	unmade error // the error of the first block that the ticker failed to mine
}

var errClosed = errors.New("the development chain is closed")

// Start starts a chain and deploys the registries. ctx bounds only the start. Close stops the chain.
func Start(ctx context.Context, cfg Config) (*Net, error) {
	if cfg.ChainID == 0 {
		cfg.ChainID = DefaultChainID
	}
	if cfg.Accounts == 0 {
		cfg.Accounts = 10
	}
	n := &Net{chainID: new(big.Int).SetUint64(cfg.ChainID), pending: make(map[common.Address]uint64), stop: make(chan struct{})}
	var funded []common.Address
	// An additional account deploys, so that the registries' addresses do not depend on the transactions of the
	// others.
	for i := range cfg.Accounts + 1 {
		key, err := crypto.ToECDSA(crypto.Keccak256(fmt.Appendf(nil, "herald devnet account %d", i)))
		if err != nil {
			return nil, fmt.Errorf("devnet: making account %d: %w", i, err)
		}
		a := Account{Address: crypto.PubkeyToAddress(key.PublicKey), key: key}
		n.accounts, funded = append(n.accounts, a), append(funded, a.Address)
	}
	var err error
	if n.node, err = cfg.Launch(cfg.ChainID, funded); err != nil {
		return nil, fmt.Errorf("devnet: starting the node: %w", err)
	}
	n.client = ethclient.NewClient(n.node.Client())
	if err := n.runLocked("deploying the registries", func() { n.deployRegistries(ctx) }); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	if cfg.Interval > 0 {
		n.miner.Go(func() { n.mine(cfg.Interval) })
	}
	return n, nil
}

// deployRegistries deploys the registries with the last account, in one block, and removes that account from the list. The lock is
// held.
func (n *Net) deployRegistries(ctx context.Context) {
	deployer := n.accounts[len(n.accounts)-1]
	n.accounts = n.accounts[:len(n.accounts)-1]
	var endpoints [2]string
	script.Check(n.client.Client().CallContext(ctx, &endpoints, "dev_endpoints"))
	n.url, n.wsURL = endpoints[0], endpoints[1]
	identity, reputation, validation := contracts.Identity(), contracts.Reputation(), contracts.Validation()
	var txs []common.Hash
	for _, c := range []contracts.Contract{identity, reputation, validation} {
		txs = append(txs, n.sendTransaction(ctx, deployer, nil, c.Bytecode))
	}
	at := erc8004.Deployment{Identity: crypto.CreateAddress(deployer.Address, 0),
		Reputation: crypto.CreateAddress(deployer.Address, 1), Validation: crypto.CreateAddress(deployer.Address, 2)}
	n.deployment = at
	txs = append(txs, n.sendTransaction(ctx, deployer, &at.Identity, identity.Pack("initialize")),
		n.sendTransaction(ctx, deployer, &at.Reputation, reputation.Pack("initialize", at.Identity)),
		n.sendTransaction(ctx, deployer, &at.Validation, validation.Pack("initialize", at.Identity)))
	n.mineBlock()
	for _, tx := range txs {
		n.readSuccess(ctx, tx)
	}
}

// mine mines a block per interval until the chain is closed or a block fails.
func (n *Net) mine(interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-n.stop:
			return
		case <-ticker.C:
			if n.paused.Load() {
				continue
			}
			if _, err := n.Commit(); err != nil {
				n.mu.Lock()
				n.unmade = err
				n.mu.Unlock()
				return
			}
		}
	}
}

// Pause stops the blocks of Config.Interval until Resume. One that is being mined may still come.
func (n *Net) Pause() { n.paused.Store(true) }

// Resume ends a Pause.
func (n *Net) Resume() { n.paused.Store(false) }

// Close stops the miner and the node. It discards the chain. A second Close does nothing.
func (n *Net) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	close(n.stop)
	n.mu.Unlock()
	n.miner.Wait()
	if err := errors.Join(n.unmade, n.node.Close()); err != nil && !errors.Is(err, errClosed) {
		return fmt.Errorf("devnet: closing: %w", err)
	}
	return nil
}

// ChainID returns the chain's id.
func (n *Net) ChainID() uint64 { return n.chainID.Uint64() }

// URL returns the JSON-RPC address over HTTP.
func (n *Net) URL() string { return n.url }

// WebSocketURL returns the JSON-RPC address over WebSocket, which also supports subscriptions.
func (n *Net) WebSocketURL() string { return n.wsURL }

// Deployment returns the registries' addresses.
func (n *Net) Deployment() erc8004.Deployment { return n.deployment }

// Account returns account i. It panics if i is out of range.
func (n *Net) Account(i int) Account { return n.accounts[i] }

// Client returns the client that the chain itself uses. It is closed by Close.
func (n *Net) Client() *ethclient.Client { return n.client }
