package store

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/big"
	"sync"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/retention"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
)

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
	var tasks []ledger.Task
	for from := 0; from < n; from += ledger.MaxAccept {
		in := feedbacks(1, 1, min(ledger.MaxAccept, n-from))
		for i := range in {
			j, log := &in[i].Job, uint(17)
			j.AgentID, j.ClientAddress = big.NewInt(int64(1000+(from+i)%1250)), common.BytesToAddress(hash("client", from+i).Bytes())
			j.FeedbackURI, j.FeedbackHash = "ipfs://bafkrei"+hash("file", from+i).Hex()[:52], hash("hash", from+i)
			j.Tag2, j.Endpoint, j.BlockNumber = "day", "https://agent.example/mcp", 24_000_000
			j.TransactionHash, j.BlockHash, j.LogIndex = hash("transaction", from+i), hash("block", from+i), &log
			in[i].Source = ledger.SourceToken("indexer", ledger.TrustOrdinary)
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
		if _, err := retention.New(s.Pool).Retain(t.Context(), time.Nanosecond, 1000); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, s, `VACUUM FULL herald.history`)
	price("retained", 900, "^(history|work)$") // retention drops the weeks of attempts and the events
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
