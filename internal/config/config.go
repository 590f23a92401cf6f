package config

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sort"
	"strconv"
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

	IPFSGateways []string

	Listen   string
	APIToken secret.Secret
	Keyset   secret.Secret

	Concurrency   int
	DBPool        int
	CallTimeout   time.Duration
	Lease         time.Duration
	LeaseMargin   time.Duration
	RetrySchedule []time.Duration
	Expiry        time.Duration

	AllowNetworks []netip.Prefix
	AllowHTTP     bool
	StdioCommands [][]string
	Tools         []string
	HashPolicy    string

	VerifyEvent   string
	Confirmations map[uint64]uint64 // 0 holds the value for every chain that is not named
	DataDir       string
	CacheDir      string
	LogLevel      string
	LogFormat     string

	sources map[string]string // variable → where its value came from
	texts   map[string]string // variable → effective value as text, secrets masked
}

// Chain is what is known of one chain.
type Chain struct {
	ID         uint64
	RPCURL     secret.Secret // zero: deliveries that need the chain are held, chain_unconfigured
	Registries erc8004.Deployment
	Known      bool // the registries are known or configured
}

// Error names the variable and says what it takes.
type Error struct{ Name, Problem string }

func (e *Error) Error() string { return e.Name + ": " + e.Problem }

// Load reads the environment. environ lists "NAME=value" pairs (os.Environ) for the variables whose names carry a chain id.
// All faults are reported at once, joined.
func Load(environ []string) (*Config, error) {
	env := make(map[string]string, len(environ))
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	c := &Config{Chains: map[uint64]Chain{}, Confirmations: map[uint64]uint64{}, sources: map[string]string{}, texts: map[string]string{}}
	var faults []error
	for _, v := range variables() {
		if err := c.read(v, env); err != nil {
			faults = append(faults, err)
		}
	}
	faults = append(faults, c.readChains(env)...)
	if len(faults) == 0 {
		faults = append(faults, c.consistent()...)
	}
	return c, errors.Join(faults...)
}

func (c *Config) read(v variable, env map[string]string) error {
	text, source, err := value(v.Name, v.Secret, env)
	if err != nil {
		return err
	}
	if source == "" {
		text, source = v.Default, "default"
	}
	c.sources[v.Name] = source
	c.texts[v.Name] = text
	if v.Secret && text != "" {
		c.texts[v.Name] = "******"
	}
	if text == "" {
		return nil
	}
	if problem := v.set(c, text); problem != "" {
		return &Error{v.Name, problem}
	}
	return nil
}

// value reads NAME, or for secrets NAME_FILE. An empty value counts as not set.
func value(name string, isSecret bool, env map[string]string) (text, source string, err error) {
	if isSecret && env[name+"_FILE"] != "" {
		if env[name] != "" {
			return "", "", &Error{name, "is set, and " + name + "_FILE too: set one of them"}
		}
		b, err := os.ReadFile(env[name+"_FILE"])
		if err != nil {
			return "", "", &Error{name + "_FILE", "cannot be read: " + err.Error()}
		}
		return strings.TrimRight(string(b), "\r\n"), "file", nil
	}
	if env[name] != "" {
		return env[name], "environment", nil
	}
	return "", "", nil
}

// readChains collects RPC_URL_<id> and the registries' addresses; the known deployments are the defaults.
func (c *Config) readChains(env map[string]string) (faults []error) {
	ids := map[uint64]bool{}
	for name := range env {
		for _, prefix := range chainPrefixes {
			rest, ok := strings.CutPrefix(strings.TrimSuffix(name, "_FILE"), prefix)
			if !ok {
				continue
			}
			id, err := strconv.ParseUint(rest, 10, 63)
			if err != nil {
				faults = append(faults, &Error{name, "must end in a chain id, as in " + prefix + "8453"})
				continue
			}
			ids[id] = true
		}
	}
	for id := range ids {
		chain := Chain{ID: id}
		chain.Registries, chain.Known = erc8004.Known(id)
		url, source, err := value(rpcPrefix+fmt.Sprint(id), true, env)
		if err != nil {
			faults = append(faults, err)
		}
		if source != "" {
			if !strings.Contains(url, "://") {
				faults = append(faults, &Error{rpcPrefix + fmt.Sprint(id), "is not a URL (https://…, wss://…)"})
			}
			chain.RPCURL = secret.New(url)
			c.note(rpcPrefix+fmt.Sprint(id), "******", source)
		}
		for prefix, addr := range map[string]*common.Address{identityPrefix: &chain.Registries.Identity,
			reputationPrefix: &chain.Registries.Reputation, validationPrefix: &chain.Registries.Validation} {
			text := env[prefix+fmt.Sprint(id)]
			if text == "" {
				continue
			}
			if !common.IsHexAddress(text) {
				faults = append(faults, &Error{prefix + fmt.Sprint(id), "is not an address (0x and 40 hex digits)"})
				continue
			}
			*addr = common.HexToAddress(text)
			c.note(prefix+fmt.Sprint(id), addr.Hex(), "environment")
		}
		chain.Known = chain.Registries.Identity != (common.Address{}) && chain.Registries.Reputation != (common.Address{})
		c.Chains[id] = chain
	}
	return faults
}

