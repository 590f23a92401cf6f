package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
)

const (
	oneAddress   = "0x1111111111111111111111111111111111111111"
	mixedAddress = "0x8004A169FB4a3325136EB29fA0ceB6D2e539a432"
)

func load(t testing.TB, environ ...string) *Config {
	t.Helper()
	c, err := Load(environ)
	if err != nil {
		t.Fatalf("%q: %v", environ, err)
	}
	return c
}

// TestEmptySettings: an empty variable counts as not set, because compose files and Kubernetes write it so.
func TestEmptySettings(t *testing.T) {
	t.Parallel()
	e := load(t, "HERALD_LISTEN=", "RPC_URL_8453=", "RPC_URL_=", "IDENTITY_REGISTRY_x=", "HERALD_API_TOKEN_FILE=")
	heraldtest.Equal(t, "the configuration with empty variables", e, load(t))
}

func TestAcceptedSettings(t *testing.T) {
	t.Parallel()
	keys := heraldtest.Keyset(t)
	db := []string{"DATABASE_URL=postgres://u:p@h/d", "REDIS_URL=redis://h", "HERALD_KEYSET=" + keys}
	for _, v := range []struct {
		environ []string
		got     func(*Config) any
		want    any
	}{
		{[]string{"REDIS_URL=redis://:pw@h:6379/0"}, func(c *Config) any { return c.RedisURL.Reveal() }, "redis://:pw@h:6379/0"},
		{[]string{"REDIS_URL=redis-socket:///run/r.sock"}, func(c *Config) any { return c.RedisURL.Reveal() }, "redis-socket:///run/r.sock"},
		{[]string{"REDIS_URL=redis-cluster://a,b", "HERALD_QUEUE=redis"}, func(c *Config) any { return c.RedisURL.Reveal() + c.Queue }, "redis-cluster://a,bredis"},
		{db, func(c *Config) any { return c.DatabaseURL.Reveal() }, "postgres://u:p@h/d"},
		{[]string{db[0], db[2], "HERALD_QUEUE=embedded"}, func(c *Config) any { return c.Queue }, "embedded"},
		{[]string{"DATABASE_URL=host=/run dbname=d", db[1], db[2]}, func(c *Config) any { return c.DatabaseURL.Reveal() }, "host=/run dbname=d"},
		{append(db, "HERALD_LEADER_DATABASE_URL=host=/run dbname=d"), func(c *Config) any { return c.LeaderURL.Reveal() }, "host=/run dbname=d"},
		{db, func(c *Config) any { return c.Keyset.Reveal() }, keys},
		{[]string{"IPFS_GATEWAYS=http://127.0.0.1:8080, https://a.example/x ,"}, func(c *Config) any { return strings.Join(c.IPFSGateways, " ") }, "http://127.0.0.1:8080 https://a.example/x"},
		{[]string{"HERALD_LISTEN=[::1]:0"}, func(c *Config) any { return c.Listen }, "[::1]:0"},
		{[]string{"HERALD_LISTEN=:8080"}, func(c *Config) any { return c.Listen }, ":8080"},
		{[]string{"HERALD_PUBLIC_URL=https://Herald.Example:443/"}, func(c *Config) any { return c.PublicURL }, "https://herald.example"},
		{[]string{"HERALD_PUBLIC_URL=http://127.0.0.1:8080"}, func(c *Config) any { return c.PublicURL }, "http://127.0.0.1:8080"},
		{[]string{"HERALD_API_TOKEN=t=t"}, func(c *Config) any { return c.APIToken.Reveal() }, "t=t"},
		{[]string{"HERALD_CONCURRENCY=1", "HERALD_DB_POOL=2"}, func(c *Config) any { return fmt.Sprint(c.Concurrency, c.DBPool) }, "1 2"},
		{[]string{"HERALD_CALL_TIMEOUT=80s", "HERALD_LEASE=3m", "HERALD_LEASE_MARGIN=90s"}, func(c *Config) any { return fmt.Sprint(c.CallTimeout, c.Lease, c.LeaseMargin) }, "1m20s 3m0s 1m30s"},
		{[]string{"HERALD_RETENTION=2000h", "HERALD_ENDPOINT_INFLIGHT=5", "HERALD_ENDPOINT_RATE=6", "HERALD_BATCH=7", "HERALD_DISABLE_AFTER=8h"}, func(c *Config) any {
			return fmt.Sprint(c.Retention, c.EndpointInflight, c.EndpointRate, c.Batch, c.DisableAfter)
		}, "2000h0m0s 5 6 7 8h0m0s"},
		{[]string{"HERALD_EFFORT_BUDGET=90s"}, func(c *Config) any { return c.EffortBudget }, 90 * time.Second},
		{[]string{"HERALD_EFFORT_BUDGET=off"}, func(c *Config) any { return c.EffortBudget }, time.Duration(0)},
		{[]string{"HERALD_EFFORT_BUDGET=0"}, func(c *Config) any { return c.EffortBudget }, time.Duration(0)},
		{[]string{"HERALD_RETRY_SCHEDULE=0s, 1m"}, func(c *Config) any { return fmt.Sprint(c.RetrySchedule) }, "[0s 1m0s]"},
		{[]string{"HERALD_ALERT_URL=http://10.0.0.7/hook?k=v", "HERALD_ALERT_SECRET=whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"},
			func(c *Config) any { return c.AlertURL.Reveal() + " " + c.AlertSecret.Reveal() },
			"http://10.0.0.7/hook?k=v whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"},
		{[]string{"HERALD_DISABLE_AFTER=0"}, func(c *Config) any { return c.DisableAfter }, time.Duration(0)},
		{[]string{"HERALD_EXPIRY=1m"}, func(c *Config) any { return c.Expiry }, time.Minute},
		{[]string{"HERALD_ALLOW_NETWORKS=10.1.2.3/16,fd00::/8"}, func(c *Config) any {
			return slices.Equal(c.AllowNetworks, []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00::/8")})
		}, true},
		{[]string{"HERALD_ALLOW_HTTP=true"}, func(c *Config) any { return c.AllowHTTP }, true},
		{[]string{`HERALD_STDIO_COMMANDS=[["/bin/a","--x"],["/bin/b"]]`}, func(c *Config) any { return fmt.Sprint(c.StdioCommands) }, "[[/bin/a --x] [/bin/b]]"},
		{[]string{`HERALD_STDIO_COMMANDS=[["8453:42=/bin/a","--x"],["/bin/b=c"],["x:1=/bin/d"]]`}, func(c *Config) any { return fmt.Sprintf("%q %q", c.StdioAgents, c.StdioCommands) },
			`["8453:42" "" ""] [["/bin/a" "--x"] ["/bin/b=c"] ["x:1=/bin/d"]]`},
		{[]string{"HERALD_TOOLS=wallet.send, a/b"}, func(c *Config) any { return strings.Join(c.Tools, " ") }, "wallet.send a/b"},
		{[]string{`HERALD_TOOL_ALIASES={"agent.receiveFeedback": ["feedback.receive", "a/b"]}`}, func(c *Config) any { return fmt.Sprint(c.ToolAliases) }, "map[agent.receiveFeedback:[feedback.receive a/b]]"},
		{[]string{"HERALD_SERVERS_FILE=/etc/herald/servers.json"}, func(c *Config) any { return c.ServersFile }, "/etc/herald/servers.json"},
		{[]string{"HERALD_POLICY_FILE=/etc/herald/policy.json"}, func(c *Config) any { return c.PolicyFile }, "/etc/herald/policy.json"},
		{[]string{"HERALD_MASTER_KEY=m=m"}, func(c *Config) any { return c.MasterKey.Reveal() }, "m=m"},
		{[]string{"HERALD_LEGACY_QUEUE=action_jobs", "HERALD_REDIS_INTAKE=on"}, func(c *Config) any { return c.LegacyQueue }, "action_jobs"},
		{[]string{"HERALD_HASH_POLICY=annotate"}, func(c *Config) any { return c.HashPolicy }, "annotate"},
		{[]string{"HERALD_BINDING=require"}, func(c *Config) any { return c.Binding }, "require"},
		{[]string{"HERALD_VERIFY_EVENT=off"}, func(c *Config) any { return c.VerifyEvent }, "off"},
		{[]string{"HERALD_CONFIRMATIONS=8453=12,1=3,5"}, func(c *Config) any {
			return fmt.Sprint(c.ConfirmationsOf(8453), c.ConfirmationsOf(1), c.ConfirmationsOf(137))
		}, "12 3 5"},
		{nil, func(c *Config) any {
			return fmt.Sprint(c.ConfirmationsOf(1), c.ConfirmationsOf(137), c.ConfirmationsOf(56), c.ConfirmationsOf(8453), c.ConfirmationsOf(1337), c.ConfirmationsOf(31337))
		}, "1m12s 1m4s 12s 6s 0 0"},
		{[]string{"HERALD_CONFIRMATIONS=8453=6s,1=6,10=safe,finalized"}, func(c *Config) any {
			return fmt.Sprint(c.ConfirmationsOf(8453), c.ConfirmationsOf(1), c.ConfirmationsOf(10), c.ConfirmationsOf(137), c.ConfirmationsOf(1187947933))
		}, "6s 6 safe finalized 6s"},
		{nil, func(c *Config) any { return fmt.Sprint(c.ConfirmationsOf(424242), c.ConfirmationsOf(16661)) }, "36s 36s"},
		{[]string{"HERALD_LOG_RANGE=0"}, func(c *Config) any { return c.LogRange.IsZero() }, true},
		{[]string{"HERALD_LOG_RANGE=10000"}, func(c *Config) any { return c.LogRange }, erc8004.Depth{Blocks: 10_000}},
		{[]string{"HERALD_LOG_RANGE=36h"}, func(c *Config) any { return c.LogRange }, erc8004.Depth{Time: 36 * time.Hour}},
		{[]string{"HERALD_RPC_TRUST=8453, 1"}, func(c *Config) any {
			return fmt.Sprint(c.TrustsNodes(8453), c.TrustsNodes(1), c.TrustsNodes(137))
		}, "true true false"},
		{[]string{"HERALD_RPC_TRUST=all"}, func(c *Config) any { return c.TrustsNodes(137) }, true},
		{nil, func(c *Config) any { return c.TrustsNodes(31337) }, false},
		{[]string{"HERALD_WATCH=8453, 1, 1", "RPC_URL_1=http://n", "RPC_URL_8453=http://n"}, func(c *Config) any { return fmt.Sprint(c.Watch) }, "[8453 1]"},
		{[]string{"HERALD_DATA=/d", "HERALD_CACHE=/c"}, func(c *Config) any { return c.DataDir + c.CacheDir }, "/d/c"},
		{[]string{"HERALD_DATA=/d\r", "HERALD_API_TOKEN=t\r"}, func(c *Config) any { return c.DataDir + c.APIToken.Reveal() }, "/dt"}, // a shell read a file from Windows
		{[]string{"HERALD_LOG_LEVEL=debug", "HERALD_LOG_FORMAT=json"}, func(c *Config) any { return c.LogLevel + c.LogFormat }, "debugjson"},
		{nil, func(c *Config) any { return c.Traces.On() }, false},
		{[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=https://c:4318/base/"}, func(c *Config) any { return fmt.Sprint(c.Traces.On(), c.Traces.Endpoint(), c.Traces.Service) },
			"truehttps://c:4318/base/v1/tracesherald"},
		{[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://t/x"}, func(c *Config) any { return fmt.Sprint(c.Traces.On(), c.Traces.Endpoint()) },
			"truehttp://t/x"},
		{[]string{"OTEL_TRACES_EXPORTER=otlp", "OTEL_SERVICE_NAME=w1"}, func(c *Config) any { return fmt.Sprint(c.Traces.On(), c.Traces.Endpoint(), c.Traces.Service) },
			"truehttp://localhost:4318/v1/tracesw1"},
		{[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c", "OTEL_TRACES_EXPORTER=none"}, func(c *Config) any { return c.Traces.On() }, false},
		{[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c", "OTEL_SDK_DISABLED=TRUE"}, func(c *Config) any { return c.Traces.On() }, false},
		{[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/json"}, func(c *Config) any { return c.Traces.On() }, true},
		{[]string{"OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_METRICS_EXPORTER=prometheus"}, func(c *Config) any { return len(c.Misspelt()) }, 0},
		{[]string{"OTEL_EXPORTER_OTLP_HEADERS=api-key=a%20b%3D, x-two=2=2,"}, func(c *Config) any { return fmt.Sprint(c.Traces.Headers()) }, "map[Api-Key:a b= X-Two:2=2]"},
		{[]string{"OTEL_EXPORTER_OTLP_HEADERS=api-key=a", "OTEL_EXPORTER_OTLP_TRACES_HEADERS=x=y"}, func(c *Config) any { return fmt.Sprint(c.Traces.Headers()) }, "map[X:y]"},
		{[]string{"OTEL_TRACES_SAMPLER=traceidratio", "OTEL_TRACES_SAMPLER_ARG=0.25", "OTEL_EXPORTER_OTLP_ENDPONT=x"}, func(c *Config) any { return fmt.Sprint(c.Misspelt()) },
			"[{OTEL_EXPORTER_OTLP_ENDPONT OTEL_EXPORTER_OTLP_ENDPOINT}]"},
		{[]string{"RPC_URL_8453=https://k:s@rpc.example/key"}, func(c *Config) any { return c.Chains[8453].RPCURLs[0].Reveal() }, "https://k:s@rpc.example/key"},
		{[]string{"RPC_URL_8453=https://k:s@rpc.example/key?a=1,2, wss://b.example/x,http://c"}, func(c *Config) any {
			var urls []string
			for _, u := range c.Chains[8453].RPCURLs {
				urls = append(urls, u.Reveal())
			}
			return strings.Join(urls, " ")
		}, "https://k:s@rpc.example/key?a=1,2 wss://b.example/x http://c"},
		{[]string{"RPC_URL_31337=ws://127.0.0.1:8545", "IDENTITY_REGISTRY_31337=" + oneAddress, "REPUTATION_REGISTRY_31337=" + mixedAddress},
			func(c *Config) any {
				return fmt.Sprint(c.Chains[31337].Known, c.Chains[31337].Registries.Reputation[0])
			}, "true " + mixedAddress},
	} {
		heraldtest.Equal(t, strings.Join(v.environ, " "), v.got(load(t, v.environ...)), v.want)
	}
}

func TestRefuses(t *testing.T) {
	t.Parallel()
	keys := heraldtest.Keyset(t)
	const db = "DATABASE_URL=postgres://u:pw1234@h/d"
	for _, v := range []struct {
		environ []string
		want    string // "NAME: …"
	}{
		{[]string{"REDIS_URL=pw1234"}, "REDIS_URL: must be a URL with redis://"},
		{[]string{"REDIS_URL=http://:pw1234@h"}, "REDIS_URL: must be a URL with redis://"},
		{[]string{"REDIS_URL=redis://"}, "REDIS_URL: must be a URL with redis://"},
		{[]string{"DATABASE_URL=mysql://u:pw1234@h/d"}, "DATABASE_URL: must be a URL, as in postgres://"},
		{[]string{"DATABASE_URL=herald"}, "DATABASE_URL: must be a URL, as in postgres://"},
		{[]string{"HERALD_QUEUE=x"}, "HERALD_QUEUE: must be one of embedded, redis"},
		{[]string{"IPFS_GATEWAYS=ipfs.io"}, "IPFS_GATEWAYS: gateway 1 is not an http or https URL"},
		{[]string{"IPFS_GATEWAYS=https://a,https://u:pw1234@b"}, "IPFS_GATEWAYS: gateway 2 must have no user, password, query or fragment"},
		{[]string{"IPFS_GATEWAYS=https://a?token=pw1234"}, "IPFS_GATEWAYS: gateway 1 must have no user, password, query or fragment"},
		{[]string{"ARWEAVE_GATEWAY=arweave.net"}, "ARWEAVE_GATEWAY: is not an http or https URL"},
		{[]string{"ARWEAVE_GATEWAY=https://a?token=pw1234"}, "ARWEAVE_GATEWAY: must have no user, password, query or fragment"},
		{[]string{"IPFS_GATEWAYS=,"}, "IPFS_GATEWAYS: names no gateway"},
		{[]string{"HERALD_LISTEN=8080"}, "HERALD_LISTEN: must be host:port"},
		{[]string{"HERALD_LISTEN=127.0.0.1:http"}, "HERALD_LISTEN: must be host:port"},
		{[]string{"HERALD_LISTEN=127.0.0.1:65536"}, "HERALD_LISTEN: must be host:port"},
		{[]string{"HERALD_KEYSET=pw1234"}, "HERALD_KEYSET: it is not base64"},
		{[]string{"HERALD_KEYSET=cHcxMjM0"}, "HERALD_KEYSET: it is not a Tink keyset"},
		{[]string{"HERALD_CONCURRENCY=0"}, "HERALD_CONCURRENCY: must be a number from 1 to 10000"},
		{[]string{"HERALD_CONCURRENCY=many"}, "HERALD_CONCURRENCY: must be a number from 1 to 10000"},
		{[]string{"HERALD_DB_POOL=1"}, "HERALD_DB_POOL: must be a number from 2 to 10000"},
		{[]string{"HERALD_EFFORT_BUDGET=500ms"}, "HERALD_EFFORT_BUDGET: must be a duration from 1s to 1h, as in 60s or 2m, or off"},
		{[]string{"HERALD_EFFORT_BUDGET=60"}, "HERALD_EFFORT_BUDGET: must be a duration from 1s to 1h, as in 60s or 2m, or off"},
		{[]string{"HERALD_CALL_TIMEOUT=30"}, "HERALD_CALL_TIMEOUT: must be a duration from 1s to 1h0m0s"},
		{[]string{"HERALD_CALL_TIMEOUT=2h"}, "HERALD_CALL_TIMEOUT: must be a duration from 1s to 1h0m0s"},
		{[]string{"HERALD_LEASE=soon"}, "HERALD_LEASE: must be a duration"},
		{[]string{"HERALD_LEASE_MARGIN=0s"}, "HERALD_LEASE_MARGIN: must be a duration"},
		{[]string{"HERALD_RETRY_SCHEDULE=1s,x"}, `HERALD_RETRY_SCHEDULE: "x" is not a wait`},
		{[]string{"HERALD_RETRY_SCHEDULE=-1s"}, `HERALD_RETRY_SCHEDULE: "-1s" is not a wait`},
		{[]string{"HERALD_RETRY_SCHEDULE=,"}, "HERALD_RETRY_SCHEDULE: must be 1 to 100 waits"},
		{[]string{"HERALD_RETRY_SCHEDULE=" + strings.Repeat("1s,", 101)}, "HERALD_RETRY_SCHEDULE: must be 1 to 100 waits"},
		{[]string{"HERALD_ALERT_URL=https://h/pw1234"}, "HERALD_ALERT_SECRET: is not set although HERALD_ALERT_URL is"},
		{[]string{"HERALD_ALERT_URL=h/pw1234"}, "HERALD_ALERT_URL: must be an http or https URL"},
		{[]string{"HERALD_ALERT_URL=https://u:pw1234@h"}, "HERALD_ALERT_URL: must have no user"},
		{[]string{"HERALD_ALERT_SECRET=cHcxMjM0cHcxMjM0cHcxMjM0cHcxMjM0"}, "HERALD_ALERT_SECRET: must be whsec_ and 24"},
		{[]string{"HERALD_ALERT_SECRET=whsec_cHcxMjM0"}, "HERALD_ALERT_SECRET: must be whsec_ and 24"},
		{[]string{"HERALD_PUBLIC_URL=http://herald.example"}, "HERALD_PUBLIC_URL: must be an https URL, or an http URL on loopback"},
		{[]string{"HERALD_PUBLIC_URL=herald.example"}, "HERALD_PUBLIC_URL: must be an https URL"},
		{[]string{"HERALD_PUBLIC_URL=https://h/herald"}, "HERALD_PUBLIC_URL: must be an origin"},
		{[]string{"HERALD_PUBLIC_URL=https://u:pw1234@h"}, "HERALD_PUBLIC_URL: must be an origin"},
		{[]string{"HERALD_PUBLIC_URL=https://h?q=1"}, "HERALD_PUBLIC_URL: must be an origin"},
		{[]string{"HERALD_DISABLE_AFTER=-1h"}, "HERALD_DISABLE_AFTER: must be a duration"},
		{[]string{"HERALD_EXPIRY=1s"}, "HERALD_EXPIRY: must be a duration"},
		{[]string{"HERALD_ALLOW_NETWORKS=10.0.0.1"}, `HERALD_ALLOW_NETWORKS: "10.0.0.1" is not a network`},
		{[]string{"HERALD_ALLOW_HTTP=yes"}, "HERALD_ALLOW_HTTP: must be true or false"},
		{[]string{"HERALD_STDIO_COMMANDS=/bin/a"}, "HERALD_STDIO_COMMANDS: must be a JSON list of commands"},
		{[]string{`HERALD_STDIO_COMMANDS=["/bin/a"]`}, "HERALD_STDIO_COMMANDS: must be a JSON list of commands"},
		{[]string{`HERALD_STDIO_COMMANDS=[["/bin/a"]] x`}, "HERALD_STDIO_COMMANDS: has text after the JSON list"},
		{[]string{`HERALD_STDIO_COMMANDS=[["/bin/a"],[]]`}, "HERALD_STDIO_COMMANDS: command 2 is empty"},
		{[]string{`HERALD_STDIO_COMMANDS=[[""]]`}, "HERALD_STDIO_COMMANDS: command 1 is empty"},
		{[]string{"HERALD_TOOLS=a b"}, `HERALD_TOOLS: "a b" is not a tool's name`},
		{[]string{"HERALD_TOOLS=" + strings.Repeat("x", 129)}, "HERALD_TOOLS: "},
		{[]string{"HERALD_TOOL_ALIASES=x"}, "HERALD_TOOL_ALIASES: must be a JSON object"},
		{[]string{"HERALD_TOOL_ALIASES=null"}, "HERALD_TOOL_ALIASES: must be a JSON object"},
		{[]string{`HERALD_TOOL_ALIASES={"a": "b"}`}, "HERALD_TOOL_ALIASES: must be a JSON object"},
		{[]string{`HERALD_TOOL_ALIASES={} x`}, "HERALD_TOOL_ALIASES: has text after the JSON object"},
		{[]string{`HERALD_TOOL_ALIASES={"a": ["b c"]}`}, `HERALD_TOOL_ALIASES: "b c" is not a tool's name`},
		{[]string{`HERALD_TOOL_ALIASES={"": ["b"]}`}, `HERALD_TOOL_ALIASES: "" is not a tool's name`},
		{[]string{`HERALD_TOOL_ALIASES={"a": ["b"` + strings.Repeat(`,"b"`, 16) + `]}`}, `HERALD_TOOL_ALIASES: gives "a" more than 16 names`},
		{[]string{"HERALD_LEGACY_QUEUE={a}b"}, "HERALD_LEGACY_QUEUE: must be the name of a list in Redis: 1 to 128"},
		{[]string{"HERALD_LEGACY_QUEUE=" + strings.Repeat("x", 129)}, "HERALD_LEGACY_QUEUE: must be the name of a list"},
		{[]string{"HERALD_LEGACY_QUEUE=asynq:queues"}, "HERALD_LEGACY_QUEUE: must not begin with asynq: or herald:"},
		{[]string{"HERALD_LEGACY_QUEUE=herald:marker"}, "HERALD_LEGACY_QUEUE: must not begin with asynq: or herald:"},
		{[]string{"HERALD_HASH_POLICY=lax"}, "HERALD_HASH_POLICY: must be one of strict, require, annotate"},
		{[]string{"HERALD_BINDING=on"}, "HERALD_BINDING: must be one of off, warn, require"},
		{[]string{"HERALD_VERIFY_EVENT=on"}, "HERALD_VERIFY_EVENT: must be one of off, receipt, finalized"},
		{[]string{"HERALD_CONFIRMATIONS=x"}, `HERALD_CONFIRMATIONS: "x" is no duration (6s), number of blocks (12), safe or finalized`},
		{[]string{"HERALD_CONFIRMATIONS=-1"}, `HERALD_CONFIRMATIONS: "-1" is no duration`},
		{[]string{"HERALD_CONFIRMATIONS=1=200h"}, `HERALD_CONFIRMATIONS: "1=200h" is longer than 168h0m0s`},
		{[]string{"HERALD_CONFIRMATIONS=1187947933=safe"}, `HERALD_CONFIRMATIONS: "1187947933=safe" cannot be: nodes of SKALE Base name no safe block. Use a duration, as in 1187947933=6s`},
		{[]string{"HERALD_CONFIRMATIONS=base=1"}, `HERALD_CONFIRMATIONS: "base=1" does not begin with a chain id`},
		{[]string{"HERALD_CONFIRMATIONS=0=1"}, `HERALD_CONFIRMATIONS: "0=1" does not begin with a chain id`},
		{[]string{"HERALD_CONFIRMATIONS=1=1,1=2"}, `HERALD_CONFIRMATIONS: "1=2" repeats`},
		{[]string{"HERALD_CONFIRMATIONS=1,2"}, `HERALD_CONFIRMATIONS: "2" repeats`},
		{[]string{"HERALD_LOG_LEVEL=loud"}, "HERALD_LOG_LEVEL: must be one of debug, info, warn, error"},
		{[]string{"HERALD_LOG_FORMAT=xml"}, "HERALD_LOG_FORMAT: must be one of text, json"},
		{[]string{"HERALD_RPC_TRUST=base"}, `HERALD_RPC_TRUST: "base" is not a chain id, or all`},
		{[]string{"RPC_URL_base=https://h/pw1234"}, "RPC_URL_base: must end in a chain id, as in RPC_URL_8453"},
		{[]string{"RPC_URL_0=https://h/pw1234"}, "RPC_URL_0: must end in a chain id"},
		{[]string{"RPC_URL_08453=https://h/pw1234"}, "RPC_URL_08453: must end in a chain id"},
		{[]string{"RPC_URL_1=pw1234"}, "RPC_URL_1: must be a URL with http://, https://, ws:// or wss://"},
		{[]string{"RPC_URL_1=ftp://pw1234@h"}, "RPC_URL_1: must be a URL with"},
		{[]string{"RPC_URL_1=https://h,pw1234"}, "RPC_URL_1: must be a URL with"},
		{[]string{"RPC_URL_1=https://h/pw1234, pw1234"}, "RPC_URL_1: URL 2 must be a URL with http://, https://, ws:// or wss://"},
		{[]string{"RPC_URL_1=https://h/pw1234,"}, "RPC_URL_1: URL 2 must be a URL with"},
		{[]string{"RPC_URL_1=,https://h/pw1234"}, "RPC_URL_1: URL 1 must be a URL with"},
		{[]string{"RPC_URL_1=https://h/pw1234,ftp://h/pw1234"}, "RPC_URL_1: URL 2 must be a URL with"},
		{[]string{"RPC_URL_1=https://h/pw1234, https://h/pw1234"}, "RPC_URL_1: names the same URL twice (URL 2)"},
		{[]string{"RPC_URL_1=https://h" + strings.Repeat(",https://h", 16)}, "RPC_URL_1: names 17 nodes, more than 16"},
		{[]string{"RPC_URL_1=https://h/a", "RPC_URL_1_FILE=/x"}, "RPC_URL_1: is set, and RPC_URL_1_FILE too"},
		{[]string{"IDENTITY_REGISTRY_1=0x11"}, "IDENTITY_REGISTRY_1: must be an address"},
		{[]string{"IDENTITY_REGISTRY_1=" + oneAddress[2:]}, "IDENTITY_REGISTRY_1: must be an address"},
		{[]string{"REPUTATION_REGISTRY_1=" + oneAddress + ",0x12"}, "REPUTATION_REGISTRY_1: address 2 must be an address"},
		{[]string{"IDENTITY_REGISTRY_1=" + oneAddress + ","}, "IDENTITY_REGISTRY_1: address 2 must be an address"},
		{[]string{"HERALD_LOG_RANGE=500001"}, "HERALD_LOG_RANGE: must be a duration from 0s to 168h0m0s, as in 24h, or a number of blocks from 0 to 500000"},
		{[]string{"HERALD_LOG_RANGE=safe"}, "HERALD_LOG_RANGE: must be a duration"},
		{[]string{"REPUTATION_REGISTRY_1=0x8004a169FB4a3325136EB29fA0ceB6D2e539a432"}, "REPUTATION_REGISTRY_1: has a wrong checksum (EIP-55)"},
		{[]string{"VALIDATION_REGISTRY_1=0x" + strings.Repeat("0", 40)}, "VALIDATION_REGISTRY_1: is the zero address"},
		{[]string{"IDENTITY_REGISTRY_1_FILE=/x"}, "IDENTITY_REGISTRY_1_FILE: must end in a chain id"},

		{[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=localhost:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT: is not an http or https URL"},
		{[]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://u:pw1234@h"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: must have no user"},
		{[]string{"OTEL_EXPORTER_OTLP_HEADERS=pw1234"}, "OTEL_EXPORTER_OTLP_HEADERS: must be name=value pairs"},
		{[]string{"OTEL_EXPORTER_OTLP_HEADERS=a b=pw1234"}, "OTEL_EXPORTER_OTLP_HEADERS: must be name=value pairs"},
		{[]string{"OTEL_EXPORTER_OTLP_TRACES_HEADERS=a=pw1234%0a"}, "OTEL_EXPORTER_OTLP_TRACES_HEADERS: must be name=value pairs"},
		{[]string{"OTEL_EXPORTER_OTLP_HEADERS=a=pw1234%"}, "OTEL_EXPORTER_OTLP_HEADERS: must be name=value pairs"},
		{[]string{"OTEL_TRACES_EXPORTER=zipkin"}, "OTEL_TRACES_EXPORTER: must be one of otlp, none"},
		{[]string{"OTEL_TRACES_SAMPLER=jaeger_remote"}, "OTEL_TRACES_SAMPLER: must be one of always_on"},
		{[]string{"OTEL_TRACES_SAMPLER_ARG=2"}, "OTEL_TRACES_SAMPLER_ARG: must be a number from 0 to 1"},
		{[]string{"OTEL_TRACES_SAMPLER_ARG=NaN"}, "OTEL_TRACES_SAMPLER_ARG: must be a number from 0 to 1"},
		{[]string{"OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4317"}, "OTEL_EXPORTER_OTLP_PROTOCOL: must be http/protobuf"},

		// These settings contradict each other.
		{[]string{"HERALD_LEASE=1m"}, "HERALD_LEASE: 1m0s is shorter than a call and its margin (HERALD_CALL_TIMEOUT 30s + HERALD_LEASE_MARGIN 1m0s): set it to 1m30s or more"},
		{[]string{"HERALD_DB_POOL=32"}, "HERALD_DB_POOL: 32 connections are too few for HERALD_CONCURRENCY 32: set it to 36 or more"},
		{[]string{"HERALD_RETENTION=240h"}, "HERALD_RETENTION: 240h0m0s is shorter than HERALD_EXPIRY 720h0m0s: attempts of deliveries that are not final would be dropped. Set it to 720h0m0s or more"},
		{[]string{"HERALD_WATCH=base"}, `HERALD_WATCH: "base" is not a chain id`},
		{[]string{"HERALD_WATCH=8453"}, "HERALD_WATCH: names chain 8453, which has no node: set RPC_URL_8453, or take the chain out"},
		{[]string{db, "HERALD_KEYSET=" + keys}, "REDIS_URL: is not set although DATABASE_URL is: set it, or HERALD_QUEUE=embedded"},
		{[]string{db, "HERALD_KEYSET=" + keys, "HERALD_QUEUE=redis"}, "HERALD_QUEUE: is redis although REDIS_URL is not set"},
		{[]string{"HERALD_LEADER_DATABASE_URL=postgres://h/d"}, "HERALD_LEADER_DATABASE_URL: is set although DATABASE_URL is not"},
		{[]string{"HERALD_LEGACY_QUEUE=action_jobs", "HERALD_REDIS_INTAKE=off"}, "HERALD_LEGACY_QUEUE: is set although HERALD_REDIS_INTAKE is off"},
		{[]string{"HERALD_QUEUE=redis"}, "HERALD_QUEUE: is redis although REDIS_URL is not set"},
		{[]string{"REDIS_URL=redis://h", "HERALD_QUEUE=embedded"}, "HERALD_QUEUE: is embedded although REDIS_URL is set"},
		{[]string{db, "REDIS_URL=redis://h"}, "HERALD_KEYSET: is not set although DATABASE_URL is"},
	} {
		_, err := Load(v.environ)
		if _, ok := errors.AsType[*Error](err); !ok || !strings.HasPrefix(err.Error(), v.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: got %v, want %s…", v.environ, err, v.want)
		}
		if err != nil && strings.Contains(err.Error(), "pw1234") {
			t.Errorf("%q: the error shows a secret: %v", v.environ, err)
		}
	}
}

func TestAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	environ := []string{"RPC_URL_x=1", "HERALD_LISTEN=x", "VALIDATION_REGISTRY_5=1", "IDENTITY_REGISTRY_5=1", "RPC_URL_4=x", "HERALD_LOG_LEVEL=x", "HERALD_LEASE=1s"}
	const want = "HERALD_LISTEN HERALD_LOG_LEVEL RPC_URL_x RPC_URL_4 IDENTITY_REGISTRY_5 VALIDATION_REGISTRY_5"
	for range 20 { // iteration over maps has no fixed order
		_, err := Load(environ)
		var names []string
		for line := range strings.SplitSeq(fmt.Sprint(err), "\n") {
			name, _, _ := strings.Cut(line, ":")
			names = append(names, name)
		}
		heraldtest.Equal(t, "the faulty settings", strings.Join(names, " "), want)
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, content string) string {
		p := filepath.Join(dir, name)
		heraldtest.Must(t, os.WriteFile(p, []byte(content), 0o600))
		return p
	}
	c := load(t, "HERALD_API_TOKEN_FILE="+file("token", "the token\r\n"), "RPC_URL_5_FILE="+file("rpc", "https://h/key\n"),
		"REDIS_URL_FILE="+file("redis", "redis://:pw1234@h"))
	if c.APIToken.Reveal() != "the token" || c.Chains[5].RPCURLs[0].Reveal() != "https://h/key" || c.RedisURL.Reveal() != "redis://:pw1234@h" {
		t.Errorf("got %q, %q, %q", c.APIToken.Reveal(), c.Chains[5].RPCURLs[0].Reveal(), c.RedisURL.Reveal())
	}
	for environ, want := range map[string]string{
		"HERALD_API_TOKEN_FILE=" + filepath.Join(dir, "none"):                        "HERALD_API_TOKEN_FILE: cannot be read: ",
		"HERALD_API_TOKEN_FILE=" + dir:                                               "HERALD_API_TOKEN_FILE: cannot be read: ",
		"HERALD_API_TOKEN_FILE=" + file("empty", "\n"):                               "HERALD_API_TOKEN_FILE: " + filepath.Join(dir, "empty") + " is empty",
		"HERALD_API_TOKEN_FILE=" + file("lines", "pw1234\nb"):                        "HERALD_API_TOKEN_FILE: " + filepath.Join(dir, "lines") + " must be one line",
		"HERALD_API_TOKEN_FILE=" + file("nul", "pw1234\x00"):                         "HERALD_API_TOKEN_FILE: " + filepath.Join(dir, "nul") + " must be one line",
		"HERALD_API_TOKEN_FILE=" + file("long", strings.Repeat("pw1234", maxFile)):   "HERALD_API_TOKEN_FILE: " + filepath.Join(dir, "long") + " is longer than",
		"HERALD_API_TOKEN_FILE=" + file("both", "x") + "\x00HERALD_API_TOKEN=pw1234": "HERALD_API_TOKEN: is set, and HERALD_API_TOKEN_FILE too",
		"RPC_URL_5_FILE=" + filepath.Join(dir, "none"):                               "RPC_URL_5_FILE: cannot be read: ",
		"HERALD_KEYSET_FILE=" + file("keyset", "pw1234"):                             "HERALD_KEYSET: it is not base64",
		"DATABASE_URL_FILE=" + file("db", "mysql://pw1234"):                          "DATABASE_URL: must be a URL",
	} {
		_, err := Load(strings.Split(environ, "\x00"))
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "pw1234") {
			t.Errorf("%q: got %v, want %s…", environ, err, want)
		}
	}
}

func TestRegistries(t *testing.T) {
	t.Parallel()
	c := load(t, "VALIDATION_REGISTRY_8453="+oneAddress, "IDENTITY_REGISTRY_31337="+oneAddress, "RPC_URL_1=https://h")
	known, _ := erc8004.KnownDeployment(8453)
	one := common.HexToAddress(oneAddress)
	for _, v := range []struct {
		chain uint64
		want  erc8004.Deployment
		ok    bool
	}{
		{8453, erc8004.Deployment{Identity: known.Identity, Reputation: known.Reputation, Validation: one}, true},
		{31337, erc8004.Deployment{Identity: one}, false},
		{77777, erc8004.Deployment{}, false},
	} {
		if got, ok := c.Registries(v.chain); got != v.want || ok != v.ok {
			t.Errorf("chain %d: got %v, %v", v.chain, got, ok)
		}
	}
	c = load(t, "REPUTATION_REGISTRY_11155111="+oneAddress+", "+mixedAddress)
	sepolia, _ := erc8004.ListedRegistries(11155111)
	listed, ok := c.ListedRegistries(11155111)
	if want := []common.Address{one, common.HexToAddress(mixedAddress)}; !ok || !slices.Equal(listed.Reputation, want) ||
		!slices.Equal(listed.Identity, sepolia.Identity) || len(sepolia.Identity) != 2 || listed.Default().Reputation != one {
		t.Errorf("a list of registries: %+v", listed)
	}
	if got, ok := c.ListedRegistries(8453); !ok || got.Default() != known {
		t.Errorf("a known chain without settings: %+v", got)
	}
	got, ok := load(t, "RPC_URL_31337=https://h").ListedRegistries(31337)
	heraldtest.Equal(t, "a chain with an RPC URL alone is listed", ok, true)
	heraldtest.Equal(t, "its registries", got.Default(), erc8004.Deployment{})
	if got, ok := c.ListedRegistries(31337); ok {
		t.Errorf("a chain of which nothing is known: %+v", got)
	}
	c = load(t, "RPC_URL_1=https://h")
	mainnet, _ := erc8004.KnownDeployment(1)
	if got, ok := c.Registries(1); got != mainnet || !ok || !c.Chains[1].Known {
		t.Errorf("chain 1: got %v, %v", got, ok)
	}
}

// TestSettings: Settings returns every variable with the source of its value, and shows no secret.
func TestSettings(t *testing.T) {
	t.Parallel()
	keys := heraldtest.Keyset(t)
	c := load(t, "REDIS_URL=redis://:pw1234@h", "DATABASE_URL=postgres://u:pw1234@h/d", "HERALD_KEYSET="+keys, "HERALD_API_TOKEN=pw1234",
		"RPC_URL_8453=https://h/pw1234,https://i/pw1234", "RPC_URL_5=https://h/pw1234", "VALIDATION_REGISTRY_5="+mixedAddress, "HERALD_NEW_KEY=pw1234", "HERALD_LISTEN=127.0.0.1:1",
		"HERALD_BINDNIG=require", "OTEL_EXPORTER_OTLP_HEADERS=a=pw1234", "PATH=/pw1234")
	settings := c.Settings()
	shown, err := json.Marshal(settings)
	heraldtest.Must(t, err)
	for name, text := range map[string]string{"settings": string(shown), "%v": fmt.Sprintf("%v", c), "%+v": fmt.Sprintf("%+v", *c), "%#v": fmt.Sprintf("%#v", c)} {
		heraldtest.Lacks(t, name, text, "pw1234", keys)
	}
	got := map[string]string{}
	var names []string
	for _, s := range settings {
		got[s.Name] = s.Value + " " + s.Source
		names = append(names, s.Name)
	}
	for name, want := range map[string]string{
		"REDIS_URL": "****** environment", "DATABASE_URL": "****** environment", "HERALD_API_TOKEN": "****** environment", "RPC_URL_8453": "****** environment",
		"VALIDATION_REGISTRY_5": mixedAddress + " environment", "HERALD_LISTEN": "127.0.0.1:1 environment", "HERALD_CONCURRENCY": "32 default",
		"HERALD_QUEUE": " default", "HERALD_NEW_KEY": "****** not read", "HERALD_BINDNIG": "****** not read",
		"IDENTITY_REGISTRY_8453": "0x8004A169FB4a3325136EB29fA0ceB6D2e539a432 default", "IDENTITY_REGISTRY_5": "",
	} {
		heraldtest.Equal(t, name, got[name], want)
	}
	const tail = " IDENTITY_REGISTRY_8453 REPUTATION_REGISTRY_8453 RPC_URL_5 RPC_URL_8453 VALIDATION_REGISTRY_5 VALIDATION_REGISTRY_8453 HERALD_BINDNIG HERALD_NEW_KEY"
	if s := strings.Join(names, " "); !strings.HasPrefix(s, "REDIS_URL DATABASE_URL HERALD_LEADER_DATABASE_URL HERALD_QUEUE ") || !strings.HasSuffix(s, tail) {
		t.Errorf("order: %s", s)
	}
}

func TestDocs(t *testing.T) {
	t.Parallel()
	docs := map[string]Doc{}
	for _, d := range Docs() {
		if _, twice := docs[d.Name]; twice || d.Help == "" {
			t.Errorf("%s is documented twice or not at all", d.Name)
		}
		docs[d.Name] = d
	}
	for _, v := range new(Config).variables() {
		d, ok := docs[v.Name]
		if !ok || d.Default != v.Default || strings.Contains(d.Help, v.Name+"_FILE") != v.Secret {
			t.Errorf("%s: %+v", v.Name, d)
		}
		if v.Default != "" {
			// Load accepts every default.
			if _, err := Load([]string{v.Name + "=" + v.Default}); err != nil {
				t.Errorf("%s: the default is refused: %v", v.Name, err)
			}
		}
	}
	heraldtest.Equal(t, "variables are documented", len(docs),
		len(new(Config).variables())+len(new(Chain).variables("<chainId>")))
}

func FuzzLoad(f *testing.F) {
	for _, v := range new(Config).variables() {
		f.Add(v.Name, v.Default)
	}
	f.Add("RPC_URL_1", "https://h")
	f.Add("HERALD_STDIO_COMMANDS", `[["a"]]`)
	f.Add("HERALD_CONFIRMATIONS", "1=2s,3,10=safe")
	f.Fuzz(func(t *testing.T, name, text string) {
		if strings.HasSuffix(name, "_FILE") {
			return
		}
		c, err := Load([]string{name + "=" + text})
		if err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				heraldtest.Contains(t, name+"="+text, line, ": ")
			}
			return
		}
		_, err = json.Marshal(c.Settings())
		heraldtest.Must(t, err)
	})
}

// TestCommandOnlyForItsAgent: only the agent that a command is tied to may run it. An agent of another registry with
// the same number is another agent.
func TestCommandOnlyForItsAgent(t *testing.T) {
	t.Parallel()
	cfg := load(t, `HERALD_STDIO_COMMANDS=[["8453:42=/bin/a","--x"],["8453:43=/bin/a","--x"],["/bin/b"]]`)
	known, _ := cfg.Registries(8453)
	other := common.HexToAddress("0x0000000000000000000000000000000000000001")
	for _, c := range []struct {
		chain    uint64
		registry common.Address
		agent    string
		argv     []string
		want     bool
	}{
		{8453, known.Identity, "42", []string{"/bin/a", "--x"}, true},
		{8453, known.Identity, "43", []string{"/bin/a", "--x"}, true},
		{8453, known.Identity, "44", []string{"/bin/a", "--x"}, false},
		{8453, known.Identity, "4", []string{"/bin/a", "--x"}, false},
		{1, known.Identity, "42", []string{"/bin/a", "--x"}, false},
		{8453, other, "42", []string{"/bin/a", "--x"}, false},
		{8453, known.Identity, "42", []string{"/bin/a"}, false},
		{8453, known.Identity, "42", []string{"8453:42=/bin/a", "--x"}, false},
		{1, other, "44", []string{"/bin/b"}, true},
	} {
		heraldtest.Equal(t, fmt.Sprintf("%+v", c), cfg.MayRun(c.chain, c.registry, c.agent, c.argv), c.want)
	}
}
