package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/base/netguard"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/erc8004"
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

	settings []Setting         // the variables that were read: in the order of the documentation, then those of chains
	public   map[string]string // see Public
	unread   []Misspelt        // variables that are set but that Herald does not read
}

// variable is one row of the table of settings. set parses text into a field and returns a problem, or "" if text is
// valid. It never quotes a value that may contain a password.
type variable struct {
	Name, Default, Help string
	Secret              bool // shown masked, and also read from the file NAME_FILE
	Private             bool // no secret, but it may contain one: Public replaces it by a fingerprint
	set                 func(text string) (problem string)
	show                func() string // the value after set; nil: text
}

// variables returns every variable except those of chains, in the order of the documentation. They set fields of c.
func (c *Config) variables() []variable {
	return append([]variable{
		{Name: "REDIS_URL", Secret: true, set: setSecret(&c.RedisURL, checkRedisURL),
			Help: "URL of Redis: redis://user:password@host:6379/0, redis-socket:///path, " +
				"redis-sentinel://user:password@h1,h2/0?master=NAME, redis-cluster://h1,h2 or, with TLS, rediss://, " +
				"rediss-sentinel://, redis-clusters:// (docs/operator/start.md). Sentinels get the same " +
				"password, or that of &sentinel_password=. Without REDIS_URL, the worker starts its own Redis."},
		{Name: "DATABASE_URL", Secret: true, set: setSecret(&c.DatabaseURL, checkDatabaseURL),
			Help: "URL of Postgres: postgres://user:password@host/database. Without it, the worker starts its own " +
				"Postgres."},
		{Name: "HERALD_LEADER_DATABASE_URL", Secret: true, set: setSecret(&c.LeaderURL, checkDatabaseURL),
			Help: "URL of the database itself, if DATABASE_URL leads to a pooler in transaction mode " +
				"(docs/operator/scaling.md)."},
		{Name: "HERALD_QUEUE", set: setOneOf(&c.Queue, "embedded", "redis"),
			Help: "embedded: the worker starts its own Redis although DATABASE_URL is set (one worker only). redis: " +
				"REDIS_URL is required."},
		{Name: "IPFS_GATEWAYS", Private: true, set: c.setGateways,
			Default: "https://trustless-gateway.link,https://ipfs.filebase.io,https://gateway.pinata.cloud",
			Help: `IPFS gateways, the preferred one first, such as your own IPFS node. They must serve single blocks ` +
				`("trustless"), because Herald verifies each block.`},
		{Name: "ARWEAVE_GATEWAY", Private: true, set: setText(&c.ArweaveGateway, checkPlainURL),
			Help: "Gateway for ar:// documents, as in https://host. Without it, deliveries that need one are held " +
				"(gateway_unconfigured)."},
		{Name: "HERALD_LISTEN", Default: "127.0.0.1:8080", set: setText(&c.Listen, checkAddress),
			Help: "Address of the HTTP server. An address that is not loopback requires HERALD_API_TOKEN."},
		{Name: "HERALD_PUBLIC_URL", set: c.setPublicURL,
			Help: "Origin at which agents reach this HTTP server, as in https://herald.example. With it, Herald " +
				"signs every request to an agent (docs/operator/tokens-and-keys.md). Set the same on every worker."},
		{Name: "HERALD_API_TOKEN", Secret: true, set: setSecret(&c.APIToken),
			Help: "Password of the pages (with any user name) and bearer token of the API."},
		{Name: "HERALD_KEYSET", Secret: true, set: setSecret(&c.Keyset, checkKeyset),
			Help: "Keyset (Tink, in base64) that encrypts stored secrets. It is required with DATABASE_URL. " +
				"Otherwise the worker creates one in HERALD_DATA."},
		{Name: "HERALD_MASTER_KEY", Secret: true, set: setSecret(&c.MasterKey),
			Help: "Key that decrypts a wrapped keyset: 32 bytes in base64 or hex."},
		{Name: "HERALD_CONCURRENCY", Default: "32", set: setNumber(&c.Concurrency, 1, 10000),
			Help: "Number of deliveries that this worker works on at a time (slots). Agents without a success in the " +
				"last hour get at most half of the slots."},
		{Name: "HERALD_DB_POOL", Default: "40", set: setNumber(&c.DBPool, 2, 10000),
			Help: "Maximum number of Postgres connections for deliveries. It must exceed HERALD_CONCURRENCY."},
		{Name: "HERALD_CALL_TIMEOUT", Default: "30s", set: setDuration(&c.CallTimeout, time.Second, time.Hour),
			Help: "Time limit of a call to an agent. A job's timeoutMs cannot exceed it."},
		{Name: "HERALD_LEASE", Default: "2m", set: setDuration(&c.Lease, time.Second, 24*time.Hour),
			Help: "How long a worker's claim on a delivery is valid. If the worker crashes, another one continues " +
				"the delivery after this time."},
		{Name: "HERALD_LEASE_MARGIN", Default: "1m", set: setDuration(&c.LeaseMargin, time.Second, time.Hour),
			Help: "Least time by which a lease exceeds the time limit of the call."},
		{Name: "HERALD_RETRY_SCHEDULE", Default: "1s,2s,4s,30s,2m,10m,30m,2h,5h,10h", set: c.setSchedule,
			Help: "Waits after failed attempts, each ±20 %. After the last wait there is one more attempt."},
		{Name: "HERALD_EXPIRY", Default: "720h", set: setDuration(&c.Expiry, time.Minute, 10*365*24*time.Hour),
			Help: "A delivery that has not ended after this time ends as dead (expired)."},
		{Name: "HERALD_RETENTION", Default: "2160h",
			set: setDuration(&c.Retention, time.Minute, 100*365*24*time.Hour),
			Help: "Herald deletes the job, result and attempts of a delivery this long after its end. The id, key " +
				"and status remain. It must be at least HERALD_EXPIRY."},
		{Name: "HERALD_ENDPOINT_INFLIGHT", Default: "4", set: setNumber(&c.EndpointInflight, 1, 10000),
			Help: "Calls in flight at one origin (scheme, host, port), from all workers together."},
		{Name: "HERALD_ENDPOINT_RATE", Default: "100", set: setNumber(&c.EndpointRate, 1, 1000000),
			Help: "Calls per second to one origin, from all workers together. Further calls wait (throttled)."},
		{Name: "HERALD_EFFORT_BUDGET", Default: "60s", set: c.setEffortBudget,
			Help: "Time that all workers together may spend on one agent per minute: on its registration, calls, " +
				"connections, tool lists and files. Further deliveries wait (over_budget). 0 or off: no limit."},
		{Name: "HERALD_BATCH", Default: "50", set: setNumber(&c.Batch, 1, 50),
			Help: "Maximum number of deliveries in one call of agent.receiveFeedbackBatch. 1: each is sent alone."},
		{Name: "HERALD_ALLOW_NETWORKS", set: c.setNetworks,
			Help: "Private networks, as in 10.1.0.0/16. Agents and files may be there, also with plain http."},
		{Name: "HERALD_ALLOW_HTTP", Default: "false", set: c.setAllowHTTP,
			Help: "true: addresses of agents and files may use plain http."},
		{Name: "HERALD_STDIO_COMMANDS", Private: true, set: c.setCommands,
			Help: `Commands that Herald may start as agents, as JSON: [["/usr/bin/agent","--stdio"]]. A registration ` +
				`must name the same program and arguments. ["8453:42=/usr/bin/agent"] allows a command to agent ` +
				`8453:42 only. Without such a prefix, anybody's agent may name the command.`},
		{Name: "HERALD_TOOLS", set: c.setTools,
			Help: "Tools that a job may name, in addition to agent.receive* and their aliases."},
		{Name: "HERALD_TOOL_ALIASES", set: c.setAliases,
			Help: `Further names of tools that agents may offer, as JSON: {"agent.receiveFeedback": ` +
				`["feedback.receive"]}.`},
		{Name: "HERALD_SERVERS_FILE", set: setText(&c.ServersFile),
			Help: "JSON file that overrides an agent's registration (docs/reference/servers-file.md)."},
		{Name: "HERALD_POLICY_FILE", set: setText(&c.PolicyFile),
			Help: "JSON file with the default policy: which events agents receive (docs/operator/filters.md)."},
		{Name: "HERALD_HASH_POLICY", Default: "strict", set: setOneOf(&c.HashPolicy, "strict", "require", "annotate"),
			Help: "strict: a file that does not match its hash is rejected. require: as strict, and a file without a " +
				"hash is rejected if its address (https, http, ar, DNSLink) does not prove its content. annotate: " +
				"every file is delivered, with the result of the verification."},
		{Name: "HERALD_BINDING", Default: "warn", set: setOneOf(&c.Binding, "off", "warn", "require"),
			Help: "What happens to agents whose endpoint does not confirm them (docs/agent.md#be-found). warn: all " +
				"such agents of one origin share one call at a time and a tenth of HERALD_ENDPOINT_RATE. require: " +
				"their deliveries are rejected (endpoint_unverified). off: Herald does not check. A job's " +
				"action.endpoint counts as unconfirmed, unless the servers file has the same URL."},
		{Name: "HERALD_REDIS_INTAKE", Default: "jobs", set: setOneOf(&c.RedisIntake, "on", "jobs", "off"),
			Help: "Jobs of other programs that Herald accepts from Redis. on: all. off: none. jobs: all that do not " +
				"choose where or how Herald calls (docs/reference/jobs.md)."},
		{Name: "HERALD_LEGACY_QUEUE", set: setText(&c.LegacyQueue, checkListName),
			Help: "Name of the Redis list into which the old backend puts its jobs, as in action_jobs " +
				"(docs/operator/old-backend.md)."},
		{Name: "HERALD_VERIFY_EVENT", set: setOneOf(&c.VerifyEvent, "off", "receipt", "finalized"),
			Help: "receipt (default with an RPC URL): Herald reads each job's event from the chain and delivers the " +
				"fields of the log. finalized: the event's block must also be final. off: Herald delivers the fields " +
				"of the job, and verifies only that the registries are known."},
		{Name: "HERALD_LOG_RANGE", Default: "24h", set: c.setLogRange,
			Help: "How far back Herald searches for the event of a job without transactionHash and blockNumber: up " +
				"to 168h, or 500000 blocks. 0: such jobs are rejected (event_not_found)."},
		{Name: "HERALD_RPC_TRUST", set: c.setTrust,
			Help: "Chains whose nodes you trust to return all logs: all, or 8453,1. On other chains Herald checks " +
				"the logs (docs/operator/chain.md), which costs up to a megabyte per block on a busy rollup."},
		{Name: "HERALD_WATCH", set: c.setWatch,
			Help: "Chains whose events the worker itself reads, as in 8453,1, from the newest block on. Each needs " +
				"RPC_URL_<id> and one more Postgres connection."},
		{Name: "HERALD_CONFIRMATIONS", set: c.setConfirmations,
			Help: "How long Herald waits after an event's block: a duration, a number of blocks, or until the block " +
				"is safe or finalized. 6s is for all chains, 8453=6s,1=6,10=safe for single chains. Defaults: " +
				"docs/reference/chains.md."},
		{Name: "HERALD_ORDER", Default: "strict", set: c.setOrder,
			Help: "strict: Herald calls one client's deliveries to an agent one at a time, in the order of the " +
				"feedback. off: it delivers each event as soon as possible, but a response after its feedback. Set " +
				"the same on every worker."},
		{Name: "HERALD_ALERT_URL", Secret: true, set: setSecret(&c.AlertURL, checkAlertURL),
			Help: "URL to which Herald posts changes of agents, and deliveries that die or are held " +
				"(docs/operator/alerts-and-traces.md). It may be private and plain http."},
		{Name: "HERALD_ALERT_SECRET", Secret: true, set: setSecret(&c.AlertSecret, checkAlertSecret),
			Help: "Key that signs the posts to HERALD_ALERT_URL (Standard Webhooks): whsec_ and 24 to 64 bytes in " +
				"base64. It is required with that URL."},
		{Name: "HERALD_DISABLE_AFTER", Default: "120h", set: setDuration(&c.DisableAfter, 0, 10*365*24*time.Hour),
			Help: "Herald disables an agent if all calls to it failed for this time: two calls or more, one of them " +
				"within the last day. 0: never."},
		{Name: "HERALD_DATA", set: setText(&c.DataDir),
			Help: "Folder of the Postgres and Redis that the worker starts. Default: $XDG_STATE_HOME/herald " +
				"(~/.local/state/herald if that is not set), or /var/lib/herald as root."},
		{Name: "HERALD_CACHE", set: setText(&c.CacheDir),
			Help: "Folder for downloaded programs. Default: $XDG_CACHE_HOME/herald (~/.cache/herald if that is not " +
				"set), or /var/cache/herald as root."},
		{Name: "HERALD_LOG_LEVEL", Default: "info", set: setOneOf(&c.LogLevel, "debug", "info", "warn", "error"),
			Help: "debug, info, warn or error."},
		{Name: "HERALD_LOG_FORMAT", Default: "text", set: setOneOf(&c.LogFormat, "text", "json"),
			Help: "text or json."},
	}, c.Traces.variables()...)
}

// Doc documents one environment variable.
type Doc struct{ Name, Default, Help string }

// Docs returns the documentation of every variable for docs/reference/settings.md. Per-chain variables come last.
func Docs() []Doc {
	var out []Doc
	for _, v := range append(new(Config).variables(), new(Chain).variables("<chainId>")...) {
		if v.Secret {
			v.Help += " Also as " + v.Name + "_FILE."
		}
		out = append(out, Doc{v.Name, v.Default, v.Help})
	}
	return out
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

// setTools accepts tool names as MCP restricts them (SEP-986): 1 to 128 letters, digits, _ - . and /.
func (c *Config) setTools(s string) string {
	c.Tools = splitList(s)
	return checkToolNames(c.Tools)
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
