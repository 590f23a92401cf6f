package records

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/erc8004"
	"github.com/agentherald/herald/internal/job/policy"
	"github.com/agentherald/herald/internal/outcome"
	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/postgres"
	"github.com/jackc/pgx/v5"
)

// AgentRow is the row of an agent in herald.agents, with the number of its open deliveries.
//
// RaisedEpoch is the epoch that a failed call set, because the endpoint may have moved (Outcome.Moved). Further
// failures in that epoch do not raise it again. It is nil after a success.
type AgentRow struct {
	ChainID          uint64               `json:"chainId"`
	IdentityRegistry string               `json:"identityRegistry"`
	AgentID          string               `json:"agentId"`
	Epoch            int64                `json:"epoch"`
	RaisedEpoch      *int64               `json:"raisedEpoch,omitempty"`
	Enabled          bool                 `json:"enabled"`
	Policy           policy.Policy        `json:"policy"`             // the operator's, for the agent
	OwnPolicy        policy.Policy        `json:"ownPolicy,omitzero"` // the agent's own
	Endpoint         string               `json:"endpoint,omitempty"`
	Registration     *ledger.Registration `json:"registration,omitempty"` // as it was last resolved; nil: not yet
	ServerInfo       json.RawMessage      `json:"serverInfo,omitempty"`
	Protocol         string               `json:"protocol,omitempty"`
	Tools            json.RawMessage      `json:"tools,omitempty"`
	State            string               `json:"state"` // StateDisabled, StatePending, …
	LastOKAt         *time.Time           `json:"lastOkAt,omitempty"`
	// when a call was last recorded, with any outcome
	LastCalledAt *time.Time `json:"lastCalledAt,omitempty"`
	// first failed call since the last success or enabling
	FailingSince *time.Time `json:"failingSince,omitempty"`
	LastError    string     `json:"lastError,omitempty"`
	LastErrorAt  *time.Time `json:"lastErrorAt,omitempty"`
	// number of ended deliveries by status; a replayed one counts again
	Totals    json.RawMessage          `json:"totals"`
	Open      map[outcome.Status]int64 `json:"open"` // number of open deliveries by status
	CreatedAt time.Time                `json:"createdAt"`
	UpdatedAt time.Time                `json:"updatedAt"`

	// CallsOfDay and FailedOfDay count the calls of the last 24 to 25 hours (whole UTC hours), and those of them that
	// failed by the agent's fault. Both are set only in a list by SortFailing.
	CallsOfDay  int `json:"callsOfDay,omitempty"`
	FailedOfDay int `json:"failedOfDay,omitempty"`
	// MeanMs estimates the mean duration of the calls of the agent's last hour with a call. It is set only in a list by
	// SortSlow.
	MeanMs float64 `json:"meanMs,omitempty"`
}

// AgentFilter selects and sorts agents. Fields with zero values do not restrict the list.
type AgentFilter struct {
	ChainID *uint64
	AgentID string // decimal
	State   string // StateDisabled, …
	Sort    string // SortFailing, SortSlow, or "": by chain, registry and id
	Limit   int    // default 50, at most maxRows

	After                   *erc8004.Agent // last agent of the previous page
	AfterCalls, AfterFailed int            // CallsOfDay and FailedOfDay of After, for SortFailing
	AfterMs                 float64        // MeanMs of After, for SortSlow
}

// SortFailing sorts the agents with the most failed calls in the last 24 hours first; among agents with equal numbers,
// those with the larger share of failed calls. If an agent is called between the reading of two pages, it may be on
// both pages or on none.
const SortFailing = "failing"

// SortSlow lists the agents with a call in the last 24 hours, those with the highest MeanMs first.
const SortSlow = "slow"

