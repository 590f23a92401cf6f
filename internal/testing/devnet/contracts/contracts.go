// Package contracts has the ABIs and the bytecode of a development chain's registries, and of Emitter. build.sh
// compiles them from the Solidity files in this folder. The registries have a part of the functions of the published
// ones (ERC-8004).
package contracts

import (
	"bytes"
	"embed"
	"strings"
	"sync"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/scripts/script"
)

//go:embed *.abi *.bin
var files embed.FS

// The contracts.
var (
	Identity   = sync.OnceValue(func() Contract { return readContract("IdentityRegistry") })
	Reputation = sync.OnceValue(func() Contract { return readContract("ReputationRegistry") })
	Validation = sync.OnceValue(func() Contract { return readContract("ValidationRegistry") })
	Emitter    = sync.OnceValue(func() Contract { return readContract("Emitter") })
)

// Contract is a compiled contract.
type Contract struct {
	ABI      abi.ABI
	Bytecode []byte // the data of the transaction that creates the contract
}

// readContract panics if the embedded files are damaged.
func readContract(name string) Contract {
	spec, code := script.Must(files.ReadFile(name+".abi")), script.Must(files.ReadFile(name+".bin"))
	return Contract{script.Must(abi.JSON(bytes.NewReader(spec))), common.FromHex(strings.TrimSpace(string(code)))}
}

// Pack encodes a call of a method. Of several methods with one name, the second is name0 in the ABI, and the third
// name1. "" is the constructor. Pack panics if the ABI has no such method, or if its arguments have other types.
func (c Contract) Pack(method string, args ...any) []byte {
	return script.Must(c.ABI.Pack(method, args...))
}
