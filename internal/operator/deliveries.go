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
	"unicode/utf8"

	"github.com/agentherald/herald/internal/base/text"
	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/records"
	"github.com/google/uuid"
)

// Selection selects deliveries. Empty fields do not restrict it.
type Selection struct {
	Agent       string `json:"agent,omitempty" help:"Only this agent's." placeholder:"CHAIN:AGENT"`
	Registry    string `json:"registry,omitempty" help:"Of these, only the agent of this IdentityRegistry." placeholder:"0xADDRESS"`
	Client      string `json:"client,omitempty" help:"Only feedback that this address wrote." placeholder:"0xADDRESS"`
	Transaction string `json:"transaction,omitempty" help:"Only deliveries of this transaction." placeholder:"0xHASH"`
	Key         string `json:"key,omitempty" help:"Only the one with this key." placeholder:"KEY"`
	Status      string `json:"status,omitempty" help:"Only in these statuses, separated by commas: queued, running, waiting, held, delivered, skipped, rejected, dead, cancelled." placeholder:"STATUS,…"`
	Reason      string `json:"reason,omitempty" help:"Only with this reason." placeholder:"REASON"`
	Sentence    string `json:"sentence,omitempty" help:"Only of the group with this sentence: see worker delivery groups." placeholder:"TEXT"`
	Kind        string `json:"kind,omitempty" help:"Only of this kind: NewFeedback, FeedbackRevoked, ResponseAppended or ValidationResponse." placeholder:"KIND"`
	Since       string `json:"since,omitempty" help:"Only accepted since then: RFC 3339, or how long ago, as in 24h." placeholder:"TIME"`
	Until       string `json:"until,omitempty" help:"Only accepted before then, likewise." placeholder:"TIME"`
	EndedSince  string `json:"endedSince,omitempty" help:"Only ended since then without being delivered, likewise." placeholder:"TIME"`
	Reorged     bool   `json:"reorged,omitempty" help:"Only what a reorg took back: deliveries that it ended, and retractions, which inform agents. Not for replay and cancel."`
}

// parseFilter converts the selection to a filter of the store. Relative times count back from now.
func (s Selection) parseFilter(now time.Time) (records.Filter, error) {
	f := records.Filter{Reason: outcome.Reason(s.Reason), Sentence: s.Sentence, Kind: s.Kind, Key: s.Key,
		Reorged: s.Reorged}
	var statusErr, mixed, agentErr, registryErr, clientErr, transactionErr, sinceErr, untilErr, endedErr error
	f.Statuses, statusErr = parseStatuses(s.Status)
	if s.Reorged && s.Status+s.Reason+s.Sentence+s.Kind+s.EndedSince != "" {
		mixed = NewMisuseOf("reorged", "implies the status, the reason and the kind: leave those out")
	}
	if s.Agent != "" {
		var g erc8004.Agent
		g, agentErr = parseAgent(s.Agent)
		f.ChainID, f.AgentID = &g.ChainID, g.ID
	} else if s.Registry != "" {
		mixed = NewMisuseOf("registry", "is for --agent: two registries may have agents with one number")
	}
	f.Registry, registryErr = parseHex("registry", s.Registry, 20)
	f.Client, clientErr = parseHex("client", s.Client, 20)
	f.Transaction, transactionErr = parseHex("transaction", s.Transaction, 32)
	f.Since, sinceErr = parseMoment("since", s.Since, now)
	f.Until, untilErr = parseMoment("until", s.Until, now)
	f.EndedSince, endedErr = parseMoment("ended-since", s.EndedSince, now)
	err := cmp.Or(statusErr, checkWord("reason", s.Reason, outcome.Reasons()), checkText("sentence", s.Sentence),
		checkWord("kind", s.Kind, job.DeliveredKinds()), mixed, agentErr, registryErr, clientErr, transactionErr,
		checkText("key", s.Key), sinceErr, untilErr, endedErr)
	switch {
	case err != nil:
	case !f.EndedSince.IsZero() &&
		slices.ContainsFunc(f.Statuses, func(s outcome.Status) bool { return !s.Final() || s == outcome.Delivered }):
		err = NewMisuseOf("ended-since",
			"is for skipped, rejected, dead and cancelled deliveries; use --since for others")
	case !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until):
		err = NewMisuseOf("since", "%s is not before --until %s: nothing lies between", s.Since, s.Until)
	}
	return f, err
}

// AllStatuses returns every status of a delivery.
func AllStatuses() []outcome.Status {
	return []outcome.Status{outcome.Queued, outcome.Running, outcome.Waiting, outcome.Held, outcome.Delivered,
		outcome.Skipped, outcome.Rejected, outcome.Dead, outcome.Cancelled}
}

