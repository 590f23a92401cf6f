package records

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/agentherald/herald/internal/store/retention"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// maxRows is the maximum length of a list: a page of 1,000 rows, and one more row that shows that a next page exists.
const maxRows = 1001

// Filter selects deliveries. Fields with zero values do not restrict the list.
type Filter struct {
	ChainID     *uint64
	AgentID     string // decimal
	Registry    string // of AgentID: 0x address, lower-case
	Client      string // 0x address of the client that wrote the feedback, lower-case
	Transaction string // 0x hash of the event's transaction, lower-case
	Key         string
	FirstID     uuid.UUID // with LastID: ids between both, inclusive
	LastID      uuid.UUID
	Statuses    []outcome.Status // any of them
	Reason      outcome.Reason
	Sentence    string // the delivery's error as Groups returns it
	Kind        string
	Since       time.Time // earliest time of creation
	Until       time.Time // created before this time
	EndedSince  time.Time // earliest time of the end; selects only deliveries that ended without being delivered
	Unfiltered  bool      // leaves out deliveries that a filter skipped
	WithJob     bool      // leaves out deliveries that have no job, because it was invalid or retention deleted it
	Reorged     bool      // selects deliveries that ended because of a reorg, and retractions
	Before      int64     // if positive, selects lower values of Seq; for the next page, the last Seq of this one
	Limit       int       // default 50, at most maxRows

	firstSeq, lastSeq int64 // set by boundSeq: the first seq, and the one after the last
	retractions       bool  // set by split: selects retractions
}

// Describe returns the conditions of the filter by name, for an audit row.
func (f Filter) Describe() map[string]any {
	m := map[string]any{}
	if f.ChainID != nil {
		m["agent"] = erc8004.FormatAgent(*f.ChainID, f.AgentID)
	}
	var statuses []string
	for _, s := range f.Statuses {
		statuses = append(statuses, string(s))
	}
	for name, v := range map[string]string{"status": strings.Join(statuses, ","), "reason": string(f.Reason),
		"kind": f.Kind, "sentence": f.Sentence, "client": f.Client, "transaction": f.Transaction, "key": f.Key,
		"registry": f.Registry} {
		if v != "" {
			m[name] = v
		}
	}
	for name, t := range map[string]time.Time{"since": f.Since, "until": f.Until, "endedSince": f.EndedSince} {
		if !t.IsZero() {
			m[name] = t.UTC().Format(time.RFC3339)
		}
	}
	return m
}

// Deliveries lists the deliveries that match the filter, newest (highest Seq) first. For the next page, set f.Before to
// the Seq of the last delivery.
func (s *Store) Deliveries(ctx context.Context, f Filter) (list []ledger.Delivery, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "list deliveries")
	defer end()
	if f, err = s.boundSeq(ctx, f); err != nil {
		return nil, err
	}
	// All statements read one snapshot. Otherwise a delivery that is replayed between two of them would be in no list.
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err = pgx.BeginTxFunc(ctx, s.db.Conns, snapshot, func(tx pgx.Tx) error {
		list, err = f.listFrom(ctx, tx)
		return err
	})
	return list, err
}

