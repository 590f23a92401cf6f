package erc8004

import (
	"strconv"
	"strings"

	"github.com/ethereum/go-ethereum/common"
)

// Agent identifies an agent by chain, IdentityRegistry (lower-case 0x address) and decimal token id.
type Agent struct {
	ChainID  uint64
	Registry string
	ID       string
}

// FormatAgent returns CHAIN:AGENT, the name of an agent in commands, settings, answers and log lines.
func FormatAgent(chainID uint64, id string) string { return strconv.FormatUint(chainID, 10) + ":" + id }

// String returns CHAIN:AGENT.
func (a Agent) String() string { return FormatAgent(a.ChainID, a.ID) }

// FullName returns CHAIN:REGISTRY:AGENT.
func (a Agent) FullName() string { return FormatAgent(a.ChainID, a.Registry+":"+a.ID) }

// Argument returns the agent as arguments of a command: CHAIN:AGENT, and --registry if its registry is not the
// IdentityRegistry that Herald knows for the chain. It returns "" for an agent without an id.
func (a Agent) Argument() string {
	known, _ := KnownDeployment(a.ChainID)
	switch {
	case a.ID == "":
		return ""
	case common.IsHexAddress(a.Registry) && common.HexToAddress(a.Registry) != known.Identity:
		return a.String() + " --registry " + common.HexToAddress(a.Registry).Hex()
	}
	return a.String()
}

// ParseAgent parses CHAIN:AGENT. The result has no registry and no leading zeros. The id has at most 78 digits and may
// be wider than 256 bits.
func ParseAgent(s string) (a Agent, ok bool) {
	chain, id, found := strings.Cut(s, ":")
	chainID, err := strconv.ParseUint(chain, 10, 63)
	if !found || err != nil || id == "" || strings.Trim(id, "0123456789") != "" || len(id) > 78 {
		return a, false
	}
	return Agent{ChainID: chainID, ID: strings.TrimLeft(id[:len(id)-1], "0") + id[len(id)-1:]}, true
}

// ParseFullName parses CHAIN:REGISTRY:AGENT.
func ParseFullName(s string) (a Agent, ok bool) {
	chain, rest, _ := strings.Cut(s, ":")
	registry, id, _ := strings.Cut(rest, ":")
	a, ok = ParseAgent(chain + ":" + id)
	a.Registry = strings.ToLower(registry)
	return a, ok && common.IsHexAddress(registry)
}
