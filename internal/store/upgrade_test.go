package store

import (
	"testing"

	"github.com/agentherald/herald/internal/heraldtest"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/secret"
	"github.com/google/uuid"
	"github.com/pressly/goose/v3"
)

// TestUpgrade: rows of schema 0001 are processed under the present schema, and so are rows that a worker of 0001 still
// writes. Migrating down keeps the rows.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	url := secret.New(heraldtest.EmptyPostgres(t))
	to := func(version int64) {
		t.Helper()
		err := withProvider(t.Context(), url, func(p *goose.Provider) error {
			if now, err := p.GetDBVersion(t.Context()); err != nil || now > version {
				_, err = p.DownTo(t.Context(), version)
				return err
			}
			_, err := p.UpTo(t.Context(), version)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	latest := func() {
		t.Helper()
		if _, err := Migrate(t.Context(), url); err != nil {
			t.Fatal(err)
		}
	}
	to(1)
	s := openStore(t, url.Reveal())
	raw := func(index int) []byte {
		b, err := feedback(1, index).MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	// Rows as a worker of 0001 writes them: one queued, one that waits after two attempts, one that ended, one whose
	// worker died.
	insert := func(index int, set string) uuid.UUID {
		t.Helper()
		j := feedback(1, index)
		exec(t, s, `INSERT INTO herald.deliveries (id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, job)
			VALUES ($1, $2, 'NewFeedback', 8453, $3, 1, $4, $5, $6)`, j.ID(), j.Key(), agentNamed("1").Registry, j.OrderKey(), index, raw(index))
		exec(t, s, `UPDATE herald.deliveries SET `+set+` WHERE id = $1`, j.ID())
		return j.ID()
	}
	exec(t, s, `INSERT INTO herald.agents (chain_id, identity_registry, agent_id, epoch) VALUES (8453, $1, 1, 4)`, agentNamed("1").Registry)
	queued := insert(1, `dispatch = 1, handed_at = now()`)
	waits := insert(2, `status = 'waiting', attempts = 2, dispatch = 3, handed_at = now(), next_attempt_at = now(), called = true`)
	ended := insert(3, `status = 'dead', reason = 'timeout', attempts = 11, finished_at = now()`)
	died := insert(4, `status = 'running', attempts = 1, dispatch = 1, handed_at = now(), claim_no = 7, lease_until = now() - interval '1 minute'`)
	exec(t, s, `INSERT INTO herald.attempts (delivery_id, number, started_at, stage) VALUES ($1, 1, now(), 'claim')`, died)

	check := func() {
		t.Helper()
		if n := value[int](t, s, `SELECT count(*)::int FROM herald.deliveries WHERE key LIKE 'eip155:8453:%' AND job IS NOT NULL`); n != 4 {
			t.Errorf("%d of 4 deliveries are there", n)
		}
		if n := value[int64](t, s, `SELECT epoch FROM herald.agents`); n != 4 {
			t.Errorf("epoch %d", n)
		}
	}
	latest()
	check()
	if places := value[string](t, s, `SELECT string_agg(place, ' ' ORDER BY seq) FROM herald.deliveries`); places != "out waiting dead out" {
		t.Errorf("places: %s", places)
	}
	// A claim, a record and a replay of the present version, on old rows.
	c := claim(t, s, Task{ID: queued, N: 1})
	if c.Budget != 1 || c.Unfinished || c.FetchFailures != 0 || c.Replay || c.Epoch != 4 {
		t.Errorf("%+v", c)
	}
	if c = claim(t, s, Task{ID: waits, N: 3}); c.Attempt != 3 || c.Budget != 3 {
		t.Errorf("%+v", c)
	}
	told := delivered
	told.FileVerification, told.FileDisagrees = "raw", []string{"value"}
	record(t, s, c, told)
	if n := value[int](t, s, `SELECT hour_calls FROM herald.agents`); n != 1 {
		t.Errorf("%d calls are counted of an agent of 0001", n)
	}
	if d := read(t, s, waits); len(d.FileDisagrees) != 1 || len(read(t, s, ended).FileDisagrees) != 0 {
		t.Errorf("%q", d.FileDisagrees)
	}
	if n, _, err := s.ExpireLeases(t.Context(), 10, 11); n != 1 || err != nil {
		t.Error(n, err)
	}
	if n, _, _, err := s.Replay(t.Context(), ids1(ended), false); n != 1 || err != nil {
		t.Error(n, err)
	}
	// A worker of 0001 writes during the upgrade.
	old := insert(5, `dispatch = 1, handed_at = now()`)
	exec(t, s, `UPDATE herald.deliveries SET status = 'running', claim_no = nextval('herald.claim_no'), lease_until = now() + interval '1 minute', attempts = attempts + 1 WHERE id = $1`, old)
	exec(t, s, `UPDATE herald.deliveries SET status = 'delivered', lease_until = NULL, handed_at = NULL, finished_at = now() WHERE id = $1`, old)
	if d := read(t, s, old); d.Status != Delivered || d.Attempts != 1 {
		t.Errorf("%+v", d)
	}
	exec(t, s, `DELETE FROM herald.deliveries WHERE id = $1`, old)

	to(1)
	check()
	if n := value[int](t, s, `SELECT count(*)::int FROM information_schema.columns WHERE table_schema = 'herald'
		AND column_name IN ('budget_base', 'fetch_failures', 'replays', 'raised_epoch', 'place', 'file_disagrees', 'bulk',
			'failing_since', 'last_called_at', 'hour', 'hour_calls', 'hour_failed', 'hour_failures', 'hour_latency',
			'preferences', 'line_held_until')`); n != 0 {
		t.Errorf("%d columns of later versions are left", n)
	}
	if left := value[string](t, s, `SELECT coalesce(string_agg(relname, ' '), '') FROM pg_class WHERE relname IN
		('audit', 'agent_hours', 'deliveries_parked', 'deliveries_kept', 'attempts_default_started', 'deliveries_line', 'deliveries_next', 'deliveries_out', 'deliveries_task',
		 'deliveries_wait', 'deliveries_aside', 'deliveries_hold', 'deliveries_place', 'deliveries_history')`); left != "" {
		t.Errorf("left behind: %s", left)
	}
	latest()
	check()
}

// TestUpgradeGoesOn: an interrupted migration resumes where it stopped, and rebuilds invalid indexes.
func TestUpgradeGoesOn(t *testing.T) {
	t.Parallel()
	url := secret.New(heraldtest.EmptyPostgres(t))
	to := func(version int64) { // 0: the latest
		t.Helper()
		err := withProvider(t.Context(), url, func(p *goose.Provider) (err error) {
			if version == 0 {
				_, err = p.Up(t.Context())
				return err
			}
			_, err = p.UpTo(t.Context(), version)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	to(1)
	s := openStore(t, url.Reveal())
	cutOff := func(index string) {
		t.Helper()
		exec(t, s, `CREATE INDEX `+index+` ON herald.deliveries (seq)`)
		exec(t, s, `UPDATE pg_index SET indisvalid = false WHERE indexrelid = ('herald.' || $1)::regclass`, index)
	}
	whole := func(index string, columns int) {
		t.Helper()
		if n := value[int](t, s, `SELECT count(*)::int FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
			WHERE c.relname = $1 AND indisvalid AND indnatts = $2`, index, columns); n != 1 {
			t.Errorf("the index %s is not as it should be", index)
		}
	}
	exec(t, s, `ALTER TABLE herald.deliveries ADD COLUMN budget_base integer NOT NULL DEFAULT 0`)
	cutOff("deliveries_parked")
	to(2)
	whole("deliveries_parked", 5)
	exec(t, s, `ALTER TABLE herald.deliveries ADD COLUMN place text GENERATED ALWAYS AS (
		CASE WHEN status = 'queued' AND handed_at IS NULL THEN 'line' WHEN status IN ('queued', 'running') THEN 'out' ELSE status END) STORED`)
	cutOff("deliveries_line")
	exec(t, s, `DROP INDEX herald.deliveries_backlog`)
	exec(t, s, `ALTER TABLE herald.deliveries ADD COLUMN file_disagrees text[]`)
	to(3)
	whole("deliveries_line", 4)
	exec(t, s, `ALTER TABLE herald.deliveries ADD COLUMN bulk boolean NOT NULL DEFAULT false`)
	cutOff("deliveries_next")
	to(0)
	whole("deliveries_next", 5)
	if invalid := value[int](t, s, `SELECT count(*)::int FROM pg_index WHERE NOT indisvalid`); invalid != 0 {
		t.Errorf("%d invalid indexes", invalid)
	}
	out, _, err := s.Accept(t.Context(), []Intake{{Job: job.Job(feedback(1, 1))}})
	if err != nil || out[0].Verdict != Accepted {
		t.Error(out, err)
	}
}
