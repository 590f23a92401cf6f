package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/delivery/retry"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store"
	"github.com/google/uuid"
)

// Selection chooses deliveries; what is empty chooses by nothing.
type Selection struct {
	Agent  string // CHAIN:AGENT
	Status string
	Reason string
	Kind   string
	Since  string // accepted since then: RFC 3339, or how long ago, as in 24h
	Until  string // accepted before then, likewise
}

// parseFilter is the selection as the store takes it; times back count from now.
func (s Selection) parseFilter(now time.Time) (store.Filter, error) {
	f := store.Filter{Status: store.Status(s.Status), Reason: reason.Reason(s.Reason), Kind: s.Kind}
	err := cmp.Or(checkWord("status", s.Status, allStatuses()), checkWord("reason", s.Reason, reason.All()),
		checkWord("kind", s.Kind, allKinds()))
	if err != nil {
		return f, err
	}

	if s.Agent != "" {
		chainID, agentID, err := parseAgent(s.Agent)
		if err != nil {
			return f, err
		}
		f.ChainID, f.AgentID = &chainID, agentID
	}

	if f.Since, err = parseMoment("--since", s.Since, now); err != nil {
		return f, err
	}
	if f.Until, err = parseMoment("--until", s.Until, now); err != nil {
		return f, err
	}
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		return f, NewMisuse("--since %s is not before --until %s: nothing lies between", s.Since, s.Until)
	}
	return f, nil
}

// allStatuses are those that a delivery can be in.
func allStatuses() []store.Status {
	return []store.Status{store.Queued, store.Running, store.Waiting, store.Held, store.Delivered, store.Skipped,
		store.Rejected, store.Dead, store.Cancelled}
}

// allKinds are those of jobs that become deliveries.
func allKinds() []job.Kind {
	return []job.Kind{job.KindNewFeedback, job.KindFeedbackRevoked, job.KindResponseAppended,
		job.KindValidationResponse}
}

// checkWord refuses a word of a closed list that is not in it; an empty one was not given.
func checkWord[T ~string](what, word string, known []T) error {
	if word == "" || slices.Contains(known, T(word)) {
		return nil
	}
	list := make([]string, len(known))
	for i, k := range known {
		list[i] = string(k)
	}
	return NewMisuse("unknown %s %q; one of %s", what, word, strings.Join(list, ", "))
}

// parseMoment reads RFC 3339, or a duration back from now; empty is the zero time.
func parseMoment(option, s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return now.Add(-d), nil
	}
	return time.Time{}, NewMisuse("%s %q is neither a time, as in 2026-01-31T12:00:00Z, nor how long ago, as in 24h or 90m", option, s)
}

// DeliveryPage is one page of deliveries, newest first.
type DeliveryPage struct {
	Deliveries []store.Delivery `json:"deliveries"`
	Next       string           `json:"next,omitempty"` // --cursor of the next page; none: this is the last one
}

// ListDeliveries lists those that were accepted before the one at cursor; 0: from the newest on.
func (o *Operator) ListDeliveries(ctx context.Context, s Selection, cursor int64,
	limit int) (page DeliveryPage, err error) {
	f, err := s.parseFilter(time.Now())
	if err := cmp.Or(checkLimit(limit), err); err != nil {
		return page, err
	}
	f.Before, f.Limit = cursor, limit+1
	err = o.ReadBounded(ctx, func(ctx context.Context, st *Session) error {
		rows, err := st.Deliveries(ctx, f)
		page.Deliveries, page.Next = cutPage(rows, limit,
			func(d store.Delivery) string { return strconv.FormatInt(d.Seq, 10) })
		return err
	})
	return page, err
}

// Delivery is a stored delivery with what is derived from its reason.
type Delivery struct {
	store.Delivery
	NextStep string `json:"nextStep,omitempty"` // what a person does about it
}

// ShowDelivery is one delivery with its job, attempts and answers.
func (o *Operator) ShowDelivery(ctx context.Context, id string) (d Delivery, err error) {
	parsed, err := parseID(id)
	if err != nil {
		return d, err
	}
	err = o.ReadBounded(ctx, func(ctx context.Context, st *Session) error {
		d.Delivery, err = st.Delivery(ctx, parsed)
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return d, fmt.Errorf("delivery %s not found: `worker delivery list` shows which there are", parsed)
	}
	if err == nil {
		d.NextStep = o.nextStep(d.Delivery)
	}
	return d, err
}

func parseID(s string) (uuid.UUID, error) {
	id, err := uuid.Parse(s)
	if err != nil {
		return id, NewMisuse("%q is not a delivery id", s)
	}
	return id, nil
}

// nextStep is what a person does about a delivery; empty for one that was delivered or is on its way.
func (o *Operator) nextStep(d store.Delivery) string {
	var asked struct {
		Action struct {
			ToolName string `json:"toolName"`
		} `json:"action"`
	}
	_ = json.Unmarshal(d.Job, &asked) // without a tool's name the sentence does without it
	listed, err := o.ListedServer(store.Agent{ChainID: d.ChainID, Registry: d.IdentityRegistry, ID: d.AgentID})
	return retry.NextStep(d.Reason, retry.Subject{Delivery: d.ID.String(), ChainID: d.ChainID,
		AgentID:  d.AgentID,
		Registry: d.IdentityRegistry, Endpoint: d.Endpoint, Tool: asked.Action.ToolName, Listed: err == nil &&
			listed != nil,
		Over: d.Status.Final()})
}