func (c *Config) note(name, text, source string) { c.texts[name], c.sources[name] = text, source }

// consistent refuses settings that contradict each other (DESIGN §5, §10), each in one sentence that says what to change.
func (c *Config) consistent() (faults []error) {
	if need := c.CallTimeout + c.LeaseMargin; c.Lease < need {
		faults = append(faults, &Error{"HERALD_LEASE", fmt.Sprintf(
			"%s is shorter than a call and its margin (HERALD_CALL_TIMEOUT %s + HERALD_LEASE_MARGIN %s): set it to %s or more",
			c.Lease, c.CallTimeout, c.LeaseMargin, need)})
	}
	if c.DBPool <= c.Concurrency {
		faults = append(faults, &Error{"HERALD_DB_POOL", fmt.Sprintf(
			"%d connections are too few for HERALD_CONCURRENCY %d: set it to %d or more, or lower the concurrency",
			c.DBPool, c.Concurrency, c.Concurrency+4)})
	}
	if !c.DatabaseURL.IsZero() && c.RedisURL.IsZero() && c.Queue != "embedded" {
		faults = append(faults, &Error{"REDIS_URL", "is not set although DATABASE_URL is: set it, or HERALD_QUEUE=embedded to run the queue inside this process"})
	}
	if !c.RedisURL.IsZero() && c.Queue == "embedded" {
		faults = append(faults, &Error{"HERALD_QUEUE", "is embedded although REDIS_URL is set: unset one of them"})
	}
	if !c.DatabaseURL.IsZero() && c.Keyset.IsZero() {
		faults = append(faults, &Error{"HERALD_KEYSET", "is not set although DATABASE_URL is: secrets in that database need a key that outlives this machine. Make one with `worker keys init` and set HERALD_KEYSET or HERALD_KEYSET_FILE"})
	}
	return faults
}

// Registries gives the registries of a chain: configured ones, else the known deployment.
func (c *Config) Registries(chainID uint64) (erc8004.Deployment, bool) {
	if chain, ok := c.Chains[chainID]; ok && chain.Known {
		return chain.Registries, true
	}
	return erc8004.Known(chainID)
}

// ConfirmationsOf is how many blocks must follow an event's block before it is delivered.
func (c *Config) ConfirmationsOf(chainID uint64) uint64 {
	if n, ok := c.Confirmations[chainID]; ok {
		return n
	}
	if n, ok := c.Confirmations[0]; ok {
		return n
	}
	return defaultConfirmations(chainID)
}

// defaultConfirmations: slow chains settle in minutes, rollups follow their sequencer, a devnet is instant.
func defaultConfirmations(chainID uint64) uint64 {
	switch chainID {
	case 1, 11155111:
		return 6
	case 137, 80002:
		return 32
	case 56, 97:
		return 15
	case 1337, 31337:
		return 0
	}
	return 3
}

// Setting is one variable's effective value, for `worker config`.
type Setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"` // secrets as ******
	Source string `json:"source"`
	Help   string `json:"help,omitempty"`
}

// Settings lists every variable with its effective value, in the order of the documentation.
func (c *Config) Settings() []Setting {
	var out []Setting
	seen := map[string]bool{}
	for _, v := range variables() {
		out = append(out, Setting{v.Name, c.texts[v.Name], c.sources[v.Name], v.Help})
		seen[v.Name] = true
	}
	var chains []Setting
	for name, text := range c.texts {
		if !seen[name] {
			chains = append(chains, Setting{name, text, c.sources[name], ""})
		}
	}
	sort.Slice(chains, func(i, j int) bool { return chains[i].Name < chains[j].Name })
	return append(out, chains...)
}
