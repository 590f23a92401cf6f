package chaintrial

import (
	"encoding/binary"

	"github.com/ethereum/go-ethereum/common"
)

// Log is what an emitter contract is told to log: one to four topics.
type Log struct {
	Topics []common.Hash
	Data   []byte
}

// A record of an emitter's calldata: the number of topics, the length of the data, four words for topics, the data.
const (
	wordSize   = 32
	topicsAt   = 2 * wordSize
	dataAt     = topicsAt + 4*wordSize
	lastOfWord = wordSize - 8 // where a word's uint64 begins
)

// EmitCall is the calldata by which an emitter logs these, in order.
func EmitCall(logs ...Log) []byte {
	var call []byte
	for _, l := range logs {
		head := make([]byte, dataAt)
		binary.BigEndian.PutUint64(head[lastOfWord:], uint64(len(l.Topics)))
		binary.BigEndian.PutUint64(head[wordSize+lastOfWord:], uint64(len(l.Data)))
		for i, topic := range l.Topics {
			copy(head[topicsAt+i*wordSize:], topic[:])
		}
		call = append(append(call, head...), l.Data...)
	}
	return call
}
