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

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/secret"
	"github.com/ethereum/go-ethereum/common"
)

// Config is everything that can be set from outside. Durations are Go durations ("30s"), lists are separated by commas.
type Config struct {
	RedisURL    secret.Secret
	DatabaseURL secret.Secret
	Queue       string // "", redis, embedded

	Chains map[uint64]Chain

	IPFSGateways   []string
	ArweaveGateway string // empty: deliveries that need ar:// are held, gateway_unconfigured

	Listen    string
	PublicURL string // origin where agents find the keys of signatures; empty: nothing is signed
	APIToken  secret.Secret
	Keyset    secret.Secret
	// MasterKey opens a wrapped Keyset; zero: none is needed, or it is asked for elsewhere.
	MasterKey secret.Secret

	Concurrency   int
	DBPool        int
	CallTimeout   time.Duration
	Lease         time.Duration
	LeaseMargin   time.Duration
	RetrySchedule []time.Duration
	Expiry        time.Duration
	Retention     time.Duration

	// Of an origin, not of each endpoint; only the names of the settings say endpoint.
	EndpointInflight int
	Batch            int // deliveries of one call
	EndpointRate     int
	EffortBudget     time.Duration // worker time an agent gets in a minute; 0: no bound

	AllowNetworks []netip.Prefix
	AllowHTTP     bool
	StdioCommands [][]string
	StdioAgents   []string // CHAIN:AGENT that alone has the command at the same place in StdioCommands; "": everybody
	Tools         []string
	ToolAliases   map[string][]string // tool → names under which it is looked for as well
	ServersFile   string
	HashPolicy    string
	Binding       string

	StrictOrder   bool // each client's deliveries to an agent keep their order
	RedisIntake   string
	LegacyQueue   string // the old backend's list in Redis; empty: none
	VerifyEvent   string
	LogRange      erc8004.Depth            // a duration or a number of blocks
	Confirmations map[uint64]erc8004.Depth // 0 holds the value for every chain that is not named
	RPCTrust      map[uint64]bool          // chains whose nodes are believed to leave out no logs; 0: all of them
	Watch         []uint64                 // chains that the worker reads itself, each once

	AlertURL     secret.Secret // where alerts are posted; it may hold a token. Zero: nobody is told
	AlertSecret  secret.Secret // what they are signed with
	DisableAfter time.Duration // how long an agent may fail every call; 0: for ever

	DataDir   string
	CacheDir  string
	LogLevel  string
	LogFormat string
	Traces    Traces

	sources map[string]string // variable → where its value came from
	texts   map[string]string // variable → effective value as text, secrets masked
	unread  []string          // HERALD_ variables that are set and nothing reads
	misread []Misspelt        // what is set under a name that somebody mistyped
}

// mask is how a secret's value is shown.
const mask = "******"

// maxFile bounds NAME_FILE: far more than any of these secrets.
const maxFile = 64 << 10

// Chain is what is known of one chain.
type Chain struct {
	ID         uint64
	RPCURLs    []secret.Secret    // the preferred first; none: what needs the chain is held, chain_unconfigured
	Registries erc8004.Registries // whose events count
	Known      bool               // the identity and reputation registries are known or configured
	Explorer   string             // of blocks and transactions, without a slash at the end; empty: none
}

// Error names the variable and says what it takes.
type Error struct{ Name, Problem string }

func (e *Error) Error() string { return e.Name + ": " + e.Problem }

// Load reads the environment, "NAME=value" pairs as os.Environ lists them. An empty value counts as not set. All faults
// are reported at once and in the order of the documentation: each is an *Error, and errors.Join makes the lines.
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

// readValue reads NAME, or for secrets NAME_FILE. An empty value counts as not set; an empty file does not, since
// whoever names a file means to have a secret.
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

