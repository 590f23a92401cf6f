package chaintrial

import (
	"encoding/binary"
	"slices"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/testing/devnet/contracts"
)

// EmitterCode returns the creation code of a contract that logs the records in its calldata. It replaces the three
// registries, because no registry emits all forms and those of 2025 cannot be compiled here. All agents have the same
// tokenURI. Every other call reverts.
func EmitterCode(tokenURI string) []byte {
	return slices.Concat(contracts.Emitter().Bytecode, contracts.Emitter().Pack("", tokenURI))
}

// Log is a log that an emitter contract should emit, with one to four topics.
type Log struct {
	Topics []common.Hash
	Data   []byte
	// Counts makes the emitter count the log for its second and third topic, agent and client. getLastIndex returns
	// the count.
	Counts bool
}

// The layout of a record in an emitter's calldata: the number of topics, and countFlag; the length of the data; four
// words for topics; the data.
const (
	wordSize   = 32
	topicsAt   = 2 * wordSize
	dataAt     = topicsAt + 4*wordSize
	lastOfWord = wordSize - 8 // where a word's uint64 begins
	countFlag  = 256
)

// EmitCall returns the calldata with which an emitter emits the logs, in order.
func EmitCall(logs ...Log) []byte {
	var call []byte
	for _, l := range logs {
		head := make([]byte, dataAt)
		first := uint64(len(l.Topics))
		if l.Counts {
			first |= countFlag
		}
		binary.BigEndian.PutUint64(head[lastOfWord:], first)
		binary.BigEndian.PutUint64(head[wordSize+lastOfWord:], uint64(len(l.Data)))
		for i, topic := range l.Topics {
			copy(head[topicsAt+i*wordSize:], topic[:])
		}
		call = append(append(call, head...), l.Data...)
	}
	return call
}
