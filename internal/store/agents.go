package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/reason"
	"github.com/jackc/pgx/v5"
)

// AgentRow is the stored state of an agent, shared by all workers.
type AgentRow struct {
	ChainID          uint64 `json:"chainId"`
	IdentityRegistry string `json:"identityRegistry"`
	AgentID          string `json:"agentId"`
	Epoch            int64  `json:"epoch"`
	RaisedEpoch      *int64 `json:"raisedEpoch,omitempty"` // the epoch that a failure raised; nil after a success
	Enabled          bool   `json:"enabled"`
	Policy           Policy `json:"policy"`
	// Preferences are those that the agent returned last, whether they are in force or not (Preferences.InForce).
	Preferences  *Preferences     `json:"preferences,omitempty"`
	Endpoint     string           `json:"endpoint,omitempty"`
	ServerInfo   json.RawMessage  `json:"serverInfo,omitempty"`
	Protocol     string           `json:"protocol,omitempty"`
	Tools        json.RawMessage  `json:"tools,omitempty"`
	State        string           `json:"state"` // disabled pending connected needs_auth failed
	LastOKAt     *time.Time       `json:"lastOkAt,omitempty"`
	LastCalledAt *time.Time       `json:"lastCalledAt,omitempty"` // when a call was last recorded, with any outcome
	FailingSince *time.Time       `json:"failingSince,omitempty"` // first failed call after a success or its enabling
	LastError    string           `json:"lastError,omitempty"`
	LastErrorAt  *time.Time       `json:"lastErrorAt,omitempty"`
	Totals       json.RawMessage  `json:"totals"` // number of ended deliveries by status; a replayed one counts again
	Open         map[Status]int64 `json:"open"`   // number of open deliveries by status
	CreatedAt    time.Time        `json:"createdAt"`
	UpdatedAt    time.Time        `json:"updatedAt"`

	// CallsOfDay is the number of calls in the last 24 to 25 hours (whole UTC hours), FailedOfDay that of the calls
	// that failed by the agent's fault. Both are set only in a list by SortFailing.
	CallsOfDay  int `json:"callsOfDay,omitempty"`
	FailedOfDay int `json:"failedOfDay,omitempty"`
}

// AgentFilter selects and sorts the agents of a list. Fields with zero values do not restrict the list.
type AgentFilter struct {
	ChainID *uint64
	AgentID string // decimal
	State   string
	Sort    string // "": by chain, registry and id; or SortFailing
	Limit   int    // default 50, at most maxRows

	After                   *Agent // last agent of the previous page
	AfterCalls, AfterFailed int    // CallsOfDay and FailedOfDay of After, for SortFailing
}

// SortFailing lists the agents with the most failed calls in the last 24 hours first; among equal ones, those with the
// larger share of failed calls. Agents without a failed call come last. If an agent is called between two pages, it may
// be on both pages or on none.
const SortFailing = "failing"

// agentColumns are the columns of an AgentRow, for a query FROM herald.agents g. The last one counts open deliveries
// with three partial indexes (backlog, dispatched, waiting or held), and reads table rows of dispatched deliveries
// only.
const agentColumns = `g.chain_id, g.identity_registry, g.agent_id::text, g.epoch, g.raised_epoch, g.enabled, g.policy, g.preferences, coalesce(g.endpoint, ''),
	g.server_info, coalesce(g.protocol, ''), g.tools, g.state, g.last_ok_at, g.last_called_at, g.failing_since, coalesce(g.last_error, ''), g.last_error_at, g.totals, g.created_at, g.updated_at,
	(SELECT coalesce(jsonb_object_agg(status, n), '{}') FROM (SELECT status, sum(n) AS n FROM (
		SELECT 'queued' AS status, nullif(count(*), 0) AS n FROM herald.deliveries d WHERE place = 'line'
		   AND d.chain_id = g.chain_id AND d.identity_registry = g.identity_registry AND d.agent_id = g.agent_id
		UNION ALL
		SELECT status, count(*) FROM herald.deliveries d WHERE place = 'out'
		   AND d.chain_id = g.chain_id AND d.identity_registry = g.identity_registry AND d.agent_id = g.agent_id GROUP BY status
		UNION ALL
		SELECT place, count(*) FROM herald.deliveries d WHERE place IN ('waiting', 'held')
		   AND d.chain_id = g.chain_id AND d.identity_registry = g.identity_registry AND d.agent_id = g.agent_id GROUP BY place
	) x WHERE n > 0 GROUP BY status) y)`

