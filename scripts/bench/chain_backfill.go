//go:build linux && chain

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strconv"

	"github.com/ethereum/go-ethereum/common"

	"github.com/agentherald/herald/internal/testing/trial"
	"github.com/agentherald/herald/internal/testing/trial/chaintrial"
)

// chainEnv returns the environment variables that describe a chain to Herald.
func chainEnv(url string, reputation common.Address, trust string) []string {
	id := strconv.Itoa(rawChainID)
	return []string{"RPC_URL_" + id + "=" + url, "REPUTATION_REGISTRY_" + id + "=" + reputation.Hex(),
		"IDENTITY_REGISTRY_" + id + "=0x8004A169FB4a3325136EB29fA0ceB6D2e539a432", "HERALD_RPC_TRUST=" + trust}
}

// backfill measures one backfill of all blocks, and returns the ranges that it read.
func (b *chainBench) backfill(ctx context.Context, way string, n int, first, last uint64,
	env []string) (ranges []blockRange, err error) {
	err = b.withSite(ctx, func(s *trial.Site) error {
		log, err := b.runEnqueue(ctx, s, measuredRun{way: way, events: n}, env, "backfill", strconv.Itoa(rawChainID),
			"--rate", "0", "--json", "--from", fmt.Sprint(first), "--to", fmt.Sprint(last))
		if err != nil {
			return err
		}
		ranges, err = readRanges(log, first)
		return err
	})
	return ranges, err
}

// measureRaw measures a backfill from raw logs.
func (b *chainBench) measureRaw(ctx context.Context) error {
	return b.repeat(func() error { return b.runRaw(ctx, b.events) })
}

func (b *chainBench) runRaw(ctx context.Context, n int) error {
	node, err := newRawNode(n)
	if err != nil {
		return err
	}
	server := httptest.NewServer(node)
	defer server.Close()
	_, err = b.backfill(ctx, wayRaw, n, 1, uint64(len(node.blocks)), chainEnv(server.URL, node.reputation, "all"))
	return err
}

// anvilChain is an anvil with events.
type anvilChain struct {
	node        *chaintrial.Anvil
	reputation  common.Address
	first, last uint64
}

// fillAnvil starts an anvil and mines n events.
func (b *chainBench) fillAnvil(ctx context.Context, n int) (c anvilChain, err error) {
	if c.node, err = chaintrial.StartAnvil(ctx, b.logs); err != nil {
		return c, err
	}
	fill := func() error {
		if c.reputation, err = c.node.Deploy(ctx, chaintrial.EmitterCode("")); err != nil {
			return err
		}
		head, err := chaintrial.Head(ctx, c.node.URL())
		if err != nil {
			return err
		}
		c.first, c.last = head+1, head
		for from := 0; from < n; from += perBlock {
			if err := c.mine(ctx, from, min(from+perBlock, n)); err != nil {
				return err
			}
		}
		return nil
	}
	if err := fill(); err != nil {
		return c, errors.Join(err, c.node.End())
	}
	return c, nil
}

// mine mines a block with the events from number from up to, but not including, number to.
func (c *anvilChain) mine(ctx context.Context, from, to int) error {
	var logs []chaintrial.Log
	for i := from; i < to; i++ {
		l, err := makeFeedback(i)
		if err != nil {
			return err
		}
		logs = append(logs, l)
	}
	c.last++
	return c.node.Mine(ctx, []chaintrial.Call{{To: c.reputation, Data: chaintrial.EmitCall(logs...)}})
}
