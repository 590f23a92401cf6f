package devnet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/params"

	"github.com/agentherald/herald/scripts/script"
)

// runLocked calls do, which ends at the first error (package script), while it holds the lock.
func (n *Net) runLocked(what string, do func()) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return errClosed
	}
	if err := script.Try(do); err != nil {
		return fmt.Errorf("devnet: %s: %w", what, err)
	}
	return nil
}

// Commit mines a block with the pending transactions and returns its hash.
func (n *Net) Commit() (hash common.Hash, err error) {
	err = n.runLocked("mining", func() { hash = n.mineBlock() })
	return hash, err
}

// mineBlock is Commit for callers that hold the lock.
func (n *Net) mineBlock() (hash common.Hash) {
	clear(n.pending)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	script.Check(n.client.Client().CallContext(ctx, &hash, "dev_mine"))
	return hash
}

// Reorg replaces the newest depth blocks with depth+1 other blocks. If keep is set, the first new block contains the
// transactions of the replaced blocks. Otherwise these transactions are dropped.
func (n *Net) Reorg(ctx context.Context, depth uint64, keep bool) error {
	return n.runLocked(fmt.Sprintf("replacing %d blocks", depth), func() {
		head := script.Must(n.client.BlockNumber(ctx))
		if depth == 0 || depth > head {
			script.Fail("the chain has %d", head)
		}
		parent := script.Must(n.client.HeaderByNumber(ctx, new(big.Int).SetUint64(head-depth)))
		script.Check(n.client.Client().CallContext(ctx, nil, "dev_fork", parent.Hash()))
		if !keep {
			script.Check(n.client.Client().CallContext(ctx, nil, "dev_rollback"))
		}
		for range depth + 1 {
			n.mineBlock()
		}
	})
}

// Submit signs and sends a transaction, which the next block will contain. It does not send a call that would revert;
// then the error is the node's, with the revert data.
func (n *Net) Submit(ctx context.Context, from Account, to common.Address, data []byte) (tx common.Hash, err error) {
	err = n.runLocked("sending a transaction", func() { tx = n.sendTransaction(ctx, from, &to, data) })
	return tx, err
}

// sendTransaction is Submit for callers that hold the lock. If to is nil, the transaction deploys a contract. It waits until the
// pool would include the transaction in a block. Sending only queues it, and a block that is mined before the pool
// processed it does not contain it.
func (n *Net) sendTransaction(ctx context.Context, from Account, to *common.Address, data []byte) common.Hash {
	script.Must(n.client.CallContract(ctx, ethereum.CallMsg{From: from.Address, To: to, Data: data}, nil))
	nonce := script.Must(n.client.NonceAt(ctx, from.Address, nil)) + n.pending[from.Address]
	tx := script.Must(types.SignNewTx(from.key, types.LatestSignerForChainID(n.chainID), &types.DynamicFeeTx{
		ChainID: n.chainID, Nonce: nonce, To: to, Data: data,
		Gas: params.MaxTxGas, GasTipCap: big.NewInt(1e9), GasFeeCap: big.NewInt(50e9),
	}))
	script.Check(n.client.SendTransaction(ctx, tx))
	n.pending[from.Address]++
	awaitState(ctx, "the transaction in the pool", func() bool {
		return script.Must(n.client.PendingNonceAt(ctx, from.Address)) > nonce
	})
	return tx.Hash()
}

// awaitState calls ok every millisecond until it returns true.
func awaitState(ctx context.Context, what string, ok func() bool) {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			script.Fail("waiting for %s: %w", what, ctx.Err())
		case <-ticker.C:
		}
	}
}

// Receipt returns the receipt of a mined transaction. ctx bounds the wait for it.
func (n *Net) Receipt(ctx context.Context, tx common.Hash) (receipt *types.Receipt, err error) {
	waited := script.Try(func() {
		awaitState(ctx, "the receipt of "+tx.Hex(), func() bool {
			receipt, err = n.client.TransactionReceipt(ctx, tx)
			return !errors.Is(err, ethereum.NotFound)
		})
	})
	return receipt, cmp.Or(waited, err)
}

// Create deploys a contract.
func (n *Net) Create(ctx context.Context, from Account, code []byte) (common.Address, error) {
	receipt, err := n.mineTransaction(ctx, "deploying a contract", from, nil, code)
	if err != nil {
		return common.Address{}, err
	}
	return receipt.ContractAddress, nil
}

// mineTransaction sends a transaction, mines a block and returns the receipt.
func (n *Net) mineTransaction(ctx context.Context, what string, from Account, to *common.Address, data []byte) (receipt *types.Receipt, err error) {
	err = n.runLocked(what, func() {
		tx := n.sendTransaction(ctx, from, to, data)
		n.mineBlock()
		receipt = n.readSuccess(ctx, tx)
	})
	return receipt, err
}

// readSuccess returns the receipt of a mined transaction that did not revert.
func (n *Net) readSuccess(ctx context.Context, tx common.Hash) *types.Receipt {
	receipt := script.Must(n.Receipt(ctx, tx))
	if receipt.Status != types.ReceiptStatusSuccessful {
		script.Fail("transaction %s reverted in its block", tx)
	}
	return receipt
}
