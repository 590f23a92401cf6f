package config

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
)

// setText returns a function that stores a text that the checks accept. A check returns a problem, or "".
func setText(field *string, checks ...func(string) string) func(string) string {
	return func(s string) string {
		for _, check := range checks {
			if problem := check(s); problem != "" {
				return problem
			}
		}
		*field = s
		return ""
	}
}

// setSecret is setText for a secret.
func setSecret(field *secret.Secret, checks ...func(string) string) func(string) string {
	return func(s string) string {
		problem := setText(new(string), checks...)(s)
		if problem == "" {
			*field = secret.New(s)
		}
		return problem
	}
}

func setOneOf(field *string, allowed ...string) func(string) string {
	return setText(field, func(s string) string {
		if slices.Contains(allowed, s) {
			return ""
		}
		return "must be one of " + strings.Join(allowed, ", ")
	})
}

func setNumber(field *int, low, high int) func(string) string {
	return func(s string) string {
		n, err := strconv.Atoi(s)
		if err != nil || n < low || n > high {
			return fmt.Sprintf("must be a number from %d to %d", low, high)
		}
		*field = n
		return ""
	}
}

func (c *Config) setAllowHTTP(s string) string {
	allow, err := strconv.ParseBool(s)
	if err != nil {
		return "must be true or false"
	}
	c.AllowHTTP = allow
	return ""
}

func (c *Config) setOrder(s string) string {
	if s != "strict" && s != "off" {
		return "must be strict or off"
	}
	c.StrictOrder = s == "strict"
	return ""
}

func (c *Config) setEffortBudget(s string) string {
	if s == "off" || s == "0" {
		c.EffortBudget = 0
		return ""
	}
	if setDuration(&c.EffortBudget, time.Second, time.Hour)(s) != "" {
		return "must be a duration from 1s to 1h, as in 60s or 2m, or off"
	}
	return ""
}

func setDuration(field *time.Duration, low, high time.Duration) func(string) string {
	return func(s string) string {
		d, err := time.ParseDuration(s)
		if err != nil || d < low || d > high {
			return fmt.Sprintf("must be a duration from %s to %s, as in 30s or 2m", low, high)
		}
		*field = d
		return ""
	}
}

func splitList(s string) []string {
	var out []string
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

func checkRedisURL(s string) string {
	scheme, rest, _ := strings.Cut(s, "://")
	if rest == "" || !slices.Contains([]string{"redis", "rediss", "redis-socket", "redis-sentinel", "redis-cluster",
		"redis-clusters"}, scheme) {
		return "must be a URL with redis://, rediss://, redis-socket://, redis-sentinel:// or redis-cluster://"
	}
	return ""
}

// checkDatabaseURL accepts both forms that libpq accepts: a URL, or keywords as in
// "host=/run/postgresql dbname=herald".
func checkDatabaseURL(s string) string {
	scheme, rest, isURL := strings.Cut(s, "://")
	if isURL && (rest == "" || scheme != "postgres" && scheme != "postgresql") || !isURL && !strings.Contains(s, "=") {
		return "must be a URL, as in postgres://user:password@host/database"
	}
	return ""
}

func checkAddress(s string) string {
	_, port, err := net.SplitHostPort(s)
	if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || n > 65535 {
		return "must be host:port, as in 127.0.0.1:8080; [::1]:8080 for IPv6"
	}
	return ""
}

// checkKeyset accepts every wrapped keyset, because it cannot be validated without its master key.
func checkKeyset(s string) string {
	k := secret.New(s)
	if secret.IsWrapped(k) {
		return ""
	}
	_, err := secret.Parse(k)
	if fault, ok := errors.AsType[*secret.KeysetError](err); ok {
		return fault.Problem
	} else if err != nil {
		return "cannot be read"
	}
	return ""
}

// setTools accepts tool names as MCP restricts them (SEP-986): 1 to 128 letters, digits, _ - . and /.
func (c *Config) setTools(s string) string {
	c.Tools = splitList(s)
	return checkToolNames(c.Tools)
}

var toolName = regexp.MustCompile(`^[A-Za-z0-9_./-]{1,128}$`)

func checkToolNames(names []string) (problem string) {
	for _, name := range names {
		if !toolName.MatchString(name) {
			return fmt.Sprintf("%q is not a tool's name (at most 128 letters, digits, _ - . /)", name)
		}
	}
	return ""
}

// maxAliases bounds the aliases of one tool.
const maxAliases = 16

func (c *Config) setAliases(s string) string {
	dec := json.NewDecoder(strings.NewReader(s))
	if err := dec.Decode(&c.ToolAliases); err != nil || c.ToolAliases == nil {
		return `must be a JSON object, as in {"agent.receiveFeedback": ["feedback.receive"]}`
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return "has text after the JSON object"
	}
	for _, tool := range slices.Sorted(maps.Keys(c.ToolAliases)) {
		names := c.ToolAliases[tool]
		if len(names) > maxAliases {
			return fmt.Sprintf("gives %q more than %d names", tool, maxAliases)
		}
		if problem := checkToolNames(append([]string{tool}, names...)); problem != "" {
			return problem
		}
	}
	return ""
}

func (c *Config) setGateways(s string) string {
	for i, g := range splitList(s) {
		if wrong := checkPlainURL(g); wrong != "" {
			return fmt.Sprintf("gateway %d %s", i+1, wrong)
		}
		c.IPFSGateways = append(c.IPFSGateways, g)
	}
	if len(c.IPFSGateways) == 0 {
		return "names no gateway"
	}
	return ""
}

// checkPlainURL returns why s is not an http or https URL without user, query and fragment, or "" if it is one.
func checkPlainURL(s string) string {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		return "is not an http or https URL"
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return "must have no user, password, query or fragment"
	}
	return ""
}

