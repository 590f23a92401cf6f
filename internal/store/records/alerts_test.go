package records_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

var everything = records.LookConfig{FailingAfter: time.Minute, DisableAfter: 120 * time.Hour, Pause: 5 * time.Minute, Keep: time.Hour,
	Compose: func(n records.News) (json.RawMessage, error) {
		return json.RawMessage(fmt.Sprintf(`{"count":%d,"herald":%t,"state":%q,"named":%d,"reasons":%q}`, n.Count, n.ByHerald, n.State,
			len(n.Deliveries), fmt.Sprint(n.Reasons))), nil
	}}

// look checks for alerts once, marks the unsent ones as sent and returns them as "kind agent payload", sorted.
func look(t testing.TB, s storetest.Postgres, cfg records.LookConfig) (told []string) {
	t.Helper()
	l, err := s.LookForNews(t.Context(), cfg)
	heraldtest.Must(t, err)
	rows, _ := s.Conns.Query(t.Context(), `WITH told AS (SELECT id, kind || ' ' || agent_id || ' ' || payload::text AS text FROM herald.alerts WHERE sent_at IS NULL),
		ended AS (UPDATE herald.alerts SET sent_at = now(), next_attempt_at = NULL WHERE id IN (SELECT id FROM told))
		SELECT text FROM told ORDER BY 1`)
	if told, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || len(told) != l.Inserted {
		t.Fatalf("%d were told: %q, %v", l.Inserted, told, err)
	}
	return told
}

func saysNews(t testing.TB, when string, got []string, want ...string) {
	t.Helper()
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("%s: %q, want %q", when, got, want)
	}
}

// fails sets the columns that failed calls set: the first failure was since ago, the last one until ago.
func fails(t testing.TB, s storetest.Postgres, agent int, since, until string) {
	t.Helper()
	exec(t, s, `UPDATE herald.agents SET failing_since = now() - $2::interval, last_error_at = now() - $3::interval, state = 'failed' WHERE agent_id = $1`,
		agent, since, until)
}

func succeeds(t testing.TB, s storetest.Postgres, agent int) {
	t.Helper()
	exec(t, s, `UPDATE herald.agents SET failing_since = NULL, last_ok_at = now(), state = 'connected' WHERE agent_id = $1`, agent)
}

// TestAlertPerAgentStateChange: each change of an agent's state raises one alert.
func TestAlertPerAgentStateChange(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for agent := 1; agent <= 5; agent++ {
		acceptOne(t, s, feedback(agent, 1))
	}
	saysNews(t, "at first", look(t, s, everything))

	fails(t, s, 1, "2 minutes", "1 second")
	fails(t, s, 2, "30 seconds", "1 second") // failing for too short a time
	fails(t, s, 3, "2 minutes", "2 minutes") // one call
	fails(t, s, 4, "2 minutes", "1 second")
	// As after a group that recorded a success, and then the first failure.
	exec(t, s, `UPDATE herald.agents SET last_ok_at = failing_since WHERE agent_id = 4`)
	enable(t, s, 5, false)
	saysNews(t, "one fails", look(t, s, everything), "agent.disabled 5 ", `agent.failing 1 {"count":0,"herald":false,"state":"failed"`, "agent.failing 4 ")
	saysNews(t, "nothing new", look(t, s, everything))
	succeeds(t, s, 1)
	saysNews(t, "it recovers", look(t, s, everything), "agent.recovered 1 ")
	saysNews(t, "it goes on", look(t, s, everything))
	fails(t, s, 1, "2 minutes", "1 second")
	exec(t, s, `UPDATE herald.agents SET last_ok_at = now() - interval '3 minutes' WHERE agent_id = 1`)
	saysNews(t, "it fails again", look(t, s, everything), "agent.failing 1 ")
	for _, enabled := range []bool{false, true} {
		enable(t, s, 1, enabled)
	}
	saysNews(t, "enabled anew, which is no success", look(t, s, everything))
	enable(t, s, 5, true)
	saysNews(t, "enabled", look(t, s, everything))
	enable(t, s, 5, false)
	quiet := everything
	quiet.Compose = nil
	saysNews(t, "nobody is told", look(t, s, quiet))
	saysNews(t, "what nobody was told is no news later", look(t, s, everything))
}

