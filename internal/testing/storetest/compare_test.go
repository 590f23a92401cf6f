package storetest_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/model"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/agentherald/herald/internal/testing/storetest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// seeds are sequences that found an error in a statement: a bulk cancel released none of the deliveries behind it (1, 11,
// 514730853), refused responses used up the limit of two (649957992), and so did known ones (607463016), an unchecked
// delivery held up a checked one until it ended (271651193), a response did not wait for its feedback (940819996), the
// order of responses to one feedback was arbitrary (430945489), and known jobs of a backfill used up its slots
// (146658391). Three found an error in the model: it released deliveries for a lost claim (374796730), and behind a
// delivery that was queued again (28859411), and the replay of a running feedback did not revive its revocation
// (817414464).
var seeds = []uint64{1, 11, 514730853, 649957992, 607463016, 271651193, 940819996, 430945489, 146658391, 374796730, 28859411, 817414464}

const (
	stepsPerSeed = 60
	freshSeeds   = 2
	soakSeeds    = 300 // fresh ones with HERALD_SOAK: some minutes
)

// TestModelIsPostgres applies random sequences of operations to Postgres and to the model, and compares the answers
// and the state of all deliveries after each operation. HERALD_COMPARE_SEED runs one seed and logs its operations.
func TestModelIsPostgres(t *testing.T) {
	run := slices.Clone(seeds)
	if one := os.Getenv("HERALD_COMPARE_SEED"); one != "" {
		seed, err := strconv.ParseUint(one, 10, 64)
		heraldtest.Must(t, err)
		run = []uint64{seed}
	} else {
		fresh := freshSeeds
		if os.Getenv(heraldtest.SoakVariable) != "" {
			fresh = soakSeeds
		}
		for range fresh {
			run = append(run, rand.Uint64N(1e9))
		}
		t.Logf("fresh seeds: %d", run[len(seeds):])
	}
	d := openPostgres(t)
	different := 0
	for _, seed := range run {
		if p := d.compareSeed(t, seed); p.differs != "" {
			t.Errorf("seed %d, after %d operations:\n%s\n%s", seed, len(p.log), strings.Join(p.log[max(0, len(p.log)-25):], "\n"), p.differs)
			if different++; different == 3 {
				t.Fatal("more seeds were not tried")
			}
		}
	}
}

// database is a Postgres whose statements read the time from the table clock.frozen.
type database struct {
	strict, loose storetest.Postgres
	conn          *pgx.Conn
}

func openPostgres(t *testing.T) *database {
	url := heraldtest.Postgres(t, postgres.Migrate)
	conn := heraldtest.Connect(t, url)
	if _, err := conn.Exec(t.Context(), `
		CREATE SCHEMA clock;
		CREATE TABLE clock.frozen AS SELECT pg_catalog.now() AS at;
		CREATE FUNCTION clock.now() RETURNS timestamptz STABLE LANGUAGE sql AS 'SELECT at FROM clock.frozen';
		CREATE FUNCTION clock.clock_timestamp() RETURNS timestamptz STABLE LANGUAGE sql AS 'SELECT at FROM clock.frozen';
		DO $$
		DECLARE c record;
		BEGIN
			FOR c IN SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'herald' AND column_default = 'now()' LOOP
				EXECUTE format('ALTER TABLE herald.%I ALTER COLUMN %I SET DEFAULT clock.now()', c.table_name, c.column_name);
			END LOOP;
			EXECUTE format('ALTER DATABASE %I SET search_path = clock, pg_catalog, public', current_database());
		END $$`); err != nil {
		t.Fatal(err)
	}
	d := &database{conn: conn}
	for _, strict := range []bool{true, false} {
		s := storetest.Open(t, url, 2)
		s.StrictOrder = strict
		if d.loose = storetest.JoinRecords(s); strict {
			d.strict = d.loose
		}
	}
	return d
}

// pair is the state of one sequence on both stores.
type pair struct {
	*rand.Rand
	batches *rand.Rand // draws the operations of batches; nil: none
	seed    uint64
	t       *testing.T
	conn    *pgx.Conn
	pg      storetest.Store
	model   *model.Store
	now     time.Time
	tasks   []ledger.Task
	claims  [][2]*ledger.Claim // the same claim of Postgres and of the model
	members [][2][]ledger.Member
	log     []string
	differs string
}