func (c *Config) setPublicURL(s string) string {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Hostname() == "" || u.Scheme != "https" && (u.Scheme != "http" || !IsLoopback(u.Hostname())):
		return "must be an https URL, or an http URL on loopback"
	case u.User != nil || strings.TrimSuffix(u.Path, "/") != "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "must be an origin, as in https://herald.example: agents look for the keys at its root"
	}
	c.PublicURL = string(netguard.OriginOf(u))
	return ""
}

func checkAlertURL(s string) string {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "":
		return "must be an http or https URL"
	case u.User != nil || u.Fragment != "":
		return "must have no user, password or fragment: the post is signed"
	}
	return ""
}

func checkAlertSecret(s string) string {
	text, prefixed := strings.CutPrefix(s, "whsec_")
	key, err := base64.StdEncoding.DecodeString(text)
	if !prefixed || err != nil || len(key) < 24 || len(key) > 64 {
		return "must be whsec_ and 24 to 64 bytes in base64"
	}
	return ""
}

func (c *Config) setSchedule(s string) string {
	const most = 100
	for _, part := range splitList(s) {
		d, err := time.ParseDuration(part)
		if err != nil || d < 0 || d > 7*24*time.Hour {
			return fmt.Sprintf("%q is not a wait between 0s and 168h", part)
		}
		c.RetrySchedule = append(c.RetrySchedule, d)
	}
	if n := len(c.RetrySchedule); n == 0 || n > most {
		return fmt.Sprintf("must be 1 to %d waits separated by commas, as in 1s,30s,10m", most)
	}
	return ""
}

func (c *Config) setNetworks(s string) string {
	for _, part := range splitList(s) {
		p, err := netip.ParsePrefix(part)
		if err != nil {
			return fmt.Sprintf("%q is not a network, as in 10.1.0.0/16 or fd00::/8", part)
		}
		c.AllowNetworks = append(c.AllowNetworks, p.Masked())
	}
	return ""
}

func (c *Config) setCommands(s string) string {
	dec := json.NewDecoder(strings.NewReader(s))
	if err := dec.Decode(&c.StdioCommands); err != nil {
		return `must be a JSON list of commands, as in [["/usr/bin/agent","--stdio"]]`
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return "has text after the JSON list"
	}
	c.StdioAgents = make([]string, len(c.StdioCommands))
	for i, cmd := range c.StdioCommands {
		if len(cmd) > 0 {
			// A command that begins with CHAIN:AGENT and "=" may be started for that agent only.
			name, program, tied := strings.Cut(cmd[0], "=")
			if a, ok := erc8004.ParseAgent(name); tied && ok && a.ChainID > 0 && a.String() == name {
				c.StdioAgents[i], cmd[0] = name, program
			}
		}
		if len(cmd) == 0 || cmd[0] == "" {
			return fmt.Sprintf("command %d is empty", i+1)
		}
	}
	return ""
}

func (c *Config) setLogRange(s string) string {
	const maxBlocks = 500_000
	depth, problem := erc8004.ParseDepth(s)
	if problem != "" || depth.Tag != "" || depth.Blocks > maxBlocks {
		return fmt.Sprintf("must be a duration from 0s to %s, as in 24h, or a number of blocks from 0 to %d",
			erc8004.MaxDepth, maxBlocks)
	}
	c.LogRange = depth
	return ""
}

// listName matches a Redis list name that Herald can extend to names of its own keys in the same cluster slot.
var listName = regexp.MustCompile(`^[A-Za-z0-9_.:-]{1,128}$`)

func checkListName(s string) string {
	switch {
	case !listName.MatchString(s):
		return "must be the name of a list in Redis: 1 to 128 letters, digits and any of _ . : -"
	case strings.HasPrefix(s, "asynq:"), strings.HasPrefix(s, "herald:"):
		return "must not begin with asynq: or herald:, where the queue keeps its own keys"
	}
	return ""
}
