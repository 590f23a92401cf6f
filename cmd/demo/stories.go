package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"os"
	"time"

	"github.com/agentherald/herald/internal/base/loop"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
)

// story is one feedback: its data on the chain, and its expected end.
type story struct {
	title     string
	status    outcome.Status
	reason    outcome.Reason
	attempts  int
	takenBack bool // a reorg removes it from the chain; if it was delivered, its retraction must be delivered too

	services []serviceEntry
	stdio    bool // the registration has a command in capabilities.mcp, the form of the old backend
	inline   bool // the registration is a data: URI instead of a file on IPFS
	tag      string
	value    int64
	text     string // text of the feedback file; empty: no file
	lie      bool   // the hash on chain belongs to another file

	agent *big.Int // set by registerAgent
}

// isRetracted reports whether the agent must receive a retraction of the feedback.
func (s *story) isRetracted() bool { return s.takenBack && s.status == outcome.Delivered }

// serviceEntry is one entry of a registration's services (ERC-8004).
type serviceEntry struct {
	Name     string `json:"name"`
	Endpoint string `json:"endpoint"`
	Version  string `json:"version,omitempty"`
}

func (w *world) listStories() []*story {
	mcp := func(url string) []serviceEntry { return []serviceEntry{{"MCP", url, "2025-11-25"}} }
	return []*story{
		{title: "Delivered over HTTP, with a feedback file on IPFS", status: outcome.Delivered, attempts: 1,
			services: mcp(w.httpURL), tag: "uptime", value: 9977, text: "Fast and always there."},
		{title: "Delivered over stdio, by a command that the operator allowed", status: outcome.Delivered, attempts: 1,
			stdio: true, inline: true, tag: "quality", value: 8800, text: "Good answers."},
		{title: "An agent that says 503 twice, then takes it", status: outcome.Delivered, attempts: 3,
			services: mcp(w.flaky.url), tag: "latency", value: 4200},
		{title: "A file that does not match its hash", status: outcome.Rejected,
			reason: outcome.HashMismatch, attempts: 1,
			services: mcp(w.httpURL), tag: "quality", value: 100, text: "I never wrote this.", lie: true},
		{title: "An agent without an MCP endpoint", status: outcome.Skipped, reason: outcome.NoMCPEndpoint, attempts: 1,
			services: []serviceEntry{{Name: "web", Endpoint: "https://agent.example/"}}, inline: true,
			tag: "starred", value: 10000},
		{title: "A reorg takes it off the chain before the agent is called", status: outcome.Cancelled,
			reason: outcome.Reorg, takenBack: true, services: mcp(w.httpURL), tag: "uptime", value: 1200},
		{title: "A reorg takes it off the chain after the agent was called", status: outcome.Delivered, attempts: 1,
			takenBack: true, services: mcp(w.httpURL), tag: "uptime", value: 3400},
	}
}

// mineFeedback registers the agents and gives each its feedback, except feedback that a reorg removes (mineReorgs).
func (w *world) mineFeedback(ctx context.Context, tl *timeline) ([]*story, error) {
	stories := w.listStories()
	for i, s := range stories {
		if err := w.registerAgent(ctx, s); err != nil {
			return nil, fmt.Errorf("register agent %d: %w", i+1, err)
		}
	}
	tl.announceStories(stories)
	for i, s := range stories {
		if s.takenBack {
			continue
		}
		if _, err := w.giveFeedback(ctx, s); err != nil {
			return nil, fmt.Errorf("give feedback %d: %w", i+1, err)
		}
	}
	return stories, nil
}

// awaitFollower waits until the worker has a cursor for each registry. The cursors start at the chain's head, so the
// worker would never read feedback that was mined earlier.
func (w *world) awaitFollower(ctx context.Context, st *store.Store) error {
	for {
		cursors, err := st.Cursors(ctx, w.net.ChainID())
		if err != nil || len(cursors) == len(w.net.Deployment().List()) {
			return err
		}
		if loop.Pause(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("wait for the worker to follow the chain: %w", context.Cause(ctx))
		}
	}
}

