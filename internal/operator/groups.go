package operator

import (
	"context"
	"slices"
	"time"

	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/records"
)

// GroupList has the groups of deliveries that failed, wait or are held.
type GroupList struct {
	EndedSince time.Time       `json:"endedSince"` // earliest end of the ended deliveries among them
	Groups     []records.Group `json:"groups"`     // the largest first
}

// ShowGroups groups deliveries by status, reason and sentence. Errors with one cause have one sentence. statuses
// are separated by commas; without any, ShowGroups reads rejected, dead, held and waiting deliveries. endedSince, by
// default 24h, selects among the ended ones, in the form of Selection.EndedSince.
func (o *Operator) ShowGroups(ctx context.Context, statuses, endedSince string) (list GroupList, err error) {
	all, err := parseStatuses(statuses)
	if err != nil {
		return list, err
	}
	for _, s := range all {
		if slices.Contains([]store.Status{store.Queued, store.Running, store.Delivered}, s) {
			return list, misuseOf("status", "%s deliveries have no error by which to group them", s)
		}
	}
	if len(all) == 0 {
		all = []store.Status{store.Rejected, store.Dead, store.Held, store.Waiting}
	}
	if endedSince == "" {
		endedSince = "24h"
	}
	if list.EndedSince, err = parseMoment("ended-since", endedSince, time.Now()); err != nil {
		return list, err
	}
	err = o.ReadBounded(ctx, func(ctx context.Context, st *Session) error {
		list.Groups, err = st.Groups(ctx, all, list.EndedSince)
		return err
	})
	return list, err
}

// SelectGroup returns the selection of a group's deliveries, for a list, a replay or a cancellation.
func (l GroupList) SelectGroup(g records.Group) Selection {
	s := Selection{Status: string(g.Status), Reason: string(g.Reason), Sentence: g.Sentence}
	if g.Status.Final() {
		s.EndedSince = l.EndedSince.UTC().Format(time.RFC3339)
	}
	return s
}
