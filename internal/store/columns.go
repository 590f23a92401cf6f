package store

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/agentherald/herald/internal/store/storable"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// recordColumns contains the arguments of record.sql: one array per column, one element per request.
type recordColumns struct {
	chains             []int64
	registries, agents []string

	ids                                                               []uuid.UUID
	claimNos, epochs                                                  []int64
	startedAts                                                        []time.Time
	numbers, hints                                                    []int
	statuses, stages                                                  []string
	delays                                                            []time.Duration
	tasks, anews, frees, called, fetchFailed, moved, ofJobs, agentOKs []bool
	rechecks, reroutes                                                []bool
	durations, latencies                                              []*int32

	reasons, errors, toolNames, endpoints, protocols, stepTimes, verifications, sources, agentErrors []*string
	disagrees, arguments, responses, results, serverInfos, tools, registrations                      [][]byte
}

func (c *recordColumns) appendRequest(q recordRequest) {
	a, o := q.claim.Agent(), q.outcome
	c.chains, c.registries = append(c.chains, int64(a.ChainID)), append(c.registries, a.Registry)
	c.agents = append(c.agents, a.ID)
	c.ids, c.claimNos = append(c.ids, q.claim.ID), append(c.claimNos, q.claim.No)
	c.startedAts, c.numbers = append(c.startedAts, q.startedAt), append(c.numbers, q.attempt)
	c.durations = append(c.durations, q.tookMs)
	c.epochs, c.hints = append(c.epochs, q.claim.Epoch), append(c.hints, q.claim.Hints)

	c.statuses, c.delays = append(c.statuses, string(o.Status)), append(c.delays, o.Delay)
	c.tasks, c.anews, c.frees = append(c.tasks, o.Task), append(c.anews, o.Anew), append(c.frees, o.Free)
	c.called, c.fetchFailed = append(c.called, o.Called), append(c.fetchFailed, o.FetchFailed)
	c.moved = append(c.moved, o.Moved)
	c.rechecks, c.reroutes = append(c.rechecks, o.needsRecheck()), append(c.reroutes, o.Rerouted || o.NoTurn)
	c.agentOKs, c.ofJobs = append(c.agentOKs, o.AgentOK), append(c.ofJobs, o.EndpointOfJob)
	c.stages = append(c.stages, storable.Text(o.Stage, storable.MaxName))
	c.latencies = append(c.latencies, o.latencyPosition())

	c.reasons = append(c.reasons, storable.Name(string(o.Reason)))
	c.errors = append(c.errors, storable.OrNull(storable.Text(o.Error, storable.MaxError)))
	c.toolNames = append(c.toolNames, storable.Name(o.ToolName))
	c.endpoints = append(c.endpoints, storable.OrNull(storable.Text(o.Endpoint, storable.MaxURL)))
	c.protocols = append(c.protocols, storable.Name(o.Protocol))
	c.stepTimes = append(c.stepTimes, formatStepTimes(o.StepMicros))
	c.verifications = append(c.verifications, storable.Name(o.FileVerification))
	c.sources = append(c.sources, storable.Name(o.FileSource))
	c.agentErrors = append(c.agentErrors, storable.OrNull(storable.Text(o.AgentError, storable.MaxError)))

	var disagrees []byte
	if names := boundNames(o.FileDisagrees); names != nil {
		disagrees, _ = json.Marshal(names) // strings cannot fail
	}
	c.disagrees = append(c.disagrees, disagrees)
	c.arguments = append(c.arguments, storable.JSON(o.Arguments, storable.MaxSide))
	c.responses = append(c.responses, storable.JSON(o.Response, storable.MaxSide))
	c.results = append(c.results, storable.JSON(o.Result, storable.MaxSide))
	c.serverInfos = append(c.serverInfos, storable.JSON(o.ServerInfo, storable.MaxSide))
	c.tools = append(c.tools, storable.JSON(o.Tools, storable.MaxSide))
	c.registrations = append(c.registrations, o.Registration.encode())
}