func scanAgentRow(row pgx.CollectableRow) (r AgentRow, err error) {
	var policy, preferences []byte
	err = row.Scan(&r.ChainID, &r.IdentityRegistry, &r.AgentID, &r.Epoch, &r.RaisedEpoch, &r.Enabled, &policy, &preferences,
		&r.Endpoint,
		&r.ServerInfo, &r.Protocol, &r.Tools, &r.State, &r.LastOKAt, &r.LastCalledAt, &r.FailingSince, &r.LastError, &r.LastErrorAt, &r.Totals,
		&r.CreatedAt, &r.UpdatedAt, &r.Open, &r.CallsOfDay, &r.FailedOfDay)
	r.Policy = parsePolicy(policy)
	if p := parsePreferences(preferences); !p.SaidAt.IsZero() {
		r.Preferences = &p
	}
	return r, err
}

// placedAgents is a subquery, named g, of all agents with the columns by which SortFailing sorts, ascending (placeOf),
// and the counts of the last day. The counts of an agent's last hour with a call are in its row of herald.agents, those
// of earlier hours in herald.agent_hours.
const placedAgents = `(SELECT *, -failed AS failures, -failed::float8 / greatest(calls, 1) AS share FROM (
	SELECT g.chain_id, g.identity_registry, g.agent_id, g.state,
		coalesce(h.calls, 0) + CASE WHEN g.hour >= date_trunc('hour', now() - interval '24 hours', 'UTC') THEN g.hour_calls ELSE 0 END AS calls,
		coalesce(h.failed, 0) + CASE WHEN g.hour >= date_trunc('hour', now() - interval '24 hours', 'UTC') THEN g.hour_failed ELSE 0 END AS failed
	FROM herald.agents g LEFT JOIN (SELECT chain_id, identity_registry, agent_id, sum(calls) AS calls, sum(failed) AS failed
		FROM herald.agent_hours WHERE hour >= date_trunc('hour', now() - interval '24 hours', 'UTC') GROUP BY chain_id, identity_registry, agent_id) h
		USING (chain_id, identity_registry, agent_id)) x) g`

// Agents lists the agents that match the filter, in the order of chain, registry and id, or as f.Sort says. For the
// next page, set f.After to the last agent of this page; for SortFailing also f.AfterCalls and f.AfterFailed.
func (s *Store) Agents(ctx context.Context, f AgentFilter) (list []AgentRow, err error) {
	var n narrowing
	if f.ChainID != nil {
		n.addCondition("g.chain_id =", *f.ChainID)
	}
	if f.AgentID != "" {
		n.addCondition("g.agent_id =", f.AgentID)
	}
	if f.State != "" {
		n.addCondition("g.state =", f.State)
	}
	failing := f.Sort == SortFailing
	if f.After != nil {
		n.args = append(n.args, f.After.ChainID, f.After.Registry, cmp.Or(f.After.ID, "0"))
		i := len(n.args)
		after := fmt.Sprintf("(g.chain_id, g.identity_registry, g.agent_id) > ($%d, $%d, $%d)", i-2, i-1, i)
		if failing {
			n.args = append(n.args, -f.AfterFailed, -float64(f.AfterFailed)/float64(max(f.AfterCalls, 1)))
			after = fmt.Sprintf("(%s) > ($%d, $%d, $%d, $%d, $%d)", placeOf("g"), i+1, i+2, i-2, i-1, i)
		}
		n.conditions = append(n.conditions, after)
	}
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "list agents")
	args := append(n.args, min(cmp.Or(max(f.Limit, 0), 50), maxRows))
	limit := ` LIMIT $` + strconv.Itoa(len(args))
	sql := `SELECT ` + agentColumns + `, 0, 0 FROM herald.agents g` + n.whereClause() +
		` ORDER BY g.chain_id, g.identity_registry, g.agent_id` + limit
	if failing {
		sql = failingPage(n.whereClause(), limit)
	}
	rows, _ := s.pool.Query(ctx, sql, args...)
	return pgx.CollectRows(rows, scanAgentRow)
}

// failingPage returns the SQL query for a page of a list by SortFailing; where and limit are its SQL clauses. The inner
// query sorts all agents, the outer one reads agentColumns for those of the page only.
func failingPage(where, limit string) string {
	return `SELECT ` + agentColumns + `, p.calls, p.failed FROM (SELECT * FROM ` + placedAgents + where +
		` ORDER BY ` + placeOf("g") + limit + `) p
		JOIN herald.agents g USING (chain_id, identity_registry, agent_id)
		ORDER BY ` + placeOf("p")
}