// parseStatuses parses statuses that are separated by commas. It returns each once.
func parseStatuses(s string) (statuses []outcome.Status, err error) {
	for word := range strings.SplitSeq(s, ",") {
		word = strings.TrimSpace(word)
		if err := checkWord("status", word, AllStatuses()); err != nil {
			return nil, err
		}
		if word != "" && !slices.Contains(statuses, outcome.Status(word)) {
			statuses = append(statuses, outcome.Status(word))
		}
	}
	if s != "" && len(statuses) == 0 { // without this, a list of unset variables would select all deliveries
		return nil, NewMisuseOf("status", "%q names no status", s)
	}
	return statuses, nil
}

// checkWord returns an error if word is neither empty nor one of known.
func checkWord[T ~string](what, word string, known []T) error {
	if word == "" || slices.Contains(known, T(word)) {
		return nil
	}
	list := strings.ReplaceAll(strings.Trim(fmt.Sprint(known), "[]"), " ", ", ")
	return &MisuseError{Field: what, Text: fmt.Sprintf("unknown %s %q; one of %s", what, word, list)}
}

// maxKeyLength is longer than the key of any job and any sentence of a group, in bytes.
const maxKeyLength = 1 << 10

// checkText returns an error if s cannot be the job's key, sentence or name that it is said to be. Postgres would fail
// to compare such a text.
func checkText(what, s string) error {
	if len(s) > maxKeyLength || !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
		return NewMisuseOf(what, "%.80q is not one: at most %d bytes of text", s, maxKeyLength)
	}
	return nil
}

// parseHex parses an address or a hash of the given number of bytes, into the spelling that the store uses. An empty s
// is valid.
func parseHex(option, s string, bytes int) (string, error) {
	if s == "" {
		return "", nil
	}
	s = strings.ToLower(strings.TrimSpace(s))
	digits, ok := strings.CutPrefix(s, "0x")
	if !ok || len(digits) != 2*bytes || strings.Trim(digits, "0123456789abcdef") != "" {
		return "", NewMisuseOf(option, "%.80q is not 0x and %d hexadecimal digits", s, 2*bytes)
	}
	return s, nil
}

// parseMoment parses RFC 3339, or a duration back from now. An empty s is the zero time.
func parseMoment(option, s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil && !t.IsZero() { // the zero time would select all
		return t, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return now.Add(-d), nil
	}
	return time.Time{}, NewMisuseOf(option,
		"%.80q is neither a time, as in 2026-01-31T12:00:00Z, nor how long ago, as in 24h or 90m", s)
}

// DeliveryPage is one page of deliveries, newest first.
type DeliveryPage struct {
	Deliveries []ledger.Delivery `json:"deliveries"`
	Next       string            `json:"next,omitempty"` // --cursor of the next page; empty on the last page
}

// ListDeliveries lists deliveries before the one at cursor, newest first. With cursor 0 it begins with the newest one.
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
			func(d ledger.Delivery) string { return strconv.FormatInt(d.Seq, 10) })
		return err
	})
	return page, err
}

// Delivery is a stored delivery with advice that depends on its reason.
type Delivery struct {
	ledger.Delivery
	NextStep string `json:"nextStep,omitempty"` // advice for an operator
}

// ReceivedJob is the beginning of a refused job from Redis, with all values masked that may be secret.
type ReceivedJob struct {
	Bytes     int64 // length of the whole job
	Text      string
	Truncated bool
}

// Received returns the bytes of a refused job from Redis, or nil for any other delivery.
func (d Delivery) Received() *ReceivedJob {
	var result struct{ Received *ReceivedJob }
	if json.Unmarshal(d.Result, &result) != nil {
		return nil
	}
	return result.Received
}

// ShowDelivery returns one delivery, by the first digits of its id or by key, with its job, attempts and answers.
func (o *Operator) ShowDelivery(ctx context.Context, idOrKey string) (d Delivery, err error) {
	id, _, err := parseID(idOrKey)
	byKey := strings.HasPrefix(idOrKey, "eip155:") || strings.HasPrefix(idOrKey, "invalid:")
	if byKey {
		err = checkText("key", idOrKey)
	}
	if err != nil {
		return d, err
	}
	err = o.ReadBounded(ctx, func(ctx context.Context, st *Session) error {
		if byKey {
			d.Delivery, err = st.DeliveryByKey(ctx, idOrKey)
		} else if id, err = findID(ctx, st, idOrKey); err == nil {
			d.Delivery, err = st.Delivery(ctx, id)
		}
		if err != nil {
			return err
		}
		return o.addNextStep(ctx, st, &d)
	})
	if errors.Is(err, ledger.ErrNotFound) {
		return d, &NotFoundError{fmt.Sprintf("delivery %s not found: `worker delivery list` shows which there are",
			text.Excerpt(idOrKey, maxKeyLength))}
	}
	return d, err
}

