package config

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/ethereum/go-ethereum/common"
)

// mask replaces the value of a secret.
const mask = "******"

// maxFile bounds the size of a NAME_FILE in bytes. It is far more than any secret needs.
const maxFile = 64 << 10

// Error names a variable and the problem with its value.
type Error struct{ Name, Problem string }

func (e *Error) Error() string { return e.Name + ": " + e.Problem }

// Load parses environ, "NAME=value" pairs as os.Environ returns them. An empty value counts as not set. A line end
// after a value is ignored: a shell leaves it there if a file comes from Windows. Load returns all faults together,
// joined by errors.Join in the order of the documentation; each is an *Error.
func Load(environ []string) (*Config, error) {
	env := make(map[string]string, len(environ))
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = strings.TrimRight(value, "\r\n")
	}
	c := &Config{Chains: map[uint64]Chain{}, Confirmations: map[uint64]erc8004.Depth{}, public: map[string]string{}}
	var faults []error
	for _, v := range c.variables() {
		if err := c.readVariable(v, env); err != nil {
			faults = append(faults, err)
		}
	}
	faults = append(faults, c.readChains(env)...)
	c.unread = c.listUnread(env)
	if len(faults) == 0 {
		faults = append(faults, c.checkConsistency()...)
	}
	return c, errors.Join(faults...)
}

// readVariable reads one variable. It also stores how the settings show the variable.
func (c *Config) readVariable(v variable, env map[string]string) error {
	text, source, err := readValue(v.Name, v.Secret, env)
	if err == nil && source == "" {
		text, source = v.Default, "default"
	}
	if err == nil && text != "" {
		if problem := v.set(text); problem != "" {
			err = &Error{v.Name, problem}
		} else if v.show != nil {
			text = v.show()
		}
	}
	shown, public := text, text
	switch {
	case text == "":
	case v.Secret:
		shown, public = mask, mask
	case v.Private:
		public = fmt.Sprintf("fingerprint %.4x", sha256.Sum256([]byte(text)))
	}
	c.settings = append(c.settings, Setting{v.Name, shown, source, v.Help})
	c.public[v.Name] = public
	return err
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

// checkConsistency reports settings that contradict each other. Each error says which setting to change.
func (c *Config) checkConsistency() (faults []error) {
	hasDatabase, hasRedis := !c.DatabaseURL.IsZero(), !c.RedisURL.IsZero()
	need := c.CallTimeout + c.LeaseMargin
	for _, rule := range []struct {
		broken        bool
		name, problem string
	}{
		{c.Lease < need, "HERALD_LEASE", fmt.Sprintf("%s is shorter than a call and its margin (HERALD_CALL_TIMEOUT "+
			"%s + HERALD_LEASE_MARGIN %s): set it to %s or more", c.Lease, c.CallTimeout, c.LeaseMargin, need)},
		{c.DBPool <= c.Concurrency, "HERALD_DB_POOL", fmt.Sprintf("%d connections are too few for HERALD_CONCURRENCY "+
			"%d: set it to %d or more, or lower the concurrency", c.DBPool, c.Concurrency, c.Concurrency+4)},
		{!c.AlertURL.IsZero() && c.AlertSecret.IsZero(), "HERALD_ALERT_SECRET",
			"is not set although HERALD_ALERT_URL is: posts are signed with it. " +
				"Make one, which the receiver gets too, with: echo whsec_$(head -c 32 /dev/urandom | base64)"},
		{c.Retention < c.Expiry, "HERALD_RETENTION", fmt.Sprintf("%s is shorter than HERALD_EXPIRY %s: attempts of "+
			"deliveries that are not final would be dropped. Set it to %[2]s or more", c.Retention, c.Expiry)},
		{hasDatabase && !hasRedis && c.Queue == "", "REDIS_URL",
			"is not set although DATABASE_URL is: set it, or HERALD_QUEUE=embedded to run the queue inside this " +
				"process"},
		{c.LegacyQueue != "" && c.RefusesRedisJobs(), "HERALD_LEGACY_QUEUE",
			"is set although HERALD_REDIS_INTAKE is off, with which no job is taken from Redis: unset one of them"},
		{!hasRedis && c.Queue == "redis", "HERALD_QUEUE",
			"is redis although REDIS_URL is not set: set it, or unset HERALD_QUEUE"},
		{hasRedis && c.Queue == "embedded", "HERALD_QUEUE",
			"is embedded although REDIS_URL is set: unset one of them"},
		{!c.LeaderURL.IsZero() && !hasDatabase, "HERALD_LEADER_DATABASE_URL",
			"is set although DATABASE_URL is not: set DATABASE_URL to the address of the pooler"},
		{hasDatabase && c.Keyset.IsZero(), "HERALD_KEYSET",
			"is not set although DATABASE_URL is: secrets in that database need a key that outlives this machine. " +
				"Make one with `worker keys init` and set HERALD_KEYSET or HERALD_KEYSET_FILE"},
	} {
		if rule.broken {
			faults = append(faults, &Error{rule.name, rule.problem})
		}
	}
	for _, id := range c.Watch {
		if len(c.Chains[id].RPCURLs) == 0 {
			faults = append(faults, &Error{"HERALD_WATCH", fmt.Sprintf(
				"names chain %d, which has no node: set RPC_URL_%[1]d, or take the chain out", id)})
		}
	}
	if err := c.Traces.checkProtocol(); err != nil {
		faults = append(faults, err)
	}
	return faults
}

// Public returns every effective setting for readers other than the operator. It masks secrets, and replaces settings
// that may contain a secret by a fingerprint. Two processes with equal settings return equal maps.
func (c *Config) Public() map[string]string { return maps.Clone(c.public) }

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
	all := slices.Clone(c.settings)
	for _, m := range c.unread {
		all = append(all, Setting{m.Name, mask, "not read", m.Explain()}) // an unknown variable may be a secret
	}
	return all
}

// SettingsPath is the HTTP path at which a running worker serves its settings (see Config.Public).
const SettingsPath = "/settings"

// CheckListen returns an error if listen is not host:port, or if it is not on loopback and token is not set.
func CheckListen(listen string, token secret.Secret) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("HERALD_LISTEN %q is not host:port", listen)
	}
	if !IsLoopback(host) && token.IsZero() {
		return fmt.Errorf("HERALD_LISTEN %s is off loopback: set HERALD_API_TOKEN, or listen on 127.0.0.1", listen)
	}
	return nil
}

// IsLoopback reports whether host is localhost or a loopback address.
func IsLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}
