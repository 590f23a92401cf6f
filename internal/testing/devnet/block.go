package devnet

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/params"
)

// Commit mines a block with the pending transactions and returns its hash.
func (n *Net) Commit() (common.Hash, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return common.Hash{}, errClosed
	}
	return n.commit()
}

// commit is Commit for callers that hold the lock.
func (n *Net) commit() (common.Hash, error) {
	clear(n.pending)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var hash common.Hash
	if err := n.client.Client().CallContext(ctx, &hash, "dev_mine"); err != nil {
		return common.Hash{}, fmt.Errorf("devnet: mining: %w", err)
	}
	return hash, nil
}

// Reorg replaces the newest depth blocks with depth+1 other blocks. If keep is set, the first new block contains the
// transactions of the replaced blocks. Otherwise these transactions are dropped.
func (n *Net) Reorg(ctx context.Context, depth uint64, keep bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return errClosed
	}
	head, err := n.client.BlockNumber(ctx)
	if err != nil {
		return fmt.Errorf("devnet: reading the head: %w", err)
	}
	if depth == 0 || depth > head {
		return fmt.Errorf("devnet: a reorg of %d blocks; the chain has %d", depth, head)
	}
	parent, err := n.client.HeaderByNumber(ctx, new(big.Int).SetUint64(head-depth))
	if err != nil {
		return fmt.Errorf("devnet: reading block %d: %w", head-depth, err)
	}
	if err := n.client.Client().CallContext(ctx, nil, "dev_fork", parent.Hash()); err != nil {
		return fmt.Errorf("devnet: going back to block %d: %w", head-depth, err)
	}
	if !keep {
		if err := n.client.Client().CallContext(ctx, nil, "dev_rollback"); err != nil {
			return fmt.Errorf("devnet: dropping the transactions: %w", err)
		}
	}
	for range depth + 1 {
		if _, err := n.commit(); err != nil {
			return err
		}
	}
	return nil
}

// Submit signs and sends a transaction, which the next block will contain. It does not send a call that would revert;
// then the error is the node's, with the revert data.
func (n *Net) Submit(ctx context.Context, from Account, to common.Address, data []byte) (common.Hash, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.submit(ctx, from, &to, data)
}

// submit is Submit for callers that hold the lock. If to is nil, the transaction deploys a contract.
func (n *Net) submit(ctx context.Context, from Account, to *common.Address, data []byte) (common.Hash, error) {
	if n.closed {
		return common.Hash{}, errClosed
	}
	if _, err := n.client.CallContract(ctx, ethereum.CallMsg{From: from.Address, To: to, Data: data}, nil); err != nil {
		return common.Hash{}, fmt.Errorf("trying the call: %w", err)
	}
	nonce, err := n.client.NonceAt(ctx, from.Address, nil)
	if err != nil {
		return common.Hash{}, fmt.Errorf("reading the nonce: %w", err)
	}
	tx, err := types.SignNewTx(from.key, types.LatestSignerForChainID(n.chainID), &types.DynamicFeeTx{
		ChainID: n.chainID, Nonce: nonce + n.pending[from.Address], To: to, Data: data,
		Gas: params.MaxTxGas, GasTipCap: big.NewInt(1e9), GasFeeCap: big.NewInt(50e9),
	})
	if err != nil {
		return common.Hash{}, fmt.Errorf("signing: %w", err)
	}
	if err := n.client.SendTransaction(ctx, tx); err != nil {
		return common.Hash{}, fmt.Errorf("sending: %w", err)
	}
	n.pending[from.Address]++
	return tx.Hash(), n.executable(ctx, from.Address, tx.Nonce())
}

// executable waits until the pool would include the sender's transactions up to nonce in a block. Sending only queues
// them, and a block that is mined before the pool processed them does not contain them.
func (n *Net) executable(ctx context.Context, sender common.Address, nonce uint64) error {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		next, err := n.client.PendingNonceAt(ctx, sender)
		if err != nil {
			return fmt.Errorf("looking for it in the pool: %w", err)
		}
		if next > nonce {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for it to be in the pool: %w", ctx.Err())
		case <-ticker.C:
		}
	}
}

// Receipt returns the receipt of a mined transaction. ctx bounds the wait for it.
func (n *Net) Receipt(ctx context.Context, tx common.Hash) (*types.Receipt, error) {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		receipt, err := n.client.TransactionReceipt(ctx, tx)
		if err == nil || !errors.Is(err, ethereum.NotFound) {
			return receipt, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for the receipt of %s: %w", tx, ctx.Err())
		case <-ticker.C:
		}
	}
}

// Create deploys a contract.
func (n *Net) Create(ctx context.Context, from Account, code []byte) (common.Address, error) {
	receipt, err := n.transact(ctx, from, nil, code)
	if err != nil {
		return common.Address{}, fmt.Errorf("devnet: deploying a contract: %w", err)
	}
	return receipt.ContractAddress, nil
}

// transact sends a transaction, mines a block and returns the receipt.
func (n *Net) transact(ctx context.Context, from Account, to *common.Address, data []byte) (*types.Receipt, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	tx, err := n.submit(ctx, from, to, data)
	if err != nil {
		return nil, err
	}
	if _, err := n.commit(); err != nil {
		return nil, err
	}
	return n.readSuccess(ctx, tx)
}

// readSuccess returns the receipt of a mined transaction, or an error if it reverted.
func (n *Net) readSuccess(ctx context.Context, tx common.Hash) (*types.Receipt, error) {
	receipt, err := n.Receipt(ctx, tx)
	if err != nil {
		return nil, err
	}
	if receipt.Status != types.ReceiptStatusSuccessful {
		return nil, fmt.Errorf("transaction %s reverted in its block", tx)
	}
	return receipt, nil
}
