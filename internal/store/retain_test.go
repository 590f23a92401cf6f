package store

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestRetain(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const day = 24 * time.Hour
	_, tasks := accept(t, s, feedbacks(1, 1, 7)...)
	ok := delivered
	ok.Result = []byte(`{"taken": true}`)
	for _, x := range tasks[:3] {
		record(t, s, claim(t, s, x), ok)
	}
	record(t, s, claim(t, s, tasks[3]), waiting(time.Hour))
	record(t, s, claim(t, s, tasks[4]), ending(Held, "auth_required"))
	running := claim(t, s, tasks[5])
	exec(t, s, `UPDATE herald.deliveries SET secret_headers = 'sealed', error = 'e', accepted_at = now() - interval '90 days', created_at = now() - interval '90 days'`)
	exec(t, s, `UPDATE herald.deliveries SET finished_at = now() - interval '40 days' WHERE order_seq IN (1, 2)`)
	old, _ := accept(t, s, Intake{Job: feedback(2, 1), Refused: "bytes", Key: "invalid:1"}) // has only an error
	exec(t, s, `UPDATE herald.deliveries SET finished_at = now() - interval '40 days', created_at = now() - interval '40 days' WHERE id = $1`, old[0].ID)
	left := func() int {
		t.Helper()
		return value[int](t, s, `SELECT count(*)::int FROM herald.deliveries WHERE job IS NOT NULL AND secret_headers IS NOT NULL AND error IS NOT NULL`)
	}
	for i, want := range []int{2, 1, 0} {
		if n, err := s.Retain(t.Context(), 30*day, 2); n != want || err != nil {
			t.Errorf("call %d: %d rows, %v", i+1, n, err)
		}
	}
	heraldtest.Equal(t, "rows carry something", left(), 5)
	for i, x := range tasks {
		d := read(t, s, x.ID)
		if gone := i < 2; (d.Job == nil) != gone || (d.Result == nil) != (gone || i > 2) || d.Key == "" || d.Status == "" {
			t.Errorf("%d: %+v", i, d)
		}
	}
	// Known jobs stay known, and a running delivery's outcome is recorded.
	if out, _ := accept(t, s, feedbacks(1, 1, 1)...); out[0].Verdict != Known || out[0].Status != Delivered {
		t.Errorf("%+v", out)
	}
	record(t, s, running, delivered)
	// From the default partition, only old attempts of ended deliveries are deleted.
	const put = `INSERT INTO herald.attempts_default (delivery_id, number, started_at, stage) VALUES ($1, 9, $2, 'call')`
	gone := time.Now().Add(-500 * day)
	for _, id := range []uuid.UUID{tasks[0].ID, tasks[3].ID, uuid.New()} {
		exec(t, s, put, id, gone)
	}
	if n, err := s.Retain(t.Context(), 30*day, 10); n != 2 || err != nil {
		t.Error(n, err)
	}
	if id := value[uuid.UUID](t, s, `SELECT delivery_id FROM herald.attempts WHERE number = 9`); id != tasks[3].ID {
		t.Errorf("the attempt of %s stayed", id)
	}
}

