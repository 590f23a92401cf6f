package config

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/ethereum/go-ethereum/common"
)

// Config holds all settings. Durations are Go durations ("30s"), and lists are separated by commas.
type Config struct {
	RedisURL    secret.Secret
	DatabaseURL secret.Secret
	LeaderURL   secret.Secret // of Postgres itself if DatabaseURL is that of a pooler; else zero
	Queue       string        // "", redis, embedded

	Chains map[uint64]Chain

	IPFSGateways   []string
	ArweaveGateway string // empty: deliveries that need ar:// are held (gateway_unconfigured)

	Listen    string
	PublicURL string // the origin at which agents find the signing keys; empty: requests are not signed
	APIToken  secret.Secret
	Keyset    secret.Secret
	// MasterKey unwraps Keyset; zero if Keyset is not wrapped or the key comes from another source.
	MasterKey secret.Secret

	Concurrency   int
	DBPool        int
	CallTimeout   time.Duration
	Lease         time.Duration
	LeaseMargin   time.Duration
	RetrySchedule []time.Duration
	Expiry        time.Duration
	Retention     time.Duration

	// These limits apply to an origin, although the names of the settings say endpoint.
	EndpointInflight int
	Batch            int // maximum of deliveries in one call
	EndpointRate     int
	EffortBudget     time.Duration // worker time that an agent may use in a minute; 0: no limit

	AllowNetworks []netip.Prefix
	AllowHTTP     bool
	StdioCommands [][]string
	StdioAgents   []string // by index in StdioCommands: CHAIN:AGENT that alone may use the command; "": every agent
	Tools         []string
	ToolAliases   map[string][]string // tool → aliases under which agents may offer it
	ServersFile   string
	PolicyFile    string // the operator's default policy; empty: none
	HashPolicy    string
	Binding       string

	StrictOrder   bool // deliveries of one client to one agent keep their order
	RedisIntake   string
	LegacyQueue   string // the Redis list of the old backend; empty: none
	VerifyEvent   string
	LogRange      erc8004.Depth            // a duration or a number of blocks
	Confirmations map[uint64]erc8004.Depth // by chain id; 0 holds the default of all other chains
	RPCTrust      map[uint64]bool          // chains whose nodes are trusted not to leave out logs; 0: all chains
	Watch         []uint64                 // chains that the worker follows, without duplicates

	AlertURL     secret.Secret // where alerts are posted; it may contain a token. Zero: alerts are off
	AlertSecret  secret.Secret // key that signs the alerts
	DisableAfter time.Duration // an agent whose calls all failed for this long is disabled; 0: never

	DataDir   string
	CacheDir  string
	LogLevel  string
	LogFormat string
	Traces    Traces

	sources map[string]string // variable → where its value was set
	texts   map[string]string // variable → effective value as text; secrets are masked
	unread  []string          // HERALD_ variables that are set but that Herald does not read
	misread []Misspelt        // variables that are probably misspelt
}

// mask replaces the value of a secret.
const mask = "******"

// maxFile bounds the size of a NAME_FILE in bytes. It is far more than any secret needs.
const maxFile = 64 << 10

// Chain holds the settings of one chain.
type Chain struct {
	ID         uint64
	RPCURLs    []secret.Secret    // preferred first; empty: deliveries that need a node are held (chain_unconfigured)
	Registries erc8004.Registries // only their events are delivered
	Known      bool               // the identity and reputation registries are known or configured
	Explorer   string             // configured base URL of a block explorer, without a final slash (Config.Explorer)
}

// Error names a variable and the problem with its value.
type Error struct{ Name, Problem string }

func (e *Error) Error() string { return e.Name + ": " + e.Problem }

