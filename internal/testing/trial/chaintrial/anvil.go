//go:build chain

package chaintrial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"

	"github.com/agentherald/herald/internal/testing/trial"
	"github.com/agentherald/herald/internal/testing/trial/npm"
	"github.com/agentherald/herald/scripts/script"
)

// The npm package of anvil: a JavaScript launcher, which is not used, and the program for this system.
const (
	anvilPackage = "@foundry-rs/anvil"
	anvilVersion = "1.7.1"
	anvilStart   = 30 * time.Second
	gasOfCall    = 15_000_000
	gasOfBlock   = 1_000_000_000
	// statesKept is how many states anvil keeps in memory. By default it stores states on disk from the 500th on, and
	// reorgs lose some of those, together with all contracts.
	statesKept = 100_000
)

// Anvil is Foundry's node.
type Anvil struct {
	*trial.Process
	url string
	by  common.Address
}

// StartAnvil installs and starts anvil. It writes the log to a file in folder. End stops it.
func StartAnvil(ctx context.Context, folder string) (n *Anvil, err error) {
	err = script.Try(func() {
		installed := script.Must(npm.Install(ctx, anvilPackage+"@"+anvilVersion))
		listener := script.Must(net.Listen("tcp", "127.0.0.1:0"))
		script.Check(listener.Close())
		port := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
		process := script.Must(trial.Program{Name: "anvil", Env: npm.Environment(), Log: folder + "/anvil.log",
			Path: installed.Path(anvilPackage+"-"+runtime.GOOS+"-"+runtime.GOARCH, "bin", "anvil"),
			Args: []string{"--host", "127.0.0.1", "--port", port, "--chain-id", strconv.Itoa(ChainID),
				"--no-mining", "--order", "fifo", "--accounts", "1", "--gas-limit", strconv.Itoa(gasOfBlock), "--quiet",
				"--prune-history", strconv.Itoa(statesKept)}}.Start())
		n = &Anvil{Process: process, url: "http://127.0.0.1:" + port}
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, anvilStart, fmt.Errorf("not within %s", anvilStart))
	defer cancel()
	err = n.Await(ctx, 50*time.Millisecond, "an answer of anvil", func() (bool, error) {
		var accounts []common.Address
		if err := Ask(ctx, n.url, &accounts, "eth_accounts"); err != nil || len(accounts) == 0 {
			return false, err
		}
		n.by = accounts[0]
		return true, nil
	})
	if err != nil {
		return nil, errors.Join(err, n.End())
	}
	return n, nil
}

// URL returns the node's address.
func (n *Anvil) URL() string { return n.url }

// transaction returns the parameters of eth_sendTransaction. anvil signs the transaction.
func (n *Anvil) transaction(to *common.Address, data []byte) map[string]any {
	t := map[string]any{"from": n.by, "input": hexutil.Bytes(data), "gas": hexutil.Uint64(gasOfCall)}
	if to != nil {
		t["to"] = to
	}
	return t
}

// Deploy implements Node.
func (n *Anvil) Deploy(ctx context.Context, code []byte) (common.Address, error) {
	var hash common.Hash
	var receipt struct {
		Status          hexutil.Uint64
		ContractAddress common.Address
	}
	err := script.Try(func() {
		script.Check(Ask(ctx, n.url, &hash, "eth_sendTransaction", n.transaction(nil, code)))
		script.Check(Ask(ctx, n.url, nil, "evm_mine"))
		script.Check(Ask(ctx, n.url, &receipt, "eth_getTransactionReceipt", hash))
		if receipt.Status != 1 {
			script.Fail("anvil did not deploy the emitter")
		}
	})
	return receipt.ContractAddress, err
}

// Mine implements Node.
func (n *Anvil) Mine(ctx context.Context, calls []Call) error {
	for _, c := range calls {
		if err := Ask(ctx, n.url, nil, "eth_sendTransaction", n.transaction(&c.To, c.Data)); err != nil {
			return err
		}
	}
	return Ask(ctx, n.url, nil, "evm_mine")
}

// Replace implements Node.
func (n *Anvil) Replace(ctx context.Context, depth int, again []Call) error {
	pairs := make([][2]any, len(again))
	for i, c := range again {
		pairs[i] = [2]any{n.transaction(&c.To, c.Data), 0}
	}
	return Ask(ctx, n.url, nil, "anvil_reorg", depth, pairs)
}

// Rollback implements Node.
func (n *Anvil) Rollback(ctx context.Context, depth int) error {
	return Ask(ctx, n.url, nil, "anvil_rollback", depth)
}
