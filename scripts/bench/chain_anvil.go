//go:build linux && chain

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"
)

// blockRange is a range that a backfill read.
type blockRange struct{ first, last uint64 }

// measureAnvil compares a backfill with eth_getLogs alone in the same ranges. They take turns on one anvil.
func (b *chainBench) measureAnvil(ctx context.Context) error {
	say("mining %d events", b.events)
	c, err := b.fillAnvil(ctx, b.events)
	if err != nil {
		return err
	}
	defer func() { _ = c.node.End() }()
	env := chainEnv(c.node.URL(), c.reputation, "all")
	for round := range b.rounds {
		ranges, err := b.backfill(ctx, wayAnvil, b.events, c.first, c.last, env)
		if err != nil {
			return err
		}
		if err := b.readAlone(ctx, c, ranges); err != nil {
			return err
		}
		if round > 0 {
			continue
		}
		_, err = b.backfill(ctx, wayChecked, b.events, c.first, c.last, chainEnv(c.node.URL(), c.reputation, ""))
		if err != nil {
			return err
		}
	}
	return nil
}

// readRanges parses the ranges that a backfill read from its output.
func readRanges(log string, first uint64) (ranges []blockRange, err error) {
	text, err := os.ReadFile(log)
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(text) {
		var answer struct{ UpToBlock uint64 }
		if json.Unmarshal(line, &answer) != nil || answer.UpToBlock < first {
			continue // output of standard error, or a range that is known
		}
		ranges = append(ranges, blockRange{first, answer.UpToBlock})
		first = answer.UpToBlock + 1
	}
	return ranges, nil
}

// readAlone requests the logs of the ranges one after the other, and reads the answers to their end.
func (b *chainBench) readAlone(ctx context.Context, c anvilChain, ranges []blockRange) error {
	began := time.Now()
	events := 0
	for _, r := range ranges {
		filter := map[string]any{"fromBlock": hexutil.Uint64(r.first), "toBlock": hexutil.Uint64(r.last), "address": c.reputation}
		body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "eth_getLogs", "params": []any{filter}})
		if err != nil {
			return err
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.node.URL(), bytes.NewReader(body))
		if err != nil {
			return err
		}
		request.Header.Set("Content-Type", "application/json")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		answer, err := io.ReadAll(response.Body)
		if err := errors.Join(err, response.Body.Close()); err != nil {
			return err
		}
		events += bytes.Count(answer, []byte(`"logIndex"`))
	}
	m := measuredRun{way: wayAlone, events: events, took: time.Since(began)}
	if events != b.events {
		return fmt.Errorf("eth_getLogs gave %d events of %d", events, b.events)
	}
	b.add(m)
	return nil
}
