package doctor

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/chain/node"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/resolver/servers"
)

func (d *doctor) checkChains(ctx context.Context) []Finding {
	if len(d.Settings.Chains) == 0 {
		return reportOK("none has an RPC URL: only jobs that name their endpoint can be delivered (RPC_URL_<chainId>)")
	}
	var findings []Finding
	for _, id := range slices.Sorted(maps.Keys(d.Settings.Chains)) {
		usual := d.Settings.Chains[id].Registries.Default()
		away, err := d.checkChain(ctx, id)
		for _, f := range append(reportResult(err, "answers; identity registry %s, reputation registry %s",
			usual.Identity, usual.Reputation), away...) {
			f.Check = fmt.Sprintf("chain %d", id)
			findings = append(findings, f)
		}
	}
	return findings
}

// checkChain returns an error if the chain cannot be used. Otherwise away warns about each node that does not answer.
func (d *doctor) checkChain(ctx context.Context, id uint64) (away []Finding, err error) {
	c := d.Settings.Chains[id]
	if len(c.RPCURLs) == 0 {
		return nil, fmt.Errorf("has registries but no RPC URL: set RPC_URL_%d", id)
	}
	client, err := node.New(node.Config{ChainID: id, URLs: c.RPCURLs, Logger: d.Logger})
	if err != nil {
		return nil, err
	}
	defer client.Close()

	nodes, err := ask(ctx, client.PingNodes)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		if n.Err != nil && len(nodes) > 1 {
			away = append(away, reportWarning("node %d of RPC_URL_%d: %v; the others are asked instead", n.Number, id,
				n.Err)...)
		}
	}
	if !c.Known {
		err = fmt.Errorf("no registries are known: set IDENTITY_REGISTRY_%d and REPUTATION_REGISTRY_%d", id, id)
	}
	return away, err
}

// checkGateways checks that the IPFS and Arweave gateways answer. If only some gateways fail, that is a warning,
// because Herald uses the others.
func (d *doctor) checkGateways(ctx context.Context) (findings []Finding) {
	content, err := d.Backend.OpenContent()
	if err != nil {
		return reportFailure("%v", err)
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
			findings = append(findings, reportOK("%s answers", p.Gateway)...)
		case away < len(probed):
			findings = append(findings, reportWarning("%s: %v; the others of IPFS_GATEWAYS are asked instead",
				p.Gateway, p.Err)...)
		default:
			findings = append(findings, reportFailure("%s: %v; no gateway of IPFS_GATEWAYS answers, "+
				"and documents in IPFS cannot be fetched", p.Gateway, p.Err)...)
		}
	}
	return findings
}

// checkCommands checks that the programs of HERALD_STDIO_COMMANDS can be run.
func (d *doctor) checkCommands(context.Context) (findings []Finding) {
	for _, argv := range d.Settings.StdioCommands {
		path, err := exec.LookPath(argv[0])
		if err != nil {
			err = fmt.Errorf("%s of HERALD_STDIO_COMMANDS cannot be run: %w", argv[0], err)
		}
		findings = append(findings, reportResult(err, "%s can be run", path)...)
	}
	return findings
}

// checkPolicyFile parses the default policy as the worker would.
func (d *doctor) checkPolicyFile(context.Context) []Finding {
	if d.Settings.PolicyFile == "" {
		return nil
	}
	p, warnings, err := operator.LoadPolicy(d.Settings.PolicyFile)
	findings := reportResult(err, "HERALD_POLICY_FILE has %s", text.Count(len(p.Filters), "filter", "filters"))
	for _, w := range warnings {
		findings = append(findings, reportWarning("%s", w)...)
	}
	return findings
}

// checkServersFile parses the servers file as the worker would.
func (d *doctor) checkServersFile(context.Context) []Finding {
	if d.Settings.ServersFile == "" {
		return nil
	}
	file, err := servers.Load(d.Settings.ServersFile, os.LookupEnv)
	if err != nil {
		return reportFailure("%v", err)
	}
	return reportOK("HERALD_SERVERS_FILE names %s", text.Count(len(file.Keys()), "agent", "agents"))
}
