//go:build linux && chain

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/agentherald/herald/internal/testing/trial"
)

// writeLines writes a file of jobs in an indexer's format.
func (b *bench) writeLines(n int) (path string, err error) {
	path = filepath.Join(b.dir, "jobs.ndjson")
	f, err := os.Create(path)
	if err != nil {
		return "", err
	}
	w := bufio.NewWriter(f)
	encoder := json.NewEncoder(w)
	for i := range n {
		agent, client, index := place(i)
		err = errors.Join(err, encoder.Encode(map[string]any{
			"type": "NewFeedback", "chainId": 8453, "agentId": fmt.Sprint(agent), "clientAddress": clientAddress(client),
			"feedbackIndex": index, "value": fmt.Sprint(i % 100), "valueDecimals": 0, "tag1": "uptime", "tag2": "",
			"endpoint": "https://agent.example/mcp", "feedbackURI": uriOf(i), "blockNumber": 41_700_000 + i/perBlock,
			"transactionHash": fmt.Sprintf("0x%064x", i/perBlock), "logIndex": i % perBlock}))
	}
	return path, errors.Join(err, w.Flush(), f.Close())
}

// measureLines measures enqueue FILE.
func (b *bench) measureLines(ctx context.Context) error {
	return b.repeat(func() error { return b.runLines(ctx, b.events) })
}

func (b *bench) runLines(ctx context.Context, n int) error {
	path, err := b.writeLines(n)
	if err != nil {
		return err
	}
	return b.onSite(ctx, func(s *trial.Site) error {
		m, _, err := b.runEnqueue(ctx, s, n, nil, path)
		if err != nil {
			return err
		}
		b.add(wayLines, m)
		return checkRows(ctx, s, n)
	})
}
