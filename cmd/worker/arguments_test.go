package main

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/store"
)

const (
	oneID   = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
	nowhere = "postgres://u:hunter2@127.0.0.1:1/d" // a command line that is refused must not get as far as asking it
)

// What cannot be meant is refused with a sentence, before anything is connected to.
func TestMisuse(t *testing.T) {
	for name, c := range map[string]struct{ args, says string }{
		"nothing chosen":          {"delivery replay", "name deliveries to replay, or choose some with --agent"},
		"nothing to cancel":       {"delivery cancel --yes", "name deliveries to cancel, or choose some with --agent"},
		"both":                    {"delivery replay --status dead " + oneID, "by id or choose them by options, not both"},
		"yes and no":              {"delivery replay --status dead --yes --dry-run", "contradict each other"},
		"a dry run of one":        {"delivery cancel --dry-run " + oneID, "worker delivery show"},
		"no id":                   {"delivery replay 42", `"42" is not a delivery id`},
		"no agent":                {"delivery replay --agent 42", "CHAIN:AGENT"},
		"no time":                 {"delivery replay --since yesterday", `--since "yesterday" is neither a time, as in 2026-01-31T12:00:00Z, nor how long ago`},
		"the future":              {"delivery replay --until=-1h", `--until "-1h" is neither`},
		"no days":                 {"delivery list --since 7d", `--since "7d" is neither`},
		"nothing between":         {"delivery replay --since 1h --until 2h", "nothing lies between"},
		"nothing between, a list": {"delivery list --since 2026-01-02T00:00:00Z --until 2026-01-02T00:00:00Z", "nothing lies between"},
		"no rate":                 {"delivery replay --status dead --rate=-1", "0 is as fast as it goes"},
		"rate in words":           {"delivery replay --status dead --rate fast", "--rate"},
		"no status":               {"delivery replay --status lost", `unknown status "lost"; one of queued, running, waiting, held, delivered, skipped, rejected, dead, cancelled`},
		"no kind":                 {"delivery replay --kind Feedback", `unknown kind "Feedback"; one of NewFeedback, FeedbackRevoked, ResponseAppended, ValidationResponse`},
		"no reason":               {"delivery replay --reason foo --yes", `unknown reason "foo"; one of no_uri, no_document, `},
		"no reason, a list":       {"delivery list --reason timeouts", `unknown reason "timeouts"; one of `},
		"no reason, cancel":       {"delivery cancel --reason Timeout", `unknown reason "Timeout"; one of `},
		"delivered, no force":     {"delivery replay --status delivered --yes", "with --force they are delivered a second time"},
		"queued":                  {"delivery replay --status queued", "they are on their way"},
		"running":                 {"delivery replay --status running --force", "they are on their way"},
		"cancel what ended":       {"delivery cancel --status dead --force", "they have ended already"},
		"cancel what runs":        {"delivery cancel --status running", "only with --force"},
		"no rows of the audit":    {"delivery audit --limit 0", "--limit 0"},
		"no rows of agents":       {"agent list --limit 1001", "--limit 1001"},
		"no state":                {"agent list --state asleep", `unknown state "asleep"; one of pending, connected, needs_auth, failed, disabled`},
		"no chain":                {"agent list --chain base", "--chain"},
		"no cursor":               {"agent list --cursor 42", `"42" is not a cursor`},
		"show nobody":             {"agent show", "agent"},
		"show no agent":           {"agent show 42", "CHAIN:AGENT"},
		"an unknown chain":        {"agent show 31337:42", "name it with --registry, or set IDENTITY_REGISTRY_31337"},
		"no registry":             {"agent enable 8453:42 --registry 0x12", "is not an address"},
		"a digit is wrong":        {"agent disable 8453:42 --registry 0x8004a169FB4a3325136EB29fA0ceB6D2e539a432", "right checksum"},
		"no policy":               {"agent policy 8453:42 retries=3", `unknown policy "retries=3": use one of onUnknown=resend, onUnknown=hold`},
		"no such policy":          {"agent policy 8453:42 onUnknown=drop", `unknown value "drop" of onUnknown: use one of `},
		"no value":                {"agent policy 8453:42 onUnknown", `unknown value "" of onUnknown: use one of `},
		"two policies":            {"agent policy 8453:42 onUnknown=hold onUnknown=resend", "set twice"},
	} {
		t.Run(name, func(t *testing.T) {
			_, key, _ := worker(t, nil, "keys", "init", "--cleartext")
			code, out, errs := worker(t, []string{"DATABASE_URL=" + nowhere, "REDIS_URL=redis://127.0.0.1:1", "HERALD_KEYSET=" + strings.TrimSpace(key)}, strings.Fields(c.args)...)
			if code != exitMisuse || out != "" && !strings.Contains(out, "Usage: ") || !strings.Contains(errs, c.says) {
				t.Errorf("worker %s: exit code %d\n%s%s", c.args, code, out, errs)
			}
		})
	}
}