// TestAlertAfterEnabling: an agent that was reported as failing is reported as recovered after its next success, even if
// it was enabled in between. Until then, new failures are reported again.
func TestAlertAfterEnabling(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	acceptOne(t, s, feedback(1, 1))
	acceptOne(t, s, feedback(2, 1))
	fails(t, s, 1, "121 hours", "1 hour")
	fails(t, s, 2, "2 minutes", "1 second")
	saysNews(t, "both fail", look(t, s, everything), "agent.disabled 1 ", "agent.failing 2 ")
	enable(t, s, 1, true)
	enable(t, s, 2, true) // it was enabled all the time
	saysNews(t, "enabled", look(t, s, everything))
	enable(t, s, 1, false)
	saysNews(t, "disabled again", look(t, s, everything), "agent.disabled 1 ")
	enable(t, s, 1, true)
	saysNews(t, "and enabled", look(t, s, everything))
	succeeds(t, s, 1)
	fails(t, s, 2, "90 seconds", "1 second")
	saysNews(t, "one success, one failure", look(t, s, everything), "agent.failing 2 ", "agent.recovered 1 ")
	succeeds(t, s, 2)
	saysNews(t, "both succeed", look(t, s, everything), "agent.recovered 2 ")
	saysNews(t, "nothing new", look(t, s, everything))
}

// TestDisablesFailingAgents: only an agent that failed every call for five days is disabled, once, with a row in the
// audit log.
func TestDisablesFailingAgents(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for agent := 1; agent <= 7; agent++ {
		acceptOne(t, s, feedback(agent, 1))
	}
	fails(t, s, 1, "121 hours", "1 hour")
	fails(t, s, 2, "119 hours", "1 hour")
	fails(t, s, 3, "200 hours", "25 hours") // not called lately
	fails(t, s, 4, "121 hours", "121 hours")
	fails(t, s, 6, "121 hours", "1 hour")
	succeeds(t, s, 6)
	never := everything
	never.DisableAfter = 0
	saysNews(t, "never", look(t, s, never), "agent.failing 1 ", "agent.failing 2 ", "agent.failing 3 ")
	saysNews(t, "after five days", look(t, s, everything), `agent.disabled 1 {"count":0,"herald":true`)
	saysNews(t, "once", look(t, s, everything))
	soon := everything
	soon.DisableAfter = time.Hour
	fails(t, s, 7, "2 hours", "2 hours")
	saysNews(t, "one call is too few", look(t, s, soon), `agent.disabled 2 {"count":0,"herald":true`)
	exec(t, s, `UPDATE herald.agents SET enabled = true, failing_since = NULL WHERE agent_id = 2`)
	exec(t, s, `DELETE FROM herald.audit WHERE filter ->> 'agent' = '8453:2'`)
	row := value[string](t, s, `SELECT string_agg(concat_ws(' ', g.agent_id, g.state, a.actor, a.action, a.state, a.note, a.filter ->> 'agent'), ';')
		FROM herald.agents g, herald.audit a WHERE NOT g.enabled`)
	heraldtest.Equal(t, "the disabled agent and its audit", row,
		"1 disabled herald agent disable done every call failed for 120h0m0s or longer (HERALD_DISABLE_AFTER) 8453:1")
	enable(t, s, 1, true)
	saysNews(t, "enabled: it begins anew", look(t, s, everything))
	heraldtest.Equal(t, "it is judged anew",
		value[bool](t, s, `SELECT enabled AND failing_since IS NULL FROM herald.agents WHERE agent_id = 1`), true)
}

// TestAlertPerDeathAndHold: each death and each hold raises one alert of its agent, with any cause.
func TestAlertPerDeathAndHold(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, feedbacks(1, 1, 6)...)
	_, others := accept(t, s, feedbacks(2, 1, 2)...)
	tasks = append(tasks, others...)
	dead := ending(outcome.Dead, "timeout")
	record(t, s, claim(t, s, tasks[0]), dead)
	record(t, s, claim(t, s, tasks[1]), ending(outcome.Dead, "server_error"))
	record(t, s, claim(t, s, tasks[2]), authHeld)
	record(t, s, claim(t, s, tasks[3]), delivered)
	record(t, s, claim(t, s, tasks[6]), authHeld)
	record(t, s, claim(t, s, tasks[7]), ending(outcome.Rejected, "tool_error"))
	saysNews(t, "at first", look(t, s, everything), `deliveries.dead 1 {"count":2,"herald":false,"state":"","named":2,"reasons":"map[server_error:1 timeout:1]"}`,
		`deliveries.held 1 {"count":1,`, `deliveries.held 2 {"count":1,`)
	saysNews(t, "nothing new", look(t, s, everything))

	// A held delivery dies of age, and is replayed and held again: each raises another alert, or waits during the
	// pause.
	exec(t, s, `UPDATE herald.deliveries SET accepted_at = now() - interval '40 days', created_at = now() - interval '40 days' WHERE id = $1`, tasks[2].ID)
	if n, err := s.Expire(t.Context(), 30*24*time.Hour, 10); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	record(t, s, claim(t, s, tasks[4]), dead)
	saysNews(t, "within the pause", look(t, s, everything))
	exec(t, s, `UPDATE herald.alerts SET created_at = created_at - interval '6 minutes'`)
	saysNews(t, "after it", look(t, s, everything), `deliveries.dead 1 {"count":2,"herald":false,"state":"","named":2,"reasons":"map[expired:1 timeout:1]"}`)
	exec(t, s, `UPDATE herald.alerts SET created_at = created_at - interval '2 hours'`)
	quiet := everything
	quiet.Compose = nil
	record(t, s, claim(t, s, tasks[5]), dead)
	saysNews(t, "nobody is told", look(t, s, quiet))
	saysNews(t, "nor later", look(t, s, everything))
	heraldtest.Equal(t, "alerts that are over are kept", value[int](t, s, `SELECT count(*)::int FROM herald.alerts`), 0)
}

