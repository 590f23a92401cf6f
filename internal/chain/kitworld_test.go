package chain

import (
	"context"
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

import ()

// devWorld is a development chain with one agent.
type devWorld struct {
	t     *testing.T
	ctx   context.Context
	net   *devnet.Net
	agent *big.Int
	owner devnet.Account
	rater devnet.Account
}

// newDevWorld starts the chain and registers the agent.
func newDevWorld(t *testing.T) *devWorld {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	net := devnettest.Start(t, devnet.Config{})
	w := &devWorld{t: t, ctx: ctx, net: net, owner: net.Account(0), rater: net.Account(1)}
	var err error
	w.agent, _, err = net.Register(ctx, w.owner, "data:application/json,{}")
	heraldtest.Must(t, err)
	return w
}

func (w *devWorld) mine(blocks int) {
	w.t.Helper()
	for range blocks {
		if _, err := w.net.Commit(); err != nil {
			w.t.Fatal(err)
		}
	}
}

// giveFeedback gives the agent feedback whose tags are no valid text.
func (w *devWorld) giveFeedback() (*types.Receipt, error) {
	_, r, err := w.net.GiveFeedback(w.ctx, w.rater, devnet.Feedback{AgentID: w.agent, Value: big.NewInt(-9977), ValueDecimals: 2, Tag1: "up\x00time", Tag2: "\xff\xfe", Endpoint: "https://a", URI: "ipfs://x", Hash: common.Hash{1}})
	return r, err
}