func (d *database) compareSeed(t *testing.T, seed uint64) *pair {
	p := &pair{Rand: rand.New(rand.NewPCG(seed, 0)), seed: seed, t: t, conn: d.conn, pg: d.strict,
		now: time.Now().UTC().Truncate(time.Second)}
	p.model = model.New(func() time.Time { return p.now })
	if !slices.Contains(seeds, seed) { // they found an error before there were batches, and keep their sequences
		p.batches = rand.New(rand.NewPCG(seed, 1))
	}
	if p.IntN(8) > 0 {
		p.model.KeepOrder()
	} else {
		p.pg = d.loose
	}
	if _, err := d.conn.Exec(t.Context(), `DELETE FROM herald.hints; DELETE FROM herald.attempts; DELETE FROM herald.deliveries;
		DELETE FROM herald.agents; DELETE FROM herald.agent_hours; DELETE FROM herald.verified_chains`); err != nil {
		t.Fatal(err)
	}
	p.advance(0)
	if p.IntN(2) == 0 {
		p.note("verify chain 8453")
		for _, s := range p.stores() {
			p.must(s.ReportVerified(t.Context(), []uint64{8453}))
		}
	}
	for range stepsPerSeed {
		p.step()
		if p.differs == "" {
			p.compareStates()
		}
		if p.differs != "" {
			break
		}
	}
	if os.Getenv("HERALD_COMPARE_SEED") != "" {
		t.Log(strings.Join(p.log, "\n"))
	}
	return p
}

func (p *pair) stores() [2]storetest.Store { return [2]storetest.Store{p.pg, p.model} }

func (p *pair) note(format string, args ...any) { p.log = append(p.log, fmt.Sprintf(format, args...)) }

func (p *pair) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatalf("seed %d:\n%s\n%v", p.seed, strings.Join(p.log, "\n"), err)
	}
}

const setClock = `UPDATE clock.frozen SET at = $1`

// advance sets both clocks.
func (p *pair) advance(d time.Duration) {
	p.now = p.now.Add(d)
	_, err := p.conn.Exec(p.t.Context(), setClock, p.now)
	p.must(err)
}

// both applies an operation to both stores and compares the answers in their JSON forms. It returns both answers.
func both[T any](p *pair, do func(s storetest.Store, i int) (T, error)) (answers [2]T, ok bool) {
	var text [2]string
	for i, s := range p.stores() {
		answer, err := do(s, i)
		answers[i] = answer
		raw, _ := json.Marshal(answer)
		text[i] = string(raw) + p.describeError(err)
	}
	if text[0] != text[1] {
		at := 0 // of the first difference
		for at < min(len(text[0]), len(text[1])) && text[0][at] == text[1][at] {
			at++
		}
		at = max(0, at-200)
		p.differs = fmt.Sprintf("the answers differ:\nPostgres: …%.400s\nmodel:    …%.400s", text[0][at:], text[1][at:])
	}
	p.note("      -> %.300s", text[0])
	return answers, text[0] == text[1]
}

func (p *pair) describeError(err error) string {
	if err == nil {
		return ""
	}
	if early := (*ledger.EarlyError)(nil); errors.As(err, &early) {
		return fmt.Sprintf(" early by %s: %s %s", early.Left, early.Reason, early.Text)
	}
	for _, known := range []error{ledger.ErrFenced, ledger.ErrStale, ledger.ErrNewHint, ledger.ErrNotFound} {
		if errors.Is(err, known) {
			return " " + known.Error()
		}
	}
	p.must(err)
	return ""
}

// addTasks adds dispatched tasks to the known ones, and returns them in a comparable order.
func (p *pair) addTasks(i int, tasks []ledger.Task) []string {
	out := make([]string, len(tasks))
	for n, t := range tasks {
		if i == 0 && !t.Ended {
			p.tasks = append(p.tasks, t)
		}
		raw, _ := json.Marshal(t)
		out[n] = string(raw)
	}
	slices.Sort(out)
	return out
}

