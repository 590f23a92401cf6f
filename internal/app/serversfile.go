package app

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/mcpcall"
	"github.com/agentherald/herald/internal/operator/config"
	"github.com/agentherald/herald/internal/resolver/servers"
	"github.com/ethereum/go-ethereum/common"
)

// serversFile gives deliveries the entries of the servers file. Without a file it has no entries.
type serversFile struct {
	cfg            *config.Config
	set            *servers.Set // empty without HERALD_SERVERS_FILE
	pool           *mcpcall.Pool
	log            *slog.Logger
	reportChange   func()                // called at every change; set before run
	reportCallable func([]erc8004.Agent) // called with agents whose endpoint or headers changed; set before run
}

func openServersFile(cfg *config.Config, pool *mcpcall.Pool, log *slog.Logger) (*serversFile, error) {
	l := &serversFile{cfg: cfg, set: &servers.Set{}, pool: pool, log: log, reportChange: func() {},
		reportCallable: func([]erc8004.Agent) {}}
	if cfg.ServersFile == "" {
		return l, nil
	}
	var err error
	if l.set, err = servers.Open(servers.Config{Path: cfg.ServersFile, Env: os.LookupEnv, Logger: log,
		Changed: l.applyDiff}); err != nil {
		return nil, fmt.Errorf("HERALD_SERVERS_FILE: %w", err)
	}
	l.warnUnknownChains(l.set.Content().Keys())
	return l, nil
}

// findServer returns the agent's entry. Entries are for agents of the chain's default IdentityRegistry.
func (l *serversFile) findServer(a erc8004.Agent) (servers.Server, bool) {
	s, ok := l.set.Lookup(a.ChainID, a.ID)
	if !ok {
		return servers.Server{}, false
	}
	if known, _ := l.cfg.Registries(a.ChainID); common.HexToAddress(a.Registry) != known.Identity {
		return servers.Server{}, false
	}
	return s, true
}

// callableAgents returns the agents whose entries have an endpoint.
func (l *serversFile) callableAgents() []erc8004.Agent {
	file := l.set.Content()
	return l.toAgents(slices.DeleteFunc(file.Keys(), func(k servers.Key) bool {
		s, _ := file.Lookup(k.ChainID, k.AgentID)
		_, ok := s.Endpoint()
		return !ok
	}))
}

// toAgents returns the agents of keys. It omits chains whose IdentityRegistry is unknown.
func (l *serversFile) toAgents(keys []servers.Key) (out []erc8004.Agent) {
	for _, k := range keys {
		if known, _ := l.cfg.Registries(k.ChainID); known.Identity != (common.Address{}) {
			out = append(out, erc8004.Agent{ChainID: k.ChainID, Registry: strings.ToLower(known.Identity.Hex()),
				ID: k.AgentID})
		}
	}
	return out
}

// applyDiff applies a changed file. It drops connections to endpoints that the file no longer names, after their calls,
// and keeps the others. It releases deliveries that were held until the file says how their agent is called.
func (l *serversFile) applyDiff(d servers.Diff) {
	for _, ep := range d.ListDroppedEndpoints() {
		l.pool.Drop(ep)
	}
	var added []servers.Key
	for _, c := range d.Added {
		added = append(added, c.Key)
	}
	l.warnUnknownChains(added)
	l.reportCallable(l.toAgents(d.ListMovedAgents()))
	l.reportChange()
}

// warnUnknownChains warns about entries whose chain has no known IdentityRegistry: no delivery uses them.
func (l *serversFile) warnUnknownChains(keys []servers.Key) {
	warned := map[uint64]bool{}
	for _, k := range keys {
		if known, _ := l.cfg.Registries(k.ChainID); known.Identity == (common.Address{}) && !warned[k.ChainID] {
			warned[k.ChainID] = true
			l.log.Warn("the servers file names agents of a chain whose IdentityRegistry is not known, "+
				"so no delivery finds them",
				"agent", k.String(), "to_do", fmt.Sprintf("set IDENTITY_REGISTRY_%d", k.ChainID))
		}
	}
}
