package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agentherald/herald/internal/store/coalescer"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/testing/heraldtest"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// insertDispatched inserts n dispatched deliveries of 64 agents, as copies of one feedback, and returns their ids.
// Accept would dispatch at most eight per agent.
func insertDispatched(t testing.TB, s *Store, n int) []uuid.UUID {
	t.Helper()
	out, _ := accept(t, s, ledger.Intake{Job: feedback(1, 1)})
	rows, _ := s.Conns.Query(t.Context(), `INSERT INTO herald.deliveries
		(id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, job, dispatch, handed_at)
		SELECT gen_random_uuid(), 'copy ' || gen_random_uuid(), kind, chain_id, identity_registry, i % 64, order_key, i, job, 1, now()
		  FROM herald.deliveries CROSS JOIN generate_series(1, $2::int) i WHERE id = $1 RETURNING id`, out[0].ID, n)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	heraldtest.Must(t, err)
	exec(t, s, `INSERT INTO herald.agents (chain_id, identity_registry, agent_id)
		SELECT DISTINCT chain_id, identity_registry, agent_id FROM herald.deliveries ON CONFLICT DO NOTHING`)
	return ids
}

// BenchmarkClaim measures first claims of many concurrent callers, alone and in groups.
func BenchmarkClaim(b *testing.B) {
	for _, callers := range []int{1, 16, 64} {
		for _, way := range []string{"alone", "grouped"} {
			b.Run(fmt.Sprintf("%s/%d", way, callers), func(b *testing.B) {
				s := newStore(b)
				claim := s.claims.Do
				if way == "alone" {
					claim = s.claimAlone
				}
				ids := insertDispatched(b, s, b.N)
				exec(b, s, `VACUUM ANALYZE herald.history, herald.work`)
				var next atomic.Int64
				var all sync.WaitGroup
				b.ResetTimer()
				for range callers {
					all.Go(func() {
						for i := int(next.Add(1)) - 1; i < b.N; i = int(next.Add(1)) - 1 {
							if c, err := claim(context.Background(), claimRequest{ids[i], 1, lease}); c == nil || err != nil {
								b.Errorf("claim %d: %v, %v", i, c, err)
								return
							}
						}
					})
				}
				all.Wait()
				b.StopTimer()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "claims/s")
				if st := s.claims.Stats(); st.Groups > 0 {
					b.ReportMetric(float64(st.Grouped)/float64(st.Groups), "rows/group")
				}
			})
		}
	}
}

// groupClaims claims one delivery for each id, in one group.
func groupClaims(t *testing.T, s *Store, ids ...uuid.UUID) []coalescer.Result[*ledger.Claim] {
	t.Helper()
	group := make([]claimRequest, len(ids))
	for i, id := range ids {
		group[i] = claimRequest{id, 1, lease}
	}
	results, err := s.claimGroup(t.Context(), group)
	heraldtest.Must(t, err)
	return results
}