// readChains collects RPC_URL_<id> and the registries' addresses; the known deployments are the defaults.
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
		if u, err := url.Parse(chain.Explorer); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" ||
			u.RawQuery != "" || u.User != nil {
			faults = append(faults, &Error{name, "must be an http or https URL without query, as in https://basescan.org"})
		}
		c.noteSource(name, chain.Explorer, "environment")
	}
	chain.Known = len(chain.Registries.Identity) > 0 && len(chain.Registries.Reputation) > 0
	c.Chains[id] = chain
	return faults
}

// parseAddresses reads a list of at least one address.
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

// listUnread lists HERALD_ variables that are set and mean nothing here: misspelt ones, those of a later version, or
// what an orchestrator makes for a service of that name. They are shown, not refused.
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

// checkConsistency refuses settings that contradict each other (DESIGN §5, §10), each in one sentence that says what to
// change.
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
			"is not set although HERALD_ALERT_URL is: posts are signed with it. Make one, which the receiver gets too, " +
				"with: echo whsec_$(head -c 32 /dev/urandom | base64)"})
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
	if c.LegacyQueue != "" && c.RedisIntake == "off" {
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
	if !c.DatabaseURL.IsZero() && c.Keyset.IsZero() {
		faults = append(faults, &Error{"HERALD_KEYSET",
			"is not set although DATABASE_URL is: secrets in that database need a key that outlives this machine. " +
				"Make one with `worker keys init` and set HERALD_KEYSET or HERALD_KEYSET_FILE"})
	}
	return faults
}

// fingerprinted are settings that may hold something secret although they are none themselves: arguments of a command,
// a key in a path.
var fingerprinted = []string{"HERALD_STDIO_COMMANDS", "IPFS_GATEWAYS", "ARWEAVE_GATEWAY",
	"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"}

// Public is every effective setting as others than the operator's own terminal may see it: of a secret only whether it
// is set, of what may hold one a fingerprint. Two processes with the same settings have the same.
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

// Registries gives the usual registries of a chain: the first configured ones, the rest from the known deployment. A
// zero address is one that is neither. False when the chain lacks the identity or the reputation registry.
func (c *Config) Registries(chainID uint64) (erc8004.Deployment, bool) {
	listed, _ := c.ListedRegistries(chainID)
	d := listed.Default()
	return d, d.Identity != (common.Address{}) && d.Reputation != (common.Address{})
}

// ListedRegistries gives all registries of a chain whose events count. False when nothing is known of the chain; one
// with settings lacks what they do not list.
func (c *Config) ListedRegistries(chainID uint64) (erc8004.Registries, bool) {
	if chain, ok := c.Chains[chainID]; ok {
		return chain.Registries, true
	}
	return erc8004.ListedRegistries(chainID)
}

// MayRun tells whether HERALD_STDIO_COMMANDS lists a command for an agent. One that is tied to an agent is tied to that
// of the chain's usual IdentityRegistry.
func (c *Config) MayRun(chainID uint64, registry common.Address, agentID string, argv []string) bool {
	known, _ := c.Registries(chainID)
	agent := fmt.Sprintf("%d:%s", chainID, agentID)
	for i, command := range c.StdioCommands {
		if slices.Equal(command, argv) && (c.StdioAgents[i] == "" || c.StdioAgents[i] == agent &&
			registry == known.Identity) {
			return true
		}
	}
	return false
}

// ConfirmationsOf returns the depth from which on an event is delivered: the chain's value, else that of all chains, else the
// chain's default. The default also replaces a tag for all chains where the chain's nodes name no such block.
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

// Setting is one variable's effective value, for `worker config`.
type Setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`          // secrets as ******
	Source string `json:"source"`         // default, environment, file, not read
	Help   string `json:"help,omitempty"` // of what is not read: which name was meant
}

// Settings lists every variable with its effective value, in the order of the documentation; then what is set per
// chain; last, with source "not read", HERALD_ variables that nothing reads.
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
		out = append(out, Setting{name, mask, "not read", meant[name]}) // what nobody knows may be a secret
	}
	for _, m := range c.misread {
		if !slices.Contains(c.unread, m.Name) {
			out = append(out, Setting{m.Name, mask, "not read", m.Explain()})
		}
	}
	return out
}
