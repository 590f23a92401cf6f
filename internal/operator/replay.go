package operator

import (
	"context"
	"slices"

	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/google/uuid"
)

// Replay queues deliveries again.
func (o *Operator) Replay(ctx context.Context, r MoveRequest) (*MoveReport, error) {
	v := replayVerb(r)
	return o.moveDeliveries(ctx, r, v, func(ctx context.Context, l *Ledger, ids []uuid.UUID, f records.Filter) (int,
		map[uuid.UUID]string, []ledger.Task, error) {
		return l.ReplayEnded(ctx, ids, r.mayReplay(v, f))
	})
}

// replayVerb returns the rules of Replay. A selection includes delivered deliveries only if it names that status and
// Force is set, and filtered ones only if it names that reason and Force is set. It includes cancelled ones only if it
// names the status or a reason, because an operator decided against them.
func replayVerb(r MoveRequest) verb {
	const onTheWay = "they are on their way"
	v := verb{name: "replay", done: "queued anew",
		takes: []outcome.Status{outcome.Dead, outcome.Rejected, outcome.Skipped, outcome.Held, outcome.Waiting},
		named: []outcome.Status{outcome.Cancelled}, unfiltered: !r.Force || r.Reason != string(outcome.Filtered),
		needsJob: true, repeats: r.Force && (len(r.IDs) > 0 || r.Status == string(outcome.Delivered)),
		refuses: map[outcome.Status]string{outcome.Queued: onTheWay, outcome.Running: onTheWay,
			outcome.Delivered: "with --force they are delivered a second time"}}
	if r.Force && r.Status == string(outcome.Delivered) {
		delete(v.refuses, outcome.Delivered)
	}
	return v
}

// mayReplay returns which ended deliveries Replay may queue again. Deliveries named by id may have any state. A
// selection allows only the states that it names: another command may deliver or cancel a selected delivery before its
// turn.
func (r MoveRequest) mayReplay(v verb, f records.Filter) ledger.Ended {
	named := len(r.IDs) > 0
	return ledger.Ended{
		Delivered: r.Force && (named || slices.Equal(f.Statuses, []outcome.Status{outcome.Delivered})),
		Filtered:  r.Force && (named || f.Reason == outcome.Filtered),
		Cancelled: named || slices.Contains(v.takenStatuses(f), outcome.Cancelled),
	}
}