// TestGroupClaimSkipsSpecialDeliveries: rows that are refused, or locked by other transactions, are missing from a
// group's results and stay unchanged. The others are claimed, and no caller waits for a lock.
func TestGroupClaimSkipsSpecialDeliveries(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, plain := range []int{0, 1, 2, s.claims.Max - 11} {
		t.Run(fmt.Sprint(plain), func(t *testing.T) {
			emptyStore(t, s)
			names := map[uuid.UUID]string{uuid.New(): "unknown"}
			for name, change := range map[string]string{
				"in line": `handed_at = NULL`, "cancelled": `status = 'cancelled', finished_at = now()`, "second task": `dispatch = 2`,
				"not due": `status = 'waiting', next_attempt_at = now() + interval '1 minute'`, "due": `status = 'waiting', next_attempt_at = now()`, "held": `status = 'held'`, "locked": `handed_at = now()`,
				"running": `status = 'running', claim_no = 1, lease_until = now()`, "delivered": `status = 'delivered', finished_at = now()`,
			} {
				id := insertDispatched(t, s, 1)[0]
				names[id] = name
				exec(t, s, `UPDATE herald.deliveries SET `+change+` WHERE id = $1`, id)
			}
			group := slices.Collect(maps.Keys(names))
			ready := insertDispatched(t, s, plain)
			if plain > 0 {
				exec(t, s, `UPDATE herald.deliveries SET job = 'null' WHERE id = $1`, ready[0])
			}
			group = append(group, ready...)
			rand.Shuffle(len(group), func(i, j int) { group[i], group[j] = group[j], group[i] })
			group = append(group, ready[:min(plain, 1)]...) // the same delivery twice

			const rows = `SELECT coalesce(string_agg(d::text, E'\n' ORDER BY id), '') FROM herald.deliveries d WHERE NOT id = ANY($1)`
			before := value[string](t, s, rows, ready)
			err := pgx.BeginFunc(t.Context(), s.Conns, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), `SELECT FROM herald.work WHERE id = ANY($1) FOR UPDATE`, slices.Collect(maps.Keys(names))); err != nil {
					return err
				}
				seen := map[uuid.UUID]bool{}
				for i, r := range groupClaims(t, s, group...) {
					id := group[i]
					if r.Answered != (slices.Contains(ready, id) && !seen[id]) {
						t.Errorf("%s: answered %v", cmp.Or(names[id], "ready"), r.Answered)
					}
					if r.Answered && (r.Answer.ID != id || errors.Is(r.Err, ledger.ErrUnreadableJob) != (slices.Index(ready, id) == 0)) {
						t.Errorf("%s was given %+v, %v", id, r.Answer, r.Err)
					}
					seen[id] = true
				}
				return nil
			})
			heraldtest.Must(t, err)
			heraldtest.Equal(t, "the rows that were not claimed", value[string](t, s, rows, ready), before)
			if n := value[int](t, s, `SELECT count(*) FROM herald.work WHERE status = 'running' AND attempts = 1`); n != plain {
				t.Errorf("%d attempts for %d claims", n, plain)
			}

			// Alone, the single statement decides: rows that were only locked are claimed, and the others are refused.
			for id, name := range names {
				var early *ledger.EarlyError
				c, err := s.claimAlone(t.Context(), claimRequest{id, 1, lease})
				if errors.As(err, &early) != (name == "not due") || early == nil && err != nil || (c != nil) != (name == "locked" || name == "due") {
					t.Errorf("%s, tried alone: %v, %v", name, c, err)
				}
			}
		})
	}
}

// TestGroupClaimHasOneLease: a group has one lease duration. Claims with another duration are made alone.
func TestGroupClaimHasOneLease(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ids := insertDispatched(t, s, 3)
	results, err := s.claimGroup(t.Context(), []claimRequest{{ids[0], 1, lease}, {ids[1], 1, time.Hour}, {ids[2], 1, lease}})
	if err != nil || !results[0].Answered || results[1].Answered || !results[2].Answered {
		t.Errorf("%+v, %v", results, err)
	}
}

// TestClaimsOfManyStores: several stores claim the same tasks in groups while others cancel them. Each claimed row has
// exactly one caller that got the claim.
func TestClaimsOfManyStores(t *testing.T) {
	t.Parallel()
	first := newStore(t)
	url := first.Conns.Config().ConnString()
	stores := []*Store{first, openStore(t, url), openStore(t, url)}
	ids := insertDispatched(t, first, 240)
	var mu sync.Mutex
	given := map[uuid.UUID]int64{}
	var all sync.WaitGroup
	for _, s := range stores {
		var next atomic.Int64
		order := rand.Perm(len(ids))
		for range 16 {
			all.Go(func() {
				for i := int(next.Add(1)) - 1; i < len(ids); i = int(next.Add(1)) - 1 {
					id := ids[order[i]]
					c, err := s.Claim(t.Context(), id, 1, lease)
					if err != nil {
						t.Error(err)
					}
					if c == nil {
						continue
					}
					mu.Lock()
					if given[id] != 0 {
						t.Errorf("%s was given twice", id)
					}
					given[id] = c.No
					mu.Unlock()
				}
			})
		}
	}
	all.Go(func() {
		for batch := range slices.Chunk(ids[:120], 20) {
			if _, _, _, err := first.Cancel(t.Context(), batch, false); err != nil {
				t.Error(err)
			}
		}
	})
	all.Wait()

	rows, _ := first.Conns.Query(t.Context(), `SELECT id, claim_no FROM herald.deliveries WHERE claim_no IS NOT NULL`)
	var id uuid.UUID
	var no int64
	running := 0
	if _, err := pgx.ForEachRow(rows, []any{&id, &no}, func() error {
		running++
		if given[id] != no {
			t.Errorf("%s has claim %d, and its caller %d", id, no, given[id])
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	attempts := value[int](t, first, `SELECT sum(attempts) FROM herald.work`)
	if running != len(given) || attempts != running || running < 120 {
		t.Errorf("%d rows were claimed in %d attempts, %d callers know", running, attempts, len(given))
	}
	for _, s := range stores {
		if st := s.claims.Stats(); st.Groups == 0 || st.Failed > 0 {
			t.Errorf("%+v", st)
		}
	}
}
