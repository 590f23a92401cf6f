package records

import (
	"context"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// EventCursor is a position in the stream of DeliveryEvents, which is ordered by Xid and then by ID. Its text form is
// "<unix seconds>.<xid>.<id>".
type EventCursor struct {
	At  int64  // time of the DeliveryEvent in unix seconds, to detect positions older than retention.EventRetention
	Xid uint64 // Postgres' id of the transaction that stored the DeliveryEvent
	ID  int64  // id of the DeliveryEvent; ascends within a transaction
}

// String returns the text form of c, "<unix seconds>.<xid>.<id>".
func (c EventCursor) String() string { return fmt.Sprintf("%d.%d.%d", c.At, c.Xid, c.ID) }

// ParseEventCursor parses the text form of an EventCursor. It returns an error for any text that String does not
// return.
func ParseEventCursor(s string) (c EventCursor, err error) {
	n, err := fmt.Sscanf(s, "%d.%d.%d", &c.At, &c.Xid, &c.ID)
	if err != nil || n != 3 || c.String() != s {
		return EventCursor{}, fmt.Errorf("%.40q is no position in the events", s)
	}
	return c, nil
}

// DeliveryEvent is one change of a delivery's status, except a change to running. Kind, ChainID and AgentID are the
// delivery's present values; the other fields have the values of the time of the change.
type DeliveryEvent struct {
	Cursor     EventCursor    `json:"-"`
	At         time.Time      `json:"at"`
	DeliveryID uuid.UUID      `json:"deliveryId"`
	Status     outcome.Status `json:"status"`
	Reason     outcome.Reason `json:"reason,omitempty"`
	Attempts   int            `json:"attempts"`
	Kind       string         `json:"kind"`
	ChainID    uint64         `json:"chainId"`
	AgentID    string         `json:"agentId"`
}

// LastEvent returns the present end of the stream of DeliveryEvents. EventsAfter from there returns every event that is
// committed after this call, and perhaps some that were committed shortly before.
func (s *Store) LastEvent(ctx context.Context) (c EventCursor, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "look for the newest event")
	defer end()
	// All transactions before xmin have ended: their events are visible now, or were rolled back.
	err = s.db.Conns.QueryRow(ctx, `SELECT extract(epoch FROM now())::bigint,
		pg_snapshot_xmin(pg_current_snapshot())::text::bigint`).Scan(&c.At, &c.Xid)
	return c, err
}

// EventsAfter returns the events that follow a position (after), at most limit, in the order of the stream. It omits
// events of a transaction while an earlier transaction is open. The earlier one may still commit events at an earlier
// position, which a caller that continues after the last event would miss.
func (s *Store) EventsAfter(ctx context.Context, after EventCursor, limit int) (list []DeliveryEvent, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "read events")
	defer end()
	rows, _ := s.db.Conns.Query(ctx, `SELECT extract(epoch FROM e.at)::bigint, e.xid::text::bigint, e.id, e.at,
			e.delivery_id, e.status, coalesce(e.reason, ''), e.attempts, d.kind, d.chain_id, d.agent_id::text
		  FROM herald.delivery_events e JOIN herald.history d ON d.id = e.delivery_id
		 WHERE (e.xid, e.id) > ($1::text::xid8, $2) AND e.xid < pg_snapshot_xmin(pg_current_snapshot())
		 ORDER BY e.xid, e.id LIMIT $3`, fmt.Sprint(after.Xid), after.ID, min(limit, maxRows))
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (e DeliveryEvent, err error) {
		err = row.Scan(&e.Cursor.At, &e.Cursor.Xid, &e.Cursor.ID, &e.At, &e.DeliveryID, &e.Status,
			&e.Reason, &e.Attempts, &e.Kind, &e.ChainID, &e.AgentID)
		return e, err
	})
}
