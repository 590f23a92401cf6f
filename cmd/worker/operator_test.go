package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/admission/effort"
	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/operator"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/queue/dispatch"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
)

// desk is an operator's environment: it runs commands, and gives tests access to the rows and lanes that commands
// change.
type desk struct {
	t     testing.TB
	env   []string
	store *store.Store
	queue *queue.Queue
	index uint64
	watch func(errs string) // receives the output to stderr while it is written; nil: not called
}

func newDesk(t testing.TB) *desk {
	t.Helper()
	d := prepareDesk(t, heraldtest.Postgres(t, postgres.Migrate))
	d.connect()
	return d
}

// prepareDesk returns a desk whose commands open the database themselves, as long as the desk has not connected.
func prepareDesk(t testing.TB, databaseURL string) *desk {
	t.Helper()
	return &desk{t: t, env: []string{"DATABASE_URL=" + databaseURL, "REDIS_URL=" + heraldtest.Redis(t), "HERALD_KEYSET=" + heraldtest.Keyset(t),
		"HERALD_LOG_LEVEL=error", "HERALD_LISTEN=127.0.0.1:0", "IPFS_GATEWAYS=" + answeringGateway(t)}}
}

// connect opens the store and the queue.
func (d *desk) connect() {
	d.t.Helper()
	var err error
	d.store = storetest.Open(d.t, d.setting("DATABASE_URL"), 0)
	d.queue, err = queue.Open(queue.Config{URL: secret.New(d.setting("REDIS_URL"))})
	heraldtest.Must(d.t, err)
	d.t.Cleanup(func() { _ = d.queue.Close() })
}

