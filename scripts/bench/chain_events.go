//go:build linux && chain

package main

import (
	"fmt"
	"math/big"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/agentherald/herald/internal/testing/devnet/contracts"
	"github.com/agentherald/herald/internal/testing/trial/chaintrial"
	"github.com/agentherald/herald/scripts/script"
)

// The size of the generated chain: as many agents as a busy chain has with many raters, and the feedback of one
// block.
const (
	chainAgents  = 1000
	chainClients = 50
	perBlock     = 20
)

// participants returns the agent, the client and the feedback index of event number i.
func participants(i int) (agent, client, index int) {
	return i % chainAgents, i / chainAgents % chainClients, 1 + i/chainAgents/chainClients
}

func uriOf(i int) string {
	return fmt.Sprintf("ipfs://bafybeigdyrzt5sfp7udm7hu76uh7y26nf3efuylqabf3oclgtqy%08d", i)
}

func clientAddress(client int) common.Address {
	return common.BigToAddress(big.NewInt(int64(0x1000 + client)))
}

// makeFeedback returns event number i. The events cycle through all agents, then through all clients.
func makeFeedback(i int) chaintrial.Log {
	agent, client, index := participants(i)
	event := contracts.Reputation().ABI.Events["NewFeedback"]
	data := script.Must(event.Inputs.NonIndexed().Pack(uint64(index), big.NewInt(int64(i%100)), uint8(0), "uptime", "", "https://agent.example/mcp",
		uriOf(i), crypto.Keccak256Hash([]byte(uriOf(i)))))
	return chaintrial.Log{Data: data, Topics: []common.Hash{event.ID, common.BigToHash(big.NewInt(int64(agent))),
		common.BytesToHash(clientAddress(client).Bytes()), crypto.Keccak256Hash([]byte("uptime"))}}
}