// queueRecords adds record.sql to the batch b. alone is its argument @alone.
func (c *recordColumns) queueRecords(b *pgx.Batch, alone bool) {
	b.Queue(statements.Text("record"), statements.Named("record").Args(c.listArgs(alone))...)
}

// queueDispatch queues dispatch.sql for the agents of the recorded claims.
func (c *recordColumns) queueDispatch(b *pgx.Batch) {
	b.Queue(statements.Text("dispatch"),
		statements.Named("dispatch").Args(dispatchArgs(c.chains, c.registries, c.agents, c.ids, c.claimNos))...)
}

func (c *recordColumns) listArgs(alone bool) pgx.NamedArgs {
	return pgx.NamedArgs{"alone": alone,
		"ids": encodeIDs(c.ids), "claim_nos": c.claimNos, "started_ats": c.startedAts, "numbers": c.numbers,
		"durations": c.durations, "statuses": c.statuses, "reasons": c.reasons, "delays": c.delays,
		"tasks": c.tasks, "anews": c.anews, "frees": c.frees, "called": c.called, "fetch_failed": c.fetchFailed,
		"moved": c.moved, "epochs": c.epochs, "endpoints_of_jobs": c.ofJobs, "rechecks": c.rechecks,
		"reroutes": c.reroutes, "hints": c.hints, "stages": c.stages, "errors": c.errors, "tool_names": c.toolNames,
		"endpoints": c.endpoints, "protocols": c.protocols, "step_us": c.stepTimes,
		"file_verifications": c.verifications, "file_sources": c.sources, "file_disagrees": c.disagrees,
		"arguments": c.arguments, "responses": c.responses, "results": c.results, "agent_oks": c.agentOKs,
		"agent_errors": c.agentErrors, "latencies": c.latencies, "server_infos": c.serverInfos, "tools": c.tools,
		"registrations": c.registrations}
}

// formatStepTimes returns the times as the text of a Postgres integer[], or nil for nil. record.sql gets the arrays of
// a group as texts, because Postgres has no array of arrays with different lengths.
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

// boundNames returns the first maxNames of list in storable form, each cut to storable.MaxName.
func boundNames(list []string) []string {
	var out []string
	for _, s := range list[:min(len(list), maxNames)] {
		out = append(out, storable.Text(s, storable.MaxName))
	}
	return out
}

// maxNames limits the number of names in a list.
const maxNames = 16

// columns has the arguments of accept.sql: parallel slices with one element per new delivery.
type columns struct {
	ids                  []uuid.UUID
	keys, kinds          []string
	chains               []int64
	registries, agents   []string
	orderKeys, orderSeqs []string
	jobs, headers        [][]byte
	refusals, filters    []*string
	bulks                []bool
	traceparents         []*string
	sources              []string
	trusts               []int
	bound                bool // arrival.read; it has the same value for all new deliveries
}

// appendArrival appends the values of one new delivery to the slices. The delivery has this id and the contents of a.
func (c *columns) appendArrival(a arrival, id uuid.UUID) {
	c.ids, c.keys, c.kinds = append(c.ids, id), append(c.keys, a.key), append(c.kinds, a.kind)
	c.chains = append(c.chains, int64(a.agent.ChainID))
	c.registries, c.agents = append(c.registries, a.agent.Registry), append(c.agents, a.agent.ID)
	c.orderKeys, c.orderSeqs = append(c.orderKeys, a.Job.OrderKey()), append(c.orderSeqs, fmt.Sprint(a.Job.OrderSeq()))
	c.jobs, c.headers, c.refusals = append(c.jobs, a.raw), append(c.headers, a.SealedHeaders),
		append(c.refusals, storable.OrNull(a.Refused))
	c.filters = append(c.filters, storable.OrNull(a.Filtered))
	c.bulks, c.traceparents = append(c.bulks, a.Bulk), append(c.traceparents, storable.OrNull(a.Traceparent))
	c.sources, c.trusts, c.bound = append(c.sources, a.Source.Name), append(c.trusts, int(a.Source.Trust)), a.read
}