// listFrom lists the deliveries of a snapshot that match the filter.
func (f Filter) listFrom(ctx context.Context, tx pgx.Tx) (list []ledger.Delivery, err error) {
	limit := min(cmp.Or(max(f.Limit, 0), 50), maxRows)
	var lowest int64 // the list has enough deliveries from this Seq on
	for _, f := range f.split() {
		f, few, err := f.boundEnded(ctx, tx)
		if err != nil {
			return nil, err
		}
		for _, table := range f.tables() {
			order, n := "seq", f.narrow()
			if f.Client != "" && table == endedDeliveries || f.Transaction != "" || f.LastID != uuid.Nil || few {
				// so that Postgres uses the index of the condition, and does not search all rows by seq
				order = "seq + 0"
			}
			ofAgent := f.AgentID != "" && f.ChainID != nil && table == openDeliveries
			fewOpen := false
			if table == openDeliveries && !ofAgent {
				if fewOpen, err = f.isOfFewOpen(ctx, tx); err != nil {
					return nil, err
				}
			}
			switch {
			case fewOpen:
				if order = "seq + 0"; f.isHeldFor() {
					n.conditions = append(n.conditions, "(place || '') = 'held'") // uses the index work_held
				}
			case ofAgent && f.isOfWork():
				n.conditions = append(n.conditions,
					"(identity_registry, agent_id, place, bulk) = (o.registry, o.agent, o.place, o.bulk)")
				order = "seq + 0"
			case ofAgent:
				n.addOpenAgent(*f.ChainID, f.AgentID, len(f.Statuses) == 0)
				order = "seq + 0"
			}
			if before := cmp.Or(f.Before, f.lastSeq); before > 0 {
				n.addCondition(order+" <", before)
			}
			if f.Client != "" && table == openDeliveries {
				first, last, err := boundClient(ctx, tx, f.Client)
				if err != nil {
					return nil, err
				}
				n.addCondition(order+" >=", first)
				n.addCondition(order+" <=", last)
			}
			// Without lowest, Postgres could read the rows of all newer open deliveries to find those that ended.
			if from := max(lowest, f.firstSeq); from > 0 {
				n.addCondition(order+" >=", from)
			}
			args := append(n.args, limit)
			where, page := n.whereClause(), ` ORDER BY `+order+` DESC LIMIT $`+strconv.Itoa(len(args))
			if ofAgent && f.isOfWork() {
				// The view would read and sort all open deliveries of the agent, which may be many. The index
				// work_agent has those of each place sorted.
				where = ` WHERE id = ANY (ARRAY(SELECT n.id FROM ` + agentPlaces + ` CROSS JOIN LATERAL (
					SELECT id, seq FROM herald.work` + where + page + `) n ORDER BY n.seq DESC LIMIT $` +
					strconv.Itoa(len(args)) + `))`
			}
			rows, _ := tx.Query(ctx, `SELECT `+store.DeliveryColumns+` FROM `+table+where+page, args...)
			found, err := pgx.CollectRows(rows, store.ScanDelivery)
			if err != nil {
				return nil, err
			}
			list = append(list, found...)
			if len(found) == limit {
				lowest = max(lowest, found[limit-1].Seq)
			}
		}
	}
	slices.SortFunc(list, func(a, b ledger.Delivery) int { return cmp.Compare(b.Seq, a.Seq) })
	return list[:min(len(list), limit)], nil
}

// maxSorted limits the deliveries of one status that a list with EndedSince sorts for a page, and maxBounded those
// among which boundEnded looks for the first seq.
const (
	maxSorted  = 1000
	maxBounded = 20_000
)

// maxOpenSorted limits the open deliveries of one status that a list sorts for a page.
const maxOpenSorted = 5000

// isOfFewOpen reports whether fewer than maxOpenSorted deliveries have the filter's one status (queued, waiting or
// held), and its reason if they are held. Then a list reads and sorts them all. If there are more, a list searches by
// seq. Otherwise a list of few deliveries would read all newer open ones, of which strangers can make very many.
func (f Filter) isOfFewOpen(ctx context.Context, tx pgx.Tx) (few bool, err error) {
	if len(f.Statuses) == 0 || f.Statuses[0] == outcome.Running {
		return false, nil
	}
	n := narrowing{args: []any{maxOpenSorted}}
	n.addStatus(f.Statuses[0])
	if f.isHeldFor() {
		n.addCondition("(place || '') = 'held' AND reason =", f.Reason)
	}
	err = tx.QueryRow(ctx, `SELECT count(*) < $1 FROM (SELECT FROM herald.work`+n.whereClause()+` LIMIT $1) x`,
		n.args...).Scan(&few)
	return few, err
}

// isHeldFor reports whether the filter, which has one status, selects held deliveries by their reason.
func (f Filter) isHeldFor() bool { return f.Statuses[0] == outcome.Held && f.Reason != "" }

