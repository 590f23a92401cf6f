//go:build linux && chain

package main

import (
	"bytes"
	"encoding/json"
	"math/big"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/scripts/script"
)

const rawChainID = 31337

// rawReputation is the registry of the events of newRawNode.
var rawReputation = common.HexToAddress("0x8004BAa17C55a88189AE136b182e5fdA19dE9b63")

// newRawNode returns a node that answers from logs that were encoded in advance, so that the measured time is that of
// Herald. Its events begin in block 1.
func newRawNode(events int) *chaintest.Script {
	timeOf := func(block uint64) uint64 { return 1_700_000_000 + 2*block }
	var blocks [][]byte // the logs of each block as JSON, separated by commas
	for first := 0; first < events; first += perBlock {
		number := uint64(len(blocks) + 1)
		var logs []*types.Log
		for i := first; i < min(first+perBlock, events); i++ {
			made := makeFeedback(i)
			logs = append(logs, &types.Log{Address: rawReputation, Topics: made.Topics, Data: made.Data, BlockNumber: number,
				BlockHash: chaintest.BlockHash(number), TxHash: common.BigToHash(new(big.Int).SetUint64(number)), Index: uint(i - first),
				BlockTimestamp: timeOf(number)})
		}
		blocks = append(blocks, bytes.Trim(script.Must(json.Marshal(logs)), "[]"))
	}
	head := uint64(len(blocks))
	return &chaintest.Script{Chain: rawChainID, Head: head, Pace: 2 * time.Second, HeadAt: time.Unix(int64(timeOf(head)), 0),
		Logs: func(from, to uint64) (any, *chaintest.Error) {
			before := min(max(from, 1)-1, head)
			return json.RawMessage("[" + string(bytes.Join(blocks[before:max(min(to, head), before)], []byte(","))) + "]"), nil
		}}
}
