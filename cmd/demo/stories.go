package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"os"

	"github.com/agentherald/herald/internal/devnet"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
)

// story is one feedback and how it has to end.
type story struct {
	title    string
	agent    *big.Int
	status   store.Status
	reason   reason.Reason
	attempts int
}

// service is one entry of a registration's services (ERC-8004).
type serviceEntry struct {
	Name     string `json:"name"`
	Endpoint string `json:"endpoint"`
	Version  string `json:"version,omitempty"`
}

// plan is what a story needs on the chain.
type plan struct {
	story
	services []serviceEntry
	stdio    bool // the old backend's capabilities.mcp, with a command
	inline   bool // the registration is a data: URI, not a file on IPFS
	tag      string
	value    int64
	text     string // of the feedback file; empty: no file
	lie      bool   // the hash on chain is of another file
}

func (w *world) planStories() []plan {
	mcp := func(url string) []serviceEntry { return []serviceEntry{{"MCP", url, "2025-11-25"}} }
	return []plan{
		{story: story{title: "Delivered over HTTP, with a feedback file on IPFS", status: store.Delivered, attempts: 1},
			services: mcp(w.httpURL), tag: "uptime", value: 9977, text: "Fast and always there."},
		{story: story{title: "Delivered over stdio, by a command that the operator allowed", status: store.Delivered,
			attempts: 1},
			stdio: true, inline: true, tag: "quality", value: 8800, text: "Good answers."},
		{story: story{title: "An agent that says 503 twice, then takes it", status: store.Delivered, attempts: 3},
			services: mcp(w.flaky.url), tag: "latency", value: 4200},
		{story: story{title: "A file that does not match its hash", status: store.Rejected,
			reason: reason.HashMismatch, attempts: 1},
			services: mcp(w.httpURL), tag: "quality", value: 100, text: "I never wrote this.", lie: true},
		{story: story{title: "An agent without an MCP endpoint", status: store.Skipped,
			reason: reason.NoMCPEndpoint, attempts: 1},
			services: []serviceEntry{{Name: "web", Endpoint: "https://agent.example/"}}, inline: true,
			tag: "starred", value: 10000},
	}
}

// mineFeedback registers the five agents and gives each its feedback.
func (w *world) mineFeedback(ctx context.Context, tl *timeline) ([]story, error) {
	var stories []story
	plans := w.planStories()
	for i := range plans {
		if err := w.registerAgent(ctx, &plans[i]); err != nil {
			return nil, fmt.Errorf("register agent %d: %w", i+1, err)
		}
		stories = append(stories, plans[i].story)
	}
	tl.announceStories(stories)
	for i := range plans {
		if err := w.giveFeedback(ctx, &plans[i]); err != nil {
			return nil, fmt.Errorf("give feedback %d: %w", i+1, err)
		}
	}
	return stories, nil
}

// registerAgent mints the agent first: its registration names the id it got.
func (w *world) registerAgent(ctx context.Context, p *plan) error {
	owner := w.net.Account(0)
	id, _, err := w.net.Register(ctx, owner, "")
	if err != nil {
		return err
	}
	p.agent = id
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
	if p.stdio {
		doc["capabilities"] = map[string]any{"mcp": map[string]any{"transport": "stdio", "command": w.agent}}
	} else {
		doc["services"] = p.services
	}
	body, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	uri := "data:application/json," + string(body)
	if !p.inline {
		c, err := w.gateway.AddDirectory(map[string][]byte{"agent.json": body})
		if err != nil {
			return err
		}
		uri = fmt.Sprintf("ipfs://%s/agent.json", c)
	}
	_, err = w.net.SetURI(ctx, owner, id, uri)
	return err
}

// listAgent has the agents' own domain name the agent, which binds it to its endpoint.
func (w *world) listAgent(entry map[string]any) error {
	w.agents = append(w.agents, entry)
	body, err := json.Marshal(map[string]any{"registrations": w.agents})
	if err != nil {
		return err
	}
	return os.WriteFile(w.list, body, 0o600)
}

func (w *world) giveFeedback(ctx context.Context, p *plan) error {
	f := devnet.Feedback{AgentID: p.agent, Value: big.NewInt(p.value), ValueDecimals: 2, Tag1: p.tag,
		Endpoint: "https://agent.example/"}
	if p.text != "" {
		if err := w.addFile(&f, p.text); err != nil {
			return err
		}
		if p.lie {
			f.Hash = common.HexToHash("0x5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e")
		}
	}
	_, _, err := w.net.GiveFeedback(ctx, w.clientAccount(), f)
	return err
}

// clientAccount gives the feedback.
func (w *world) clientAccount() devnet.Account { return w.net.Account(1) }

// addFile writes a feedback file (ERC-8004) with this text and gives the feedback its address and hash.
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
	return w.addBytes(f, body)
}

// addBytes puts a file on the demo's IPFS.
func (w *world) addBytes(f *devnet.Feedback, body []byte) error {
	c, err := w.gateway.AddFile(body)
	if err != nil {
		return err
	}
	f.URI, f.Hash = "ipfs://"+c.String(), crypto.Keccak256Hash(body)
	return nil
}
