package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agentherald/herald/internal/reason"
	"github.com/agentherald/herald/internal/store/storable"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// recordRequest is one call of Record.
type recordRequest struct {
	claim   *Claim
	outcome Outcome
}

// isPlain reports whether record_group.sql, which omits the rare parts of record.sql, records the outcome in the same
// way.
func (r recordRequest) isPlain() bool {
	o := r.outcome
	switch o.Status {
	case Delivered, Skipped, Rejected, Dead, Waiting:
	default:
		return false
	}
	isRare := o.Anew || o.SkipDispatch || o.Undecided || o.Rerouted || len(o.Refuted) > 0 || o.Moved || o.FetchFailed || len(o.FileDisagrees) > 0 || o.HoldLine > 0 ||
		o.Free && !o.Called || o.Reason == reason.AgentDisabled || o.Reason == reason.AuthRequired
	return !isRare && r.claim.week != ""
}

// recordGroup records the outcomes of plain attempts and dispatches their agents' next deliveries, in one round trip
// and one commit. A request gets no answer if record_group.sql did not record it; the coalescer then calls recordAlone.
func (s *Store) recordGroup(ctx context.Context, group []recordRequest) ([]result[Recorded], error) {
	members := selectMembers(group)
	rows, week := recordColumns{}, group[members[0]].claim.week
	for _, i := range members {
		rows.appendRequest(group[i])
	}

	b := &pgx.Batch{}
	b.Queue(statement("lock_agents"), rows.chains, rows.registries, rows.agents)
	b.Queue(inWeek(statement("record_group"), week), namedStatement("record_group").args(rows.args())...)
	b.Queue(statement("dispatch_group"), namedStatement("dispatch_group").args(pgx.NamedArgs{
		"ids": rows.ids, "claim_nos": rows.claimNos, "max_dispatched": MaxDispatchedPerAgent,
		"strict": s.strict})...)
	res := &onceClosed{BatchResults: s.pool.SendBatch(ctx, b)}
	defer res.Close()
	return readRecordedGroup(res, group, members)
}

// selectMembers returns the indexes of the requests that one statement can record: those whose attempts are in the
// partition of the first one. The indexes are in the order of the deliveries' ids, in which the outcomes of one agent
// are applied.
func selectMembers(group []recordRequest) (members []int) {
	for i, r := range group {
		if r.claim.week == group[0].claim.week {
			members = append(members, i)
		}
	}
	slices.SortFunc(members, func(a, b int) int {
		x, y := group[a].claim.ID, group[b].claim.ID
		return cmp.Or(bytes.Compare(x[:], y[:]), cmp.Compare(a, b))
	})
	return members
}