// addNextStep sets the next step of a delivery. If the delivery waits for its turn behind another delivery, the step is
// about that other delivery. Then d has no time of the next attempt: the stored time is that of the next check of the
// turn, and the end of the other delivery comes first.
func (o *Operator) addNextStep(ctx context.Context, st *Session, d *Delivery) error {
	d.NextStep = o.nextStep(d.Delivery)
	if d.Status != outcome.Waiting || d.Reason != outcome.BehindEarlier {
		return nil
	}
	blocker, err := st.Blocker(ctx, d.ID)
	if errors.Is(err, ledger.ErrNotFound) { // it has ended, and the reconciler dispatches d
		return nil
	}
	if err != nil {
		return err
	}
	d.NextAttemptAt = nil
	state := string(blocker.Status)
	if blocker.Reason != "" {
		state += " " + string(blocker.Reason)
	}
	if blocker.NextAttemptAt != nil {
		state += ", next attempt at " + blocker.NextAttemptAt.UTC().Format(time.RFC3339)
	}
	d.NextStep = fmt.Sprintf("nothing to do: delivery %s of the same client goes first, which is %s", blocker.ID, state)
	if blocker.Status == outcome.Held {
		d.NextStep = fmt.Sprintf("delivery %s of the same client goes first, which is %s; to release it: %s",
			blocker.ID, state, o.nextStep(blocker))
	}
	return nil
}

func parseID(s string) (first, last uuid.UUID, err error) {
	first, last, ok := records.ParseShortID(s)
	if !ok {
		err = NewMisuse("%.80q is not a delivery id, nor the first 8 or more digits of one", s)
	}
	return first, last, err
}

// findID returns the id of the only delivery whose id begins with s, or an id that no delivery has.
func findID(ctx context.Context, st moveStore, s string) (uuid.UUID, error) {
	first, last, err := parseID(s)
	if err != nil || first == last {
		return first, err
	}
	found, err := st.Deliveries(ctx, records.Filter{FirstID: first, LastID: last, Limit: 2})
	switch len(found) {
	case 1:
		first = found[0].ID
	case 2:
		err = NewMisuse("%s is the beginning of %s and of %s: write more digits", s, found[0].ID, found[1].ID)
	}
	return first, err
}

// nextStep returns advice for the operator about a delivery. It is empty for a delivery that was delivered or is on its
// way.
func (o *Operator) nextStep(d ledger.Delivery) string {
	if d.Status.Final() && len(d.Job) == 0 && d.Reason != outcome.InvalidJob && d.Status != outcome.Delivered {
		return "nothing to do: retention deleted the job, so it cannot be delivered again"
	}
	var asked struct {
		Action struct {
			ToolName string `json:"toolName"`
		} `json:"action"`
	}
	_ = json.Unmarshal(d.Job, &asked) // an unknown tool name only makes the text less specific
	agent := erc8004.Agent{ChainID: d.ChainID, Registry: d.IdentityRegistry, ID: d.AgentID}
	listed, err := o.ListedServer(agent)
	return outcome.NextStep(d.Reason, outcome.Subject{Delivery: d.ID.String(), ChainID: d.ChainID,
		Agent: agent.Argument(), Endpoint: d.Endpoint, Tool: asked.Action.ToolName,
		Listed: err == nil && listed != nil, Over: d.Status.Final()})
}

// ParseEventFilter returns the filter of a stream of events: the agent in the form of erc8004.FormatAgent, and the
// statuses without empty ones. It returns an error if agent or one of statuses is invalid.
func ParseEventFilter(agent string, statuses []string) (_ string, kept []string, _ error) {
	if agent != "" {
		a, err := parseAgent(agent)
		if err != nil {
			return "", nil, err
		}
		agent = erc8004.FormatAgent(a.ChainID, a.ID)
	}
	for _, s := range statuses {
		if err := checkWord("status", s, AllStatuses()); err != nil {
			return "", nil, err
		}
		if s != "" {
			kept = append(kept, s)
		}
	}
	return agent, kept, nil
}

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
		if slices.Contains([]outcome.Status{outcome.Queued, outcome.Running, outcome.Delivered}, s) {
			return list, NewMisuseOf("status", "%s deliveries have no error by which to group them", s)
		}
	}
	if len(all) == 0 {
		all = []outcome.Status{outcome.Rejected, outcome.Dead, outcome.Held, outcome.Waiting}
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
