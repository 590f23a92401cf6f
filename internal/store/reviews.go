package store

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/jackc/pgx/v5"
)

// reviewAgain is the time after which TakeReviews returns a review again, unless EndReview ended it.
const reviewAgain = time.Minute

// TakeReviews returns at most limit reviews that are due. Each of them is due again after reviewAgain, so that another
// worker gets it if this one does not call EndReview. TakeReviews omits deliveries whose job was deleted or cannot be
// parsed.
func (s *Store) TakeReviews(ctx context.Context, limit int) (list []ledger.Review, err error) {
	ctx, end := s.StartCall(ctx, &err, "take the deliveries whose event is read again")
	defer end()
	rows, _ := s.Conns.Query(ctx, statements.Text("take_reviews"), limit, reviewAgain)
	var l ledger.Review
	var raw []byte
	_, err = pgx.ForEachRow(rows, []any{&l.ID, &l.Key, &raw, &l.Newest, &l.Recent}, func() error {
		if l.Job = (job.Job{}); json.Unmarshal(raw, &l.Job) == nil {
			list = append(list, l)
		}
		raw = nil
		return nil
	})
	for i := range list {
		if err == nil {
			list[i].Hints, err = readHints(ctx, s.Conns, list[i].ID)
		}
		for _, h := range list[i].Hints {
			list[i].Newest = max(list[i].Newest, h.Rank)
		}
	}
	return list, err
}

// EndReview ends the review l and marks the hints that it had as refuted. If another hint arrived since, it schedules
// another review. next is the job of the event that the chain has under the key now, or nil if it has none.
//
// If next is another event than that of the review, it gets a delivery of its own. The reviewed delivery is then
// retracted, if its agent was or may have been called. If next is the same event, it is accepted like an event that a
// chain follower reads (answerRead). As long as the agent may be receiving a retraction of it, the review does not end.
// The caller puts the returned tasks into Redis.
func (s *Store) EndReview(ctx context.Context, l ledger.Review, next *job.Job) (tasks []ledger.Task, err error) {
	ctx, end := s.StartCall(ctx, &err, "end the review of delivery %s", l.ID)
	defer end()
	byAgent := make(tasksByAgent)
	err = s.retryTransaction(ctx, func() error {
		clear(byAgent)
		return pgx.BeginFunc(ctx, s.Conns, func(tx pgx.Tx) error {
			if next != nil {
				agents := distinctAgents([]erc8004.Agent{ledger.AgentOf(l.Job), ledger.AgentOf(*next)})
				if err := s.LockAgents(ctx, tx, agents); err != nil {
					return err
				}
				if isOpen, err := s.acceptReviewed(ctx, tx, l, *next, byAgent); err != nil || isOpen {
					return err
				}
			}
			// Because of the lock, a job that arrives now adds its hint before the next statement, or after the commit.
			if _, err := tx.Exec(ctx, `SELECT FROM herald.history WHERE id = $1 FOR UPDATE`, l.ID); err != nil {
				return fmt.Errorf("lock the delivery: %w", err)
			}
			_, err := tx.Exec(ctx, `UPDATE herald.hints
				SET refuted = refuted OR rank <= $2, review_at = CASE WHEN rank > $2 AND rank =
				    (SELECT max(rank) FROM herald.hints WHERE delivery_id = $1) THEN now() END
				WHERE delivery_id = $1`, l.ID, l.Newest)
			if err != nil {
				return fmt.Errorf("note refuted hints: %w", err)
			}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	return interleaveAgents(byAgent), nil
}

// acceptReviewed accepts next, the event that the chain has under the key of the reviewed delivery. If next is the
// event of the review, it keeps the delivery's action. Then isOpen reports that nothing was accepted, because a
// retraction that has not ended may be calling the agent. New tasks are added to byAgent.
func (s *Store) acceptReviewed(ctx context.Context, tx pgx.Tx, l ledger.Review, next job.Job,
	byAgent tasksByAgent) (isOpen bool, err error) {
	if !next.SameEvent(l.Job) {
		return false, s.replaceEvent(ctx, tx, l.ID, l.Job, ledger.Gone{Next: &next}, byAgent)
	}
	holders, err := s.readHolders(ctx, tx, hasID, l.ID)
	if err != nil {
		return false, err
	}
	for key, h := range holders {
		var known job.Job
		if key != next.Key() || json.Unmarshal(h.raw, &known) != nil {
			continue
		}
		if _, isOpen, err = s.wasRetracted(ctx, tx, h, known); err != nil || isOpen {
			return isOpen, err
		}
		next.Action, next.Meta = known.Action, known.Meta
		a, err := newArrival(ledger.Intake{Job: next, SealedHeaders: h.sealed, Source: h.source})
		if err != nil {
			return false, err
		}
		a.read = true
		if _, err := s.answerKnownKey(ctx, tx, a, h, byAgent); err != nil {
			return false, err
		}
		return false, s.dispatchInto(ctx, tx, []erc8004.Agent{a.agent}, byAgent)
	}
	return false, nil
}

// reviewReturn schedules a Review of the delivery h, if its event may have returned to the chain: h's agent was or may
// have been called with a retraction of h, or h ended because its event was missing. known is h's stored job.
func (s *Store) reviewReturn(ctx context.Context, tx pgx.Tx, h holder, known job.Job) error {
	informed, isOpen, err := s.wasRetracted(ctx, tx, h, known)
	if err != nil || !informed && !isOpen && !h.mayReopen() {
		return err
	}
	b := &pgx.Batch{}
	b.Queue(`SELECT FROM herald.history WHERE id = $1 FOR UPDATE`, h.id)
	b.Queue(statements.Text("review"), h.id)
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return fmt.Errorf("schedule a review of %s: %w", known.Key(), err)
	}
	return nil
}

// wasRetracted reports whether the agent of the delivery h was or may have been called with a retraction of h: informed
// with one that has ended, isOpen with one that has not. Callers leave an open retraction as it is: its own check finds
// out whether the event is on the chain again. known is h's stored job.
func (s *Store) wasRetracted(ctx context.Context, tx pgx.Tx, h holder,
	known job.Job) (informed, isOpen bool, err error) {
	if !h.maybe || !h.retracted {
		return false, false, nil
	}
	retractions, err := s.readRetractions(ctx, tx, known)
	for _, r := range retractions {
		if r.maybe && r.retracts() == h.id.String() {
			informed, isOpen = informed || r.status.Final(), isOpen || !r.status.Final()
		}
	}
	return informed, isOpen, err
}