// boundEnded reports whether EndedSince selects fewer than maxSorted deliveries of the filter's one status. Then a list
// reads and sorts them all. If it selects more, a list searches by seq, from the first seq of those that it selects.
func (f Filter) boundEnded(ctx context.Context, tx pgx.Tx) (_ Filter, few bool, err error) {
	if f.EndedSince.IsZero() {
		return f, false, nil
	}
	var count, first int64
	err = tx.QueryRow(ctx, `SELECT count(*), coalesce(min(seq), 0) FROM (SELECT seq FROM herald.history
		WHERE undelivered = $1 AND undelivered_at >= $2 LIMIT $3) x`, f.Statuses[0], f.EndedSince, maxBounded).
		Scan(&count, &first)
	if count < maxBounded {
		f.firstSeq = max(f.firstSeq, first)
	}
	return f, count < maxSorted, err
}

// The views of deliveries.
const (
	openDeliveries  = "herald.open_deliveries"
	endedDeliveries = "herald.ended_deliveries"
)

// tables returns the views that can have deliveries with the status of the filter, which has one status at most.
func (f Filter) tables() []string {
	switch {
	case len(f.Statuses) == 0:
		return []string{openDeliveries, endedDeliveries}
	case f.Statuses[0].Final():
		return []string{endedDeliveries}
	}
	return []string{openDeliveries}
}

// undeliveredStatuses has the statuses of deliveries that ended without being delivered.
var undeliveredStatuses = []outcome.Status{outcome.Skipped, outcome.Rejected, outcome.Dead, outcome.Cancelled}

// split returns filters with one status at most, which together select the deliveries of f, each once. The indexes of
// ended deliveries are ordered by seq, or by time, only within a status. Without a status, a condition that only
// deliveries in some statuses meet is searched in those.
func (f Filter) split() (parts []Filter) {
	if f.Reorged {
		f.Reorged = false
		orphans, retractions := f, f
		orphans.Statuses, orphans.Reason = []outcome.Status{outcome.Cancelled}, outcome.Reorg
		retractions.Kind, retractions.retractions = string(job.KindFeedbackRevoked), true
		return []Filter{orphans, retractions}
	}
	statuses := f.Statuses
	switch {
	case len(statuses) > 0:
	case !f.EndedSince.IsZero():
		statuses = undeliveredStatuses
	case f.Reason != "" || f.Sentence != "":
		statuses = append([]outcome.Status{outcome.Waiting, outcome.Held}, undeliveredStatuses...)
	default:
		return []Filter{f}
	}
	for _, status := range statuses {
		if status == outcome.Delivered && (f.Reason != "" || f.Sentence != "") {
			continue // it has neither; a search for them would read the history
		}
		if status.Final() || f.EndedSince.IsZero() {
			f.Statuses = []outcome.Status{status}
			parts = append(parts, f)
		}
	}
	return parts
}

// narrow returns the SQL conditions of a filter with one status at most, except those of Before and Limit.
func (f Filter) narrow() (n narrowing) {
	if f.ChainID != nil {
		n.addCondition("chain_id =", *f.ChainID)
	}
	if f.AgentID != "" {
		n.addCondition("agent_id::text =", f.AgentID) // uses the index history_agent
	}
	if f.Registry != "" {
		n.addCondition("identity_registry =", f.Registry)
	}
	if f.Client != "" {
		n.addCondition("split_part(order_key, '/', 3) =", f.Client) // uses the index history_client
	}
	if f.Transaction != "" {
		n.addCondition("job ->> 'transactionHash' =", f.Transaction) // uses the index history_transaction
	}
	if f.Key != "" {
		n.args = append(n.args, f.Key)
		// key_hash casts to bytea, for which a backslash is an escape.
		n.conditions = append(n.conditions,
			fmt.Sprintf(`herald.key_hash(key) = herald.key_hash(replace($%d, '\', '\\'))`, len(n.args)))
	}
	if f.LastID != uuid.Nil {
		n.addCondition("id >=", f.FirstID)
		n.addCondition("id <=", f.LastID)
	}
	if f.Kind != "" {
		n.addCondition("kind =", f.Kind)
	}
	if f.Kind != "" && f.Kind != string(job.KindNewFeedback) {
		n.conditions = append(n.conditions, "kind <> 'NewFeedback'") // uses the index history_kind
	}
	if f.retractions {
		n.conditions = append(n.conditions, "key LIKE '%#Retraction@%'", "reason IS DISTINCT FROM 'reorg'")
	}
	if len(f.Statuses) > 0 {
		n.addStatus(f.Statuses[0])
	}
	if f.Reason != "" {
		n.addCondition("reason =", f.Reason)
	}
	if f.Unfiltered {
		n.conditions = append(n.conditions, "reason IS DISTINCT FROM 'filtered'")
	}
	if f.WithJob {
		n.conditions = append(n.conditions, "job IS NOT NULL")
	}
	if f.Sentence != "" {
		// spares most rows the next, which is costly
		n.addCondition("left(error, 300) LIKE", sentencePattern.Replace(f.Sentence))
		n.addCondition("herald.sentence(error) =", f.Sentence)
	}
	if !f.EndedSince.IsZero() {
		n.addCondition("undelivered_at >=", f.EndedSince) // uses the index history_ended
	}
	if !f.Since.IsZero() {
		n.addCondition("created_at >=", f.Since)
	}
	if !f.Until.IsZero() {
		n.addCondition("created_at <", f.Until)
	}
	if f.firstSeq > 0 {
		n.addCondition("seq >=", f.firstSeq)
	}
	if f.lastSeq > 0 {
		n.addCondition("seq <", f.lastSeq)
	}
	return n
}