// agentColumns are the columns of an AgentRow, for a query FROM herald.agents g. The last one counts open deliveries
// by status. It counts a long backlog fast: it uses the index work_agent, and reads the table rows of dispatched
// deliveries only. It counts at most a million of each place: otherwise an operator could not see or disable an agent
// for which strangers made tens of millions.
const agentColumns = `g.chain_id, g.identity_registry, g.agent_id::text, g.epoch, g.raised_epoch, g.enabled, g.policy,
	g.own_policy, coalesce(g.endpoint, ''), g.registration, g.server_info, coalesce(g.protocol, ''), g.tools, g.state,
	g.last_ok_at, g.last_called_at, g.failing_since, coalesce(g.last_error, ''), g.last_error_at, g.totals,
	g.created_at, g.updated_at,
	(SELECT coalesce(jsonb_object_agg(status, n), '{}') FROM (SELECT status, sum(n) AS n FROM (
		SELECT CASE p.place WHEN 'line' THEN 'queued' WHEN 'task' THEN 'waiting' ELSE p.place END AS status, n
		  FROM unnest(ARRAY['line', 'waiting', 'task', 'held']) p (place) CROSS JOIN LATERAL (
			SELECT count(*) AS n FROM (SELECT FROM herald.work d WHERE d.place = p.place AND d.chain_id = g.chain_id
			   AND d.identity_registry = g.identity_registry AND d.agent_id = g.agent_id LIMIT 1000000) w) c
		UNION ALL
		SELECT status, count(*) FROM herald.work d WHERE place = 'out'
		   AND d.chain_id = g.chain_id AND d.identity_registry = g.identity_registry AND d.agent_id = g.agent_id
		GROUP BY status
	) x WHERE n > 0 GROUP BY status) y)`

func scanAgentRow(row pgx.CollectableRow) (r AgentRow, err error) {
	var operator, own []byte
	err = row.Scan(&r.ChainID, &r.IdentityRegistry, &r.AgentID, &r.Epoch, &r.RaisedEpoch, &r.Enabled, &operator,
		&own, &r.Endpoint, &r.Registration, &r.ServerInfo, &r.Protocol, &r.Tools, &r.State,
		&r.LastOKAt, &r.LastCalledAt, &r.FailingSince, &r.LastError, &r.LastErrorAt, &r.Totals,
		&r.CreatedAt, &r.UpdatedAt, &r.Open, &r.CallsOfDay, &r.FailedOfDay, &r.MeanMs)
	r.Policy, r.OwnPolicy = policy.ParseStored(operator), policy.ParseStored(own)
	return r, err
}

// placedAgents is an SQL subquery, named g, of all agents: their primary keys, state, counts of the last day, and
// the columns by which SortFailing sorts, ascending (placeOf). The counts of an agent's last hour with a call are in
// its row of herald.agents, those of earlier hours in herald.agent_hours.
const placedAgents = `(SELECT *, -failed AS failures, -failed::float8 / greatest(calls, 1) AS share FROM (
	SELECT g.chain_id, g.identity_registry, g.agent_id, g.state,
		coalesce(h.calls, 0) +
			CASE WHEN g.hour BETWEEN date_trunc('hour', now() - interval '24 hours', 'UTC') AND now()
			THEN g.hour_calls ELSE 0 END AS calls,
		coalesce(h.failed, 0) +
			CASE WHEN g.hour BETWEEN date_trunc('hour', now() - interval '24 hours', 'UTC') AND now()
			THEN g.hour_failed ELSE 0 END AS failed
	FROM herald.agents g LEFT JOIN (
		SELECT chain_id, identity_registry, agent_id, sum(calls) AS calls, sum(failed) AS failed
		FROM herald.agent_hours WHERE hour BETWEEN date_trunc('hour', now() - interval '24 hours', 'UTC') AND now()
		GROUP BY chain_id, identity_registry, agent_id) h
		USING (chain_id, identity_registry, agent_id)) x) g`

