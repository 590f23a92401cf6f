//go:build linux && chain

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"strconv"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/agentherald/herald/internal/testing/chaintest"
	"github.com/agentherald/herald/scripts/script"
)

// rawNode answers for a chain from logs that were encoded in advance, so that the measured time is that of Herald.
type rawNode struct {
	reputation common.Address
	blocks     []rawBlock // from block 1
}

type rawBlock struct {
	header []byte // the answer to eth_getBlockByNumber
	logs   []byte // the block's logs as JSON, separated by commas
}

const rawChainID = 31337

func newRawNode(events int) *rawNode {
	n := &rawNode{reputation: common.HexToAddress("0x8004BAa17C55a88189AE136b182e5fdA19dE9b63")}
	for first := 0; first < events; first += perBlock {
		number := uint64(len(n.blocks) + 1)
		hash := crypto.Keccak256Hash([]byte(strconv.FormatUint(number, 10)))
		seconds := 1_700_000_000 + 2*number
		receipt := &types.Receipt{}
		for i := first; i < min(first+perBlock, events); i++ {
			made := makeFeedback(i)
			receipt.Logs = append(receipt.Logs, &types.Log{Address: n.reputation, Topics: made.Topics, Data: made.Data, BlockNumber: number,
				BlockHash: hash, TxHash: common.BigToHash(new(big.Int).SetUint64(number)), Index: uint(i - first), BlockTimestamp: seconds})
		}
		header := script.Must(json.Marshal(map[string]any{"number": hexutil.Uint64(number), "hash": hash, "timestamp": hexutil.Uint64(seconds),
			"logsBloom": types.CreateBloom(receipt)}))
		n.blocks = append(n.blocks, rawBlock{header, bytes.Trim(script.Must(json.Marshal(receipt.Logs)), "[]")})
	}
	return n
}

func (n *rawNode) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	questions, isBatch, err := chaintest.ReadRequests(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	out := make([]byte, 0, 1<<16)
	for i, q := range questions {
		if i > 0 {
			out = append(out, ',')
		}
		out = fmt.Appendf(out, `{"jsonrpc":"2.0","id":%s,"result":`, q.ID)
		out = append(n.answer(out, q), '}')
	}
	if isBatch {
		out = append(append([]byte{'['}, out...), ']')
	}
	_, _ = w.Write(out) // the client either reads it or disconnected
}

// answer appends the result of a question to out.
func (n *rawNode) answer(out []byte, q chaintest.Request) []byte {
	switch q.Method {
	case "eth_chainId":
		return fmt.Appendf(out, `"0x%x"`, rawChainID)
	case "eth_blockNumber":
		return fmt.Appendf(out, `"0x%x"`, len(n.blocks))
	case "eth_getBlockByNumber":
		number := n.number(q.Params[0])
		if number < 1 || number > len(n.blocks) {
			return append(out, "null"...)
		}
		return append(out, n.blocks[number-1].header...)
	case "eth_getLogs":
		var filter struct{ FromBlock, ToBlock json.RawMessage }
		_ = json.Unmarshal(q.Params[0], &filter) // the filter comes from Herald's own client
		out = append(out, '[')
		for number := max(1, n.number(filter.FromBlock)); number <= min(n.number(filter.ToBlock), len(n.blocks)); number++ {
			if out[len(out)-1] != '[' {
				out = append(out, ',')
			}
			out = append(out, n.blocks[number-1].logs...)
		}
		return append(out, ']')
	}
	return append(out, "null"...)
}

// number parses a block's number or tag.
func (n *rawNode) number(param json.RawMessage) int {
	number, err := strconv.ParseUint(strings.Trim(string(param), `"`), 0, 32)
	if err != nil {
		return len(n.blocks) // latest, finalized
	}
	return int(number)
}