// sentencePattern makes the pattern of a sentence that every error of the sentence matches.
var sentencePattern = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`, `#`, `%`)

// agentPlaces is an SQL subquery, named o, of the first columns of the index work_agent, for the open deliveries of an
// agent. $1 and $2 are the chain and the agent, because narrow adds them first.
const agentPlaces = `(SELECT registry, $2::text::numeric AS agent, place, bulk FROM herald.list_registries($1) registry,
	unnest(ARRAY['line', 'out', 'waiting', 'task', 'held']) place, unnest(ARRAY[false, true]) bulk) o`

// addOpenAgent adds the conditions with which the open deliveries of an agent are found by the index work_agent, whose
// first column is the place. anyPlace says that no other condition names the places.
func (n *narrowing) addOpenAgent(chainID uint64, agentID string, anyPlace bool) {
	n.args = append(n.args, chainID, agentID)
	n.conditions = append(n.conditions, fmt.Sprintf(`agent_id = $%[2]d::text::numeric
		AND identity_registry = ANY (ARRAY(SELECT herald.list_registries($%[1]d)))`, len(n.args)-1, len(n.args)))
	if anyPlace {
		n.conditions = append(n.conditions, "place IN ('line', 'out', 'waiting', 'task', 'held')")
	}
}

// isOfWork reports whether all conditions of the filter are about columns of herald.work.
func (f Filter) isOfWork() bool {
	return f.Transaction == "" && f.Key == "" && f.Since.IsZero() && f.Until.IsZero() && !f.WithJob
}

// addStatus adds the conditions of a status.
func (n *narrowing) addStatus(status outcome.Status) {
	switch status {
	case outcome.Queued:
		n.conditions = append(n.conditions, "place IN ('line', 'out')", "status = 'queued'")
	case outcome.Running:
		n.conditions = append(n.conditions, "place = 'out'", "status = 'running'")
	case outcome.Waiting:
		n.conditions = append(n.conditions, "place IN ('waiting', 'task')")
	case outcome.Held:
		n.conditions = append(n.conditions, "place = 'held'")
	case outcome.Skipped, outcome.Rejected, outcome.Dead, outcome.Cancelled:
		n.addCondition("undelivered =", status) // uses the index history_undelivered
	default:
		n.addCondition("status =", status)
	}
}

// boundSeq sets the bounds of seq that follow from Since and Until. Postgres reads lists in the order of seq, and
// created_at has no index. Without these bounds, a list of the last hour that does not fill a page would read all older
// rows.
func (s *Store) boundSeq(ctx context.Context, f Filter) (_ Filter, err error) {
	if !f.Since.IsZero() {
		f.firstSeq, err = retention.FirstSeqSince(ctx, s.db, f.Since.Add(-retention.AcceptSkew))
	}
	if err == nil && !f.Until.IsZero() {
		f.lastSeq, err = retention.FirstSeqSince(ctx, s.db, f.Until.Add(retention.AcceptSkew))
	}
	return f, err
}

