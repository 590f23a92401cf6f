package store

import (
	"context"
	"crypto/md5"
	"math/rand/v2"
	"testing"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/coalescer"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/google/uuid"
)

// others are statuses of deliveries that cannot be claimed.
var others = []outcome.Status{outcome.Running, outcome.Delivered, outcome.Cancelled, outcome.Rejected, outcome.Dead}

func otherID(s outcome.Status) uuid.UUID { return uuid.UUID(md5.Sum([]byte(s))) }

// InsertOthers inserts a delivery of each status in others.
func InsertOthers(t testing.TB, s *Store) {
	t.Helper()
	exec(t, s, `INSERT INTO herald.deliveries
		(id, key, kind, chain_id, identity_registry, agent_id, order_key, order_seq, dispatch, status, claim_no, lease_until, finished_at, accepted_at, job)
		SELECT md5(status)::uuid, 'other ' || status, 'NewFeedback', 1, '0xaa', 1, 'other', 1, 1, status, 1, 'infinity',
		       CASE WHEN status <> 'running' THEN timestamptz 'infinity' END, 'infinity', '[1]'
		  FROM unnest($1::text[]) status`, others)
}

// ForceGroups makes s claim each delivery, and record each plain outcome, in a group of the given size. The other
// members of a group of claims are deliveries that cannot be claimed: those of InsertOthers, and unknown ones. Those of
// a group of records are lost claims of the same agent.
func ForceGroups(t testing.TB, s *Store, size int) {
	t.Helper()
	forceRecordGroups(t, s, size)
	s.records.Min, s.claims.Min = 1, 1
	flush := s.claims.Flush
	s.claims.Flush = func(ctx context.Context, group []claimRequest) ([]coalescer.Result[*ledger.Claim], error) {
		all := append([]claimRequest{}, group...)
		for i := 0; len(all) < size; i++ {
			other := uuid.New()
			if i < len(others) {
				other = otherID(others[i])
			}
			all = append(all, claimRequest{other, group[0].n, group[0].lease})
		}
		order := rand.Perm(len(all)) // member i of all is claimed at position order[i]
		mixed := make([]claimRequest, len(all))
		for i, q := range all {
			mixed[order[i]] = q
		}
		answers, err := flush(ctx, mixed)
		if err != nil {
			t.Errorf("a group failed: %v", err)
			return nil, err
		}
		results := make([]coalescer.Result[*ledger.Claim], len(group))
		for i := range all {
			answer := answers[order[i]]
			if i < len(group) {
				results[i] = answer
			} else if answer.Answered {
				t.Errorf("what nobody may claim was claimed in a group: %+v", answer.Answer)
			}
		}
		return results, nil
	}
}

func forceRecordGroups(t testing.TB, s *Store, size int) {
	flush := s.records.Flush
	s.records.Flush = func(ctx context.Context, group []recordRequest) ([]coalescer.Result[ledger.Recorded], error) {
		all := append([]recordRequest{}, group...)
		for i := 0; len(all) < size; i++ {
			lost := *group[0].claim
			lost.ID, lost.No = uuid.New(), -1
			if i < len(others) {
				lost.ID = otherID(others[i])
			}
			all = append(all, newRecordRequest(&lost, group[0].outcome))
		}
		answers, err := flush(ctx, all)
		if err != nil {
			t.Errorf("a group failed: %v", err)
			return nil, err
		}
		for _, answer := range answers[len(group):] {
			if answer.Answered {
				t.Errorf("a lost claim was recorded in a group: %+v", answer.Answer)
			}
		}
		return answers[:len(group)], nil
	}
}
