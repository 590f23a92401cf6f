package records

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Sealed is the encrypted action.endpoint.headers of a job, with the values that are its associated data. The job is
// that of a delivery, or one of its hints.
type Sealed struct {
	ID         uuid.UUID // of the delivery
	ChainID    uint64
	Registry   string // IdentityRegistry
	AgentID    string // decimal
	URL        string // action.endpoint.url of the job; the headers are bound to its origin
	Ciphertext []byte
}

// sealedPage is the number of deliveries that one SealedAfter reads. It is large, because SealedAfter returns only the
// few of them that have sealed headers.
const sealedPage = 5000

// SealedAfter reads the next sealedPage (5,000) deliveries in the order of their acceptance, in which the table stores
// them, and returns the sealed headers of these deliveries and of their hints. The page follows the last seq of the
// previous page (after); 0 selects the first page. SealedAfter returns the last seq of this page (next). done reports
// whether this was the last page. SealedAfter may miss rows that are inserted during the listing. They need no
// resealing: the worker that inserted them used its present key.
func (s *Store) SealedAfter(ctx context.Context, after int64) (page []Sealed, next int64, done bool, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "look for sealed headers")
	defer end()
	rows, _ := s.db.Conns.Query(ctx, `WITH page AS MATERIALIZED (
			SELECT seq, id, chain_id, identity_registry, agent_id,
			       CASE WHEN secret_headers IS NOT NULL THEN job END AS job, secret_headers
			  FROM herald.history WHERE seq > $1 ORDER BY seq LIMIT $2
		), sealed AS (
			SELECT id, chain_id, identity_registry, agent_id, job, secret_headers
			  FROM page WHERE secret_headers IS NOT NULL
			UNION ALL
			SELECT p.id, p.chain_id, lower(h.job ->> 'identityRegistry'), (h.job ->> 'agentId')::numeric, h.job,
			       h.secret_headers
			  FROM page p JOIN herald.hints h ON h.delivery_id = p.id WHERE h.secret_headers IS NOT NULL
		)
		SELECT p.last, p.seen, coalesce(id, $3), coalesce(chain_id, 0), coalesce(identity_registry, ''),
		       coalesce(agent_id::text, ''), coalesce(job #>> '{action,endpoint,url}', ''), secret_headers
		  FROM (SELECT coalesce(max(seq), $1) AS last, count(*) AS seen FROM page) p LEFT JOIN sealed ON true`,
		after, sealedPage, uuid.Nil)
	seen := 0
	var r Sealed
	columns := []any{&next, &seen, &r.ID, &r.ChainID, &r.Registry, &r.AgentID, &r.URL, &r.Ciphertext}
	_, err = pgx.ForEachRow(rows, columns, func() error {
		if r.Ciphertext != nil { // nil: the page has none
			page = append(page, r)
		}
		r = Sealed{}
		return nil
	})
	if err != nil {
		return nil, after, false, err
	}
	return page, next, seen < sealedPage, nil
}

// Reseal replaces a ciphertext of the delivery old.ID, or of one of its hints, if it has not changed since old was
// read. It returns false, and nothing remains to do, if the ciphertext was replaced or deleted. A worker that has
// claimed the delivery may still have the old ciphertext, which its keyset can decrypt.
func (s *Store) Reseal(ctx context.Context, old Sealed, ciphertext []byte) (changed bool, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "replace the sealed headers of delivery %s", old.ID)
	defer end()
	err = s.db.Conns.QueryRow(ctx, `WITH own AS (
			UPDATE herald.history SET secret_headers = $3, updated_at = now() WHERE id = $1 AND secret_headers = $2
			RETURNING 1
		), hint AS (
			UPDATE herald.hints SET secret_headers = $3 WHERE delivery_id = $1 AND secret_headers = $2 RETURNING 1
		)
		SELECT EXISTS (SELECT FROM own) OR EXISTS (SELECT FROM hint)`, old.ID, old.Ciphertext, ciphertext).
		Scan(&changed)
	return changed, err
}
