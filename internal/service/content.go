package service

import (
	"time"

	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/config"
	"github.com/agentherald/herald/internal/decode"
	"github.com/agentherald/herald/internal/ipfs"
	"github.com/agentherald/herald/internal/netguard"
	"github.com/agentherald/herald/internal/oauth"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/resolver"
)

// Content is what agents are resolved with, as the configuration has it: by the worker, and by a command that looks
// once. It needs neither Postgres nor Redis, and remembers nothing from before.
type Content struct {
	operator.Content
	Decoding *decode.Budget // of the whole process
	chains   map[uint64]*chain.Client
}

// oauthIdle is how long a connection to an authorization server is kept: for the requests of one login or renewal, not
// for the next.
const oauthIdle = 2 * time.Second

// OpenContent prepares it. Of the options it takes Logger and ChainTimeout. No network is touched.
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
	// Of agents and authorization servers, whose addresses come from strangers' documents.
	if c.OAuth, err = oauth.New(oauth.Config{HTTP: c.Guard.Client(netguard.Limits{Idle: oauthIdle, IdlePerHost: 1},
		0)}); err != nil {
		return nil, err
	}
	for id, known := range cfg.Chains {
		if len(known.RPCURLs) == 0 {
			continue
		}
		client, err := chain.New(chain.Config{ChainID: id, URLs: known.RPCURLs, Confirmations: cfg.ConfirmationsOf(id),
			Registries: known.Registries,
			LogRange:   cfg.LogRange, Trusted: cfg.TrustsNodes(id), Decoding: c.Decoding, Timeout: o.ChainTimeout,
			Logger: o.Logger})
		if err != nil {
			return nil, err
		}
		c.chains[id] = client
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

// close ends what is under way and drops connections.
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