// readStates selects the columns of model.State in Postgres.
const readStates = `SELECT key, identity_registry, agent_id::text, coalesce(error, ''), status, coalesce(reason, ''), attempts, dispatch, budget_base,
	replays, fetch_failures, hints, called, bulk, bound, verified, order_hash IS NOT NULL, turn AND place = 'out',
	handed_at, lease_until, CASE WHEN delays_until = 'infinity' THEN timestamptz '9999-01-01' ELSE delays_until END, finished_at, accepted_at, next_attempt_at,
	(SELECT coalesce(json_agg(json_build_object('number', number, 'startedAt', started_at, 'stage', stage, 'outcome', coalesce(outcome, ''),
		'reason', coalesce(reason, ''), 'error', coalesce(error, ''), 'protocol', coalesce(protocol, '')) ORDER BY number, started_at), '[]')
	   FROM (SELECT number, started_at, stage, outcome, reason, error, protocol FROM herald.attempts WHERE delivery_id = d.id
	         UNION ALL SELECT attempts, claimed_at, 'claim', NULL, NULL, NULL, NULL FROM herald.work WHERE id = d.id AND status = 'running') a)
	FROM herald.deliveries d ORDER BY seq`

// readAgents reads what describeAgents returns of the model's agents.
const readAgents = `SELECT coalesce(string_agg(format('%s epoch %s enabled %s %s %s %s ok %s called %s failing %s %s %s', agent_id, epoch, enabled, state,
	policy->>'order', policy->>'onUnknown', to_char(last_ok_at, 'HH24:MI:SS.MS'), to_char(last_called_at, 'HH24:MI:SS.MS'), to_char(failing_since, 'HH24:MI:SS.MS'), last_error, protocol),
	'; ' ORDER BY agent_id), '') FROM herald.agents`

func (p *pair) describeAgents() string {
	var all []string
	for agent := range agents {
		r, err := p.model.AgentRow(p.t.Context(), storetest.Agent(agent+1))
		if err == nil {
			all = append(all, fmt.Sprintf("%s epoch %d enabled %.1s %s %s %s ok %s called %s failing %s %s %s", r.AgentID, r.Epoch, strconv.FormatBool(r.Enabled), r.State,
				r.Policy.Order, r.Policy.OnUnknown, clockTime(r.LastOKAt), clockTime(r.LastCalledAt), clockTime(r.FailingSince), r.LastError, r.Protocol))
		}
	}
	return strings.Join(all, "; ")
}

func clockTime(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format("15:04:05.000")
}

// compareStates compares all deliveries and agents, and sets the clock of Postgres for the next operation.
func (p *pair) compareStates() {
	p.now = p.now.Add(time.Millisecond)
	b := &pgx.Batch{}
	b.Queue(readStates)
	b.Queue(readAgents)
	b.Queue(setClock, p.now)
	results := p.conn.SendBatch(p.t.Context(), b)
	defer results.Close()
	rows, _ := results.Query()
	got, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s model.State, err error) {
		var raw []byte
		var times [6]*time.Time
		err = row.Scan(&s.Key, &s.IdentityRegistry, &s.AgentID, &s.Error, &s.Status, &s.Reason, &s.Attempts, &s.Dispatch, &s.BudgetBase,
			&s.Replays, &s.FetchFailures, &s.Hints, &s.Called, &s.Bulk, &s.Bound, &s.Verified, &s.Ordered, &s.Turn,
			&times[0], &times[1], &times[2], &times[3], &times[4], &times[5], &raw)
		for i, to := range []*time.Time{&s.HandedAt, &s.LeaseUntil, &s.DelaysUntil, &s.FinishedAt, &s.AcceptedAt, &s.NextAttemptAt} {
			if times[i] != nil {
				*to = times[i].UTC()
			}
		}
		return s, cmp.Or(err, json.Unmarshal(raw, &s.History))
	})
	p.must(err)
	var rawAgents string
	p.must(results.QueryRow().Scan(&rawAgents))
	want := p.model.States()
	var out strings.Builder
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) {
			fmt.Fprintf(&out, "Postgres has %d deliveries, the model %d\n", len(got), len(want))
			break
		}
		g, w := fields(got[i]), fields(want[i])
		for _, name := range slices.Sorted(maps.Keys(g)) {
			if g[name] != w[name] {
				fmt.Fprintf(&out, "%s: %s: Postgres %s, model %s\n", short(got[i].Key), name, g[name], w[name])
			}
		}
	}
	if g, w := rawAgents, p.describeAgents(); g != w {
		fmt.Fprintf(&out, "agents:\nPostgres %s\nmodel    %s\n", g, w)
	}
	p.differs = out.String()
}

