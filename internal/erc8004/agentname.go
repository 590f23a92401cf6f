package erc8004

import (
	"strconv"

	"github.com/ethereum/go-ethereum/common"
)

// AgentName returns CHAIN:AGENT, the name of an agent in commands, settings and log lines.
func AgentName(chainID uint64, id string) string { return strconv.FormatUint(chainID, 10) + ":" + id }

// AgentArgument returns an agent as arguments of a command: CHAIN:AGENT, and --registry if its registry is not the
// IdentityRegistry that Herald knows for the chain. It returns "" for an agent without an id.
func AgentArgument(chainID uint64, registry, id string) string {
	known, _ := KnownDeployment(chainID)
	if id == "" {
		return ""
	}
	if common.IsHexAddress(registry) && common.HexToAddress(registry) != known.Identity {
		return AgentName(chainID, id) + " --registry " + common.HexToAddress(registry).Hex()
	}
	return AgentName(chainID, id)
}
