package config

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/ethereum/go-ethereum/common"
)

// maxNodes bounds the nodes of one chain: a request that no node answers is sent to all of them in turn.
const maxNodes = 16

// Chain holds the settings of one chain.
type Chain struct {
	ID         uint64
	RPCURLs    []secret.Secret    // preferred first; empty: deliveries that need a node are held (chain_unconfigured)
	Registries erc8004.Registries // only their events are delivered
	Known      bool               // the identity and reputation registries are known or configured
	Explorer   string             // configured base URL of a block explorer, without a final slash (Config.Explorer)
}

// variables returns the variables of one chain, whose names end in its id. They set fields of c.
func (c *Chain) variables(id string) []variable {
	return []variable{
		{Name: "RPC_URL_" + id, Secret: true, set: c.setRPC,
			Help: "JSON-RPC URLs of a chain, separated by commas, the preferred one first. A ws:// or wss:// URL " +
				"also announces new blocks at once. Without a URL, Herald verifies no event of that chain. It " +
				"delivers the fields of a job if the job or the servers file names the endpoint, and holds other " +
				"deliveries (chain_unconfigured)."},
		registryVariable("IDENTITY_REGISTRY_"+id, &c.Registries.Identity,
			"Addresses of the chain's IdentityRegistry, separated by commas. The first is the default for jobs "+
				"that name no registry."),
		registryVariable("REPUTATION_REGISTRY_"+id, &c.Registries.Reputation, "Addresses of the ReputationRegistry."),
		registryVariable("VALIDATION_REGISTRY_"+id, &c.Registries.Validation, "Addresses of the ValidationRegistry."),
		{Name: "HERALD_EXPLORER_" + id, set: c.setExplorer, show: func() string { return c.Explorer },
			Help: "Block explorer of a chain, as in https://basescan.org, to which pages link. Known chains have one."},
	}
}

// registryVariable returns the variable of one kind of registries. Registries that are not set default to the known
// deployments.
func registryVariable(name string, field *[]common.Address, help string) variable {
	return variable{Name: name, Default: "known address", Help: help,
		set: func(s string) string {
			listed, problem := parseAddresses(s)
			if problem == "" {
				*field = listed
			}
			return problem
		},
		show: func() string {
			texts := make([]string, len(*field))
			for i, a := range *field {
				texts[i] = a.Hex()
			}
			return strings.Join(texts, ",")
		}}
}

// readChains reads the variables of all chains that env names.
func (c *Config) readChains(env map[string]string) (faults []error) {
	ids := map[uint64]bool{}
	prefixes := new(Chain).variables("")
	for _, name := range slices.Sorted(maps.Keys(env)) {
		for _, prefix := range prefixes {
			rest, ok := strings.CutPrefix(name, prefix.Name)
			if !ok || env[name] == "" {
				continue
			}
			if prefix.Secret {
				rest = strings.TrimSuffix(rest, "_FILE")
			}
			id := parseChainID(rest)
			if id == 0 {
				faults = append(faults, &Error{name, "must end in a chain id, as in " + prefix.Name + "8453"})
				continue
			}
			ids[id] = true
		}
	}
	first := len(c.settings)
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		chain := Chain{ID: id}
		chain.Registries, _ = erc8004.ListedRegistries(id)
		for _, v := range chain.variables(fmt.Sprint(id)) {
			if env[v.Name] == "" && (!v.Secret || env[v.Name+"_FILE"] == "") {
				if v.show != nil && v.show() != "" { // the known registries
					c.settings = append(c.settings, Setting{v.Name, v.show(), "default", ""})
				}
				continue
			}
			v.Help = "" // `worker config` explains the variables that every installation has
			if err := c.readVariable(v, env); err != nil {
				faults = append(faults, err)
			}
		}
		chain.Known = len(chain.Registries.Identity) > 0 && len(chain.Registries.Reputation) > 0
		c.Chains[id] = chain
	}
	slices.SortFunc(c.settings[first:], func(a, b Setting) int { return strings.Compare(a.Name, b.Name) })
	return faults
}

// parseAddresses parses a comma-separated list of at least one address.
func parseAddresses(s string) (listed []common.Address, problem string) {
	parts := strings.Split(s, ",")
	for i, part := range parts {
		addr, problem := erc8004.ParseAddress(strings.TrimSpace(part))
		if problem != "" && len(parts) > 1 {
			problem = fmt.Sprintf("address %d %s", i+1, problem)
		}
		if problem != "" {
			return nil, problem
		}
		listed = append(listed, addr)
	}
	return listed, ""
}

func (c *Chain) setExplorer(s string) string {
	c.Explorer = strings.TrimRight(s, "/")
	u, err := url.Parse(c.Explorer)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.RawQuery != "" || u.User != nil {
		return "must be an http or https URL without query, as in https://basescan.org"
	}
	return ""
}

// setRPC parses a comma-separated list of node URLs. The problem never quotes a URL, because it may contain a key.
func (c *Chain) setRPC(text string) (problem string) {
	const wanted = "must be a URL with http://, https://, ws:// or wss://"
	parts := splitURLs(text)
	if len(parts) > maxNodes {
		return fmt.Sprintf("names %d nodes, more than %d", len(parts), maxNodes)
	}
	for i, part := range parts {
		switch {
		case isRPC(part) && slices.Contains(parts[:i], part):
			return fmt.Sprintf("names the same URL twice (URL %d): one node is not to be counted as two", i+1)
		case isRPC(part):
			c.RPCURLs = append(c.RPCURLs, secret.New(part))
		case len(parts) > 1:
			return fmt.Sprintf("URL %d %s", i+1, wanted)
		default:
			return wanted
		}
	}
	return ""
}

