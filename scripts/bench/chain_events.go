//go:build linux && chain

package main

import (
	"fmt"
	"math/big"
	"strings"

	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/agentherald/herald/internal/testing/trial/chaintrial"
)

// The size of the generated chain: as many agents as a busy chain has with many raters, and the feedback of one
// block.
const (
	chainAgents  = 1000
	chainClients = 50
	perBlock     = 20
)

// The event of the current reputation registry: its signature, and the types of the parameters in its data.
const (
	signature = "NewFeedback(uint256,address,uint64,int128,uint8,string,string,string,string,string,bytes32)"
	dataTypes = "uint64,int128,uint8,string,string,string,string,bytes32"
)

// feedbackMaker creates feedback events. It cycles through all agents, then through all clients.
type feedbackMaker struct {
	topic     common.Hash
	tag       common.Hash
	arguments abi.Arguments
}

func newFeedbackMaker() (*feedbackMaker, error) {
	m := &feedbackMaker{topic: crypto.Keccak256Hash([]byte(signature)), tag: crypto.Keccak256Hash([]byte("uptime"))}
	for name := range strings.SplitSeq(dataTypes, ",") {
		t, err := abi.NewType(name, "", nil)
		if err != nil {
			return nil, err
		}
		m.arguments = append(m.arguments, abi.Argument{Type: t})
	}
	return m, nil
}

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

// make creates event number i.
func (m *feedbackMaker) make(i int) (chaintrial.Log, error) {
	agent, client, index := participants(i)
	data, err := m.arguments.Pack(uint64(index), big.NewInt(int64(i%100)), uint8(0), "uptime", "", "https://agent.example/mcp",
		uriOf(i), [32]byte(crypto.Keccak256Hash([]byte(uriOf(i)))))
	return chaintrial.Log{Topics: []common.Hash{m.topic, common.BigToHash(big.NewInt(int64(agent))),
		common.BytesToHash(clientAddress(client).Bytes()), m.tag}, Data: data}, err
}
