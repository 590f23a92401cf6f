package chain

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/node"
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
	// confirmed is the block of an event that Check found confirmed at confirmedAt. For confirmedFor, agents are read
	// only from nodes that have reached it: a node that lags may not have the event's agent yet, or its old tokenURI.
	confirmed   uint64
	confirmedAt time.Time
	newest      uint64 // the highest head that a node returned, which may not exist
}

// confirmedFor bounds how long agents cannot be read after the chain was rolled back.
const confirmedFor = time.Minute

// noteConfirmed records the block of a confirmed event.
func (c *Client) noteConfirmed(block uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if block >= c.confirmed || time.Since(c.confirmedAt) >= confirmedFor {
		c.confirmed, c.confirmedAt = block, time.Now()
	}
}

// readConfirmed returns the block that a node must have reached so that agents are read from it; 0: any block.
func (c *Client) readConfirmed() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.confirmedAt) >= confirmedFor {
		return 0
	}
	return c.confirmed
}

// noteNewest records a head that a node returned.
func (c *Client) noteNewest(head uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.newest = max(c.newest, head)
}

// readNewest returns the highest head that a node returned; 0: none.
func (c *Client) readNewest() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest
}

// New returns a client. It makes no request.
func New(cfg Config) *Client {
	known, _ := erc8004.FindChain(cfg.Logs.ChainID())
	return &Client{Reader: cfg.Logs, confirmations: cfg.Confirmations, registries: cfg.Registries,
		logRange: cfg.LogRange, known: known, identities: make(map[common.Address]common.Address)}
}

// NoSuchAgentError means that the identity registry has no such agent.
type NoSuchAgentError struct {
	ChainID  uint64
	Registry common.Address
	AgentID  *big.Int
}

func (e *NoSuchAgentError) Error() string {
	return fmt.Sprintf("the identity registry %s on chain %d has no agent %s", e.Registry, e.ChainID, e.AgentID)
}

// NoSuchAgent returns true. Packages that do not import this one recognise the error by this method.
func (e *NoSuchAgentError) NoSuchAgent() bool { return true }

// TokenURI returns an agent's tokenURI, unchanged. Errors: *NoSuchAgentError, *UnavailableError, *WrongChainError.
func (c *Client) TokenURI(ctx context.Context, identity common.Address, agentID *big.Int) (string, error) {
	gone := &NoSuchAgentError{ChainID: c.ChainID(), Registry: identity, AgentID: agentID}
	call, err := erc8004.PackTokenURI(agentID)
	if err != nil {
		return "", gone // the id is not a uint256, so no registry contains it
	}
	const op = "reading tokenURI"
	ret, err := c.CallView(ctx, op, identity, call, c.readConfirmed())
	var reverted *node.Revert
	switch {
	case errors.As(err, &reverted) && erc8004.IsNonexistentToken(reverted.Data):
		return "", gone
	case errors.As(err, &reverted):
		return "", c.checkOwner(ctx, op, gone, reverted)
	case err != nil:
		return "", err
	}
	uri, err := erc8004.UnpackTokenURI(ret)
	if err != nil {
		return "", c.NewUnavailable(op, err)
	}
	return uri, nil
}

// checkOwner interprets a revert without the known error: if ownerOf reverts as well, the agent does not exist.
func (c *Client) checkOwner(ctx context.Context, op string, gone *NoSuchAgentError, reverted *node.Revert) error {
	call, err := erc8004.PackOwnerOf(gone.AgentID)
	if err != nil {
		return gone
	}
	_, err = c.CallView(ctx, "reading ownerOf", gone.Registry, call, c.readConfirmed())
	var also *node.Revert
	switch {
	case errors.As(err, &also):
		return gone
	case err != nil:
		return err
	}
	return c.NewUnavailable(op, reverted)
}
