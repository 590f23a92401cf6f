package operator

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
)

// Relation is a delivery that relates to another one.
type Relation struct {
	What string // its relation, in words
	ledger.Delivery
}

// ListRelations lists the deliveries about the same feedback as d, and those of the same client around it.
func (o *Operator) ListRelations(ctx context.Context, d ledger.Delivery) (list []Relation, err error) {
	var event struct{ BlockHash string }
	_ = json.Unmarshal(d.Job, &event) // without the job, a retraction is not found
	err = o.ReadBounded(ctx, func(ctx context.Context, st *Session) error {
		rows, err := st.Related(ctx, d.ID, d.Key, strings.ToLower(event.BlockHash))
		feedback := records.FeedbackKey(d.Key)
		for _, r := range rows {
			what := describeRelation(d, r, feedback)
			if what == isRetraction && d.Kind == string(job.KindNewFeedback) {
				full, err := st.Delivery(ctx, r.ID)
				if err != nil {
					return err
				}
				if retractsOther(full, d) {
					what = describeNeighbour(d, r)
				}
			}
			list = append(list, Relation{what, r})
		}
		return err
	})
	return list, err
}

// retractsOther reports whether the retraction r names another delivery than d. After a reorg, several feedbacks with
// deliveries of their own can have had the same index.
func retractsOther(r, d ledger.Delivery) bool {
	var j struct{ Retracts string }
	_ = json.Unmarshal(r.Job, &j) // retention may have deleted the job
	return j.Retracts != "" && j.Retracts != d.ID.String()
}

const isRetraction = "its retraction after a reorg"

func describeRelation(d, r ledger.Delivery, feedback string) string {
	rest, same := strings.CutPrefix(r.Key, feedback)
	for _, of := range [][2]string{{"#NewFeedback", "the feedback"}, {"#FeedbackRevoked", "its revocation"},
		{"#Retraction@", isRetraction}, {"/", "a response to it"}} {
		if feedback != "" && same && strings.HasPrefix(rest, of[0]) {
			return of[1]
		}
	}
	return describeNeighbour(d, r)
}

func describeNeighbour(d, r ledger.Delivery) string {
	if r.Seq < d.Seq {
		return "before it, by the same client"
	}
	return "after it, by the same client"
}

// FindRetraction returns the retraction of a feedback whose event a reorg removed, or nil. A retraction that ended
// because the event is on the chain again counts as none.
func (o *Operator) FindRetraction(ctx context.Context, d ledger.Delivery) (*ledger.Delivery, error) {
	if d.Kind != string(job.KindNewFeedback) {
		return nil, nil
	}
	list, err := o.ListRelations(ctx, d)
	for _, r := range list {
		if r.What == isRetraction && r.Reason != outcome.MinedAgain && r.Reason != outcome.Reorg {
			return &r.Delivery, err
		}
	}
	return nil, err
}

// AgentNames returns the names of those agents that have one.
func (o *Operator) AgentNames(ctx context.Context, list []erc8004.Agent) (names map[erc8004.Agent]string, err error) {
	if len(list) == 0 {
		return nil, nil
	}
	err = o.ReadBounded(ctx, func(ctx context.Context, st *Session) error {
		names, err = st.AgentNames(ctx, list)
		return err
	})
	return names, err
}
