//go:build linux && chain

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/ethereum/go-ethereum/common/hexutil"

	"github.com/agentherald/herald/scripts/script"
)

// blockRange is a range that a backfill read.
type blockRange struct{ first, last uint64 }

// measureAnvil compares a backfill with eth_getLogs alone in the same ranges. They take turns on one anvil.
func (b *chainBench) measureAnvil(ctx context.Context) {
	say("mining %d events", b.events)
	c := b.fillAnvil(ctx, b.events)
	defer script.Close(c.node.End)
	for round := range b.rounds {
		ranges := b.backfill(ctx, wayAnvil, b.events, c.first, c.last, chainEnv(c.node.URL(), c.reputation, "all"))
		b.readAlone(ctx, c, ranges)
		if round == 0 {
			b.backfill(ctx, wayChecked, b.events, c.first, c.last, chainEnv(c.node.URL(), c.reputation, ""))
		}
	}
}

// readRanges parses the ranges that a backfill read from its output.
func readRanges(log string, first uint64) (ranges []blockRange) {
	for line := range bytes.Lines(script.Must(os.ReadFile(log))) {
		var answer struct{ UpToBlock uint64 }
		if json.Unmarshal(line, &answer) != nil || answer.UpToBlock < first {
			continue // output of standard error, or a range that is known
		}
		ranges = append(ranges, blockRange{first, answer.UpToBlock})
		first = answer.UpToBlock + 1
	}
	return ranges
}

// readAlone requests the logs of the ranges one after the other, and reads the answers to their end.
func (b *chainBench) readAlone(ctx context.Context, c anvilChain, ranges []blockRange) {
	began := time.Now()
	events := 0
	for _, r := range ranges {
		filter := map[string]any{"fromBlock": hexutil.Uint64(r.first), "toBlock": hexutil.Uint64(r.last), "address": c.reputation}
		body := script.Must(json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": "eth_getLogs", "params": []any{filter}}))
		request := script.Must(http.NewRequestWithContext(ctx, http.MethodPost, c.node.URL(), bytes.NewReader(body)))
		request.Header.Set("Content-Type", "application/json")
		response := script.Must(http.DefaultClient.Do(request))
		answer, err := io.ReadAll(response.Body)
		script.Check(errors.Join(err, response.Body.Close()))
		events += bytes.Count(answer, []byte(`"logIndex"`))
	}
	m := measuredRun{way: wayAlone, events: events, took: time.Since(began)}
	if events != b.events {
		script.Fail("eth_getLogs gave %d events of %d", events, b.events)
	}
	b.add(m)
}
