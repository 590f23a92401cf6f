package chain

import (
	"sync"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/erc8004"
)

// Config configures a Client.
type Config struct {
	// Logs reads the chain.
	Logs *eventlog.Reader
	// Confirmations is the depth at which an event is confirmed. Zero means that being mined is enough.
	Confirmations erc8004.Depth
	// Registries are the registries whose events Check accepts. Without registries, Check refuses every event.
	Registries erc8004.Registries
	// LogRange is how far back Check searches for the event of a job without a position: a duration or a number of
	// blocks.
	LogRange erc8004.Depth
}

// Client checks events and reads agents. It is safe for concurrent use.
type Client struct {
	*eventlog.Reader
	confirmations erc8004.Depth
	registries    erc8004.Registries
	logRange      erc8004.Depth
	known         erc8004.Chain // what this program knows about the chain without asking a node

	mu         sync.Mutex
	identities map[common.Address]common.Address // answers of getIdentityRegistry, by the registry that was asked
}

// New returns a client. It makes no request.
func New(cfg Config) *Client {
	known, _ := erc8004.FindChain(cfg.Logs.ChainID())
	return &Client{Reader: cfg.Logs, confirmations: cfg.Confirmations, registries: cfg.Registries,
		logRange: cfg.LogRange, known: known, identities: make(map[common.Address]common.Address)}
}
