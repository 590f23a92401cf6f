package delivery

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/base/secret"
	"github.com/agentherald/herald/internal/delivery/event"
	"github.com/agentherald/herald/internal/delivery/maintenance"
	"github.com/agentherald/herald/internal/door/intake"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/queue"
	"github.com/agentherald/herald/internal/queue/dispatch"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/devnet"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
)

// TestForeignTasks: complete jobs in Redis are intakes. No producer waits for an answer, so an invalid job becomes a
// rejected row.
func TestForeignTasks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.newWorker()
	a := newAgent(t)
	j, _ := w.rate(devnet.Feedback{AgentID: w.register(at(a.URL)), Tag1: "x"})
	take := func(kind string, body []byte, want string) {
		t.Helper()
		if note, err := k.runner.Intake(t.Context(), kind, body); err != nil || !strings.HasPrefix(note, want) {
			t.Errorf("%.40q: %q, %v; want %q", body, note, err, want)
		}
	}
	take("NewFeedback", asJSON(j), "accepted as delivery ")
	id := w.submit(j)[0].ID
	take("NewFeedback", asJSON(j), "known as delivery "+id.String())
	take("NewFeedback", asJSON(repositioned(j, map[string]any{"tag1": "y"})), "known as delivery "+id.String()) // only the chain decides

	// The row of an invalid job does not have the event's key.
	other, _ := w.rate(devnet.Feedback{AgentID: w.register(at(a.URL))})
	take("NewFeedback", asJSON(with(other, map[string]any{"toolName": "rm"})), "rejected invalid_job: action.toolName")
	// No part of the job is valid.
	for _, body := range []string{"", "hello", `{"type":"NewFeedback"}`, "{\"a\":\"\x00\"}", strings.Repeat("x", job.MaxBytes+1)} {
		take("NewFeedback", []byte(body), "rejected invalid_job: ")
	}
	list, err := records.New(w.store).Deliveries(t.Context(), records.Filter{Statuses: []outcome.Status{outcome.Rejected}, Reason: "invalid_job"})
	if err != nil || len(list) != 6 {
		t.Fatalf("%d rejected rows, %v", len(list), err)
	}
	for _, d := range list {
		if d.Error == "" || !strings.HasPrefix(d.Key, "invalid:") {
			t.Errorf("%s: %q", d.Key, d.Error)
		}
	}
	take("AgentUpdated", asJSON(map[string]any{"type": "AgentUpdated", "chainId": j["chainId"], "agentId": j["agentId"]}),
		"refreshed: the agent's endpoint is looked up again")
}