// mineReorgs gives the feedback that a reorg removes from the chain: before the agent is called, or after.
func (w *world) mineReorgs(ctx context.Context, stories []*story, tl *timeline) error {
	for i, s := range stories {
		if !s.takenBack {
			continue
		}
		// A block may be mined between reading the head and the reorg. The extra block keeps the reorg from reaching
		// other feedback.
		if _, err := w.net.Commit(); err != nil {
			return err
		}
		before := outcome.Delivered
		if !s.isRetracted() {
			before = outcome.Waiting // for its confirmations
			// On a busy machine, the event would be confirmed and the agent called before the reorg.
			w.net.Pause()
		}
		mined, err := w.giveFeedback(ctx, s)
		if err != nil {
			return fmt.Errorf("give feedback %d: %w", i+1, err)
		}
		if _, err := tl.awaitDelivery(ctx, mined.TxHash, before); err != nil {
			return fmt.Errorf("feedback %d: %w", i+1, err)
		}
		head, err := w.net.Client().BlockNumber(ctx)
		if err != nil {
			return err
		}
		depth := head - mined.BlockNumber.Uint64() + 2
		tl.printStep(i+1, "reorg", fmt.Sprintf("of %d blocks, without this transaction", depth))
		if err := w.net.Reorg(ctx, depth, false); err != nil {
			return err
		}
		w.net.Resume()
	}
	return nil
}

// registerAgent mints the agent before it writes the registration, because the registration contains the agent's id.
func (w *world) registerAgent(ctx context.Context, s *story) error {
	owner := w.net.Account(0)
	id, _, err := w.net.Register(ctx, owner, "")
	if err != nil {
		return err
	}
	s.agent = id
	entry := map[string]any{"agentId": id, "agentRegistry": fmt.Sprintf("eip155:%d:%s", w.net.ChainID(),
		w.net.Deployment().Identity)}
	if err := w.listAgent(entry); err != nil {
		return err
	}
	doc := map[string]any{
		"type": "https://eips.ethereum.org/EIPS/eip-8004#registration-v1", "name": "demo agent " + id.String(),
		"active":        true,
		"registrations": []any{entry},
	}
	if s.stdio {
		doc["capabilities"] = map[string]any{"mcp": map[string]any{"transport": "stdio", "command": w.agent}}
	} else {
		doc["services"] = s.services
	}
	body, _ := json.Marshal(doc) // cannot fail: it encodes strings and numbers, as listAgent does
	uri := "data:application/json," + string(body)
	if !s.inline {
		uri = fmt.Sprintf("ipfs://%s/agent.json", w.gateway.AddDirectory(map[string][]byte{"agent.json": body}))
	}
	_, err = w.net.SetURI(ctx, owner, id, uri)
	return err
}

// listAgent adds the agent to the file that the agents' own domain serves. That binds the agent to its endpoint.
func (w *world) listAgent(entry map[string]any) error {
	w.agents = append(w.agents, entry)
	body, _ := json.Marshal(map[string]any{"registrations": w.agents})
	return os.WriteFile(w.list, body, 0o600)
}

func (w *world) giveFeedback(ctx context.Context, s *story) (*types.Receipt, error) {
	f := devnet.Feedback{AgentID: s.agent, Value: big.NewInt(s.value), ValueDecimals: 2, Tag1: s.tag,
		Endpoint: "https://agent.example/"}
	if s.text != "" {
		if err := w.addFile(&f, s.text); err != nil {
			return nil, err
		}
		if s.lie {
			f.Hash = common.HexToHash("0x5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e")
		}
	}
	_, mined, err := w.net.GiveFeedback(ctx, w.clientAccount(), f)
	return mined, err
}

// clientAccount returns the account that gives the feedback.
func (w *world) clientAccount() devnet.Account { return w.net.Account(1) }

// addFile writes a feedback file (ERC-8004) with this text, and sets the feedback's URI and hash.
func (w *world) addFile(f *devnet.Feedback, text string) error {
	file := map[string]any{
		"agentRegistry": fmt.Sprintf("eip155:%d:%s", w.net.ChainID(), w.net.Deployment().Identity),
		"agentId":       f.AgentID,
		"clientAddress": fmt.Sprintf("eip155:%d:%s", w.net.ChainID(), w.clientAccount().Address),
		"createdAt":     "2026-11-21T12:00:00Z",
		"value":         f.Value, "valueDecimals": f.ValueDecimals, "tag1": f.Tag1, "text": text}
	if f.Tag2 != "" {
		file["tag2"] = f.Tag2
	}
	body, err := json.MarshalIndent(file, "", "  ")
	if err != nil {
		return err
	}
	w.addBytes(f, body)
	return nil
}

// addBytes adds a file to the demo's IPFS gateway, and sets the feedback's URI and hash.
func (w *world) addBytes(f *devnet.Feedback, body []byte) {
	f.URI, f.Hash = "ipfs://"+w.gateway.AddFile(body).String(), crypto.Keccak256Hash(body)
}
