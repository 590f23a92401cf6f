// Command devnode is the node of a development chain as a process of its own. It takes the chain id and the accounts
// that have ether, answers JSON-RPC on standard input and output, and ends with its standard input.
package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/testing/devnet/fullnode"
)

func main() {
	if err := runNode(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "devnode:", err)
		os.Exit(1)
	}
}

// runNode serves the node until standard input ends.
func runNode(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("usage: devnode CHAIN-ID [ACCOUNT…]")
	}
	chainID, err := strconv.ParseUint(args[0], 10, 64)
	if err != nil {
		return fmt.Errorf("the chain id: %w", err)
	}
	var funded []common.Address
	for _, account := range args[1:] {
		funded = append(funded, common.HexToAddress(account))
	}
	node, err := fullnode.Start(chainID, funded)
	if err != nil {
		return err
	}
	return node.Serve(stdio{os.Stdin, os.Stdout})
}

// stdio is the connection to the process that started this one.
type stdio struct {
	io.ReadCloser
	io.Writer
}

func (stdio) SetWriteDeadline(time.Time) error { return nil }