// readRecordedGroup reads the answers to the batch of recordGroup, and then that of the commit. members are the indexes
// of the recorded requests in group. An agent's next tasks are distributed in turn among the callers that recorded its
// deliveries.
func readRecordedGroup(res pgx.BatchResults, group []recordRequest, members []int) ([]result[Recorded], error) {
	if _, err := res.Exec(); err != nil {
		return nil, fmt.Errorf("lock the agents: %w", err)
	}

	results, callers := make([]result[Recorded], len(group)), make(map[Agent][]int, len(members))
	var nr, n int
	var next *time.Time
	var accepted, now time.Time
	var bulk bool
	rows, _ := res.Query()
	_, err := pgx.ForEachRow(rows, []any{&nr, &n, &next, &accepted, &now, &bulk}, func() error {
		i := members[nr-1]
		r := group[i]
		rec := Recorded{Age: now.Sub(accepted)}
		rec.addWait(r.claim, r.outcome, r.claim.Attempt, n, next, bulk)
		results[i] = result[Recorded]{answer: rec, answered: true}
		callers[r.claim.Agent()] = append(callers[r.claim.Agent()], i)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("write the outcomes: %w", err)
	}

	var t Task
	var a Agent
	rows, _ = res.Query()
	_, err = pgx.ForEachRow(rows, []any{&t.ID, &t.N, &t.Kind, &t.Attempts, &t.Bulk, &a.ChainID, &a.Registry, &a.ID},
		func() error {
			turn := callers[a]
			if len(turn) == 0 {
				return errors.New("an agent was given tasks of which nothing was recorded")
			}
			rec := &results[turn[0]].answer
			rec.Next = append(rec.Next, t)
			callers[a] = append(turn[1:], turn[0])
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("dispatch the next: %w", err)
	}
	return results, res.Close() // the error of the commit
}

// inWeek returns a statement's text with the partitioned table of attempts replaced by its partition week.
func inWeek(text, week string) string {
	return strings.ReplaceAll(text, "herald.attempts\n", week+"\n")
}

// recordColumns contains the arguments of record_group.sql: one array per column, one element per request.
type recordColumns struct {
	chains             []int64
	registries, agents []string

	ids        []uuid.UUID
	claimNos   []int64
	startedAts []time.Time
	numbers    []int
	statuses   []string
	delays     []time.Duration
	tasks      []bool
	called     []bool
	ofJobs     []bool
	agentOKs   []bool
	stages     []string
	latencies  []*int32

	reasons, errors, toolNames, endpoints, protocols, stepTimes, verifications, sources, agentErrors []*string
	arguments, responses, results, serverInfos, tools, preferences                                   [][]byte
}

func (c *recordColumns) appendRequest(r recordRequest) {
	a, o := r.claim.Agent(), r.outcome
	c.chains, c.registries = append(c.chains, int64(a.ChainID)), append(c.registries, a.Registry)
	c.agents = append(c.agents, a.ID)
	c.ids, c.claimNos = append(c.ids, r.claim.ID), append(c.claimNos, r.claim.No)
	c.startedAts, c.numbers = append(c.startedAts, r.claim.StartedAt), append(c.numbers, r.claim.Attempt)

	c.statuses, c.delays = append(c.statuses, string(o.Status)), append(c.delays, o.Delay)
	c.tasks, c.called = append(c.tasks, o.Task), append(c.called, o.Called)
	c.agentOKs, c.ofJobs = append(c.agentOKs, o.AgentOK), append(c.ofJobs, o.EndpointOfJob)
	c.stages = append(c.stages, storable.Text(o.Stage, maxNameBytes))
	c.latencies = append(c.latencies, o.latencyPosition())

	c.reasons = append(c.reasons, nameOrNull(string(o.Reason)))
	c.errors = append(c.errors, nullIfEmpty(storable.Text(o.Error, maxErrorBytes)))
	c.toolNames = append(c.toolNames, nameOrNull(o.ToolName))
	c.endpoints = append(c.endpoints, nullIfEmpty(storable.Text(o.Endpoint, maxURLBytes)))
	c.protocols = append(c.protocols, nameOrNull(o.Protocol))
	c.stepTimes = append(c.stepTimes, formatStepTimes(o.StepMicros))
	c.verifications = append(c.verifications, nameOrNull(o.FileVerification))
	c.sources = append(c.sources, nameOrNull(o.FileSource))
	c.agentErrors = append(c.agentErrors, nullIfEmpty(storable.Text(o.AgentError, maxErrorBytes)))

	c.arguments = append(c.arguments, storable.JSON(o.Arguments, maxSideBytes))
	c.responses = append(c.responses, storable.JSON(o.Response, maxSideBytes))
	c.results = append(c.results, storable.JSON(o.Result, maxSideBytes))
	c.serverInfos = append(c.serverInfos, storable.JSON(o.ServerInfo, maxSideBytes))
	c.tools = append(c.tools, storable.JSON(o.Tools, maxSideBytes))
	c.preferences = append(c.preferences, o.Preferences.encodeJSON())
}

func (c *recordColumns) args() pgx.NamedArgs {
	return pgx.NamedArgs{
		"ids": c.ids, "claim_nos": c.claimNos, "started_ats": c.startedAts, "numbers": c.numbers,
		"statuses": c.statuses, "reasons": c.reasons, "delays": c.delays, "tasks": c.tasks, "called": c.called, "endpoints_of_jobs": c.ofJobs,
		"stages": c.stages, "errors": c.errors, "tool_names": c.toolNames, "endpoints": c.endpoints,
		"protocols": c.protocols, "step_us": c.stepTimes, "file_verifications": c.verifications, "file_sources": c.sources,
		"arguments": c.arguments, "responses": c.responses, "results": c.results,
		"agent_oks": c.agentOKs, "agent_errors": c.agentErrors, "latencies": c.latencies, "server_infos": c.serverInfos, "tools": c.tools,
		"preferences": c.preferences}
}

// formatStepTimes returns the text of an integer[], or nil for nil. The arrays of a group are passed as text, because
// Postgres has no arrays of arrays with different lengths.
func formatStepTimes(micros []int32) *string {
	if micros == nil {
		return nil
	}
	text := make([]byte, 0, 2+8*len(micros))
	text = append(text, '{')
	for i, us := range micros {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, int64(us), 10)
	}
	out := string(append(text, '}'))
	return &out
}
