//go:build chain

package chaintrial

import (
	"encoding/binary"

	"github.com/ethereum/go-ethereum/core/vm"
)

// Sizes of the calldata of getLastIndex(uint256,address) and tokenURI(uint256): a selector, which the emitter
// ignores, and two words or one. All records are longer.
const (
	argumentsAt = 4
	pairSize    = 2 * wordSize
)

// EmitterCode returns the creation code of a contract that logs the records in its calldata. It replaces the three
// registries, because no registry emits all forms and those of 2025 cannot be compiled here. All agents have the same
// tokenURI. Every other call reverts.
func EmitterCode(tokenURI string) []byte {
	answer := encodeText(tokenURI)
	code := assembleEmitter(0, len(answer)) // a first pass determines its length
	runtime := append(assembleEmitter(len(code), len(answer)), answer...)
	var create assembler
	create.push(len(runtime))
	create.do(vm.DUP1)
	create.jumpTo("runtime") // the offset to copy from
	create.push(0)
	create.do(vm.CODECOPY)
	create.push(0)
	create.do(vm.RETURN)
	create.labels["runtime"] = len(create.code)
	return append(create.link(), runtime...)
}

// encodeText returns the ABI encoding of the answer of a function that returns one string.
func encodeText(text string) []byte {
	answer := make([]byte, 2*wordSize+(len(text)+wordSize-1)/wordSize*wordSize)
	answer[wordSize-1] = wordSize
	binary.BigEndian.PutUint64(answer[wordSize+lastOfWord:], uint64(len(text)))
	copy(answer[2*wordSize:], text)
	return answer
}

// assembleEmitter assembles the answers and the loop over the records. The comments show the stack, with its top on
// the right; p is the position of the record. uriAt is the position of tokenURI's answer in the code.
func assembleEmitter(uriAt, uriSize int) []byte {
	var a assembler
	load := func(dup vm.OpCode, at int) { // loads a word of the record
		a.do(dup)
		a.push(at)
		a.do(vm.ADD, vm.CALLDATALOAD)
	}
	// hashPair computes the storage slot of the agent and the client. The stack contains their length and their
	// position in the calldata.
	hashPair := func() {
		a.push(0)
		a.do(vm.CALLDATACOPY)
		a.push(pairSize)
		a.push(0)
		a.do(vm.KECCAK256)
	}
	a.do(vm.CALLDATASIZE)
	a.push(argumentsAt + pairSize)
	a.do(vm.EQ)
	a.jumpTo("getLastIndex")
	a.do(vm.JUMPI)
	a.do(vm.CALLDATASIZE)
	a.push(argumentsAt + wordSize)
	a.do(vm.EQ)
	a.jumpTo("tokenURI")
	a.do(vm.JUMPI)
	a.push(dataAt)
	a.do(vm.CALLDATASIZE, vm.LT)
	a.jumpTo("refuse")
	a.do(vm.JUMPI)

	a.push(0)
	a.label("loop") // p
	a.do(vm.DUP1, vm.CALLDATASIZE, vm.GT, vm.ISZERO)
	a.jumpTo("end")
	a.do(vm.JUMPI)

	a.do(vm.DUP1, vm.CALLDATALOAD)
	a.push(countFlag)
	a.do(vm.AND, vm.ISZERO)
	a.jumpTo("log")
	a.do(vm.JUMPI)
	a.push(pairSize)
	a.do(vm.DUP2)
	a.push(topicsAt + wordSize)
	a.do(vm.ADD)
	hashPair() // p slot
	a.do(vm.DUP1, vm.SLOAD)
	a.push(1)
	a.do(vm.ADD, vm.SWAP1, vm.SSTORE)
	a.label("log")

	load(vm.DUP1, wordSize) // p len
	a.do(vm.DUP1, vm.DUP3)
	a.push(dataAt)
	a.do(vm.ADD)
	a.push(0)
	a.do(vm.CALLDATACOPY) // p len, the data at 0 of the memory

	load(vm.DUP2, topicsAt+3*wordSize) // p len t4
	load(vm.DUP3, topicsAt+2*wordSize) // p len t4 t3
	load(vm.DUP4, topicsAt+wordSize)   // p len t4 t3 t2
	load(vm.DUP5, topicsAt)            // p len t4 t3 t2 t1
	a.do(vm.DUP5)
	a.push(0)
	a.do(vm.DUP8, vm.CALLDATALOAD)
	a.push(countFlag - 1)
	a.do(vm.AND) // p len t4 t3 t2 t1 len 0 n

	names := []string{"one", "two", "three", "four"}
	for i, name := range names {
		a.do(vm.DUP1)
		a.push(i + 1)
		a.do(vm.EQ)
		a.jumpTo(name)
		a.do(vm.JUMPI)
	}
	a.do(vm.INVALID)
	for i, name := range names {
		a.label(name)
		a.do(vm.POP, vm.LOG1+vm.OpCode(i))
		for range len(names) - 1 - i {
			a.do(vm.POP) // remove the topics that this log does not have
		}
		a.jumpTo("next")
		a.do(vm.JUMP)
	}

	a.label("next") // p len
	a.do(vm.ADD)
	a.push(dataAt)
	a.do(vm.ADD)
	a.jumpTo("loop")
	a.do(vm.JUMP)
	a.label("end")
	a.do(vm.STOP)

	a.label("getLastIndex")
	a.push(pairSize)
	a.push(argumentsAt)
	hashPair() // slot
	a.do(vm.SLOAD)
	a.push(0)
	a.do(vm.MSTORE)
	a.push(wordSize)
	a.push(0)
	a.do(vm.RETURN)

	a.label("tokenURI")
	a.push(uriSize)
	a.push(uriAt)
	a.push(0)
	a.do(vm.CODECOPY)
	a.push(uriSize)
	a.push(0)
	a.do(vm.RETURN)

	a.label("refuse")
	a.push(0)
	a.push(0)
	a.do(vm.REVERT)
	return a.link()
}

// assembler assembles EVM code. It pushes every number and every label as two bytes.
type assembler struct {
	code   []byte
	labels map[string]int // positions of the labels
	uses   map[int]string // labels by the position at which their position must be written
}

func (a *assembler) do(ops ...vm.OpCode) {
	for _, op := range ops {
		a.code = append(a.code, byte(op))
	}
}

func (a *assembler) push(n int) {
	a.code = append(a.code, byte(vm.PUSH2), byte(n>>8), byte(n))
}

func (a *assembler) label(name string) {
	a.remember()
	a.labels[name] = len(a.code)
	a.do(vm.JUMPDEST)
}

// jumpTo pushes the position of a label.
func (a *assembler) jumpTo(name string) {
	a.remember()
	a.uses[len(a.code)+1] = name
	a.push(0)
}

func (a *assembler) remember() {
	if a.labels == nil {
		a.labels, a.uses = map[string]int{}, map[int]string{}
	}
}

func (a *assembler) link() []byte {
	for at, name := range a.uses {
		binary.BigEndian.PutUint16(a.code[at:], uint16(a.labels[name]))
	}
	return a.code
}
