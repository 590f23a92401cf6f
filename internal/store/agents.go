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

// AgentRow is what every worker knows of an agent.
type AgentRow struct {
	ChainID          uint64           `json:"chainId"`
	IdentityRegistry string           `json:"identityRegistry"`
	AgentID          string           `json:"agentId"`
	Epoch            int64            `json:"epoch"`
	RaisedEpoch      *int64           `json:"raisedEpoch,omitempty"` // the epoch that a failure made; gone when the agent answers
	Enabled          bool             `json:"enabled"`
	Policy           Policy           `json:"policy"`
	Preferences      *Preferences     `json:"preferences,omitempty"` // as the agent said them last, in force or not (Preferences.InForce)
	Endpoint         string           `json:"endpoint,omitempty"`
	ServerInfo       json.RawMessage  `json:"serverInfo,omitempty"`
	Protocol         string           `json:"protocol,omitempty"`
	Tools            json.RawMessage  `json:"tools,omitempty"`
	State            string           `json:"state"` // disabled pending connected needs_auth failed
	LastOKAt         *time.Time       `json:"lastOkAt,omitempty"`
	LastCalledAt     *time.Time       `json:"lastCalledAt,omitempty"` // when a call was last recorded, however it ended
	FailingSince     *time.Time       `json:"failingSince,omitempty"` // its first failed call after a success, or after it was enabled
	LastError        string           `json:"lastError,omitempty"`
	LastErrorAt      *time.Time       `json:"lastErrorAt,omitempty"`
	Totals           json.RawMessage  `json:"totals"` // deliveries that ended, by status; a replayed one ends again
	Open             map[Status]int64 `json:"open"`   // deliveries that have not ended, by status
	CreatedAt        time.Time        `json:"createdAt"`
	UpdatedAt        time.Time        `json:"updatedAt"`

	CallsOfDay  int `json:"callsOfDay,omitempty"`  // of the last 24 hours at least; in a list by SortFailing only
	FailedOfDay int `json:"failedOfDay,omitempty"` // those that the agent is to blame for
}

// AgentFilter narrows and sorts a list of agents. Zero fields do not narrow.
type AgentFilter struct {
	ChainID *uint64
	AgentID string // decimal
	State   string
	Sort    string // "": by chain, registry and id; or SortFailing
	Limit   int    // default 50, at most maxRows

	After                   *Agent // the last one of the page before
	AfterCalls, AfterFailed int    // its CallsOfDay and FailedOfDay, by SortFailing
}

// SortFailing lists the agents first that failed most calls in the last 24 hours, of those the ones first that failed
// the larger share. Who failed none comes last. An agent that is called between two pages may be on both, or on none.
const SortFailing = "failing"

// agentColumns counts by the three partial indexes that hold what is open (in line, dispatched, neither), without
// reading rows but of what is dispatched.
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

// placedAgents are agents with their place in a list by SortFailing: what sorts them, ascending, and the key. An agent's
// last hour with a call is in its own row.
const placedAgents = `(SELECT *, -failed AS failures, -failed::float8 / greatest(calls, 1) AS share FROM (
	SELECT g.chain_id, g.identity_registry, g.agent_id, g.state,
		coalesce(h.calls, 0) + CASE WHEN g.hour >= date_trunc('hour', now() - interval '24 hours', 'UTC') THEN g.hour_calls ELSE 0 END AS calls,
		coalesce(h.failed, 0) + CASE WHEN g.hour >= date_trunc('hour', now() - interval '24 hours', 'UTC') THEN g.hour_failed ELSE 0 END AS failed
	FROM herald.agents g LEFT JOIN (SELECT chain_id, identity_registry, agent_id, sum(calls) AS calls, sum(failed) AS failed
		FROM herald.agent_hours WHERE hour >= date_trunc('hour', now() - interval '24 hours', 'UTC') GROUP BY chain_id, identity_registry, agent_id) h
		USING (chain_id, identity_registry, agent_id)) x) g`

// Agents lists agents in the order of chain, registry and id, or as the filter says. The next page starts after the
// last one.
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

// failingPage is a page of a list by SortFailing: what else is known of agents is read for those on the page only.
func failingPage(where, limit string) string {
	return `SELECT ` + agentColumns + `, p.calls, p.failed FROM (SELECT * FROM ` + placedAgents + where +
		` ORDER BY ` + placeOf("g") + limit + `) p
		JOIN herald.agents g USING (chain_id, identity_registry, agent_id)
		ORDER BY ` + placeOf("p")
}

// placeOf is what a list by SortFailing is sorted by.
func placeOf(table string) string {
	return strings.ReplaceAll("@.failures, @.share, @.chain_id, @.identity_registry, @.agent_id", "@", table)
}

// AgentRow reads one agent. ErrNotFound.
func (s *Store) AgentRow(ctx context.Context, a Agent) (r AgentRow, err error) {
	ctx, cancel := s.withDeadline(ctx)
	defer cancel()
	defer wrapError(&err, "read agent %d:%s", a.ChainID, a.ID)
	rows, _ := s.pool.Query(ctx, `SELECT `+agentColumns+`, 0, 0 FROM herald.agents g
		WHERE g.chain_id = $1 AND g.identity_registry = $2 AND g.agent_id = $3`, a.ChainID, a.Registry, a.ID)
	r, err = pgx.CollectExactlyOneRow(rows, scanAgentRow)
	return r, noRows(err, ErrNotFound)
}

// EnableAgent enables or disables an agent; one that is not known yet is made known. A disabled one's deliveries are
// held as they are claimed. Enabling releases those that were held for it, in as many transactions as it takes; it
// returns how many, and the tasks that the caller puts into Redis, also when it fails in the middle: calling it again
// goes on.
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

// RefreshAgent has every worker resolve an agent anew: it raises the epoch. ErrNotFound.
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

// setEnabled enables or disables an agent that is locked. One that is enabled again begins anew: what failed before it
// was disabled does not count.
func setEnabled(ctx context.Context, tx pgx.Tx, a Agent, enabled bool) error {
	_, err := tx.Exec(ctx, `UPDATE herald.agents SET enabled = $4, updated_at = now(),
		state = CASE WHEN NOT $4 THEN 'disabled' WHEN state = 'disabled' THEN 'pending' ELSE state END,
		failing_since = CASE WHEN NOT $4 THEN failing_since END
		WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3`, a.ChainID, a.Registry, a.ID, enabled)
	return err
}

// SetPolicy merges p into the agent's policy: what p does not say stays, OnUnknownResend and PreferencesFollow bring back
// the defaults. An agent that is not known yet is made known. One whose preferences are ignored has its line held no
// longer.
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