func TestFilter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	chain := uint64(8453)
	for _, c := range []struct {
		in   selection
		want store.Filter
	}{
		{selection{}, store.Filter{}},
		{selection{Agent: "8453:42"}, store.Filter{ChainID: &chain, AgentID: "42"}},
		{selection{Status: "dead", Reason: "timeout", Kind: "NewFeedback"}, store.Filter{Status: store.Dead, Reason: "timeout", Kind: "NewFeedback"}},
		{selection{Since: "24h", Until: "90m"}, store.Filter{Since: now.Add(-24 * time.Hour), Until: now.Add(-90 * time.Minute)}},
		{selection{Since: "2026-01-31T12:00:00Z"}, store.Filter{Since: time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)}},
	} {
		got, err := c.in.filter(now)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%+v: %+v, %v", c.in, got, err)
		}
		if c.in.narrows() != (c.in != selection{}) {
			t.Errorf("%+v", c.in)
		}
	}
	// The audit keeps times, not how long ago they were.
	f, err := selection{Agent: "8453:42", Status: "dead", Since: "1h"}.filter(now)
	if got := string(asJSON(recorded(f))); err != nil || got != `{"agent":"8453:42","since":"2026-03-04T04:06:07Z","status":"dead"}` {
		t.Errorf("%s, %v", got, err)
	}
}

// A filter without --status takes what somebody may want delivered, and never what was.
func TestWhatAFilterTakes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args string
		want []store.Status
	}{
		{"delivery replay --agent 1:1", []store.Status{store.Dead, store.Rejected, store.Skipped, store.Held, store.Waiting}},
		{"delivery replay --agent 1:1 --force", []store.Status{store.Dead, store.Rejected, store.Skipped, store.Held, store.Waiting}},
		{"delivery replay --reason operator", []store.Status{store.Dead, store.Rejected, store.Skipped, store.Held, store.Waiting, store.Cancelled}},
		{"delivery replay --status cancelled", []store.Status{store.Cancelled}},
		{"delivery replay --status delivered --force", []store.Status{store.Delivered}},
		{"delivery cancel --agent 1:1", []store.Status{store.Queued, store.Waiting, store.Held}},
		{"delivery cancel --agent 1:1 --force", []store.Status{store.Queued, store.Waiting, store.Held, store.Running}},
		{"delivery cancel --status running --force", []store.Status{store.Running}},
	} {
		cmds := parse(t, strings.Fields(c.args)...)
		v, flags := cmds.Delivery.Replay.verb(), cmds.Delivery.Replay.moveFlags
		if strings.HasPrefix(c.args, "delivery cancel") {
			v, flags = cmds.Delivery.Cancel.verb(), cmds.Delivery.Cancel.moveFlags
		}
		_, f, err := flags.check(v, 0)
		if got := v.statuses(f); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, %v", c.args, got, err)
		}
	}
}

func TestForceIsNotForWhatChanges(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]bool{"--status dead --force": false, "--agent 1:1 --force": false, "--status delivered --force": true, oneID + " --force": true, oneID: false} {
		c := parse(t, append([]string{"delivery", "replay"}, strings.Fields(args)...)...).Delivery.Replay
		ids, f, err := c.check(c.verb(), c.Rate)
		if got := c.forces(ids, f); err != nil || got != want {
			t.Errorf("%s: %t, %v", args, got, err)
		}
	}
}

func TestPace(t *testing.T) {
	t.Parallel()
	for rate, want := range map[int]struct {
		size  int
		every time.Duration
	}{0: {maxBatch, 0}, 1: {1, time.Second}, 4: {1, 250 * time.Millisecond}, 50: {10, 200 * time.Millisecond}, 2500: {500, 200 * time.Millisecond}, 10000: {500, 50 * time.Millisecond}} {
		if size, every := pace(rate); size != want.size || every != want.every {
			t.Errorf("%d a second: %d each %s", rate, size, every)
		}
	}
}

func TestPolicy(t *testing.T) {
	t.Parallel()
	for setting, want := range map[string]string{"onUnknown=hold": "hold", "onUnknown=resend": "resend"} {
		if p, err := parsePolicy([]string{setting, setting}); err != nil || onUnknown(p) != want {
			t.Errorf("%s: %+v, %v", setting, p, err)
		}
	}
	if p, err := parsePolicy(nil); err != nil || p.OnUnknown != "" || onUnknown(p) != "resend" {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestActor(t *testing.T) {
	t.Parallel()
	if got := (actorFlag{}).actor(); len(got) < 3 || !strings.Contains(got[1:len(got)-1], "@") {
		t.Errorf("%q", got)
	}
	if got := (actorFlag{Actor: "on call"}).actor(); got != "on call" {
		t.Errorf("%q", got)
	}
}