// splitURLs splits a list at commas. A comma that is not followed by another URL belongs to the path or query before
// it.
func splitURLs(text string) (parts []string) {
	for part := range strings.SplitSeq(text, ",") {
		if n := len(parts); n > 0 && !strings.Contains(part, "://") && !isBlankOrSpaced(part) {
			parts[n-1] += "," + part
			continue
		}
		parts = append(parts, strings.TrimSpace(part))
	}
	return parts
}

// isBlankOrSpaced reports whether a part of a list is blank, or begins or ends with a space. splitURLs keeps such a
// part separate, so that setRPC reports it by its number as an invalid URL.
func isBlankOrSpaced(part string) bool {
	return strings.TrimSpace(part) == "" || strings.TrimSpace(part) != part
}

func isRPC(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Hostname() != "" && !strings.Contains(u.Hostname(), ",") &&
		slices.Contains([]string{"http", "https", "ws", "wss"}, u.Scheme)
}

// Explorer returns the base URL of the chain's block explorer: the configured one, or that of a known chain. It is
// empty if there is neither.
func (c *Config) Explorer(id uint64) string {
	known, _ := erc8004.FindChain(id)
	if c.Chains[id].Explorer == "" && known.Explorer != "" {
		return "https://" + known.Explorer
	}
	return c.Chains[id].Explorer
}

// Registries returns the default registries of a chain: the first configured address of each kind, else that of the
// known deployment. An address is zero if there is neither. The result is false if the identity or the reputation
// registry is missing.
func (c *Config) Registries(chainID uint64) (erc8004.Deployment, bool) {
	listed, _ := c.ListedRegistries(chainID)
	d := listed.Default()
	return d, d.Identity != (common.Address{}) && d.Reputation != (common.Address{})
}

// ListedRegistries returns all registries of a chain whose events are delivered. A configured list replaces the known
// registries of its kind. The result is false if the chain is neither configured nor known.
func (c *Config) ListedRegistries(chainID uint64) (erc8004.Registries, bool) {
	if chain, ok := c.Chains[chainID]; ok {
		return chain.Registries, true
	}
	return erc8004.ListedRegistries(chainID)
}

func (c *Config) setConfirmations(s string) string {
	for _, part := range splitList(s) {
		chain, count, named := strings.Cut(part, "=")
		id := uint64(0)
		if !named {
			count = chain
		} else if id = parseChainID(chain); id == 0 {
			return fmt.Sprintf("%q does not begin with a chain id", part)
		}
		depth, problem := erc8004.ParseDepth(count)
		if problem != "" {
			return fmt.Sprintf("%q %s, or one of these for a chain: 8453=6s", part, problem)
		}
		if known, _ := erc8004.FindChain(id); depth.Tag != "" && known.Untagged {
			return fmt.Sprintf("%q cannot be: nodes of %s name no %s block. Use a duration, as in %d=%s",
				part, known.Name, depth.Tag, id, known.Confirmations)
		}
		if _, twice := c.Confirmations[id]; twice {
			return fmt.Sprintf("%q repeats an earlier entry", part)
		}
		c.Confirmations[id] = depth
	}
	return ""
}

// ConfirmationsOf returns how deep an event's block must be before the event is delivered: the chain's own setting,
// else the setting for all chains, else the chain's default. The default also replaces a tag set for all chains if the
// chain's nodes do not support tags.
func (c *Config) ConfirmationsOf(chainID uint64) erc8004.Depth {
	if depth, ok := c.Confirmations[chainID]; ok {
		return depth
	}
	chain, _ := erc8004.FindChain(chainID)
	if depth, ok := c.Confirmations[0]; ok && (depth.Tag == "" || !chain.Untagged) {
		return depth
	}
	return erc8004.Depth{Time: chain.Confirmations}
}

// setTrust parses HERALD_RPC_TRUST: the chains whose nodes are trusted not to leave out logs.
func (c *Config) setTrust(s string) string {
	c.RPCTrust = map[uint64]bool{}
	for _, part := range splitList(s) {
		id := parseChainID(part)
		if id == 0 && part != "all" {
			return fmt.Sprintf("%q is not a chain id, or all", part)
		}
		c.RPCTrust[id] = true
	}
	return ""
}

// setWatch parses HERALD_WATCH: the chains that the worker follows.
func (c *Config) setWatch(s string) string {
	c.Watch = nil
	for _, part := range splitList(s) {
		id := parseChainID(part)
		if id == 0 {
			return fmt.Sprintf("%q is not a chain id", part)
		}
		if !slices.Contains(c.Watch, id) {
			c.Watch = append(c.Watch, id)
		}
	}
	return ""
}

// TrustsNodes reports whether Herald relies on the chain's nodes to return every log.
func (c *Config) TrustsNodes(chainID uint64) bool { return c.RPCTrust[0] || c.RPCTrust[chainID] }

// parseChainID parses an EIP-155 chain id in canonical decimal form. It returns 0 if s is not one.
func parseChainID(s string) uint64 {
	id, err := strconv.ParseUint(s, 10, 63)
	if err != nil || strconv.FormatUint(id, 10) != s {
		return 0
	}
	return id
}