// TestAlertCountsDeliveries: a delivery that is released and held again before an alert is one of the counted deliveries.
func TestAlertCountsDeliveries(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, feedbacks(1, 1, 2)...)
	record(t, s, claim(t, s, tasks[0]), authHeld)
	record(t, s, claim(t, s, tasks[1]), authHeld)
	exec(t, s, `UPDATE herald.work SET status = 'queued', reason = NULL WHERE id = $1`, tasks[0].ID)
	exec(t, s, `UPDATE herald.work SET status = 'held', reason = 'auth_required' WHERE id = $1`, tasks[0].ID)
	saysNews(t, "two deliveries, three holds", look(t, s, everything),
		`deliveries.held 1 {"count":2,"herald":false,"state":"","named":2,"reasons":"map[auth_required:2]"}`)
}

// TestReleasedHoldIsNoMishap: a hold raises no alert if the same transaction releases it, because its reason was
// removed after the claim.
func TestReleasedHoldIsNoMishap(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, feedbacks(1, 1, 2)...)
	c := claim(t, s, tasks[0])
	exec(t, s, `UPDATE herald.agents SET epoch = epoch + 1`) // a credential was stored after the claim
	record(t, s, c, authHeld)
	heraldtest.Equal(t, "the status", read(t, s, c.ID).Status, outcome.Queued)
	saysNews(t, "held and released", look(t, s, everything))
	record(t, s, claim(t, s, tasks[1]), authHeld)
	saysNews(t, "held", look(t, s, everything), `deliveries.held 1 {"count":1,`)
}

// TestMishapsThatCommitLate: a death whose transaction commits after a later check is still reported. Of a flood of
// deaths, the alert names only a few.
func TestMishapsThatCommitLate(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, feedbacks(1, 1, 2)...)
	commit := holdOpen(t, s, `UPDATE herald.deliveries SET status = 'dead', finished_at = now() WHERE id = $1`, tasks[0].ID)
	record(t, s, claim(t, s, tasks[1]), ending(outcome.Dead, "timeout"))
	always := everything
	always.Pause = 0
	saysNews(t, "before it commits", look(t, s, always), `deliveries.dead 1 {"count":1,`)
	commit()
	saysNews(t, "after", look(t, s, always), `deliveries.dead 1 {"count":1,`)
	exec(t, s, `INSERT INTO herald.deliveries (id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq)
		SELECT gen_random_uuid(), 'flood ' || n, 'NewFeedback', 1, '0xaa', 9, n::text, n FROM generate_series(1, 300) n`)
	exec(t, s, `UPDATE herald.deliveries SET status = 'held', reason = CASE WHEN order_seq < 10 THEN 'held_unknown' ELSE 'auth_required' END WHERE agent_id = 9`)
	saysNews(t, "a flood", look(t, s, always),
		`deliveries.held 9 {"count":300,"herald":false,"state":"","named":20,"reasons":"map[auth_required:291 held_unknown:9]"}`)
	heraldtest.Equal(t, "counters are left", value[int](t, s, `SELECT count(*)::int FROM herald.mishaps`), 0)
}

