package records

import (
	"context"
	"fmt"
	"strings"

	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const (
	// maxNeighbours is how many deliveries of the same client Related returns before a delivery, and after it.
	maxNeighbours = 3
	// maxSearched bounds the later deliveries of the client among which Related searches responses.
	maxSearched = 500
)

// FeedbackKey returns the part of a key that names a feedback, without the kind: eip155:…/<feedbackIndex>. It is empty
// for a validation and an invalid job.
func FeedbackKey(key string) string {
	name, kind, _ := strings.Cut(key, "#")
	parts := strings.SplitN(name, "/", 5)
	if len(parts) < 4 || strings.HasPrefix(kind, "ValidationResponse") {
		return ""
	}
	return strings.Join(parts[:4], "/")
}

// Related lists the deliveries that belong to the same feedback as the delivery with this id and key (the feedback, its
// revocation, its retraction from the block blockHash, and responses that were accepted soon after it), and the
// deliveries of the same client around it, newest first.
func (s *Store) Related(ctx context.Context, id uuid.UUID, key, blockHash string) (list []ledger.Delivery, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "list what relates to delivery %s", id)
	defer end()
	feedback := FeedbackKey(key)
	keys := []string{feedback + "#NewFeedback", feedback + "#FeedbackRevoked", feedback + "#Retraction@" + blockHash}
	const client = `split_part(coalesce(order_key, key), '/', 3)` // uses the index history_client
	rows, _ := s.db.Conns.Query(ctx, fmt.Sprintf(`WITH me AS MATERIALIZED (
		SELECT seq, %[1]s AS client FROM herald.history WHERE id = $1 AND %[1]s <> '')
		SELECT `+store.DeliveryColumns+` FROM herald.deliveries WHERE id <> $1 AND id = ANY(ARRAY(
			SELECT id FROM herald.history WHERE $3 <> '' AND herald.key_hash(key) = ANY(ARRAY(
				SELECT herald.key_hash(k) FROM unnest($2::text[]) k))
			UNION ALL
			SELECT id FROM (SELECT id, key FROM herald.history
				WHERE %[1]s = (SELECT client FROM me) AND (seq + 0) > (SELECT seq FROM me)
				ORDER BY (seq + 0) LIMIT %[3]d) x WHERE $3 <> '' AND starts_with(key, $3 || '/')
			UNION ALL
			(SELECT id FROM herald.history WHERE %[1]s = (SELECT client FROM me) AND (seq + 0) > (SELECT seq FROM me)
				ORDER BY (seq + 0) LIMIT %[2]d)
			UNION ALL
			(SELECT id FROM herald.history WHERE %[1]s = (SELECT client FROM me) AND (seq + 0) < (SELECT seq FROM me)
				ORDER BY (seq + 0) DESC LIMIT %[2]d)))
		 ORDER BY seq DESC LIMIT 50`, client, maxNeighbours, maxSearched), id, keys, feedback)
	return pgx.CollectRows(rows, store.ScanDelivery)
}
