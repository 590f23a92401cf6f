package operator

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"

	"github.com/agentherald/herald/internal/chain"
	"github.com/agentherald/herald/internal/servers"
)

func (d *doctor) chains(ctx context.Context) {
	if len(d.Settings.Chains) == 0 {
		d.add("chains", nil, "none has an RPC URL: only jobs that name their endpoint can be delivered (RPC_URL_<chainId>)")
	}
	for _, id := range slices.Sorted(maps.Keys(d.Settings.Chains)) {
		c := d.Settings.Chains[id]
		name := fmt.Sprintf("chain %d", id)
		if c.RPCURL.IsZero() {
			d.add(name, fmt.Errorf("has registries but no RPC URL: set RPC_URL_%d", id), "")
			continue
		}
		client, err := chain.New(chain.Config{ChainID: id, URL: c.RPCURL, Logger: d.Logger})
		if err == nil {
			err = d.within(ctx, client.Ping)
			client.Close()
		}
		if err == nil && !c.Known {
			err = fmt.Errorf("no registries are known: set IDENTITY_REGISTRY_%d and REPUTATION_REGISTRY_%d", id, id)
		}
		usual := c.Registries.Default()
		d.add(name, err, fmt.Sprintf("answers; identity registry %s, reputation registry %s", usual.Identity,
			usual.Reputation))
	}
}

// commands looks for the programs that registrations may name.
func (d *doctor) commands() {
	for _, argv := range d.Settings.StdioCommands {
		path, err := exec.LookPath(argv[0])
		if err != nil {
			err = fmt.Errorf("%s of HERALD_STDIO_COMMANDS cannot be run: %w", argv[0], err)
		}
		d.add("stdio", err, path+" can be run")
	}
}

// servers reads the servers file as the worker would.
func (d *doctor) servers() {
	if d.Settings.ServersFile == "" {
		return
	}
	file, err := servers.Load(d.Settings.ServersFile, os.LookupEnv)
	if err != nil {
		d.add("servers", err, "")
		return
	}
	d.add("servers", nil, fmt.Sprintf("HERALD_SERVERS_FILE names %d agents", len(file.Keys())))
}

// gateways asks those of IPFS and Arweave whether they answer. One of several that does not is made up for by the
// others.
func (d *doctor) gateways(ctx context.Context) {
	content, err := d.Backend.OpenContent()
	if err != nil {
		d.add("gateways", err, "")
		return
	}
	defer content.Close()
	probed := content.Fetcher.Probe(ctx)
	away := 0
	for _, p := range probed {
		if p.Err != nil {
			away++
		}
	}
	for _, p := range probed {
		switch {
		case p.Err == nil:
			d.add("gateways", nil, p.Gateway+" answers")
		case away < len(probed):
			d.warn("gateways", fmt.Sprintf("%s: %v; the others of IPFS_GATEWAYS are asked instead", p.Gateway, p.Err))
		default:
			d.add("gateways", fmt.Errorf("%s: %w; no gateway of IPFS_GATEWAYS answers, and documents in IPFS cannot be fetched", p.Gateway, p.Err), "")
		}
	}
}