// TestRecordDuringAlertCheck: Record and the alert check never wait long for each other's locks. Each leaves locked
// rows for later.
func TestRecordDuringAlertCheck(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, feedbacks(1, 1, 1)...)
	_, others := accept(t, s, feedbacks(2, 1, 1)...)
	record(t, s, claim(t, s, tasks[0]), authHeld)
	record(t, s, claim(t, s, others[0]), authHeld)
	commit := holdOpen(t, s, `UPDATE herald.mishaps SET count = 2 WHERE agent_id = 1`)
	always := everything
	always.Pause = 0
	saysNews(t, "beside a slow record", look(t, s, always), "deliveries.held 2 ")
	commit()
	saysNews(t, "after it", look(t, s, always), `deliveries.held 1 {"count":2,`)
}

// TestAlertChecksInParts: strangers can create agents that fail for ever. A check reads a part of them, and each change of
// an agent is reported by the check that reads its part.
func TestAlertChecksInParts(t *testing.T) {
	t.Parallel()
	asked := &statementLog{}
	s := newStoreWith(t, func(pc *pgxpool.Config) { pc.ConnConfig.Tracer = asked })
	exec(t, s, `INSERT INTO herald.agents (chain_id, identity_registry, agent_id, failing_since, last_error_at, enabled, state)
		SELECT 8453, '0xaa', n, now() - interval '10 days', now() - interval '9 days', n % 2 = 0, CASE n % 2 WHEN 0 THEN 'failed' ELSE 'disabled' END FROM generate_series(1, 3000) n`)
	exec(t, s, `INSERT INTO herald.alerted_agents SELECT chain_id, identity_registry, agent_id,
		CASE WHEN enabled THEN 'failing' ELSE 'disabled' END, failing_since FROM herald.agents`)
	exec(t, s, `INSERT INTO herald.agents (chain_id, identity_registry, agent_id, failing_since, last_error_at)
		SELECT 1, '0xaa', n, now(), now() FROM generate_series(5001, 6000) n`) // not for long enough
	exec(t, s, `VACUUM ANALYZE herald.agents`)
	exec(t, s, `VACUUM ANALYZE herald.alerted_agents`)
	cfg := everything
	cfg.Part = 100
	checkAll := func() (told []string, checks int) {
		t.Helper()
		for again := true; again && checks < 100; checks++ {
			asked.take()
			l, err := s.LookForNews(t.Context(), cfg)
			heraldtest.Must(t, err)
			for _, q := range asked.take() {
				if strings.HasPrefix(q.SQL, "INSERT") {
					continue
				}
				if read, plan := explainRead(t, s, q); read > 1000 {
					t.Fatalf("a check reads %.0f rows: %s\n%s", read, q.SQL, plan)
				}
			}
			cfg.After, again = l.Last, l.Last != erc8004.Agent{}
		}
		return value[[]string](t, s, `SELECT coalesce(array_agg(kind || ' ' || agent_id || ' ' ORDER BY kind, agent_id), '{}') FROM herald.alerts`), checks
	}
	told, checks := checkAll()
	saysNews(t, "nothing new", told)
	heraldtest.Equal(t, "the number of checks", checks, 41) // 40 parts, and the last one is empty
	succeeds(t, s, 100)
	succeeds(t, s, 2998)
	fails(t, s, 1500, "2 hours", "1 second")
	fails(t, s, 3000, "121 hours", "1 hour")
	told, _ = checkAll()
	saysNews(t, "changes in three parts", told, "agent.disabled 3000", "agent.failing 1500", "agent.recovered 100 ", "agent.recovered 2998")
}

// TestAlertCheckFailsForAPart: a transaction holds an agent's row, so that the checks of its part fail. The checks of the
// later parts still report their agents.
func TestAlertCheckFailsForAPart(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	cfg := everything
	cfg.Part = 1
	for agent := 1; agent <= 4; agent++ {
		acceptOne(t, s, feedback(agent, 1))
		fails(t, s, agent, "121 hours", "1 hour")
	}
	holdOpen(t, s, `SELECT FROM herald.agents WHERE agent_id = 2 FOR UPDATE`)
	failed := 0
	for range 4 {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		l, err := s.LookForNews(ctx, cfg)
		cancel()
		if cfg.After = l.Last; err != nil {
			failed++
		}
	}
	heraldtest.Equal(t, "failed checks", failed, 1)
	heraldtest.Equal(t, "disabled agents", value[string](t, s,
		`SELECT string_agg(agent_id::text, ' ' ORDER BY agent_id) FROM herald.agents WHERE NOT enabled`), "1 3 4")
}

