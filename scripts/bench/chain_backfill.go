//go:build linux && chain

package main

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strconv"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/testing/trial"
	"github.com/agentherald/herald/internal/testing/trial/chaintrial"
	"github.com/agentherald/herald/scripts/script"
)

// chainEnv returns the environment variables that describe a chain to Herald.
func chainEnv(url string, reputation common.Address, trust string) []string {
	id := strconv.Itoa(rawChainID)
	return []string{"RPC_URL_" + id + "=" + url, "REPUTATION_REGISTRY_" + id + "=" + reputation.Hex(),
		"IDENTITY_REGISTRY_" + id + "=0x8004A169FB4a3325136EB29fA0ceB6D2e539a432", "HERALD_RPC_TRUST=" + trust}
}

// backfill measures one backfill of all blocks, and returns the ranges that it read.
func (b *chainBench) backfill(ctx context.Context, way string, n int, first, last uint64, env []string) (ranges []blockRange) {
	b.withSite(ctx, func(s *trial.Site) {
		log := b.runEnqueue(ctx, s, measuredRun{way: way, events: n}, env, "backfill", strconv.Itoa(rawChainID),
			"--rate", "0", "--json", "--from", fmt.Sprint(first), "--to", fmt.Sprint(last))
		ranges = readRanges(log, first)
	})
	return ranges
}

// measureRaw measures a backfill from raw logs.
func (b *chainBench) measureRaw(ctx context.Context) {
	for range b.rounds {
		b.runRaw(ctx, b.events)
	}
}

func (b *chainBench) runRaw(ctx context.Context, n int) {
	node := newRawNode(n)
	server := httptest.NewServer(node)
	defer server.Close()
	b.backfill(ctx, wayRaw, n, 1, node.Head, chainEnv(server.URL, rawReputation, "all"))
}

// anvilChain is an anvil with events.
type anvilChain struct {
	node        *chaintrial.Anvil
	reputation  common.Address
	first, last uint64
}

// fillAnvil starts an anvil and mines n events. If that fails, the anvil ends with the program.
func (b *chainBench) fillAnvil(ctx context.Context, n int) anvilChain {
	node := script.Must(chaintrial.StartAnvil(ctx, b.logs))
	c := anvilChain{node: node, reputation: script.Must(node.Deploy(ctx, chaintrial.EmitterCode("")))}
	c.last = script.Must(chaintrial.Head(ctx, node.URL()))
	c.first = c.last + 1
	for from := 0; from < n; from += perBlock {
		c.mine(ctx, from, min(from+perBlock, n))
	}
	return c
}

// mine mines a block with the events from number from up to, but not including, number to.
func (c *anvilChain) mine(ctx context.Context, from, to int) {
	var logs []chaintrial.Log
	for i := from; i < to; i++ {
		logs = append(logs, makeFeedback(i))
	}
	c.last++
	script.Check(c.node.Mine(ctx, []chaintrial.Call{{To: c.reputation, Data: chaintrial.EmitCall(logs...)}}))
}