// Load parses environ, "NAME=value" pairs as os.Environ returns them. An empty value counts as not set. Load returns
// all faults together, joined by errors.Join in the order of the documentation; each is an *Error.
func Load(environ []string) (*Config, error) {
	env := make(map[string]string, len(environ))
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	c := &Config{Chains: map[uint64]Chain{}, Confirmations: map[uint64]erc8004.Depth{}, sources: map[string]string{},
		texts: map[string]string{}}
	var faults []error
	for _, v := range listVariables() {
		if err := c.readVariable(v, env); err != nil {
			faults = append(faults, err)
		}
	}
	faults = append(faults, c.readChains(env)...)
	c.unread = listUnread(env)
	c.misread = findMisspelt(env, c.unread)
	if len(faults) == 0 {
		faults = append(faults, c.checkConsistency()...)
	}
	return c, errors.Join(faults...)
}

func (c *Config) readVariable(v variable, env map[string]string) error {
	text, source, err := readValue(v.Name, v.Secret, env)
	if err != nil {
		return err
	}
	if source == "" {
		text, source = v.Default, "default"
	}
	c.sources[v.Name] = source
	c.texts[v.Name] = text
	if v.Secret && text != "" {
		c.texts[v.Name] = mask
	}
	if text == "" {
		return nil
	}
	if problem := v.set(c, text); problem != "" {
		return &Error{v.Name, problem}
	}
	return nil
}

// readValue returns the value of NAME or, for a secret, the content of the file NAME_FILE. An empty value counts as not
// set. An empty file is an error, because a secret was clearly intended.
func readValue(name string, isSecret bool, env map[string]string) (text, source string, err error) {
	file := name + "_FILE"
	if !isSecret || env[file] == "" {
		if env[name] == "" {
			return "", "", nil
		}
		return env[name], "environment", nil
	}
	if env[name] != "" {
		return "", "", &Error{name, "is set, and " + file + " too: set one of them"}
	}
	f, err := os.Open(env[file])
	if err != nil {
		return "", "", &Error{file, "cannot be read: " + err.Error()}
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return "", "", &Error{file, "cannot be read: " + err.Error()}
	}
	text = strings.TrimRight(string(b), "\r\n")
	switch {
	case len(b) > maxFile:
		return "", "", &Error{file, fmt.Sprintf("%s is longer than %d bytes", env[file], maxFile)}
	case text == "":
		return "", "", &Error{file, env[file] + " is empty"}
	case strings.ContainsAny(text, "\x00\r\n"):
		return "", "", &Error{file, env[file] + " must be one line of text"}
	}
	return text, "file", nil
}

// readChains parses the per-chain variables. Registries that are not set default to the known deployments.
func (c *Config) readChains(env map[string]string) (faults []error) {
	ids := map[uint64]bool{}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		for _, prefix := range chainPrefixes {
			rest, ok := strings.CutPrefix(name, prefix)
			if !ok || env[name] == "" {
				continue
			}
			if prefix == rpcPrefix {
				rest = strings.TrimSuffix(rest, "_FILE")
			}
			id := parseChainID(rest)
			if id == 0 {
				faults = append(faults, &Error{name, "must end in a chain id, as in " + prefix + "8453"})
				continue
			}
			ids[id] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		faults = append(faults, c.readChain(id, env)...)
	}
	return faults
}