// Agents lists the agents that match the filter, sorted by chain, registry and id, or by SortFailing. For the next
// page, set f.After to the last agent of this page, and for SortFailing also f.AfterCalls and f.AfterFailed to its
// counts.
func (s *Store) Agents(ctx context.Context, f AgentFilter) (list []AgentRow, err error) {
	var n narrowing
	if f.ChainID != nil {
		n.addCondition("g.chain_id =", *f.ChainID)
	}
	if f.AgentID != "" {
		n.addCondition("g.agent_id =", f.AgentID)
	}
	if f.AgentID != "" && f.ChainID != nil { // uses the whole primary key
		n.conditions = append(n.conditions, "g.identity_registry = ANY (ARRAY(SELECT herald.list_registries($1)))")
	}
	if f.State != "" {
		n.addCondition("(g.state || '') <> '' AND g.state =", f.State) // uses the index agents_state
	}
	place := placeOf(f.Sort, "g")
	if f.After != nil {
		n.args = append(n.args, f.After.ChainID, f.After.Registry, cmp.Or(f.After.ID, "0"))
		i := len(n.args)
		after := fmt.Sprintf("$%d, $%d, $%d", i-2, i-1, i)
		switch f.Sort {
		case SortFailing:
			n.args = append(n.args, -f.AfterFailed, -float64(f.AfterFailed)/float64(max(f.AfterCalls, 1)))
			after = fmt.Sprintf("$%d, $%d, %s", i+1, i+2, after)
		case SortSlow:
			n.args = append(n.args, -f.AfterMs)
			after = fmt.Sprintf("$%d, %s", i+1, after)
		}
		n.conditions = append(n.conditions, "("+place+") > ("+after+")")
	}
	ctx, end := s.db.StartCall(ctx, &err, "list agents")
	defer end()
	args := append(n.args, min(cmp.Or(max(f.Limit, 0), 50), maxRows))
	limit := ` LIMIT $` + strconv.Itoa(len(args))
	sql := `SELECT ` + agentColumns + `, 0, 0, 0 FROM herald.agents g` + n.whereClause() + ` ORDER BY ` + place + limit
	switch f.Sort {
	case SortFailing:
		sql = sortedPage(placedAgents+n.whereClause(), `p.calls, p.failed, 0`, f.Sort, limit)
	case SortSlow:
		sql = sortedPage(slowAgents+n.whereClause(), `0, 0, -p.slowness`, f.Sort, limit)
	}
	rows, _ := s.db.Conns.Query(ctx, sql, args...)
	return pgx.CollectRows(rows, scanAgentRow)
}

// sortedPage returns the SQL query for one page of a sorted list. from has the agents, with a WHERE clause, and counts
// the last columns of the list. The inner query sorts all agents, and the outer one reads agentColumns only for the
// agents of the page.
func sortedPage(from, counts, sort, limit string) string {
	return `SELECT ` + agentColumns + `, ` + counts + ` FROM (SELECT * FROM ` + from + `
		ORDER BY ` + placeOf(sort, "g") + limit + `) p
		JOIN herald.agents g USING (chain_id, identity_registry, agent_id)
		ORDER BY ` + placeOf(sort, "p")
}

// placeOf returns the columns by which a list is sorted, as an SQL list. table is the alias of its agents in the query.
func placeOf(sort, table string) string {
	first := map[string]string{SortFailing: "@.failures, @.share, ", SortSlow: "@.slowness, "}[sort]
	return strings.ReplaceAll(first+"@.chain_id, @.identity_registry, @.agent_id", "@", table)
}

// slowAgents is an SQL subquery, named g, of the agents with a call in the last 24 hours: their primary keys, state,
// and the column by which SortSlow sorts, ascending. Each call counts as the middle of its bucket of hour_latency.
const slowAgents = `(SELECT chain_id, identity_registry, agent_id, state, -ms AS slowness FROM herald.agents
	CROSS JOIN LATERAL (
	SELECT sum(n * middle) / nullif(sum(n), 0) AS ms FROM unnest(hour_latency, ` + latencyMiddles + `) b (n, middle)) l
	WHERE hour BETWEEN now() - interval '24 hours' AND now() AND ms IS NOT NULL) g`

// AgentsNamed lists agents whose name has this beginning, in the order of their names. It ignores case. Those with one
// name are in no order, because strangers can make many of them.
func (s *Store) AgentsNamed(ctx context.Context, beginning string, limit int) (list []AgentRow, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "list agents by name")
	defer end()
	const name = `lower(left(` + agentName + `, 100))` // as in the index agents_name
	rows, _ := s.db.Conns.Query(ctx, `SELECT `+agentColumns+`, 0, 0, 0 FROM herald.agents g
		WHERE `+name+` ~>=~ lower($1::text) AND `+name+` ~<~ (lower($1) || chr(1114111))
		ORDER BY `+name+` USING ~<~ LIMIT $2`, beginning, limit)
	return pgx.CollectRows(rows, scanAgentRow)
}