// TestRedisIntake: a producer that may write to Redis is not the operator. With the default setting, only the chain
// determines an event's endpoint and the content that the agent reads.
func TestRedisIntake(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	endpoint := map[string]any{"resolveEndpoint": false, "endpoint": map[string]any{"transport": "http", "url": "https://evil.example/mcp"}}
	template := map[string]any{"score": 0, "tag1": "scam"}
	native := func() map[string]any {
		j, _ := w.rate(devnet.Feedback{AgentID: w.register(nil)})
		return j
	}
	old := func(j map[string]any, config map[string]any) map[string]any {
		return map[string]any{"id": "1", "trigger_id": "2", "action_type": "mcp", "config": config, "event_data": map[string]any{
			"event_type": "NewFeedback", "chain_id": j["chainId"], "agent_id": j["agentId"], "client_address": j["clientAddress"],
			"feedback_index": j["feedbackIndex"], "score": 95}}
	}
	newIntake := func(r intake.RedisPolicy) *intake.Intake {
		return must(intake.New(intake.Config{Ledger: w.store, Sealer: w.keys, Limits: w.limits(), Redis: r, Logger: w.logger()}))
	}
	for name, c := range map[string]struct {
		redis intake.RedisPolicy
		job   map[string]any
		taken bool
	}{
		"default, plain":        {"", native(), true},
		"default, endpoint":     {"", with(native(), endpoint), false},
		"default, server_url":   {"", old(native(), map[string]any{"server_url": "https://evil.example/mcp"}), false},
		"default, old endpoint": {"", old(native(), map[string]any{"endpoint": map[string]any{"type": "stdio", "command": "sh"}}), false},
		"default, old resolved": {"", old(native(), map[string]any{"resolve_endpoint": true, "endpoint": "https://a.example/mcp"}), true},
		"jobs, endpoint":        {intake.RedisJobs, with(native(), endpoint), false},
		"default, template":     {"", with(native(), map[string]any{"payloadTemplate": template}), false},
		"default, old template": {"", old(native(), map[string]any{"resolve_endpoint": true, "payload_template": template}), false},
		"default, arguments":    {"", old(native(), map[string]any{"arguments_template": template}), false},
		"default, other tool":   {"", with(native(), map[string]any{"toolName": "agent.receiveBatch"}), false},
		"default, alias":        {"", with(native(), map[string]any{"toolName": "agent_receiveFeedback"}), true},
		"default, unverified":   {"", with(native(), map[string]any{"verifyFileHash": false}), false},
		"on, unverified":        {intake.RedisOn, with(native(), map[string]any{"verifyFileHash": false}), true},
		"on, template":          {intake.RedisOn, with(native(), map[string]any{"payloadTemplate": template}), true},
		"on, arguments":         {intake.RedisOn, old(native(), map[string]any{"arguments_template": template}), true},
		"on, endpoint":          {intake.RedisOn, with(native(), endpoint), true},
		"on, server_url":        {intake.RedisOn, old(native(), map[string]any{"server_url": "https://a.example/mcp"}), true},
	} {
		note, err := newIntake(c.redis).FromTask(t.Context(), "NewFeedback", asJSON(c.job))
		field := "action.endpoint"
		for word, of := range map[string]string{"template": "payloadTemplate", "arguments": "payloadTemplate",
			"tool": "toolName", "unverified": "verifyFileHash"} {
			if strings.Contains(name, word) {
				field = "action." + of
			}
		}
		refused := strings.HasPrefix(note, "rejected invalid_job: "+field+": is not accepted from a job in Redis") &&
			strings.Contains(note, "HERALD_REDIS_INTAKE")
		if err != nil || strings.HasPrefix(note, "accepted ") != c.taken || refused == c.taken {
			t.Errorf("%s: %q, %v", name, note, err)
		}
	}

	// A producer can enqueue the event of a refused job with a valid job.
	j := native()
	must(w.intake.FromTask(t.Context(), "NewFeedback", asJSON(with(j, endpoint))))
	w.accept(j)

	// Off: the task is archived unchanged, and nothing is stored.
	before := w.count(records.Filter{})
	note, err := newIntake(intake.RedisOff).FromTask(t.Context(), "NewFeedback", asJSON(native()))
	if archived, ok := errors.AsType[*queue.ArchivedError](err); !ok || !strings.Contains(archived.Text, "HERALD_REDIS_INTAKE=off") {
		t.Errorf("%q, %v", note, err)
	}
	heraldtest.Equal(t, "deliveries", w.count(records.Filter{}), before)
}

// away is a Redis that is down.
type away struct {
	dispatch.Lanes // nil: the tests enqueue tasks and drop archived ones
	tries          int
}

func (r *away) Enqueue(context.Context, queue.Task) error {
	r.tries++
	return errAway
}

func (r *away) DropArchived(context.Context, uuid.UUID, int) error { return errAway }

// TestAcceptedWithoutRedis: a job is accepted when Postgres has stored it, even if Redis is down.
func TestAcceptedWithoutRedis(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	redis := &away{}
	in := must(intake.New(intake.Config{Ledger: w.store, Dispatcher: must(dispatch.New(redis, w.logger())), Sealer: w.keys, Limits: w.limits(), Logger: w.logger()}))
	j, _ := w.rate(devnet.Feedback{AgentID: w.register(at(newAgent(t).URL))})
	got, err := in.Submit(heraldtest.Within(t, 10*time.Second), [][]byte{asJSON(j)}, command)
	if err != nil || got[0].Verdict != ledger.Accepted || redis.tries != 1 {
		t.Fatalf("%+v, %v, %d tries", got, err, redis.tries)
	}
	w.reconcile(w.newReconciler())
	w.serve(w.newWorker())
	w.until(got[0].ID, outcome.Delivered)
}

