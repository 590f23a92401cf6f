package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/devnet/devnettest"
	"github.com/agentherald/herald/internal/testing/heraldtest"
)

// TestReadChain checks that watch enqueues past and new events, cancels removed ones, and ends on a signal. backfill
// reads a range, reports known deliveries, and ends.
func TestReadChain(t *testing.T) {
	t.Parallel()
	net := devnettest.Start(t, devnet.Config{})
	agent, _, err := net.Register(t.Context(), net.Account(0), "data:application/json,{}")
	heraldtest.Must(t, err)
	give := func() {
		t.Helper()
		_, _, err := net.GiveFeedback(t.Context(), net.Account(1),
			devnet.Feedback{AgentID: agent, Value: big.NewInt(5)})
		heraldtest.Must(t, err)
	}
	d, id := net.Deployment(), net.ChainID()
	environ := []string{"DATABASE_URL=" + heraldtest.Postgres(t, postgres.Migrate), "HERALD_QUEUE=embedded", "HERALD_KEYSET=" + heraldtest.Keyset(t),
		"HERALD_LOG_LEVEL=error", "HERALD_DB_POOL=4", "HERALD_CONCURRENCY=2", fmt.Sprintf("RPC_URL_%d=%s", id, net.URL()),
		fmt.Sprintf("IDENTITY_REGISTRY_%d=%s", id, d.Identity), fmt.Sprintf("REPUTATION_REGISTRY_%d=%s", id, d.Reputation)}

	give()
	var stdout, stderr heraldtest.Log
	ctx, interrupt := context.WithCancel(t.Context())
	code := make(chan int, 1)
	go func() {
		code <- run(ctx, process{[]string{"watch", fmt.Sprint(id), "--from", "0", "--poll", "5ms"}, environ, strings.NewReader(""), &stdout, &stderr}, nowhere)
	}()
	feedbacks := func() int { return strings.Count(stdout.String(), "#NewFeedback") }
	heraldtest.Await(t, "what was there is accepted", func() bool { return feedbacks() == 1 })
	give()
	heraldtest.Await(t, "what came is accepted", func() bool { return feedbacks() == 2 })
	heraldtest.Must(t, net.Reorg(t.Context(), 1, false))
	heraldtest.Await(t, "what the chain lost is cancelled", func() bool { return strings.Contains(stdout.String(), "cancelled ") })
	interrupt()
	if c := <-code; c != exitDone || strings.Contains(stdout.String(), "known") || !strings.Contains(stderr.String(), "1 delivery cancelled, 0 retracted") {
		t.Errorf("code %d, %s, %s", c, stdout.String(), stderr.String())
	}

	heraldtest.Contains(t, "the output", stdout.String(),
		fmt.Sprintf("refreshed agent %d:%s: its registration changed", id, agent))
	heraldtest.Lacks(t, "the output", stdout.String(), "accepted - -")

	give()
	var lines, said bytes.Buffer
	if c := run(t.Context(), process{[]string{"backfill", fmt.Sprint(id), "--from", "0", "--json"}, environ, strings.NewReader(""), &lines, &said}, nowhere); c != exitDone {
		t.Fatalf("code %d, %s", c, said.String())
	}
	verdicts := map[string]int{}
	for line := range strings.Lines(lines.String()) {
		var answer struct{ Verdict, Key string }
		heraldtest.Must(t, json.Unmarshal([]byte(line), &answer))
		if answer.Key != "" { // agents' deliveries have no key
			verdicts[answer.Verdict]++
		}
	}
	if verdicts["known"] != 1 || verdicts["accepted"] != 1 || !strings.Contains(said.String(), "enqueue: read to block") {
		t.Errorf("%v, %s", verdicts, said.String())
	}

	// The tx command enqueues one transaction, known or not.
	_, receipt, err := net.GiveFeedback(t.Context(), net.Account(1), devnet.Feedback{AgentID: agent, Value: big.NewInt(6)})
	heraldtest.Must(t, err)
	transfer, err := net.Submit(t.Context(), net.Account(0), net.Account(1).Address, nil)
	heraldtest.Must(t, err)
	_, err = net.Commit()
	heraldtest.Must(t, err)
	for _, tt := range []struct {
		chain uint64
		hash  string
		code  int
		says  string
	}{
		{id, receipt.TxHash.Hex(), exitDone, "1 accepted, 0 known"},
		{id, receipt.TxHash.Hex(), exitDone, "0 accepted, 1 known"},
		{id, transfer.Hex(), exitFailed, "no registry of chain"},
		{id, "0x" + strings.Repeat("ab", 32), exitFailed, "the chain has no such transaction"},
		{id, "0xabc", exitMisuse, "is no transaction's hash"},
		{99999, receipt.TxHash.Hex(), exitMisuse, "set RPC_URL_99999"},
		{99999, "", exitMisuse, "set RPC_URL_99999"}, // a watch
	} {
		args := []string{"tx", fmt.Sprint(tt.chain), tt.hash}
		if tt.hash == "" {
			args = []string{"watch", fmt.Sprint(tt.chain)}
		}
		var lines, said bytes.Buffer
		c := run(t.Context(), process{args, environ, strings.NewReader(""), &lines, &said}, nowhere)
		if c != tt.code || !strings.Contains(said.String(), tt.says) {
			t.Errorf("%q: code %d, %s%s", args, c, lines.String(), said.String())
		}
	}
}