// AgentRow reads the stored state of one agent. It returns ErrNotFound if the agent has no row.
func (s *Store) AgentRow(ctx context.Context, a erc8004.Agent) (r AgentRow, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "read agent %s", a)
	defer end()
	rows, _ := s.db.Conns.Query(ctx, `SELECT `+agentColumns+`, 0, 0, 0 FROM herald.agents g
		WHERE g.chain_id = $1 AND g.identity_registry = $2 AND g.agent_id = $3`, a.ChainID, a.Registry, a.ID)
	r, err = pgx.CollectExactlyOneRow(rows, scanAgentRow)
	return r, postgres.NoRows(err, ledger.ErrNotFound)
}

// EnableAgent enables or disables an agent, and inserts a row for an unknown one. Disabling moves no delivery: each one
// is held (agent_disabled) after its next claim. Enabling releases these held deliveries, in as many transactions as
// needed. EnableAgent returns the number of released deliveries and the tasks that the caller puts into Redis or
// removes there. After an error, both describe the committed part, and a second call releases the rest.
func (s *Store) EnableAgent(ctx context.Context, a erc8004.Agent,
	enabled bool) (released int, tasks []ledger.Task, err error) {
	defer postgres.WrapError(&err, "enable or disable agent %s", a)
	var reasons []outcome.Reason
	if enabled {
		reasons = []outcome.Reason{outcome.AgentDisabled}
	}
	return s.ledger.ReleaseAfter(ctx, a, reasons, func(ctx context.Context, tx pgx.Tx) error {
		return setEnabled(ctx, tx, a, enabled)
	})
}

// ReleaseEnabled releases deliveries that were held because their agents were disabled: it puts them into the agents'
// backlogs. It skips agents whose row is not enabled now, and agents for which except returns true. It calls except at
// most once per agent. except may be nil. An agent whose deliveries it releases has no longer StateDisabled.
// It returns the number of released deliveries, and the tasks that the caller puts into Redis or removes there. After
// an error, both describe the committed part, and a second call continues.
func (s *Store) ReleaseEnabled(ctx context.Context,
	except func(erc8004.Agent) bool) (released int, tasks []ledger.Task, err error) {
	defer postgres.WrapError(&err, "release held deliveries of enabled agents")
	var last erc8004.Agent
	for {
		agents, enabled, err := s.listHeldDisabled(ctx, last)
		if err != nil || len(agents) == 0 {
			return released, tasks, err
		}
		for i, a := range agents {
			if last = a; !enabled[i] || except != nil && except(a) {
				continue
			}
			n, more, err := s.ledger.ReleaseAfter(ctx, a, []outcome.Reason{outcome.AgentDisabled}, markNotDisabled(a))
			released, tasks = released+n, append(tasks, more...)
			if err != nil {
				return released, tasks, fmt.Errorf("agent %s: %w", a, err)
			}
		}
	}
}

// maxHeldDisabled bounds the agents that listHeldDisabled reads. Strangers can make many agents that Herald disables.
const maxHeldDisabled = 5000

// listHeldDisabled lists the next maxHeldDisabled agents after an agent that have deliveries held because the agent was
// disabled (agent_disabled), and whether each agent is enabled now.
func (s *Store) listHeldDisabled(ctx context.Context, after erc8004.Agent) (agents []erc8004.Agent, enabled []bool,
	err error) {
	ctx, cancel := s.db.WithDeadline(ctx)
	defer cancel()
	rows, _ := s.db.Conns.Query(ctx, statements.Text("held_disabled"), after.ChainID, after.Registry,
		cmp.Or(after.ID, "0"), maxHeldDisabled)
	var a erc8004.Agent
	var e bool
	_, err = pgx.ForEachRow(rows, []any{&a.ChainID, &a.Registry, &a.ID, &e}, func() error {
		agents, enabled = append(agents, a), append(enabled, e)
		return nil
	})
	return agents, enabled, err
}

// markNotDisabled returns a change for ReleaseAfter: if agent a is enabled but its state is StateDisabled, the
// change sets StatePending and clears failing_since.
func markNotDisabled(a erc8004.Agent) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `UPDATE herald.agents SET state = 'pending', failing_since = NULL, updated_at = now()
			WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3 AND enabled AND state = 'disabled'`,
			a.ChainID, a.Registry, a.ID)
		return err
	}
}

