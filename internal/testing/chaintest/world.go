package chaintest

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

// World is a development chain with one agent.
type World struct {
	T     *testing.T
	Ctx   context.Context
	Net   *devnet.Net
	Agent *big.Int
	Owner devnet.Account
	Rater devnet.Account
}

// NewWorld starts the chain and registers the agent.
func NewWorld(t *testing.T) *World {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	net := devnettest.Start(t, devnet.Config{})
	w := &World{T: t, Ctx: ctx, Net: net, Owner: net.Account(0), Rater: net.Account(1)}
	var err error
	w.Agent, _, err = net.Register(ctx, w.Owner, "data:application/json,{}")
	heraldtest.Must(t, err)
	return w
}

func (w *World) Mine(blocks int) {
	w.T.Helper()
	for range blocks {
		if _, err := w.Net.Commit(); err != nil {
			w.T.Fatal(err)
		}
	}
}

// GiveFeedback gives the agent feedback whose tags are no valid text.
func (w *World) GiveFeedback() (*types.Receipt, error) {
	_, r, err := w.Net.GiveFeedback(w.Ctx, w.Rater, devnet.Feedback{AgentID: w.Agent, Value: big.NewInt(-9977), ValueDecimals: 2, Tag1: "up\x00time", Tag2: "\xff\xfe", Endpoint: "https://a", URI: "ipfs://x", Hash: common.Hash{1}})
	return r, err
}