// TestPriceList: how many bytes of Postgres' disk a delivery of typical size costs, with indexes, while it is open, when
// it has ended, and after retention (docs/operator/scaling.md). Sizes are those of the files: of ended deliveries after
// VACUUM, of retained ones after VACUUM FULL, because Postgres gives the space of a smaller row to other rows.
// The test is not parallel: VACUUM FULL keeps rows that were deleted after the oldest transaction of the cluster began.
func TestPriceList(t *testing.T) {
	if testing.Short() {
		t.Skip("fills a table")
	}
	s := newStore(t)
	const n = 2_000
	price := func(state string, most int, tables string) {
		t.Helper()
		rows, _ := s.Conns.Query(t.Context(), `SELECT c.relname, pg_total_relation_size(c.oid)::int / $1, pg_relation_size(c.oid)::int / $1
			FROM pg_class c WHERE relnamespace = 'herald'::regnamespace AND relkind = 'r' AND relname ~ $2 AND pg_relation_size(c.oid) > 0 ORDER BY 1`, n, tables)
		var table string
		var bytes, heap, sum int
		if _, err := pgx.ForEachRow(rows, []any{&table, &bytes, &heap}, func() error {
			t.Logf("%s: %s has %d bytes per delivery, %d without indexes", state, table, bytes, heap)
			sum += bytes
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if sum > most || sum < most*8/10 {
			t.Errorf("%s: a delivery costs %d bytes, not about %d", state, sum, most)
		}
	}
	hash := func(of string, i int) common.Hash { return sha256.Sum256(fmt.Append(nil, of, i)) }
	var tasks []Task
	for from := 0; from < n; from += MaxAccept {
		in := feedbacks(1, 1, min(MaxAccept, n-from))
		for i := range in {
			j, log := &in[i].Job, uint(17)
			j.AgentID, j.ClientAddress = big.NewInt(int64(1000+(from+i)%1250)), common.BytesToAddress(hash("client", from+i).Bytes())
			j.FeedbackURI, j.FeedbackHash = "ipfs://bafkrei"+hash("file", from+i).Hex()[:52], hash("hash", from+i)
			j.Tag2, j.Endpoint, j.BlockNumber = "day", "https://agent.example/mcp", 24_000_000
			j.TransactionHash, j.BlockHash, j.LogIndex = hash("transaction", from+i), hash("block", from+i), &log
			in[i].Source = SourceToken("indexer", TrustOrdinary)
			in[i].Traceparent = "00-" + hash("trace", from+i).Hex()[2:34] + "-00f067aa0ba902b7-01"
		}
		_, more := accept(t, s, in...)
		tasks = append(tasks, more...)
	}
	price("accepted", 4300, "^(history|work|delivery_events)$")
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := w; i < n; i += 16 {
				c := claim(t, s, tasks[i])
				o := delivered
				o.ToolName, o.Endpoint, o.FileVerification, o.FileSource = "agent.receiveFeedback", "https://agent.example/mcp", "raw", "cid"
				o.Arguments, _ = json.Marshal(map[string]any{"deliveryId": c.ID, "event": c.Job, "fileContent": "Answered within a second. " + hash("text", i).Hex()})
				o.Response = []byte(`{"content": [{"type": "text", "text": "thank you, ` + hash("answer", i).Hex()[:20] + `"}]}`)
				o.Result, o.Protocol, o.StepMicros = o.Response, "2025-11-25", []int32{900, 20, 30_000, 10, 400, 20_000}
				record(t, s, c, o)
			}
		})
	}
	wg.Wait()
	exec(t, s, `VACUUM herald.history, herald.work, herald.attempts, herald.delivery_events`)
	price("ended", 6000, "^(history|work|delivery_events|attempts_)")
	for range n/1000 + 1 {
		if _, err := s.Retain(t.Context(), time.Nanosecond, 1000); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, s, `VACUUM FULL herald.history`)
	price("retained", 900, "^(history|work)$") // retention drops the weeks of attempts and the events
}