// setting returns the value of a setting. d.env has its first value first.
func (d *desk) setting(name string) string {
	d.t.Helper()
	i := slices.IndexFunc(d.env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	return strings.TrimPrefix(d.env[i], name+"=")
}

// keys returns the keyset of the desk.
func (d *desk) keys() *secret.Keyset {
	d.t.Helper()
	return parseKeyset(d.t, d.setting("HERALD_KEYSET"))
}

func parseKeyset(t testing.TB, keyset string) *secret.Keyset {
	t.Helper()
	k, err := secret.Parse(secret.New(keyset))
	heraldtest.Must(t, err)
	return k
}

// kept is the backend of a desk's commands: the store and the queue that the desk has open, if the settings are the
// desk's. TestConnectionFails and others open their own.
type kept struct {
	attached
	d *desk
}

func (k kept) OpenStore(ctx context.Context, o operator.StoreOptions) (*operator.Session, error) {
	if k.d.store == nil || k.cfg.DatabaseURL.Reveal() != k.d.setting("DATABASE_URL") || k.cfg.RedisURL.Reveal() != k.d.setting("REDIS_URL") {
		return k.attached.OpenStore(ctx, o)
	}
	s := &operator.Session{Ledger: k.d.store, Records: records.New(k.d.store), Close: func() {}}
	s.Effort = func(ctx context.Context, agent erc8004.Agent) (*effort.Usage, error) {
		return k.readEffort(ctx, k.cfg.RedisURL, agent)
	}
	if !o.Queue {
		return s, nil
	}
	dispatcher, err := dispatch.New(k.d.queue, k.log)
	s.Dispatcher, s.Spool = dispatcher, k.d.queue.Renewals()
	return s, err
}

// worker runs a command line without input and checks the exit code.
func (d *desk) worker(code int, args ...string) (out, errs string) {
	d.t.Helper()
	return d.give(code, "", "", args...)
}

// out runs a command that succeeds, and returns its output.
func (d *desk) out(args ...string) string {
	d.t.Helper()
	out, _ := d.worker(0, args...)
	return out
}

// ask runs a command with --json, and returns its answer.
func ask[T any](d *desk, args ...string) T {
	d.t.Helper()
	return decode[T](d.t, d.out(slices.Concat(args, []string{"--json"})...))
}

// says is answers for a command without input.
func (d *desk) says(code int, want string, args ...string) {
	d.t.Helper()
	d.answers(code, want, "", "", args...)
}

func decode[T any](t testing.TB, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

func registryOf(t testing.TB, chain uint64) common.Address {
	t.Helper()
	known, ok := erc8004.KnownDeployment(chain)
	if !ok {
		t.Fatalf("chain %d has no known registries", chain)
	}
	return known.Identity
}

// accept accepts one feedback for an agent of chain 8453 and claims it.
func (d *desk) accept(agent int64, registry common.Address) (uuid.UUID, *ledger.Claim) {
	d.t.Helper()
	d.index++
	return d.acceptJob(job.Job{Kind: job.KindNewFeedback, ChainID: 8453, IdentityRegistry: registry, AgentID: big.NewInt(agent), FeedbackIndex: d.index, Value: big.NewInt(1),
		ClientAddress: common.BigToAddress(new(big.Int).SetUint64(d.index))}) // each from a different client, so that no ordering key connects them
}

// acceptJob accepts a job and claims its delivery.
func (d *desk) acceptJob(j job.Job) (uuid.UUID, *ledger.Claim) {
	d.t.Helper()
	got, tasks, err := d.store.Accept(d.t.Context(), []ledger.Intake{{Job: j}})
	if err != nil || len(tasks) != 1 {
		d.t.Fatalf("%v, %d tasks", err, len(tasks))
	}
	c, err := d.store.Claim(d.t.Context(), tasks[0].ID, tasks[0].N, time.Minute)
	if err != nil || c == nil {
		d.t.Fatalf("%+v, %v", c, err)
	}
	return got[0].ID, c
}

// ended accepts one feedback and records an outcome for it.
func (d *desk) ended(agent int64, o ledger.Outcome) uuid.UUID {
	d.t.Helper()
	id, c := d.accept(agent, registryOf(d.t, 8453))
	d.record(c, o)
	return id
}

// end accepts a job and records an outcome for its delivery.
func (d *desk) end(j job.Job, o ledger.Outcome) uuid.UUID {
	d.t.Helper()
	id, c := d.acceptJob(j)
	d.record(c, o)
	return id
}

func (d *desk) record(c *ledger.Claim, o ledger.Outcome) {
	d.t.Helper()
	o.Stage = "call"
	_, err := d.store.Record(d.t.Context(), c, o)
	heraldtest.Must(d.t, err)
}

func (d *desk) status(id uuid.UUID) string {
	d.t.Helper()
	row, err := d.store.Delivery(d.t.Context(), id)
	heraldtest.Must(d.t, err)
	return strings.TrimSpace(string(row.Status) + " " + string(row.Reason))
}

func (d *desk) pending(lane queue.Lane) int {
	d.t.Helper()
	lanes, err := d.queue.Lanes(d.t.Context())
	heraldtest.Must(d.t, err)
	return lanes[lane]["pending"]
}

func (d *desk) audits() []records.Audit {
	d.t.Helper()
	return ask[operator.AuditPage](d, "delivery", "audit").Audit
}

var (
	dead      = ledger.Outcome{Status: outcome.Dead, Reason: "timeout", Called: true, AgentError: "\x1b[2Jno answer \u202e"}
	delivered = ledger.Outcome{Status: outcome.Delivered, Called: true, AgentOK: true, Endpoint: "https://a.example/\u202e"}
)

func TestReplayByFilter(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	var ids []uuid.UUID
	for range 10 {
		ids = append(ids, d.ended(42, dead))
	}
	other, good := d.ended(7, dead), d.ended(42, delivered)
	line := []string{"delivery", "replay", "--agent", "8453:42", "--since", "1h"}

	d.says(0, "10 dead not moved: 1 delivered (with --force they are delivered a second time) 10 would be queued anew, 50 a second, in about 0s. Nothing was changed: the same command with --yes does it.", line...)
	d.says(0, "no delivery matches that could be moved", "delivery", "replay", "--agent", "8453:42", "--until", "1h")
	d.says(0, "no delivery matches that could be moved", "delivery", "replay", "--kind", "FeedbackRevoked")
	for _, move := range []string{"replay", "cancel"} { // as of a script that forgot to set a variable
		d.says(exitMisuse, "--agent is empty", "delivery", move, "--agent", "", "--status", "dead", "--yes")
	}
	if s := d.status(ids[0]); s != "dead timeout" || len(d.audits()) != 0 {
		t.Errorf("a dry run changed something: %s", s)
	}

	r := ask[operator.MoveReport](d, append(line, "--yes", "--actor", "on call\x1b[2J")...)
	if r.Matched != 10 || r.Moved != 10 || r.State != "done" || r.Action != "replay" || len(r.Left) != 0 {
		t.Errorf("%+v", r)
	}
	for _, id := range ids {
		heraldtest.Equal(t, "d.status(id)", d.status(id), "queued")
	}
	heraldtest.Equal(t, "d.status(other)", d.status(other), "dead timeout")
	heraldtest.Equal(t, "d.status(good)", d.status(good), "delivered")
	// Up to MaxDispatchedPerAgent deliveries are dispatched to the lane bulk, after new feedback. The rest waits in
	// Postgres.
	if n := d.pending(queue.Bulk); n != ledger.MaxDispatchedPerAgent || d.pending(queue.First) != 0 || d.pending(queue.Retry) != 0 {
		t.Errorf("%d tasks in lane bulk", n)
	}
	a := d.audits()
	if len(a) != 1 || a[0].ID != r.Audit || a[0].Action != "replay" || !strings.HasPrefix(a[0].Actor, "on call") || a[0].Matched != 10 || a[0].Moved != 10 ||
		a[0].State != "done" || a[0].FinishedAt == nil || !strings.Contains(string(a[0].Filter), `"8453:42"`) || !strings.Contains(string(a[0].Filter), `"since": "20`) {
		t.Errorf("%+v %s", a, a[0].Filter)
	}
	d.says(0, "on call·[2J replay done 10 10", "delivery", "audit")
	d.says(0, "no delivery matches", append(line, "--yes")...)

	// A filter replays delivered rows only with both --status delivered and --force.
	d.says(0, "1 of 1 queued anew", "delivery", "replay", "--agent", "8453:42", "--status", "delivered", "--force", "--yes")
	heraldtest.Equal(t, "d.status(good)", d.status(good), "queued")
}

func TestReplayByID(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id, good, unknown := d.ended(42, dead), d.ended(42, delivered), uuid.New()
	out, errs := d.worker(exitLeft, "delivery", "replay", id.String(), good.String(), unknown.String(), id.String())
	heraldtest.Contains(t, "the output", out, "left "+good.String()+"  it is delivered: replaying it calls the agent again and needs force\n",
		"left "+unknown.String()+"  there is no such delivery\n", "1 of 3 queued anew (audit 1)\n")
	if !strings.Contains(errs, "1 of 3 changed. Reasons are listed above.") || d.status(id) != "queued" || d.status(good) != "delivered" || d.pending(queue.Bulk) != 1 {
		t.Errorf("%s", errs)
	}
	out, _ = d.worker(exitLeft, "delivery", "replay", "--json", id.String())
	if r := decode[operator.MoveReport](t, out); r.Matched != 1 || r.Moved != 0 || len(r.Left) != 1 || r.Left[0].ID != id || !strings.Contains(r.Left[0].Why, "it is queued") {
		t.Errorf("%s", out)
	}
	d.says(0, "1 of 1 queued anew (audit 3)", "delivery", "replay", "--force", good.String())
	if a := d.audits(); len(a) != 3 || a[2].Matched != 3 || a[2].Moved != 1 || !strings.Contains(string(a[2].Filter), unknown.String()) || !strings.Contains(a[0].Actor, "@") {
		t.Errorf("%+v", a)
	}
}

// TestReplayWithoutRedis checks that replayed rows wait for the worker's reconciler if the command cannot reach Redis.
func TestReplayWithoutRedis(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := d.ended(42, dead)
	env := append(slices.DeleteFunc(slices.Clone(d.env), func(s string) bool { return strings.HasPrefix(s, "REDIS_URL=") }), "HERALD_QUEUE=embedded")
	checkWorker(t, env, 0, "1 of 1 queued anew", "delivery", "replay", id.String())
	heraldtest.Equal(t, "d.status(id)", d.status(id), "queued")
	// An unavailable Redis does not prevent a replay either.
	id = d.ended(7, dead)
	away := append(d.env, "REDIS_URL=redis://127.0.0.1:1")
	checkWorker(t, away, 0, "1 of 1 queued anew", "delivery", "replay", id.String())
	heraldtest.Equal(t, "d.status(id)", d.status(id), "queued")
	heraldtest.Equal(t, "tasks", d.pending(queue.Bulk), 0)
}

func TestCancel(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	gone := d.ended(42, dead)
	wait := d.ended(42, ledger.Outcome{Status: outcome.Waiting, Reason: "timeout", Delay: time.Hour, Called: true})
	held := d.ended(42, ledger.Outcome{Status: outcome.Held, Reason: "auth_required", Free: true})
	runs, claim := d.accept(42, registryOf(t, 8453))
	d.says(0, "1 held 1 waiting not moved: 1 dead (they have ended already) not moved: 1 running (only with --force: the call cannot be taken back) "+
		"2 would be cancelled. Nothing was changed", "delivery", "cancel", "--agent", "8453:42")
	d.says(0, "2 of 2 cancelled", "delivery", "cancel", "--agent", "8453:42", "--yes")
	if d.status(wait) != "cancelled operator" || d.status(held) != "cancelled operator" || d.status(gone) != "dead timeout" || d.status(runs) != "running" {
		t.Errorf("%s, %s, %s, %s", d.status(wait), d.status(held), d.status(gone), d.status(runs))
	}
	out, _ := d.worker(exitLeft, "delivery", "cancel", runs.String(), gone.String())
	heraldtest.Contains(t, "the output", out, "cancelling it needs force", "it has ended: it is dead")
	d.says(0, "1 of 1 cancelled", "delivery", "cancel", "--force", runs.String())
	if _, err := d.store.Record(t.Context(), claim, dead); err == nil || d.status(runs) != "cancelled operator" {
		t.Errorf("%v, %s", err, d.status(runs))
	}
	if a := d.audits(); len(a) != 3 || a[0].Action != "cancel" || a[0].Moved != 1 || a[1].Moved != 0 || a[1].State != "done" {
		t.Errorf("%+v", a)
	}
}

func TestAgents(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	heraldtest.Equal(t, "no agents", d.out("agent", "list", "--json"), "{\n  \"agents\": []\n}\n")
	d.ended(42, delivered)
	d.ended(7, dead)
	elsewhere := common.HexToAddress("0x00000000000000000000000000000000000000aa")
	d.accept(9, elsewhere)
	registry := strings.ToLower(registryOf(t, 8453).Hex())

	d.says(0, "8453:42 connected 0 0 0 0 20", "agent", "list")
	d.says(0, "8453:7 failed 0 0 0 0 -", "agent", "list", "--state", "failed")
	heraldtest.Lacks(t, "chain 1", d.out("agent", "list", "--chain", "1"), "8453")
	for _, want := range []string{"agent 8453:42 registry " + registry + " state connected endpoint https://a.example/·", "open 0 queued, 0 running, 0 waiting, 0 held", `"delivered": 1`} {
		d.says(0, want, "agent", "show", "8453:42")
	}
	d.says(0, "no answer ·", "agent", "show", "8453:7")
	if a := ask[records.AgentRow](d, "agent", "show", "8453:42"); a.AgentID != "42" || !a.Enabled || a.IdentityRegistry != registry {
		t.Errorf("%+v", a)
	}
	d.says(1, "agent 8453:1 of registry "+registry+" not found: no delivery was ever accepted for it", "agent", "show", "8453:1")
	d.says(1, "say --registry "+strings.ToLower(elsewhere.Hex()), "agent", "show", "8453:9")
	d.says(0, "agent 8453:9", "agent", "show", "8453:9", "--registry", elsewhere.Hex())

	// Deliveries are held while the agent is disabled.
	d.says(0, "is disabled: its deliveries are held", "agent", "disable", "8453:42")
	held, c := d.accept(42, registryOf(t, 8453))
	heraldtest.Equal(t, "the claim's agent is enabled", c.Enabled, false)
	_, err := d.store.Record(t.Context(), c,
		ledger.Outcome{Status: outcome.Held, Reason: "agent_disabled", Stage: "check", Free: true})
	heraldtest.Must(t, err)
	d.says(0, "8453:42 disabled 0 0 0 1", "agent", "list", "--state", "disabled")
	d.says(0, "open 0 queued, 0 running, 0 waiting, 1 held", "agent", "show", "8453:42")
	before := d.pending(queue.First) + d.pending(queue.Retry)
	outside := d.env
	d.lists(`{"8453:42":{"enabled":false}}`)
	d.says(1, "is disabled by the servers file (enabled: false), which wins: nothing was changed or released", "agent", "enable", "8453:42")
	if d.status(held) != "held agent_disabled" || d.pending(queue.First)+d.pending(queue.Retry) != before || d.agent("42").Enabled {
		t.Errorf("%s, %+v", d.status(held), d.agent("42"))
	}
	d.lists(`{"8453:42":{"enabled":true},"8453:43":{"enabled":false}}`)
	r := ask[operator.AgentChange](d, "agent", "enable", "8453:42", "--actor", "on call")
	d.env = outside
	if r.Released != 1 || r.Enabled == nil || !*r.Enabled || r.Agent != "8453:42" || r.Registry != registry {
		t.Errorf("%+v", r)
	}
	if d.status(held) != "queued" || d.pending(queue.First)+d.pending(queue.Retry) != before+1 {
		t.Errorf("%s, %d tasks before, %d and %d now", d.status(held), before, d.pending(queue.First), d.pending(queue.Retry))
	}

	var trail []string
	for _, a := range d.audits() {
		trail = append(trail, fmt.Sprintf("%s %s %d/%d", a.Action, a.State, a.Moved, a.Matched))
		if a.Actor == "" || !strings.Contains(string(a.Filter), `"8453:42"`) {
			t.Errorf("%+v %s", a, a.Filter)
		}
	}
	heraldtest.Equal(t, "the audit", strings.Join(trail, ", "), "agent enable done 1/1, agent disable done 0/1")
}

// TestShowRefusedJob checks that the command shows the bytes of a refused job from Redis without its secrets.
func TestShowRefusedJob(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	keys, err := secret.Create()
	heraldtest.Must(t, err)
	in, err := intake.New(intake.Config{Ledger: d.store, Sealer: keys, Logger: slog.New(slog.DiscardHandler)})
	heraldtest.Must(t, err)
	body := `{"type":"NewFeedback","chainID":8453,"action":{"endpoint":{"headers":{"X-Api-Key":"hunter2hunter2"}}}`
	if note, err := in.FromTask(t.Context(), "NewFeedback", []byte(body)); err != nil || !strings.HasPrefix(note, "rejected invalid_job") {
		t.Fatal(note, err)
	}
	sum := sha256.Sum256([]byte(body))
	key := "invalid:" + hex.EncodeToString(sum[:])
	d.says(0, `with values masked that may be secret: {"type":"NewFeedback","chainID":******,"action":{"endpoint":{"headers":{"X-Api-Key":"******"}}}`, "delivery", "show", key)
	if out, errs := d.worker(0, "delivery", "show", "--json", key); strings.Contains(out+errs, "hunter2") || !strings.Contains(out, `"received"`) {
		t.Errorf("%s%s", out, errs)
	}
}

// What could not be moved is listed as it is found, with the reason, cleaned.
func TestMoveListsFailures(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	odd := operator.LeftDelivery{ID: uuid.New(), Why: "its job is gone\x1b[2J"}
	err := moveFlags{}.runMove(&command{ctx: t.Context(), out: &b, err: io.Discard}, func(_ context.Context, r operator.MoveRequest) (*operator.MoveReport, error) {
		r.Progress(operator.MoveProgress{Done: 4, Total: 4, Left: 1, LeftNow: []operator.LeftDelivery{odd}})
		return &operator.MoveReport{Audit: 1, Matched: 4, Moved: 3, Done: "queued anew"}, nil
	}, false, 50)
	if want := fmt.Sprintf("left %s  its job is gone·[2J\n3 of 4 queued anew (audit 1)\n", odd.ID); err != nil || b.String() != want {
		t.Errorf("%v, %q", err, b.String())
	}
}