// fields returns the fields of a state as text.
func fields(s model.State) map[string]string {
	if s.History == nil {
		s.History = []ledger.Attempt{}
	}
	if !s.FinishedAt.IsZero() {
		s.DelaysUntil = time.Time{} // an ended delivery delays none; Postgres keeps the time with open work only
	}
	raw, _ := json.Marshal(s)
	var m map[string]json.RawMessage
	_ = json.Unmarshal(raw, &m)
	out := map[string]string{}
	for k, v := range m {
		out[k] = string(v)
	}
	return out
}

// short returns the part of a key after the registry.
func short(key string) string { return key[strings.Index(key, "/")+1:] }

const agents = 2

// job returns a random job. Few values make equal keys likely.
func (p *pair) job() job.Job {
	j := storetest.Feedback(1+p.IntN(agents), 1+p.IntN(4))
	j.ClientAddress = common.BigToAddress(j.AgentID) // most events are of one client of each agent
	if p.IntN(4) == 0 {
		j.ClientAddress[0] = 1
	}
	switch n := p.IntN(20); {
	case n < 4:
		j.Kind = job.KindFeedbackRevoked
	case n < 9:
		j.Kind, j.Responder = job.KindResponseAppended, common.HexToAddress("0x9e")
		j.TransactionHash[0], j.LogIndex = byte(1+p.IntN(4)), new(uint)
	case n < 10:
		j.Kind = job.KindAgentUpdated
	}
	if p.IntN(6) == 0 {
		j.BlockNumber++
	}
	if p.IntN(8) == 0 {
		j.Tag1 = "other"
	}
	if p.IntN(12) == 0 {
		j.Action.TimeoutMs = 5000
	}
	if p.batches != nil && p.batches.IntN(4) > 0 { // many of one agent, so that there is a backlog
		timeout := j.Action.TimeoutMs
		j = storetest.Feedback(1, 1+p.batches.IntN(12))
		j.ClientAddress[0], j.Action.TimeoutMs = byte(p.batches.IntN(4)), timeout
	}
	return j
}

func (p *pair) source() ledger.Source {
	return []ledger.Source{{Name: ledger.SourceCommand, Trust: ledger.TrustDirect}, {Name: ledger.SourceRedis, Trust: ledger.TrustOrdinary},
		ledger.SourceToken("a", ledger.TrustOrdinary), ledger.SourceToken("b", ledger.TrustOrdinary)}[p.IntN(4)]
}

