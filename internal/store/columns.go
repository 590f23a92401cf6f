package store

import (
	"encoding/json"
	"time"

	"github.com/agentherald/herald/internal/store/ledger"
	"github.com/agentherald/herald/internal/store/storable"
	"github.com/jackc/pgx/v5"
)

// column returns the value of each element of list. Statements have arrays as arguments, with one element per delivery.
func column[E, T any](list []E, value func(E) T) []T {
	values := make([]T, len(list))
	for i, e := range list {
		values[i] = value(e)
	}
	return values
}

// recordArgs returns the arguments of record.sql for the outcomes of group.
func recordArgs(group []recordRequest, alone bool) pgx.NamedArgs {
	type q = recordRequest
	name := func(value func(o *ledger.Outcome) string) []*string {
		return column(group, func(q q) *string { return storable.Name(value(&q.outcome)) })
	}
	text := func(limit int, value func(o *ledger.Outcome) string) []*string {
		return column(group, func(q q) *string { return storable.OrNull(storable.Text(value(&q.outcome), limit)) })
	}
	side := func(value func(o *ledger.Outcome) json.RawMessage) [][]byte {
		return column(group, func(q q) []byte { return storable.JSON(value(&q.outcome), storable.MaxSide) })
	}
	flag := func(value func(o *ledger.Outcome) bool) []bool {
		return column(group, func(q q) bool { return value(&q.outcome) })
	}
	return pgx.NamedArgs{
		"alone":          alone,
		"ids":            encodeIDs(column(group, q.deliveryID)),
		"claim_nos":      column(group, q.claimNo),
		"epochs":         column(group, func(q q) int64 { return q.claim.Epoch }),
		"hints":          column(group, func(q q) int { return q.claim.Hints }),
		"started_ats":    column(group, func(q q) time.Time { return q.startedAt }),
		"numbers":        column(group, func(q q) int { return q.attempt }),
		"durations":      column(group, func(q q) *int32 { return q.tookMs }),
		"latencies":      column(group, func(q q) *int32 { return q.outcome.LatencyPosition() }),
		"statuses":       column(group, func(q q) string { return string(q.outcome.Status) }),
		"delays":         column(group, func(q q) time.Duration { return q.outcome.Delay }),
		"stages":         column(group, func(q q) string { return storable.Text(q.outcome.Stage, storable.MaxName) }),
		"step_us":        column(group, func(q q) *string { return storable.Integers(q.outcome.StepMicros) }),
		"registrations":  column(group, func(q q) []byte { return q.outcome.Registration.Encode() }),
		"file_disagrees": column(group, func(q q) []byte { return storable.EncodedNames(q.outcome.FileDisagrees) }),

		"tasks":             flag(func(o *ledger.Outcome) bool { return o.Task }),
		"anews":             flag(func(o *ledger.Outcome) bool { return o.Anew }),
		"frees":             flag(func(o *ledger.Outcome) bool { return o.Free }),
		"called":            flag(func(o *ledger.Outcome) bool { return o.Called }),
		"fetch_failed":      flag(func(o *ledger.Outcome) bool { return o.FetchFailed }),
		"moved":             flag(func(o *ledger.Outcome) bool { return o.Moved }),
		"rechecks":          flag(func(o *ledger.Outcome) bool { return o.NeedsRecheck() }),
		"reroutes":          flag(func(o *ledger.Outcome) bool { return o.Rerouted || o.NoTurn }),
		"agent_oks":         flag(func(o *ledger.Outcome) bool { return o.AgentOK }),
		"endpoints_of_jobs": flag(func(o *ledger.Outcome) bool { return o.EndpointOfJob }),

		"reasons":            name(func(o *ledger.Outcome) string { return string(o.Reason) }),
		"tool_names":         name(func(o *ledger.Outcome) string { return o.ToolName }),
		"protocols":          name(func(o *ledger.Outcome) string { return o.Protocol }),
		"file_verifications": name(func(o *ledger.Outcome) string { return o.FileVerification }),
		"file_sources":       name(func(o *ledger.Outcome) string { return o.FileSource }),
		"errors":             text(storable.MaxError, func(o *ledger.Outcome) string { return o.Error }),
		"agent_errors":       text(storable.MaxError, func(o *ledger.Outcome) string { return o.AgentError }),
		"endpoints":          text(storable.MaxURL, func(o *ledger.Outcome) string { return o.Endpoint }),

		"arguments":    side(func(o *ledger.Outcome) json.RawMessage { return o.Arguments }),
		"responses":    side(func(o *ledger.Outcome) json.RawMessage { return o.Response }),
		"results":      side(func(o *ledger.Outcome) json.RawMessage { return o.Result }),
		"server_infos": side(func(o *ledger.Outcome) json.RawMessage { return o.ServerInfo }),
		"tools":        side(func(o *ledger.Outcome) json.RawMessage { return o.Tools }),
	}
}
