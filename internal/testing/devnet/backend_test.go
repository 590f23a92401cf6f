package devnet

import (
	"math/big"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/rawdb"
	"github.com/ethereum/go-ethereum/rpc"
)

// TestNothingIsFrozen: a reorg can replace a block that the node calls final, because the node's database does not
// record finality.
func TestNothingIsFrozen(t *testing.T) {
	n, err := Start(t.Context(), Config{})
	heraldtest.Must(t, err)
	t.Cleanup(func() { _ = n.Close() })
	for range 40 {
		if _, err := n.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	final, err := n.Client().HeaderByNumber(t.Context(), big.NewInt(int64(rpc.FinalizedBlockNumber)))
	if err != nil || final.Number.Uint64() == 0 {
		t.Fatalf("the finalized block is %v (%v)", final, err)
	}
	if hash := rawdb.ReadFinalizedBlockHash(n.backend.eth.ChainDb()); hash != (common.Hash{}) {
		t.Errorf("the database calls %s final: its block would be moved where no reorg replaces it", hash)
	}
	if err := n.Reorg(t.Context(), 40, false); err != nil {
		t.Error(err)
	}
}