// maxCountedAgents bounds the agents that CountAgents counts of each state.
const maxCountedAgents = 1_000_000

// CountAgents counts the rows of herald.agents by AgentRow.State, each up to maxCountedAgents. A state that no agent
// has is missing in counts.
func (s *Store) CountAgents(ctx context.Context) (counts map[string]int64, err error) {
	ctx, end := s.db.StartCall(ctx, &err, "count agents")
	defer end()
	rows, _ := s.db.Conns.Query(ctx, `SELECT s.state, n FROM unnest($1::text[]) s (state) CROSS JOIN LATERAL (
		SELECT count(*) AS n FROM (SELECT FROM herald.agents
			WHERE state = s.state AND (state || '') <> '' LIMIT $2) x) c WHERE n > 0`,
		AgentStates(), maxCountedAgents)
	return collectMap[string, int64](rows)
}

// RefreshAgent raises an agent's epoch, so that workers resolve the agent again (registration, endpoint, credential,
// tools) instead of using cached data. It returns ErrNotFound if the agent has no row.
func (s *Store) RefreshAgent(ctx context.Context, a erc8004.Agent) (err error) {
	ctx, end := s.db.StartCall(ctx, &err, "have agent %s resolved anew", a)
	defer end()
	tag, err := s.db.Conns.Exec(ctx, `UPDATE herald.agents SET epoch = epoch + 1, updated_at = now()
		WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3`, a.ChainID, a.Registry, a.ID)
	if err == nil && tag.RowsAffected() == 0 {
		err = ledger.ErrNotFound
	}
	return err
}

// setEnabled enables or disables an agent whose row tx has locked. Enabling clears failing_since, so that earlier
// failures no longer count towards alerts and automatic disabling.
func setEnabled(ctx context.Context, tx pgx.Tx, a erc8004.Agent, enabled bool) error {
	_, err := tx.Exec(ctx, `UPDATE herald.agents SET enabled = $4, updated_at = now(),
		state = CASE WHEN NOT $4 THEN 'disabled' WHEN state = 'disabled' THEN 'pending' ELSE state END,
		failing_since = CASE WHEN NOT $4 THEN failing_since END
		WHERE chain_id = $1 AND identity_registry = $2 AND agent_id = $3`, a.ChainID, a.Registry, a.ID, enabled)
	return err
}

// SetPolicy stores the fields of p in the agent's policy; fields that are empty in p keep their stored values. It
// inserts a row for an unknown agent.
func (s *Store) SetPolicy(ctx context.Context, a erc8004.Agent, p policy.Policy) (err error) {
	ctx, end := s.db.StartCall(ctx, &err, "set the policy of agent %s", a)
	defer end()
	_, err = s.db.Conns.Exec(ctx, `INSERT INTO herald.agents AS g (chain_id, identity_registry, agent_id, policy)
		VALUES ($1, $2, $3, $4)
		ON CONFLICT (chain_id, identity_registry, agent_id) DO UPDATE SET updated_at = now(),
			policy = CASE WHEN jsonb_typeof(g.policy) = 'object' THEN g.policy || excluded.policy
				ELSE excluded.policy END`,
		a.ChainID, a.Registry, a.ID, p)
	return err
}

// ReplacePolicy stores the operator's policy of an agent, or with the level policy.Own the agent's own. It inserts a
// row for an unknown agent. Events that a follower accepted before are judged again at their check.
func (s *Store) ReplacePolicy(ctx context.Context, a erc8004.Agent, level policy.Level, p policy.Policy) (err error) {
	ctx, end := s.db.StartCall(ctx, &err, "replace the policy of agent %s", a)
	defer end()
	column := "policy"
	if level == policy.Own {
		column = "own_policy"
	}
	_, err = s.db.Conns.Exec(ctx, `INSERT INTO herald.agents (chain_id, identity_registry, agent_id, `+column+`)
		VALUES ($1, $2, $3, $4)
		ON CONFLICT (chain_id, identity_registry, agent_id) DO UPDATE
		SET updated_at = now(), `+column+` = excluded.`+column,
		a.ChainID, a.Registry, a.ID, p)
	return err
}