func TestDropPartitions(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	const week = 7 * 24 * time.Hour
	monday := value[time.Time](t, s, `SELECT date_trunc('week', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'`)
	for back := 1; back <= 6; back++ {
		exec(t, s, `SELECT herald.ensure_attempt_partitions($1, 0)`, monday.Add(-time.Duration(back)*week))
	}
	weeks := func() []string {
		t.Helper()
		return strings.Fields(value[string](t, s, `SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class c JOIN pg_inherits i ON c.oid = i.inhrelid
			WHERE inhparent = 'herald.attempts'::regclass AND relname ~ '^attempts_[0-9]' AND relname < 'attempts_' || $1`, monday.Format("20060102")))
	}
	name := func(back int) string {
		return "attempts_" + monday.Add(-time.Duration(back)*week).Format("20060102")
	}
	if len(weeks()) != 6 {
		t.Fatal(weeks())
	}
	// The sixth week before contains an attempt of a replayed delivery, and the fifth one of an ended delivery. Tables
	// with similar names stay.
	_, tasks := accept(t, s, feedbacks(1, 1, 2)...)
	record(t, s, claim(t, s, tasks[1]), delivered)
	for i, back := range []int{6, 5} {
		exec(t, s, `INSERT INTO herald.attempts (delivery_id, number, started_at, stage) VALUES ($1, 1, $2, 'call')`, tasks[i].ID, monday.Add(-time.Duration(back)*week+time.Hour))
	}
	exec(t, s, `UPDATE herald.deliveries SET attempts = 1, budget_base = 1, replays = 1 WHERE id = $1`, tasks[0].ID)
	exec(t, s, `CREATE TABLE herald.attempts_19990104 (a int)`)
	// The third week before ended two weeks before this week began.
	age := value[time.Duration](t, s, `SELECT now() - $1::timestamptz`, monday) + 2*week - time.Minute
	if n, err := s.DropPartitions(t.Context(), age); n != 3 || err != nil {
		t.Errorf("dropped %d, %v", n, err)
	}
	if got, want := weeks(), []string{name(6), name(2), name(1)}; !slices.Equal(got, want) {
		t.Errorf("left %v, want %v", got, want)
	}
	if n, err := s.DropPartitions(t.Context(), age); n != 0 || err != nil {
		t.Errorf("dropped %d more, %v", n, err)
	}
	exec(t, s, `UPDATE herald.deliveries SET status = 'skipped', handed_at = NULL, finished_at = now() WHERE id = $1`, tasks[0].ID)
	if n, err := s.DropPartitions(t.Context(), age); n != 1 || err != nil {
		t.Errorf("dropped %d, %v", n, err)
	}
	if value[*string](t, s, `SELECT to_regclass('herald.attempts_19990104')::text`) == nil {
		t.Error("a table that is no partition was dropped")
	}
	if _, err := s.DropPartitions(t.Context(), 0); err == nil {
		t.Error("an age of nothing was taken")
	}
}

// TestDropPartitionsGivesUp: it does not wait long for its lock, because all other statements queue behind it.
func TestDropPartitionsGivesUp(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	exec(t, s, `SELECT herald.ensure_attempt_partitions(now() - interval '10 weeks', 0)`)
	tx, err := s.Conns.Begin(t.Context())
	heraldtest.Must(t, err)
	if _, err := tx.Exec(t.Context(), `LOCK TABLE herald.attempts IN ROW EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	n, err := s.DropPartitions(t.Context(), 24*time.Hour)
	var pe *pgconn.PgError
	if n != 0 || !errors.As(err, &pe) || pe.Code != "55P03" || time.Since(began) > 10*time.Second {
		t.Errorf("%d, %v after %s", n, err, time.Since(began))
	}
	heraldtest.Must(t, tx.Rollback(t.Context()))
	if n, err := s.DropPartitions(t.Context(), 24*time.Hour); n != 1 || err != nil {
		t.Error(n, err)
	}
}

// TestLostLeasesSkipsLockedRows: rows that another transaction has locked are skipped.
func TestLostLeasesSkipsLockedRows(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	_, tasks := accept(t, s, feedbacks(1, 1, 2)...)
	tx, err := s.Conns.Begin(t.Context())
	heraldtest.Must(t, err)
	if _, err := tx.Exec(t.Context(), `SELECT FROM herald.work WHERE id = $1 FOR UPDATE`, tasks[0].ID); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	got, err := s.LostBefore(ctx, time.Now().Add(time.Hour), 10)
	if err != nil || len(got) != 1 || got[0].ID != tasks[1].ID {
		t.Error(got, err)
	}
	heraldtest.Must(t, tx.Rollback(t.Context()))
}

func TestOverdueOfEach(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for status, sql := range map[Status]string{
		Waiting: `status = 'waiting', next_attempt_at = now() - interval '10 minutes'`,
		Queued:  `handed_at = now() - interval '10 minutes'`,
		Running: `status = 'running', claim_no = 1, lease_until = now() - interval '10 minutes'`,
		Held:    `status = 'held', accepted_at = now() - interval '10 minutes', handed_at = NULL`,
	} {
		t.Run(string(status), func(t *testing.T) {
			emptyStore(t, s)
			acceptOne(t, s, feedback(1, 1))
			exec(t, s, `UPDATE herald.deliveries SET `+sql)
			d, err := s.Depth(t.Context())
			if err != nil || d.ByStatus[status] != 1 {
				t.Errorf("%+v, %v", d, err)
			}
			if late := d.Overdue > 9*time.Minute && d.Overdue < 11*time.Minute; late != (status != Held) {
				t.Errorf("overdue %s", d.Overdue)
			}
		})
	}
}