// placeOf returns the list of columns for ORDER BY of a list by SortFailing. table is the SQL alias of placedAgents.
func placeOf(table string) string {
	return strings.ReplaceAll("@.failures, @.share, @.chain_id, @.identity_registry, @.agent_id", "@", table)
}

// AgentRow reads the stored state of one agent. It returns ErrNotFound if the agent has no row.
func (s *Store) AgentRow(ctx context.Context, a Agent) (r AgentRow, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "read agent %d:%s", a.ChainID, a.ID)
	rows, _ := s.pool.Query(ctx, `SELECT `+agentColumns+`, 0, 0 FROM herald.agents g
		WHERE g.chain_id = $1 AND g.identity_registry = $2 AND g.agent_id = $3`, a.ChainID, a.Registry, a.ID)
	r, err = pgx.CollectExactlyOneRow(rows, scanAgentRow)
	return r, noRows(err, ErrNotFound)
}

// EnableAgent enables or disables an agent, and inserts a row for an unknown one. Deliveries of a disabled agent are
// held when they are claimed (agent_disabled). Enabling releases these, in as many transactions as needed. It returns
// the number of released deliveries and the tasks that the caller puts into Redis or removes there. After an error,
// both results tell what was committed, and a second call releases the rest.
func (s *Store) EnableAgent(ctx context.Context, a Agent, enabled bool) (released int, tasks []Task, err error) {
	defer wrapError(&err, "enable or disable agent %d:%s", a.ChainID, a.ID)
	var reasons []reason.Reason
	if enabled {
		reasons = []reason.Reason{reason.AgentDisabled}
	}
	return s.releaseInBatches(ctx, a, reasons, func(ctx context.Context, tx pgx.Tx) error {
		return setEnabled(ctx, tx, a, enabled)
	})
}

// CountAgents counts agents by state.
func (s *Store) CountAgents(ctx context.Context) (counts map[string]int64, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "count agents")
	rows, _ := s.pool.Query(ctx, `SELECT state, count(*) FROM herald.agents GROUP BY state`)
	counts = map[string]int64{}
	var state string
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&state, &n}, func() error {
		counts[state] = n
		return nil
	})
	return counts, err
}

// RefreshAgent raises an agent's epoch, so that every worker resolves the agent again instead of using its cached data.
// It returns ErrNotFound if the agent has no row.
func (s *Store) RefreshAgent(ctx context.Context, a Agent) (err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "have agent %d:%s resolved anew", a.ChainID, a.ID)
	tag, err := s.pool.Exec(ctx, statement("raise_epoch"), a.ChainID, a.Registry, a.ID)
	if err == nil && tag.RowsAffected() == 0 {
		err = ErrNotFound
	}
	return err
}

// setEnabled enables or disables an agent whose row the caller has locked. Enabling clears failing_since, so that only
// later failures count towards alerts and disabling.
func setEnabled(ctx context.Context, tx pgx.Tx, a Agent, enabled bool) error {
	_, err := tx.Exec(ctx, `UPDATE herald.agents SET enabled = $4, updated_at = now(),
		state = CASE WHEN NOT $4 THEN 'disabled' WHEN state = 'disabled' THEN 'pending' ELSE state END,
		failing_since = CASE WHEN NOT $4 THEN failing_since END
		WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3`, a.ChainID, a.Registry, a.ID, enabled)
	return err
}

// SetPolicy merges p into the agent's policy: fields that are empty in p keep their stored values. The values
// OnUnknownResend and PreferencesFollow are the defaults. It inserts a row for an unknown agent. PreferencesIgnore also
// ends a pause of the agent's backlog. An invalid value in p is an error.
func (s *Store) SetPolicy(ctx context.Context, a Agent, p Policy) (err error) {
	if err := p.checkValues(); err != nil {
		return err
	}
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "set the policy of agent %d:%s", a.ChainID, a.ID)
	_, err = s.pool.Exec(ctx, `INSERT INTO herald.agents AS g (chain_id, identity_registry, agent_id, policy) VALUES ($1, $2, $3, $4)
		ON CONFLICT (chain_id, identity_registry, agent_id) DO UPDATE SET updated_at = now(),
			line_held_until = CASE WHEN excluded.policy ->> 'preferences' = 'ignore' THEN NULL ELSE g.line_held_until END,
			policy = CASE WHEN jsonb_typeof(g.policy) = 'object' THEN g.policy || excluded.policy ELSE excluded.policy END`,
		a.ChainID, a.Registry, a.ID, p)
	return err
}
