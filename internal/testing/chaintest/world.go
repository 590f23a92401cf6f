package chaintest

import (
	"context"
	"math/big"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
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

	build BuildJob
}

// BuildJob is the type of eventlog.Job.
type BuildJob func(e erc8004.Event, chainID uint64, at erc8004.Deployment, mined uint64, limits job.Limits) (job.Job, error)

// NewWorld starts the chain and registers the agent.
func NewWorld(t *testing.T, build BuildJob) *World {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	net := devnettest.Start(t, devnet.Config{})
	w := &World{T: t, Ctx: ctx, Net: net, Owner: net.Account(0), Rater: net.Account(1), build: build}
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

// Feedback gives the agent feedback whose tags are no valid text, and returns its job.
func (w *World) Feedback() job.Job {
	w.T.Helper()
	_, r, err := w.Net.GiveFeedback(w.Ctx, w.Rater, devnet.Feedback{AgentID: w.Agent, Value: big.NewInt(-9977), ValueDecimals: 2, Tag1: "up\x00time", Tag2: "\xff\xfe", Endpoint: "https://a", URI: "ipfs://x", Hash: common.Hash{1}})
	return w.Job(r, err)(erc8004.NewFeedback)
}

// Job accepts the results of a devnet helper, and returns a function that builds the job of the event of a kind in
// them.
func (w *World) Job(r *types.Receipt, err error) func(erc8004.Kind) job.Job {
	return func(kind erc8004.Kind) job.Job {
		w.T.Helper()
		heraldtest.Must(w.T, err)
		for _, l := range r.Logs {
			e, err := erc8004.Decode(*l)
			if err != nil || e.Kind != kind {
				continue
			}
			j, err := w.build(e, w.Net.ChainID(), w.Net.Deployment(), l.BlockTimestamp, job.Limits{MaxTimeout: 30 * time.Second})
			heraldtest.Must(w.T, err)
			return j
		}
		w.T.Fatalf("no %s in the receipt", kind)
		return job.Job{}
	}
}