// someIDs returns ids of at most three deliveries.
func (p *pair) someIDs() (ids []uuid.UUID) {
	all := p.model.All()
	for range 1 + p.IntN(3) {
		if len(all) > 0 {
			ids = append(ids, all[p.IntN(len(all))].ID)
		}
	}
	slices.SortFunc(ids, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	return slices.Compact(ids)
}

// someClaim returns a claim: usually one of the last, which are more likely to be open.
func (p *pair) someClaim() (c [2]*ledger.Claim, found bool) {
	n := len(p.claims)
	if n == 0 {
		return c, false
	}
	if p.IntN(6) > 0 {
		var open [][2]*ledger.Claim
		for _, c := range p.claims {
			if no, _, running := p.model.Held(c[1].ID); running && no == c[1].No {
				open = append(open, c)
			}
		}
		if len(open) > 0 {
			return open[p.IntN(len(open))], true
		}
	}
	return p.claims[p.IntN(n)], true
}

// step applies one random operation.
func (p *pair) step() {
	ctx := p.t.Context()
	if p.batches != nil && p.batches.IntN(4) == 0 {
		p.stepBatch()
		return
	}
	switch n := p.IntN(100); {
	case n < 14:
		p.accept()
	case n < 38:
		p.claim()
	case n < 44:
		p.bind()
	case n < 66:
		p.record()
	case n < 75:
		d := []time.Duration{time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 3 * time.Minute}[p.IntN(6)]
		p.note("advance %s", d)
		p.advance(d)
	case n < 79:
		p.note("due, backlog")
		both(p, func(s storetest.Store, i int) (any, error) {
			tasks, _, err := s.Due(ctx, 100)
			more, err2 := s.Backlog(ctx, 100)
			return [][]string{p.addTasks(i, tasks), p.addTasks(i, more)}, cmp.Or(err, err2)
		})
	case n < 80:
		p.note("ignore order")
		both(p, func(s storetest.Store, i int) (any, error) {
			tasks, err := s.IgnoreOrder(ctx, 100)
			return p.addTasks(i, tasks), err
		})
	case n < 84:
		p.note("expire leases")
		both(p, func(s storetest.Store, _ int) (any, error) {
			n, dead, err := s.ExpireLeases(ctx, 100, 3)
			return []int{n, dead}, err
		})
	case n < 87:
		ids, force := p.someIDs(), p.IntN(2) == 0
		p.note("replay %s force=%t", ids, force)
		both(p, func(s storetest.Store, i int) (any, error) {
			moved, left, tasks, err := s.Replay(ctx, ids, force)
			return []any{moved, len(left), p.addTasks(i, tasks)}, err
		})
	case n < 89:
		ids, force := p.someIDs(), p.IntN(2) == 0
		p.note("cancel %s force=%t", ids, force)
		both(p, func(s storetest.Store, i int) (any, error) {
			moved, left, tasks, err := s.Cancel(ctx, ids, force)
			return []any{moved, len(left), p.addTasks(i, tasks)}, err
		})
	case n < 92:
		a, enabled := storetest.Agent(1+p.IntN(agents)), p.IntN(3) > 0
		p.note("enable agent %s: %t", a.ID, enabled)
		both(p, func(s storetest.Store, i int) (any, error) {
			n, tasks, err := s.EnableAgent(ctx, a, enabled)
			return []any{n, p.addTasks(i, tasks)}, err
		})
	case n < 93:
		p.note("release enabled")
		both(p, func(s storetest.Store, i int) (any, error) {
			n, tasks, err := s.ReleaseEnabled(ctx, nil)
			return []any{n, p.addTasks(i, tasks)}, err
		})
	case n < 94:
		a, order := storetest.Agent(1+p.IntN(agents)), []string{policy.OrderOff, policy.OrderStrict}[p.IntN(2)]
		p.note("order of agent %s: %s", a.ID, order)
		both(p, func(s storetest.Store, _ int) (any, error) {
			return nil, s.SetPolicy(ctx, a, policy.Policy{Order: order})
		})
	case n < 95:
		p.note("expire")
		both(p, func(s storetest.Store, _ int) (any, error) { return s.Expire(ctx, 4*time.Minute, 100) })
	case n < 97:
		gateway := p.IntN(2) == 0
		p.note("release chains, gateway=%t", gateway)
		both(p, func(s storetest.Store, i int) (any, error) {
			tasks, err := s.Release(ctx, []uint64{8453}, gateway, 100)
			return p.addTasks(i, tasks), err
		})
	case n < 99:
		p.note("lost before")
		before := p.now.Add(-20 * time.Second)
		both(p, func(s storetest.Store, i int) (any, error) {
			tasks, err := s.LostBefore(ctx, before, 100)
			return p.addTasks(i, tasks), err
		})
	default:
		if len(p.tasks) == 0 {
			return
		}
		t := p.tasks[p.IntN(len(p.tasks))]
		p.note("redispatch %s:%d", t.ID, t.N)
		both(p, func(s storetest.Store, i int) (any, error) {
			again, moved, err := s.Redispatch(ctx, t)
			if !moved {
				return nil, err
			}
			return p.addTasks(i, []ledger.Task{again}), err
		})
	}
}

func (p *pair) accept() {
	n := 1 + p.IntN(4)
	if p.batches != nil && len(p.tasks) == 0 {
		n += 20
	}
	in := make([]ledger.Intake, n)
	bulk := p.IntN(6) == 0
	for i := range in {
		in[i] = ledger.Intake{Job: p.job(), Source: p.source(), Bulk: bulk}
		if p.IntN(12) == 0 {
			in[i].Filtered = "rule 1 of the default policy skips the event"
		}
		if p.IntN(40) == 0 {
			in[i].Refused, in[i].Key = "no job", fmt.Sprintf("invalid:%d", p.IntN(2))
		}
		p.note("accept %s block=%d tag=%s timeout=%d from %s bulk=%t", short(cmp.Or(in[i].Key, in[i].Job.Key())), in[i].Job.BlockNumber,
			in[i].Job.Tag1, in[i].Job.Action.TimeoutMs, in[i].Source.Name, bulk)
	}
	both(p, func(s storetest.Store, i int) (any, error) {
		out, tasks, err := s.Accept(p.t.Context(), in)
		for n := range out { // a second job with the same key is answered with the status before the call
			if slices.ContainsFunc(out[:n], func(a ledger.Acceptance) bool { return a.Key == out[n].Key }) {
				out[n].Status = ""
			}
		}
		return []any{out, p.addTasks(i, tasks)}, err
	})
}

func (p *pair) claim() {
	if len(p.tasks) == 0 {
		return
	}
	t := p.tasks[len(p.tasks)-1-p.IntN(min(len(p.tasks), 8))]
	if p.IntN(20) == 0 {
		t.N += 1 - 2*p.IntN(2)
	}
	d, err := p.model.Delivery(p.t.Context(), t.ID)
	p.must(err)
	p.note("claim %s (%s:%d)", short(d.Key), t.ID, t.N)
	var claims [2]*ledger.Claim
	_, same := both(p, func(s storetest.Store, i int) (any, error) {
		c, err := s.Claim(p.t.Context(), t.ID, t.N, 2*time.Minute)
		claims[i] = c
		if c == nil {
			return nil, err
		}
		shown := *c
		shown.No, shown.Again, shown.Waited = 0, false, false
		return shown, err
	})
	if same && claims[0] != nil {
		p.claims = append(p.claims, claims)
	}
}

// stepBatch claims members, or gives some of them back.
func (p *pair) stepBatch() {
	if n := len(p.members); n > 0 && p.batches.IntN(3) == 0 {
		all := p.members[n-1-p.batches.IntN(min(n, 3))]
		from := p.batches.IntN(len(all[0]))
		p.note("give back from %s", short(all[0][from].Key))
		both(p, func(s storetest.Store, i int) (any, error) { return nil, s.GiveBack(p.t.Context(), all[i][from:]) })
		return
	}
	var leaders [][2]*ledger.Claim
	for _, c := range p.claims {
		no, _, running := p.model.Held(c[1].ID)
		if running && no == c[1].No && c[0].MayCall && c[0].Job.Kind == job.KindNewFeedback {
			leaders = append(leaders, c)
		}
	}
	if len(leaders) == 0 {
		return
	}
	leader, most := leaders[p.batches.IntN(len(leaders))], 1+p.batches.IntN(6)
	p.note("claim at most %d members of %s", most, short(leader[0].Key))
	var claimed [2][]ledger.Member
	_, same := both(p, func(s storetest.Store, i int) (shown []ledger.Claim, err error) {
		claimed[i], err = s.ClaimMembers(p.t.Context(), leader[i], most, 2*time.Minute)
		for _, m := range claimed[i] {
			c := *m.Claim
			c.No, c.Again = 0, false
			shown = append(shown, c)
		}
		return shown, err
	})
	if !same || len(claimed[0]) == 0 {
		return
	}
	p.members = append(p.members, claimed)
	for i, m := range claimed[0] {
		p.claims = append(p.claims, [2]*ledger.Claim{m.Claim, claimed[1][i].Claim})
	}
}

func (p *pair) bind() {
	c, found := p.someClaim()
	if !found || !c[0].Verified {
		return
	}
	b := ledger.Binding{Job: c[0].Job, SealedHeaders: c[0].SealedHeaders, Source: c[0].Source}
	if p.IntN(8) == 0 {
		b.Job.Tag1, b.Corrected = "corrected", []string{"tag1"}
	}
	p.note("bind %s", short(c[0].Key))
	both(p, func(s storetest.Store, i int) (any, error) {
		hints, err := s.Hints(p.t.Context(), c[i])
		p.must(err)
		err = s.Bind(p.t.Context(), c[i], b)
		return []any{len(hints), c[i].MayCall, c[i].Bound}, err
	})
}

func (p *pair) record() {
	c, found := p.someClaim()
	if !found {
		return
	}
	o := p.outcome(c[0])
	raw, _ := json.Marshal(o)
	p.note("record %s attempt %d: %s", short(c[0].Key), c[0].Attempt, raw)
	both(p, func(s storetest.Store, i int) (any, error) {
		rec, err := s.Record(p.t.Context(), c[i], o)
		return []any{rec.Task, rec.Rechecked, rec.NextAttemptAt.UTC(), rec.Age, p.addTasks(i, append(slices.Clone(rec.Next), deref(rec.Task)...))[:], err == nil}, err
	})
}

func deref(t *ledger.Task) []ledger.Task {
	if t == nil {
		return nil
	}
	return []ledger.Task{*t}
}

// outcome returns a random outcome that a worker could record for the claim.
func (p *pair) outcome(c *ledger.Claim) ledger.Outcome {
	wait := []time.Duration{time.Second, 5 * time.Second, time.Minute}[p.IntN(3)]
	if c.Verified && !c.Bound { // the check ended the attempt
		return []ledger.Outcome{
			{Status: outcome.Waiting, Reason: outcome.NotConfirmed, Delay: wait, Task: true, Free: true, Stage: "check", Undecided: true},
			{Status: outcome.Waiting, Reason: outcome.ChainUnavailable, Delay: wait, Task: true, Free: true, Stage: "check", Undecided: true},
			{Status: outcome.Rejected, Reason: outcome.EventNotFound, Stage: "check", Undecided: true, Refuted: []int{0, 1}},
			{Status: outcome.Held, Reason: outcome.ChainUnconfigured, Free: true, Stage: "check"},
			{Status: outcome.Held, Reason: outcome.AgentDisabled, Free: true, Stage: "check"},
		}[p.IntN(5)]
	}
	if !c.MayCall && p.IntN(10) > 0 {
		return ledger.Outcome{Status: outcome.Waiting, Reason: outcome.BehindEarlier, Free: true, Stage: "check", NoTurn: true}
	}
	again := ledger.Outcome{Status: outcome.Waiting, Reason: "server_error", Delay: wait, Task: p.IntN(4) > 0, Called: true, Stage: "call",
		Error: "it said 503", AgentError: "it said 503", CallTook: time.Second}
	switch n := p.IntN(20); {
	case n < 7:
		return ledger.Outcome{Status: outcome.Delivered, Called: true, Stage: "call", AgentOK: true, Protocol: "2025-11-25", CallTook: time.Second}
	case n < 10:
		again.Anew = again.Task && p.IntN(4) == 0
		return again
	case n < 11:
		again.Reason, again.Called, again.Moved = "connect_failed", false, true
		return again
	case n < 13:
		return ledger.Outcome{Status: outcome.Waiting, Reason: outcome.NotConfirmed, Delay: wait, Task: true, Free: true, Stage: "check"}
	case n < 14:
		return ledger.Outcome{Status: outcome.Waiting, Reason: "content_unavailable", Delay: wait, Task: p.IntN(2) == 0, Stage: "fetch", FetchFailed: true}
	case n < 15:
		return ledger.Outcome{Status: outcome.Held, Reason: outcome.AuthRequired, Free: true, Stage: "call", AgentError: "it said 401", Called: p.IntN(2) == 0}
	case n < 16:
		return ledger.Outcome{Status: outcome.Held, Reason: outcome.AgentDisabled, Free: true, Stage: "check", Elsewhere: p.IntN(2) == 0}
	case n < 17:
		return ledger.Outcome{Status: outcome.Held, Reason: outcome.GatewayUnconfigured, Free: true, Stage: "fetch"}
	case n < 18 && p.IntN(2) == 0:
		return ledger.Outcome{Status: outcome.Skipped, Reason: outcome.Filtered, Free: true, Stage: "check"}
	case n < 18:
		return ledger.Outcome{Status: outcome.Skipped, Reason: outcome.NeverDelivered, Stage: "check"}
	case n < 19:
		return ledger.Outcome{Status: outcome.Dead, Reason: "outcome_unknown", Stage: "call", Called: true, SkipDispatch: p.IntN(2) == 0}
	}
	return ledger.Outcome{Status: outcome.Waiting, Reason: "throttled", Delay: wait, Task: true, Free: true, Stage: "compose", EndpointOfJob: p.IntN(2) == 0}
}