func (c *Config) readChain(id uint64, env map[string]string) (faults []error) {
	chain := Chain{ID: id}
	chain.Registries, _ = erc8004.ListedRegistries(id)
	rpc := fmt.Sprint(rpcPrefix, id)
	text, source, err := readValue(rpc, true, env)
	switch {
	case err != nil:
		faults = append(faults, err)
	case source != "":
		urls, problem := parseRPC(text)
		if problem != "" {
			faults = append(faults, &Error{rpc, problem})
		}
		chain.RPCURLs = urls
		c.noteSource(rpc, mask, source)
	}
	for _, r := range []struct {
		prefix string
		listed *[]common.Address
	}{{identityPrefix, &chain.Registries.Identity}, {reputationPrefix, &chain.Registries.Reputation},
		{validationPrefix, &chain.Registries.Validation}} {
		name := fmt.Sprint(r.prefix, id)
		if env[name] == "" {
			continue
		}
		listed, problem := parseAddresses(env[name])
		if problem != "" {
			faults = append(faults, &Error{name, problem})
			continue
		}
		*r.listed = listed
		c.noteSource(name, joinAddresses(listed), "environment")
	}
	if name := fmt.Sprint(explorerPrefix, id); env[name] != "" {
		chain.Explorer = strings.TrimRight(env[name], "/")
		if u, err := url.Parse(chain.Explorer); err != nil ||
			u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.RawQuery != "" || u.User != nil {
			faults = append(faults,
				&Error{name, "must be an http or https URL without query, as in https://basescan.org"})
		}
		c.noteSource(name, chain.Explorer, "environment")
	}
	chain.Known = len(chain.Registries.Identity) > 0 && len(chain.Registries.Reputation) > 0
	c.Chains[id] = chain
	return faults
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

func joinAddresses(listed []common.Address) string {
	texts := make([]string, len(listed))
	for i, a := range listed {
		texts[i] = a.Hex()
	}
	return strings.Join(texts, ",")
}

// listUnread returns HERALD_ variables that are set but that Herald does not read. They are misspelt, belong to a later
// version, or come from an orchestrator (see fromOrchestrator). They are reported and are not an error.
func listUnread(env map[string]string) []string {
	known := map[string]bool{}
	for _, v := range listVariables() {
		known[v.Name] = true
		known[v.Name+"_FILE"] = known[v.Name+"_FILE"] || v.Secret
	}
	var names []string
	for name, text := range env {
		if strings.HasPrefix(name, "HERALD_") && text != "" && !known[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (c *Config) noteSource(name, text, source string) { c.texts[name], c.sources[name] = text, source }

// checkConsistency reports settings that contradict each other. Each error says which setting to change.
func (c *Config) checkConsistency() (faults []error) {
	if need := c.CallTimeout + c.LeaseMargin; c.Lease < need {
		faults = append(faults, &Error{"HERALD_LEASE", fmt.Sprintf(
			"%s is shorter than a call and its margin (HERALD_CALL_TIMEOUT %s + HERALD_LEASE_MARGIN %s): set it to "+
				"%s or more",
			c.Lease, c.CallTimeout, c.LeaseMargin, need)})
	}
	if c.DBPool <= c.Concurrency {
		faults = append(faults, &Error{"HERALD_DB_POOL", fmt.Sprintf(
			"%d connections are too few for HERALD_CONCURRENCY %d: set it to %d or more, or lower the concurrency",
			c.DBPool, c.Concurrency, c.Concurrency+4)})
	}
	if err := c.Traces.checkProtocol(); err != nil {
		faults = append(faults, err)
	}
	for _, id := range c.Watch {
		if len(c.Chains[id].RPCURLs) == 0 {
			faults = append(faults, &Error{"HERALD_WATCH", fmt.Sprintf(
				"names chain %d, which has no node: set RPC_URL_%[1]d, or take the chain out", id)})
		}
	}
	if !c.AlertURL.IsZero() && c.AlertSecret.IsZero() {
		faults = append(faults, &Error{"HERALD_ALERT_SECRET",
			"is not set although HERALD_ALERT_URL is: posts are signed with it. " +
				"Make one, which the receiver gets too, with: echo whsec_$(head -c 32 /dev/urandom | base64)"})
	}
	if c.Retention < c.Expiry {
		faults = append(faults, &Error{"HERALD_RETENTION", fmt.Sprintf(
			"%s is shorter than HERALD_EXPIRY %s: attempts of deliveries that are not final would be dropped. Set "+
				"it to %s or more",
			c.Retention, c.Expiry, c.Expiry)})
	}
	if !c.DatabaseURL.IsZero() && c.RedisURL.IsZero() && c.Queue == "" {
		faults = append(faults, &Error{"REDIS_URL",
			"is not set although DATABASE_URL is: set it, or HERALD_QUEUE=embedded to run the queue inside this " +
				"process"})
	}
	if c.LegacyQueue != "" && c.RefusesRedisJobs() {
		faults = append(faults, &Error{"HERALD_LEGACY_QUEUE",
			"is set although HERALD_REDIS_INTAKE is off, with which no job is taken from Redis: unset one of them"})
	}
	if c.RedisURL.IsZero() && c.Queue == "redis" {
		faults = append(faults, &Error{"HERALD_QUEUE",
			"is redis although REDIS_URL is not set: set it, or unset HERALD_QUEUE"})
	}
	if !c.RedisURL.IsZero() && c.Queue == "embedded" {
		faults = append(faults, &Error{"HERALD_QUEUE", "is embedded although REDIS_URL is set: unset one of them"})
	}
	if !c.LeaderURL.IsZero() && c.DatabaseURL.IsZero() {
		faults = append(faults, &Error{"HERALD_LEADER_DATABASE_URL",
			"is set although DATABASE_URL is not: set DATABASE_URL to the address of the pooler"})
	}
	if !c.DatabaseURL.IsZero() && c.Keyset.IsZero() {
		faults = append(faults, &Error{"HERALD_KEYSET",
			"is not set although DATABASE_URL is: secrets in that database need a key that outlives this machine. " +
				"Make one with `worker keys init` and set HERALD_KEYSET or HERALD_KEYSET_FILE"})
	}
	return faults
}

// fingerprinted lists settings that are not secrets but may contain one: arguments of a command, or a key in a URL's
// path.
var fingerprinted = []string{"HERALD_STDIO_COMMANDS", "IPFS_GATEWAYS", "ARWEAVE_GATEWAY",
	"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"}

// Public returns every effective setting for readers other than the operator. It masks secrets, and replaces settings
// that may contain a secret by a fingerprint. Two processes with equal settings return equal maps.
func (c *Config) Public() map[string]string {
	public := make(map[string]string, len(c.texts))
	for name, text := range c.texts {
		if text != "" && slices.Contains(fingerprinted, name) {
			sum := sha256.Sum256([]byte(text))
			text = fmt.Sprintf("fingerprint %x", sum[:4])
		}
		public[name] = text
	}
	return public
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

// MayRun reports whether HERALD_STDIO_COMMANDS allows an agent to name the command argv. A command that is restricted
// to an agent is allowed only if the agent belongs to the chain's default IdentityRegistry.
func (c *Config) MayRun(chainID uint64, registry common.Address, agentID string, argv []string) bool {
	known, _ := c.Registries(chainID)
	agent := erc8004.FormatAgent(chainID, agentID)
	for i, command := range c.StdioCommands {
		if slices.Equal(command, argv) && (c.StdioAgents[i] == "" || c.StdioAgents[i] == agent &&
			registry == known.Identity) {
			return true
		}
	}
	return false
}

// RefusesRedisJobs reports whether Herald accepts no job that another program writes into Redis (HERALD_REDIS_INTAKE).
func (c *Config) RefusesRedisJobs() bool { return c.RedisIntake == "off" }

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

// Setting is the effective value of one variable, for `worker config`.
type Setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`          // secrets are masked as ******
	Source string `json:"source"`         // default, environment, file, not read
	Help   string `json:"help,omitempty"` // for a variable that is not read: the probable correct name
}

// Settings returns every variable with its effective value, in the order of the documentation. Per-chain variables
// follow, then the variables that Herald does not read, with source "not read".
func (c *Config) Settings() []Setting {
	var out []Setting
	seen := map[string]bool{}
	for _, v := range listVariables() {
		out = append(out, Setting{v.Name, c.texts[v.Name], c.sources[v.Name], v.Help})
		seen[v.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(c.texts)) {
		if !seen[name] {
			out = append(out, Setting{name, c.texts[name], c.sources[name], ""})
		}
	}
	meant := map[string]string{}
	for _, m := range c.misread {
		meant[m.Name] = m.Explain()
	}
	for _, name := range c.unread {
		out = append(out, Setting{name, mask, "not read", meant[name]}) // an unknown variable may be a secret
	}
	for _, m := range c.misread {
		if !slices.Contains(c.unread, m.Name) {
			out = append(out, Setting{m.Name, mask, "not read", m.Explain()})
		}
	}
	return out
}