// boundClient returns the first and the last seq of a client's deliveries, or 0 and 0 for an unknown client. The table
// herald.work has no index of clients. Without these bounds, a list would read all open deliveries to find those of a
// client that has none among them.
func boundClient(ctx context.Context, tx pgx.Tx, client string) (first, last int64, err error) {
	const seqs = `SELECT seq FROM herald.history WHERE split_part(coalesce(order_key, key), '/', 3) = $1
		ORDER BY (seq + 0) ` // uses the index history_client
	err = tx.QueryRow(ctx,
		`SELECT coalesce((`+seqs+`LIMIT 1), 0), coalesce((`+seqs+`DESC LIMIT 1), 0)`, client).Scan(&first, &last)
	return first, last, err
}

// narrowing collects the conditions of a WHERE clause and their arguments. A field that a filter does not set adds no
// condition, so that Postgres can choose an index for each combination of fields.
type narrowing struct {
	conditions []string
	args       []any
}

// addCondition adds an SQL condition. condition ends with an operator, such as "seq <", and arg is its right operand.
func (n *narrowing) addCondition(condition string, arg any) {
	n.args = append(n.args, arg)
	n.conditions = append(n.conditions, condition+" $"+strconv.Itoa(len(n.args)))
}

// whereClause returns " WHERE " and all conditions, or "" if n has no condition.
func (n *narrowing) whereClause() string {
	if len(n.conditions) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(n.conditions, " AND ")
}

// Count returns the number of deliveries that match the filter, by status. It ignores Before and Limit.
func (s *Store) Count(ctx context.Context, f Filter) (counts map[outcome.Status]int64, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "count deliveries")
	defer end()
	if f, err = s.boundSeq(ctx, f); err != nil {
		return nil, err
	}
	counts = make(map[outcome.Status]int64)
	for _, f := range f.split() {
		for _, table := range f.tables() {
			n := f.narrow()
			if f.AgentID != "" && f.ChainID != nil && table == openDeliveries {
				n.addOpenAgent(*f.ChainID, f.AgentID, len(f.Statuses) == 0)
			}
			if table == openDeliveries && f.isOfWork() {
				table = "herald.work" // the view would read the history of each
			}
			rows, _ := s.db.Conns.Query(ctx, `SELECT status, count(*) FROM `+table+n.whereClause()+` GROUP BY status`,
				n.args...)
			found, err := collectMap[outcome.Status, int64](rows)
			if err != nil {
				return nil, err
			}
			for status, count := range found {
				counts[status] += count
			}
		}
	}
	return counts, nil
}

// Stuck is the number of held or overdue deliveries with one status and reason.
type Stuck struct {
	Status outcome.Status // Held, or the status of overdue deliveries
	Reason outcome.Reason
	Count  int64
}

// overdueAfter is how long a delivery must be late before ListStuck counts it as overdue.
const overdueAfter = time.Minute

// ListStuck counts held and overdue deliveries, by status and reason, up to half of maxDepth each. A delivery is
// overdue if, at least overdueAfter ago, its wait ended, its task was due but was not claimed, or its lease expired.
func (s *Store) ListStuck(ctx context.Context) (stuck []Stuck, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "count held and overdue deliveries")
	defer end()
	rows, _ := s.db.Conns.Query(ctx, statements.Text("stuck"), overdueAfter, maxDepth/2)
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Stuck])
}

// Blocker returns the delivery for which the delivery with this id waits (behind_earlier). Among the other open
// deliveries of the ordering key, this is the one that has the turn, else the one with the lowest index. If there is no
// such delivery, Blocker returns ErrNotFound.
func (s *Store) Blocker(ctx context.Context, id uuid.UUID) (d ledger.Delivery, err error) {
	ctx, cancel := s.db.WithDeadline(ctx)
	defer cancel()
	var blocker uuid.UUID
	if err := s.db.Conns.QueryRow(ctx, statements.Text("blocker"), id).Scan(&blocker); err != nil {
		return d, fmt.Errorf("find the delivery that %s waits behind: %w", id, postgres.NoRows(err, ledger.ErrNotFound))
	}
	return s.ledger.Delivery(ctx, blocker)
}
