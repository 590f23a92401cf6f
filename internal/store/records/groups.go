package records

import (
	"context"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Group is a number of deliveries with the same status, reason and sentence. The fields are in the order in which
// groups.sql selects them.
type Group struct {
	Status   outcome.Status `json:"status"`
	Reason   outcome.Reason `json:"reason,omitempty"`
	Sentence string         `json:"sentence,omitempty"` // the error with # for URLs and for words that contain a digit
	Count    int64          `json:"count"`
	First    time.Time      `json:"first"` // when the first one ended, began to wait, or was held
	Last     time.Time      `json:"last"`
	Agents   int64          `json:"agents"`     // number of agents
	Most     []GroupAgent   `json:"mostAgents"` // the maxGroupAgents agents with the most deliveries
	Sample   uuid.UUID      `json:"sample"`     // id of the last one
	Partial  bool           `json:"partial"`    // more deliveries have the status than were read
}

// GroupAgent is the number of an agent's deliveries in a group.
type GroupAgent struct {
	Agent string `json:"agent"` // CHAIN:AGENT
	Count int64  `json:"count"`
}

// Groups reads at most maxGroupRows deliveries of each status, and returns at most maxGroups groups.
const (
	maxGroupRows   = 5000
	maxGroups      = 100
	maxGroupAgents = 3
)

// Groups groups deliveries by status, reason and sentence, the largest group first. The statuses may be Waiting, Held
// and those of deliveries that ended without being delivered, of which it reads those that ended since a time.
func (s *Store) Groups(ctx context.Context, statuses []outcome.Status,
	endedSince time.Time) (groups []Group, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "group deliveries")
	defer end()
	rows, _ := s.db.Conns.Query(ctx, statements.Text("groups"), statuses, endedSince, maxGroupRows, maxGroups,
		maxGroupAgents)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Group])
}

// maxCounted bounds the deliveries that CountEnded counts of each status.
const maxCounted = 100_000

// CountEnded counts the deliveries that ended since a time without being delivered, by status, each up to maxCounted.
func (s *Store) CountEnded(ctx context.Context, since time.Time) (counts map[outcome.Status]int64, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "count ended deliveries")
	defer end()
	rows, _ := s.db.Conns.Query(ctx, `SELECT s.status, (SELECT count(*) FROM (SELECT FROM herald.history
		WHERE undelivered = s.status AND undelivered_at >= $2 LIMIT $3) x) FROM unnest($1::text[]) s (status)`,
		undeliveredStatuses, since, maxCounted)
	return collectMap[outcome.Status, int64](rows)
}
