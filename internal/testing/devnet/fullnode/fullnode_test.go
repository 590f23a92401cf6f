package fullnode

import (
	"math/big"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/rawdb"
	"github.com/ethereum/go-ethereum/rpc"
	"go.uber.org/goleak"

	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestMain ignores the goroutines that go-ethereum's node leaves behind after it was closed: one set per process that
// recovers senders, the buffer drain of a closed in-memory database, which ends after a second, and a subscription to
// heads that is ended while the node closes: it waits for a loop that has ended.
func TestMain(m *testing.M) {
	heraldtest.Main(m,
		goleak.IgnoreTopFunction("github.com/ethereum/go-ethereum/core.(*txSenderCacher).cache"),
		goleak.IgnoreTopFunction("github.com/syndtr/goleveldb/leveldb.(*DB).mpoolDrain"),
		goleak.IgnoreTopFunction("github.com/ethereum/go-ethereum/eth/filters.(*Subscription).Unsubscribe.func1"))
}

// TestNothingIsFrozen: a reorg can replace a block that the node calls final, because the node's database does not
// record finality.
func TestNothingIsFrozen(t *testing.T) {
	var node *Node
	n, err := devnet.Start(t.Context(), devnet.Config{Launch: func(chainID uint64, funded []common.Address) (_ devnet.Node, err error) {
		node, err = Start(chainID, funded)
		return node, err
	}})
	heraldtest.Must(t, err)
	t.Cleanup(func() { heraldtest.Must(t, n.Close()) })
	for range 40 {
		if _, err := n.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	final, err := n.Client().HeaderByNumber(t.Context(), big.NewInt(int64(rpc.FinalizedBlockNumber)))
	if err != nil || final.Number.Uint64() == 0 {
		t.Fatalf("the finalized block is %v (%v)", final, err)
	}
	if hash := rawdb.ReadFinalizedBlockHash(node.eth.ChainDb()); hash != (common.Hash{}) {
		t.Errorf("the database calls %s final: its block would be moved where no reorg replaces it", hash)
	}
	if err := n.Reorg(t.Context(), 40, false); err != nil {
		t.Error(err)
	}
}