func TestConstructorsRefuse(t *testing.T) {
	t.Parallel()
	keys, reg, log := must(secret.Create()), prometheus.NewRegistry(), slog.New(slog.DiscardHandler)
	valid := func() Config {
		return Config{Ledger: &faulty{}, Chain: func(uint64) (event.Chain, bool) { return nil, false }, Resolver: &completerWorld{}, Fetcher: panics{}, Caller: offers{},
			Keys: keys, Dispatcher: must(dispatch.New(&away{}, log)), Spool: &results{}, Metrics: must(NewMetrics(prometheus.NewRegistry())),
			Schedule: must(outcome.NewSchedule([]time.Duration{time.Second})), CallTimeout: time.Second, LeaseMargin: time.Second, Lease: 2 * time.Second}
	}
	must(NewExecutor(valid()))
	for says, spoil := range map[string]func(*Config){
		"needs ledger, chain":        func(c *Config) { c.Spool = nil },
		"a retry schedule is needed": func(c *Config) { c.Schedule = outcome.Schedule{} },
		"the lease must be at least": func(c *Config) { c.Lease-- },
		"a batch has at most":        func(c *Config) { c.BatchSize = MaxBatch + 1 },
	} {
		c := valid()
		spoil(&c)
		if _, err := NewExecutor(c); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	must(NewMetrics(reg))
	for name, construct := range map[string]func() error{
		"a runner":     func() error { _, err := NewRunner(nil, nil, 0); return err },
		"an intake":    func() error { _, err := intake.New(intake.Config{}); return err },
		"a dispatcher": func() error { _, err := dispatch.New(nil, nil); return err },
		"a reconciler": func() error { _, err := maintenance.NewReconciler(maintenance.ReconcilerConfig{}); return err },
		"metrics":      func() error { _, err := NewMetrics(reg); return err }, // registered already
	} {
		if construct() == nil {
			t.Errorf("%s of nothing", name)
		}
	}
}

func TestMetricLabelsAreBounded(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	m := must(NewMetrics(reg))
	for _, tool := range []string{"agent.receiveFeedback", "agent.receiveAnythingAtAll", "operators_tool", "\xff\x00", "agent.receiveRevocation"} {
		m.countCall(tool, tool != "operators_tool", time.Millisecond)
	}
	for kind, age := range map[job.Kind]time.Duration{job.KindNewFeedback: time.Second, "Strange": time.Second} {
		m.countOutcome(kind, ledger.Outcome{Status: outcome.Delivered, AgentOK: true}, age)
	}
	// Prometheus' increase() shows a first death only if its counter began at 0.
	outcomes := map[string]float64{"NewFeedback  delivered": 1, "other  delivered": 1}
	for _, kind := range []string{"NewFeedback", "FeedbackRevoked", "ResponseAppended", "ValidationResponse", "other"} {
		for _, why := range []string{"content_unavailable", "connect_failed", "timeout", "rate_limited", "server_error",
			"outcome_unknown", "internal_error", "expired"} {
			outcomes[kind+" "+why+" dead"] = 0
		}
	}
	for family, want := range map[string]map[string]float64{
		"mcp_calls_total":                 {"failed other": 1, "success agent.receiveFeedback": 1, "success agent.receiveRevocation": 1, "success other": 2},
		"mcp_call_duration_seconds":       {"agent.receiveFeedback": 1, "agent.receiveRevocation": 1, "other": 3},
		"herald_deliveries_total":         outcomes,
		"herald_delivery_latency_seconds": {"": 2},
		"herald_batch_size":               {"": 0},
	} {
		heraldtest.Equal(t, family, counted(t, reg, family), want)
	}
	heraldtest.Equal(t, "families", len(must(reg.Gather())), 5)
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	at := time.Now()
	for name, c := range map[string]struct {
		res  Result
		note string
		err  error
	}{
		"delivered": {Result{Status: outcome.Delivered}, "", nil},
		"skipped": {Result{Status: outcome.Skipped, Reason: "no_uri", Text: "the agent has no tokenURI", Next: "It sets one."},
			"skipped no_uri: the agent has no tokenURI Next: It sets one.", nil},
		"held": {Result{Status: outcome.Held, Reason: "auth_required", Text: "401", Next: "Store a token."}, "",
			&queue.ArchivedError{Text: "held auth_required: 401 Next: Store a token."}},
		"waiting": {Result{Status: outcome.Waiting, Reason: "server_error", Text: "503", At: at, Next: "Nothing."}, "",
			&queue.WaitError{Text: "server_error: 503", At: at}},
		"waiting freely": {Result{Status: outcome.Waiting, Reason: "throttled", Text: "1/s", At: at, Free: true}, "",
			&queue.WaitError{Text: "throttled: 1/s", At: at, Free: true}},
		"waiting in Postgres": {Result{Status: outcome.Waiting, Reason: "server_error", Text: "503"}, "", queue.ErrDropped},
		"another's turn":      {Result{Status: outcome.Queued}, "", queue.ErrDropped},
		"rejected":            {Result{Status: outcome.Rejected, Reason: "tool_error", Text: "no"}, "", &queue.ArchivedError{Text: "rejected tool_error: no"}},
		"dead":                {Result{Status: outcome.Dead, Reason: "timeout", Text: "no\nanswer"}, "", &queue.ArchivedError{Text: "dead timeout: no answer"}},
		"refused":             {Result{Refused: true}, "", queue.ErrDropped},
	} {
		if note, err := describeResult(c.res); note != c.note || !reflect.DeepEqual(err, c.err) {
			t.Errorf("%s: %q, %#v", name, note, err)
		}
	}
	if _, err := describeResult(Result{Status: outcome.Dead, Text: strings.Repeat("long ", 1000)}); len(err.Error()) > 600 {
		t.Errorf("%d bytes go to Redis", len(err.Error()))
	}
}
