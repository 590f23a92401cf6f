package devnet

import (
	"context"
	"fmt"
	"math/big"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/testing/devnet/contracts"
)

// Every helper in this file sends one transaction, mines a block with it and returns the receipt. Package erc8004
// decodes the logs of a receipt.

// Feedback holds the parameters of giveFeedback.
type Feedback struct {
	AgentID       *big.Int
	Value         *big.Int // nil means 0
	ValueDecimals uint8
	Tag1, Tag2    string
	Endpoint      string
	URI           string
	Hash          common.Hash
}

// Calldata encodes the giveFeedback call, for Submit. It panics if a value does not fit its type.
func (f Feedback) Calldata() []byte {
	value := f.Value
	if value == nil {
		value = new(big.Int)
	}
	return contracts.Reputation().Pack("giveFeedback", f.AgentID, value, f.ValueDecimals, f.Tag1, f.Tag2, f.Endpoint, f.URI, f.Hash)
}

// Register registers an agent. If uri is empty, the agent has no tokenURI.
func (n *Net) Register(ctx context.Context, owner Account, uri string) (agentID *big.Int, receipt *types.Receipt, err error) {
	data := contracts.Identity().Pack("register1", uri)
	if uri == "" {
		data = contracts.Identity().Pack("register")
	}
	receipt, err = n.mineTransaction(ctx, "registering an agent", owner, &n.deployment.Identity, data)
	if err != nil {
		return nil, nil, err
	}
	e, err := event(receipt, erc8004.Registered)
	return e.AgentID, receipt, err
}

// SetURI changes an agent's tokenURI.
func (n *Net) SetURI(ctx context.Context, by Account, agentID *big.Int, uri string) (*types.Receipt, error) {
	return n.mineTransaction(ctx, "setting an agent's URI", by, &n.deployment.Identity, contracts.Identity().Pack("setAgentURI", agentID, uri))
}

// Transfer transfers an agent to another owner.
func (n *Net) Transfer(ctx context.Context, from Account, to common.Address, agentID *big.Int) (*types.Receipt, error) {
	return n.mineTransaction(ctx, "transferring an agent", from, &n.deployment.Identity, contracts.Identity().Pack("transferFrom", from.Address, to, agentID))
}

// GiveFeedback gives feedback and returns its index, which counts from 1 for each agent and client.
func (n *Net) GiveFeedback(ctx context.Context, client Account, f Feedback) (index uint64, receipt *types.Receipt, err error) {
	receipt, err = n.mineTransaction(ctx, "giving feedback", client, &n.deployment.Reputation, f.Calldata())
	if err != nil {
		return 0, nil, err
	}
	e, err := event(receipt, erc8004.NewFeedback)
	return e.FeedbackIndex, receipt, err
}

// RevokeFeedback revokes a client's feedback.
func (n *Net) RevokeFeedback(ctx context.Context, client Account, agentID *big.Int, index uint64) (*types.Receipt, error) {
	return n.mineTransaction(ctx, "revoking feedback", client, &n.deployment.Reputation, contracts.Reputation().Pack("revokeFeedback", agentID, index))
}

// AppendResponse responds to a client's feedback. The registry rejects an empty uri.
func (n *Net) AppendResponse(ctx context.Context, by Account, agentID *big.Int, client common.Address, index uint64, uri string, hash common.Hash) (*types.Receipt, error) {
	return n.mineTransaction(ctx, "responding to feedback", by, &n.deployment.Reputation,
		contracts.Reputation().Pack("appendResponse", agentID, client, index, uri, hash))
}

// RequestValidation requests a validation of an agent. by must be the agent's owner.
func (n *Net) RequestValidation(ctx context.Context, by Account, validator common.Address, agentID *big.Int, uri string, requestHash common.Hash) (*types.Receipt, error) {
	return n.mineTransaction(ctx, "requesting a validation", by, &n.deployment.Validation,
		contracts.Validation().Pack("validationRequest", validator, agentID, uri, requestHash))
}

// RespondValidation answers a validation request. response must be 0 to 100.
func (n *Net) RespondValidation(ctx context.Context, validator Account, requestHash common.Hash, response uint8, uri string, responseHash common.Hash, tag string) (*types.Receipt, error) {
	return n.mineTransaction(ctx, "responding to a validation request", validator, &n.deployment.Validation,
		contracts.Validation().Pack("validationResponse", requestHash, response, uri, responseHash, tag))
}

// event returns the first event of a kind in a receipt.
func event(receipt *types.Receipt, kind erc8004.Kind) (erc8004.Event, error) {
	for _, l := range receipt.Logs {
		if e, err := erc8004.Decode(*l); err == nil && e.Kind == kind {
			return e, nil
		}
	}
	return erc8004.Event{}, fmt.Errorf("devnet: transaction %s has no %s event", receipt.TxHash, kind)
}
