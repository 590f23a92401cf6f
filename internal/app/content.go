package app

import (
	"time"

	"github.com/agentherald/herald/internal/auth/oauth"
	"github.com/agentherald/herald/internal/base/decode"
	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/chain/eventlog"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/resolver"
)

// Content resolves agents and fetches documents with the current settings, for the worker and for commands. It needs
// neither Postgres nor Redis, and its caches are empty at first.
type Content struct {
	operator.Content
	Decoding *decode.Budget // shared by the whole process
	chains   map[uint64]*chain.Client
}

// oauthIdle is how long an idle connection to an authorization server is kept. It serves the requests of one login or
// renewal, but not those of the next.
const oauthIdle = 2 * time.Second

// OpenContent returns the Content for the settings. Of the options it uses Logger and ChainTimeout. It makes no network
// request.
func OpenContent(cfg *config.Config, o Options) (_ *Content, err error) {
	c := &Content{Decoding: decode.NewBudget(decode.DefaultBudget), chains: map[uint64]*chain.Client{}}
	c.HasChain = func(id uint64) bool { return c.chains[id] != nil }
	c.Close = c.close
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if c.Guard, err = netguard.New(netguard.Config{AllowNetworks: cfg.AllowNetworks,
		AllowHTTP: cfg.AllowHTTP}); err != nil {
		return nil, err
	}
	// The client calls agents and authorization servers, whose addresses come from strangers' documents.
	if c.OAuth, err = oauth.New(oauth.Config{HTTP: c.Guard.Client(netguard.Limits{Idle: oauthIdle, IdlePerHost: 1},
		0)}); err != nil {
		return nil, err
	}
	for id, known := range cfg.Chains {
		if len(known.RPCURLs) == 0 {
			continue
		}
		nodes, err := node.New(node.Config{ChainID: id, URLs: known.RPCURLs, Decoding: c.Decoding,
			Timeout: o.ChainTimeout, Logger: o.Logger})
		if err != nil {
			return nil, err
		}
		c.chains[id] = chain.New(chain.Config{Logs: eventlog.New(nodes, cfg.TrustsNodes(id)),
			Confirmations: cfg.ConfirmationsOf(id), Registries: known.Registries, LogRange: cfg.LogRange})
	}
	if c.Fetcher, err = ipfs.New(ipfs.Config{Gateways: cfg.IPFSGateways, Arweave: cfg.ArweaveGateway, Guard: c.Guard,
		Logger: o.Logger}); err != nil {
		return nil, err
	}
	c.Resolver, err = resolver.New(resolver.Config{Chain: chainReader{c.chains}, Fetcher: c.Fetcher,
		StdioCommands: cfg.StdioCommands,
		MayRun:        cfg.MayRun, Binding: cfg.Binding, Decoding: c.Decoding})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// close cancels running requests and closes connections.
func (c *Content) close() {
	if c.Resolver != nil {
		c.Resolver.Close()
	}
	if c.Fetcher != nil {
		c.Fetcher.Close()
	}
	for _, client := range c.chains {
		client.Close()
	}
}
