package model

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
)

// ClaimMembers claims at most n deliveries that can be sent in one call with the leader: the next ones of the backlog,
// and those that follow the leader or one of these in its ordering key.
func (s *Store) ClaimMembers(_ context.Context, leader *ledger.Claim, n int,
	lease time.Duration) (all []ledger.Member, err error) {
	defer s.lock()()
	now, first := s.now(), s.findID(leader.ID)
	if n = min(n, ledger.MaxMembers); first == nil || first.Status.Final() {
		return nil, nil
	}
	heads := append([]*row{first}, s.listHeads(first, now, n)...)
	var groups [][]*row
	for i, r := range heads {
		if slices.ContainsFunc(heads[:i], r.isMateOf) {
			continue
		}
		group := []*row{r}
		for _, o := range heads[i+1:] {
			if o.isMateOf(r) {
				group = append(group, o)
			}
		}
		group = append(group, s.listFollowers(first, slices.MinFunc(group, compareMembers), n)...)
		slices.SortFunc(group, compareMembers)
		groups = append(groups, slices.DeleteFunc(slices.Compact(group), func(o *row) bool { return o == first }))
	}
	for _, r := range sortMembers(groups, n) {
		waited := r.Status == outcome.Waiting
		r.Dispatch++
		r.Turn = r.Ordered
		c := s.startAttempt(r, now, lease)
		c.Waited, c.AheadOf = waited, ""
		all = append(all, ledger.Member{Claim: c})
	}
	return all, nil
}

// compareMembers compares two deliveries of the same ordering key by the order in which a batch contains them.
func compareMembers(a, b *row) int {
	return cmp.Or(cmp.Compare(a.job.OrderSeq(), b.job.OrderSeq()), cmp.Compare(a.seq, b.seq))
}

// fitsLeader reports whether r may be in one call with the leader: a feedback of the same agent with the same action,
// without headers of its own, and not replayed.
func (r *row) fitsLeader(leader *row) bool {
	return r.agent == leader.agent && r.job.Kind == job.KindNewFeedback && r.Replays == 0 && r.sealed == nil &&
		r.job.ActionSum() == leader.job.ActionSum()
}

// listHeads returns at most n deliveries of the backlog of the leader's agent that fit the leader and may be called
// now. It reads at most 4 * n deliveries of the backlog, those of a backfill last.
func (s *Store) listHeads(leader *row, now time.Time, n int) (heads []*row) {
	var backlog []*row
	for _, r := range s.rows {
		if r.agent == leader.agent && r.isInBacklog() {
			backlog = append(backlog, r)
		}
	}
	slices.SortStableFunc(backlog, func(a, b *row) int { return compareBulk(a.Bulk, b.Bulk) })
	for _, r := range backlog[:min(4*n, len(backlog))] {
		if len(heads) < n && r.fitsLeader(leader) && s.decideWait(r, now).IsZero() {
			heads = append(heads, r)
		}
	}
	return heads
}

// listFollowers returns at most n deliveries that follow r in its ordering key, up to the first one that does not fit
// the leader, or that is neither in the backlog nor waits for another delivery.
func (s *Store) listFollowers(leader, r *row, n int) (list []*row) {
	var behind []*row
	for _, o := range s.rows {
		isBehind := o.job.OrderSeq() > r.job.OrderSeq()
		if o.job.Kind == job.KindFeedbackRevoked { // a retraction, which goes before the event with its index
			isBehind = !o.DelaysUntil.IsZero() && o.job.OrderSeq() >= r.job.OrderSeq()
		}
		if o.isMateOf(r) && !o.Status.Final() && o.Status != outcome.Held && isBehind {
			behind = append(behind, o)
		}
	}
	slices.SortFunc(behind, compareMembers)
	for _, o := range behind[:min(n, len(behind))] {
		isWaiting := o.Status == outcome.Waiting && o.Reason == outcome.BehindEarlier
		if !o.fitsLeader(leader) || !o.isInBacklog() && !isWaiting {
			break
		}
		list = append(list, o)
	}
	return list
}

// sortMembers returns the first n deliveries of the groups in the order in which they are sent: a delivery is as late
// as the latest delivery of its group before it. Of each group, it returns those before the first one with a task.
func sortMembers(groups [][]*row, n int) (members []*row) {
	type place struct {
		*row
		bulk bool
		seq  int
	}
	var all []place
	for _, g := range groups {
		last := place{}
		for _, r := range g {
			last = place{r, last.bulk || r.Bulk, max(last.seq, r.seq)}
			all = append(all, last)
		}
	}
	slices.SortStableFunc(all, func(a, b place) int {
		return cmp.Or(compareBulk(a.bulk, b.bulk), cmp.Compare(a.seq, b.seq))
	})
	var blocked []*row
	for _, p := range all[:min(n, len(all))] {
		if !p.HandedAt.IsZero() || slices.ContainsFunc(blocked, p.isMateOf) {
			blocked = append(blocked, p.row)
			continue
		}
		members = append(members, p.row)
	}
	return members
}

// compareBulk puts the deliveries of a backfill last.
func compareBulk(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// GiveBack undoes the claims of members with which the agent did nothing. It skips claims that are lost.
func (s *Store) GiveBack(_ context.Context, all []ledger.Member) error {
	defer s.lock()()
	now := s.now()
	var given []*row
	waits := map[*row]time.Time{}
	for _, m := range all {
		if r := s.findID(m.ID); r.isClaimedBy(m.Claim) {
			r.Turn = false
			given = append(given, r)
		}
	}
	for _, m := range all {
		if r := s.findID(m.ID); m.Waited && slices.Contains(given, r) {
			waits[r] = s.decideWait(r, now)
		}
	}
	for _, r := range given {
		r.setQueued(now)
		if until := waits[r]; !until.IsZero() {
			r.setStatus(outcome.Waiting, outcome.BehindEarlier, now)
			r.NextAttemptAt = until
		}
		if r.claimNo = 0; r.Dispatch > 1 {
			r.claimNo = s.drawClaim()
		}
		r.Attempts--
		r.Dispatch--
		r.History = r.History[:len(r.History)-1]
		r.Turn = true // for releaseNext: each was before the next one of its ordering key
	}
	s.releaseNext(now, given...)
	for _, r := range given {
		r.Turn = false
	}
	return nil
}