// TestFastClockDisablesNoAgent: an agent began to fail an hour ago. After the clock of Postgres was set 100 days ahead, one
// more call fails. The agent is not disabled, because by the clock of the worker's machine it has failed for an hour.
func TestFastClockDisablesNoAgent(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	acceptOne(t, s, feedback(1, 1))
	fails(t, s, 1, "1 hour", "1 minute")
	storetest.SetClockAhead(t, s.Conns)
	exec(t, s, `UPDATE herald.agents SET last_error_at = now()`)
	saysNews(t, "one that fails", look(t, s, everything), "agent.failing 1 ")
	exec(t, s, `UPDATE herald.agents SET failing_since = failing_since - interval '120 hours'`)
	saysNews(t, "one that has failed for long", look(t, s, everything), "agent.disabled 1 ")
}

// TestConcurrentAlertChecks: concurrent checks raise each alert once, and disable each agent once.
func TestConcurrentAlertChecks(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, feedbacks(1, 1, 3)...)
	acceptOne(t, s, feedback(2, 1))
	fails(t, s, 1, "2 minutes", "1 second")
	fails(t, s, 2, "121 hours", "1 hour")
	for _, task := range tasks {
		record(t, s, claim(t, s, task), ending(outcome.Dead, "timeout"))
	}
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if _, err := s.LookForNews(t.Context(), everything); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	heraldtest.Equal(t, "the alerts",
		value[string](t, s, `SELECT string_agg(kind || ' ' || agent_id, ', ' ORDER BY kind, agent_id)
		FROM herald.alerts`), "agent.disabled 2, agent.failing 1, deliveries.dead 1")
	heraldtest.Equal(t, "rows of the audit", value[int](t, s, `SELECT count(*)::int FROM herald.audit`), 1)
}

// TestAlertsAreClaimed: an alert is leased by one worker at a time. After the lease it is due again, under the same id.
func TestAlertsAreClaimed(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx := t.Context()
	exec(t, s, `INSERT INTO herald.alerts (kind, chain_id, identity_registry, agent_id, payload, next_attempt_at)
		SELECT 'agent.failing', 1, '0xaa', n, '{"b": 1,  "a": 2}', now() - n * interval '1 s' FROM generate_series(1, 3) n`)
	var mu sync.Mutex
	var got []records.Alert
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			a, err := s.ClaimAlert(ctx, time.Minute)
			if errors.Is(err, ledger.ErrNotFound) {
				return
			}
			if err != nil || a.Attempt != 1 || string(a.Payload) != `{"b": 1,  "a": 2}` {
				t.Errorf("%+v, %v", a, err)
			}
			mu.Lock()
			got = append(got, a)
			mu.Unlock()
		})
	}
	wg.Wait()
	if len(got) != 3 || got[0].ID == got[1].ID || got[1].ID == got[2].ID || got[0].ID == got[2].ID {
		t.Fatalf("%+v", got)
	}
	heraldtest.Must(t, s.EndAlert(ctx, got[0]))
	wait := time.Hour
	heraldtest.Must(t, s.PostponeAlert(ctx, got[1], &wait, "it said no"))
	exec(t, s, `UPDATE herald.alerts SET next_attempt_at = next_attempt_at - interval '61 s'`) // a minute passes
	again, err := s.ClaimAlert(ctx, time.Minute)
	if err != nil || again.ID != got[2].ID || again.Attempt != 2 {
		t.Fatalf("%+v, %v", again, err)
	}
	heraldtest.Must(t, s.PostponeAlert(ctx, got[2], nil, "too late: another attempt is under way"))
	heraldtest.Equal(t, "the attempt under way keeps its lease, whatever an older one came to",
		value[bool](t, s, `SELECT error IS NULL AND next_attempt_at > now() FROM herald.alerts WHERE id = $1`, again.ID), true)
	heraldtest.Must(t, s.PostponeAlert(ctx, again, nil, "given up"))
	_, err = s.ClaimAlert(ctx, time.Minute)
	heraldtest.Fails(t, "a claim after the last alert", err, ledger.ErrNotFound)
	exec(t, s, `UPDATE herald.alerts SET next_attempt_at = next_attempt_at - interval '1 hour'`)
	a, err := s.ClaimAlert(ctx, time.Minute)
	if err != nil || a.ID != got[1].ID || a.Attempt != 2 {
		t.Errorf("%+v, %v", a, err)
	}
	heraldtest.Equal(t, "the errors",
		value[[]string](t, s, `SELECT array_agg(coalesce(error, '-') ORDER BY error) FROM herald.alerts`),
		[]string{"given up", "it said no", "-"})
}
