//go:build linux && chain

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/testing/trial"
	"github.com/agentherald/herald/scripts/script"
)

// Polling uses a short pause, so that many blocks can be measured. With a websocket, the pause is the usual one.
const (
	pollOften   = 500 * time.Millisecond
	pollUsual   = 2 * time.Second
	seenWithin  = 30 * time.Second
	betweenLook = time.Millisecond
)

// measureLatency measures the time from a block to the acceptance of its jobs.
func (b *chainBench) measureLatency(ctx context.Context) {
	c := b.fillAnvil(ctx, perBlock)
	defer script.Close(c.node.End)
	socket := strings.Replace(c.node.URL(), "http://", "ws://", 1)
	b.watchBlocks(ctx, &c, wayPoll, c.node.URL(), pollOften)
	b.watchBlocks(ctx, &c, waySocket, socket, pollUsual)
}

// watchBlocks mines blocks with one event each, at varying times, and waits for the answer of enqueue watch, which
// prints it after the commit.
func (b *chainBench) watchBlocks(ctx context.Context, c *anvilChain, way, url string, poll time.Duration) {
	b.withSite(ctx, func(s *trial.Site) {
		p := script.Must(s.StartEnqueue("watch", chainEnv(url, c.reputation, "all"), "watch", strconv.Itoa(rawChainID), "--json",
			"--poll", poll.String(), "--from", fmt.Sprint(c.last+1)))
		var waits []time.Duration
		// Blocks are spread evenly over the pause; otherwise the median would depend on chance.
		phases := rand.Perm(b.blocks + 1)
		for n, phase := range phases {
			began := time.Now()
			serial := 1_000_000 + int(c.last)
			c.mine(ctx, serial, serial+1)
			awaitLines(ctx, p.Log(), n+1)
			if n > 0 { // the first one may include the program's start
				waits = append(waits, time.Since(began))
			}
			script.Sleep(ctx, poll/4+poll*time.Duration(phase)/time.Duration(len(phases)))
		}
		l := blockLatency{way: way, poll: poll, blocks: len(waits), p50: trial.Quantile(waits, .5),
			p99: trial.Quantile(waits, .99)}
		say("%s: p50 %s, p99 %s", way, l.p50, l.p99)
		b.report.latencies = append(b.report.latencies, l)
		script.Check(p.Kill())
	})
}

// awaitLines waits until the program has printed the answers to n events.
func awaitLines(ctx context.Context, log string, n int) {
	ctx, cancel := context.WithTimeoutCause(ctx, seenWithin, fmt.Errorf("not within %s", seenWithin))
	defer cancel()
	script.Check(trial.Until(ctx, betweenLook, "the answer to a block", func() (bool, error) {
		text, err := os.ReadFile(log)
		return strings.Count(string(text), `"accepted"`) >= n, err
	}))
}
