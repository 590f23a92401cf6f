package main

import (
	"strings"
	"testing"

	"github.com/agentherald/herald/internal/testing/heraldtest"
)

const (
	oneID   = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
	nowhere = "postgres://u:hunter2@127.0.0.1:1/d" // a refused command line must not connect to it
)

// TestMisuse checks that invalid combinations of arguments are refused with a sentence, before any connection is
// opened.
func TestMisuse(t *testing.T) {
	t.Parallel()
	env := []string{"DATABASE_URL=" + nowhere, "REDIS_URL=redis://127.0.0.1:1", "HERALD_KEYSET=" + heraldtest.Keyset(t)}
	for name, c := range map[string]struct{ args, says string }{
		"nothing chosen":         {"delivery replay", "name deliveries to replay, or choose some with --agent"},
		"both":                   {"delivery replay --status dead " + oneID, "by id or choose them by options, not both"},
		"yes and no":             {"delivery replay --status dead --yes --dry-run", "contradict each other"},
		"a dry run of one":       {"delivery cancel --dry-run " + oneID, "worker delivery show"},
		"no id":                  {"delivery replay " + oneID + " 0x12345678", `"0x12345678" is not a delivery id, nor the first 8 or more digits of one`},
		"no agent":               {"delivery replay --agent 42", "CHAIN:AGENT"},
		"no time":                {"delivery replay --since yesterday", `--since "yesterday" is neither a time, as in 2026-01-31T12:00:00Z, nor how long ago`},
		"the future":             {"delivery replay --until=-1h", `--until "-1h" is neither`},
		"no days":                {"delivery list --since 7d", `--since "7d" is neither`},
		"nothing between":        {"delivery replay --since 1h --until 2h", "nothing lies between"},
		"no rate":                {"delivery replay --status dead --rate=-1", "0 is as fast as it goes"},
		"rate in words":          {"delivery replay --status dead --rate fast", "--rate"},
		"no status":              {"delivery replay --status lost", `unknown status "lost"; one of queued, running, waiting, held, delivered, skipped, rejected, dead, cancelled`},
		"no kind":                {"delivery replay --kind Feedback", `unknown kind "Feedback"; one of NewFeedback, FeedbackRevoked, ResponseAppended, ValidationResponse`},
		"no reason":              {"delivery replay --reason foo --yes", `unknown reason "foo"; one of no_uri, no_document, `},
		"delivered, no force":    {"delivery replay --status delivered --yes", "with --force they are delivered a second time"},
		"queued":                 {"delivery replay --status queued", "they are on their way"},
		"running":                {"delivery replay --status running --force", "they are on their way"},
		"cancel what ended":      {"delivery cancel --status dead --force", "they have ended already"},
		"cancel what runs":       {"delivery cancel --status running", "only with --force"},
		"no rows of the audit":   {"delivery audit --limit 0", "--limit 0"},
		"no rows of agents":      {"agent list --limit 1001", "--limit 1001"},
		"no rows of a list":      {"delivery list --limit 0", "--limit"},
		"no state":               {"agent list --state asleep", `unknown state "asleep"; one of pending, connected, needs_auth, failed, disabled`},
		"no chain":               {"agent list --chain base", "--chain"},
		"no cursor":              {"agent list --cursor 42", `"42" is not a cursor`},
		"no order":               {"agent list --sort age", `unknown sort "age"; one of failing`},
		"a cursor of another":    {"agent list --sort failing --cursor 8453:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432:42", "is not a cursor"},
		"no counts in a cursor":  {"agent list --sort failing --cursor 1/x:8453:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432:42", "is not a cursor"},
		"and of that one":        {"agent list --cursor 1/2:8453:0x8004A169FB4a3325136EB29fA0ceB6D2e539a432:42", "is not a cursor"},
		"show nobody":            {"agent show", "agent"},
		"an unknown chain":       {"agent show 31337:42", "name it with --registry, or set IDENTITY_REGISTRY_31337"},
		"no registry":            {"agent enable 8453:42 --registry 0x12", "is not an address"},
		"a digit is wrong":       {"agent disable 8453:42 --registry 0x8004a169FB4a3325136EB29fA0ceB6D2e539a432", "right checksum"},
		"no policy":              {"agent policy 8453:42 retries=3", "retries: is unknown: use one of enabled, "},
		"no such policy":         {"agent policy 8453:42 onUnknown=drop", "onUnknown: must be resend or hold"},
		"no value":               {"agent policy 8453:42 onUnknown", "onUnknown: must be resend or hold"},
		"two policies":           {"agent policy 8453:42 onUnknown=hold onUnknown=resend", "onUnknown: is given twice"},
		"a policy's filters":     {`agent policy 8453:42 filters=[{"action":"skip"}]`, "filters can only be replaced with --file"},
		"probe nobody":           {"agent probe", "agent"},
		"probe no kind":          {"agent probe 8453:1 --kind=Feedback", "--kind"},
		"a tool of others":       {"agent probe 8453:1 --tool=transfer", "action.toolName"},
		"a transport alone":      {"agent probe 8453:1 --transport=sse", "--transport is for a URL"},
		"a transport of others":  {"agent probe 8453:1 --url=https://a.example --transport=stdio", "--transport"},
		"no URL":                 {"agent probe 8453:1 --url=a.example", "the URL must be an http or https URL"},
		"a URL with a password":  {"agent probe 8453:1 --url=https://u:hunter2@a.example", "the URL holds a user or password"},
		"too wide":               {"agent probe 8453:" + strings.Repeat("9", 78), "wider than 256 bits"},
		"resolve nothing":        {"agent resolve", "name an agent"},
		"an agent and a URI":     {"agent resolve --uri=ipfs://x 8453:42", "leave the agent out"},
		"a registry and a URI":   {"agent resolve --uri=ipfs://x --registry=0x00000000000000000000000000000000000000aa", "leave the agent out"},
		"a hash alone":           {"agent resolve --hash=0x00 8453:42", "--hash is for --uri"},
		"no hash":                {"agent resolve --uri=data:,x --hash=0x00", "is no hash"},
		"resolve no agent":       {"agent resolve 42", "CHAIN:AGENT"},
		"resolve, no registry":   {"agent resolve 31337:1", "IDENTITY_REGISTRY_31337"},
		"resolve, no node":       {"agent resolve 8453:42", "RPC_URL_8453"},
		"a wrong registry":       {"agent resolve --registry=0x12 8453:42", "--registry"},
		"check nothing":          {"agent check", "<target>"},
		"check no agent":         {"agent check 8453", "is not CHAIN:AGENT"},
		"check no http":          {"agent check ftp://a.example", "must be an http or https URL"},
		"check with a password":  {"agent check https://u:hunter2@a.example", "holds a user or password"},
		"check, transport alone": {"agent check 8453:42 --transport=sse", "--transport is for a URL"},
		"check as nobody":        {"agent check https://a.example --as=x", "is not CHAIN:AGENT"},
		"check, no node":         {"agent check 8453:42", "RPC_URL_8453"},
		"check, no transport":    {"agent check https://a.example --transport=xyzz", "--transport"},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := worker(t, env, strings.Fields(c.args)...)
			if code != exitMisuse || out != "" && !strings.Contains(out, "Usage: ") || !strings.Contains(errs, c.says) || strings.Contains(out+errs, "hunter2") {
				t.Errorf("worker %s: exit code %d\n%s%s", c.args, code, out, errs)
			}
		})
	}
}

func TestActor(t *testing.T) {
	t.Parallel()
	if got := (actorFlag{}).actorName(); len(got) < 3 || !strings.Contains(got[1:len(got)-1], "@") {
		t.Errorf("%q", got)
	}
	heraldtest.Equal(t, "the actor", (actorFlag{Actor: "on call"}).actorName(), "on call")
}
